//! Buffers of the core's pool that one client's replies have borrowed: from before the read until the reply is sent.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use seam::{BLOCK_BYTES, Seam};

use crate::Clients;
use crate::budget::Place;

/// Bytes of the buffers that hold the range.
pub fn buffer_bytes(offset: u64, len: usize) -> usize {
    (offset as usize % BLOCK_BYTES + len).next_multiple_of(BLOCK_BYTES)
}

/// Loans of one client.
pub struct Account {
    clients: Rc<Clients>,
    lent_bytes: Cell<usize>,
    /// Part of the lent bytes that queued replies hold.
    queued_bytes: Cell<usize>,
    /// True once the client has received a reply that held borrowed buffers.
    has_taken: Cell<bool>,
    /// True once nothing is sent any more.
    ended: Cell<bool>,
    /// Wakers of tasks that wait for room.
    room: RefCell<Vec<Waker>>,
}

impl Account {
    /// The account of a new client, without loans.
    pub fn new(clients: &Rc<Clients>) -> Account {
        let (lent_bytes, queued_bytes, has_taken, ended, room) = Default::default();
        Account { clients: Rc::clone(clients), lent_bytes, queued_bytes, has_taken, ended, room }
    }

    /// Borrows `bytes` of buffers if that needs no waiting. The caller passes them to a reply or gives them back.
    pub fn borrow_now(&self, bytes: usize) -> bool {
        self.borrow_at(bytes, None)
    }

    /// As [`Account::borrow_now`], within the client's share alone: for buffers that the client may hold for long.
    pub fn borrow_of_share(&self, bytes: usize) -> bool {
        self.lent_bytes.get() + bytes <= self.clients.share_bytes() && self.borrow_now(bytes)
    }

    fn borrow_at(&self, bytes: usize, place: Option<&Place<'_>>) -> bool {
        let (held, share) = (self.lent_bytes.get(), self.clients.share_bytes());
        let lends = self.clients.budget.lend(bytes, held, share, place);
        if lends {
            self.lent_bytes.set(held + bytes);
        }
        lends
    }

    /// Waits until `bytes` of buffers can be borrowed. Returns `None` once nothing is sent any more or `wants` is
    /// false.
    pub async fn borrow<S: Seam>(&self, seam: &S, bytes: usize, wants: impl Fn() -> bool) -> Option<Loan<'_>> {
        let mut place = Place::new(&self.clients.budget, !self.has_taken.get());
        poll_fn(|context| {
            if self.ended.get() || !wants() {
                return Poll::Ready(None);
            }
            if self.borrow_at(bytes, Some(&place)) {
                return Poll::Ready(Some(Loan { account: self, bytes }));
            }
            let mut room = self.room.borrow_mut();
            if !room.iter().any(|waker| waker.will_wake(context.waker())) {
                room.push(context.waker().clone());
            }
            // A client whose own replies hold the buffers does not block the line.
            if self.lent_bytes.get() == 0 {
                place.stand(context.waker());
                self.clients.watch(seam);
            } else {
                place.leave();
            }
            Poll::Pending
        })
        .await
    }

    /// Returns `bytes` to the budget.
    pub fn give_back(&self, bytes: usize) {
        if bytes > 0 {
            let left = self.lent_bytes.get().checked_sub(bytes).expect("returned bytes were borrowed");
            self.lent_bytes.set(left);
            self.clients.budget.take_back(bytes);
            self.release_room();
        }
    }

    /// Records that a queued reply holds `bytes` of the loans.
    pub fn queue(&self, bytes: usize) {
        self.queued_bytes.set(self.queued_bytes.get() + bytes);
    }

    /// Borrowed bytes that queued replies hold.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes.get()
    }

    /// Records that replies with `bytes` of loans have left the queue; the client has received them if the send
    /// `succeeded`.
    pub fn sent(&self, bytes: usize, succeeded: bool) {
        self.queued_bytes.set(self.queued_bytes.get().checked_sub(bytes).expect("sent bytes were queued"));
        self.give_back(bytes);
        self.has_taken.set(self.has_taken.get() || succeeded && bytes > 0);
    }

    /// Records that nothing is queued or sent any more.
    pub fn end(&self) {
        self.ended.set(true);
        self.give_back(self.queued_bytes.take());
        self.release_room();
    }

    /// True once nothing is sent any more.
    pub fn has_ended(&self) -> bool {
        self.ended.get()
    }

    /// Wakes the tasks that wait for room.
    pub fn release_room(&self) {
        self.room.borrow_mut().drain(..).for_each(|waker| waker.wake());
    }
}

/// Guard of borrowed buffers for the reply to a read; dropping it returns them.
pub struct Loan<'a> {
    account: &'a Account,
    bytes: usize,
}

impl Loan<'_> {
    /// Passes the loan to a queued reply.
    pub fn into_bytes(mut self) -> usize {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        self.account.give_back(self.bytes);
    }
}
