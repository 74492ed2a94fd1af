//! What a client's replies have borrowed of the core's buffers, from before they are read until they are sent.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use seam::{BLOCK_BYTES, Seam};

use crate::Clients;
use crate::budget::Place;

/// Bytes of the buffers that a range lies in.
pub fn buffer_bytes(offset: u64, len: usize) -> usize {
    (offset as usize % BLOCK_BYTES + len).next_multiple_of(BLOCK_BYTES)
}

/// What one client has borrowed.
pub struct Account {
    clients: Rc<Clients>,
    lent_bytes: Cell<usize>,
    /// The part of it that queued replies hold.
    queued_bytes: Cell<usize>,
    /// The client has taken an answer that was made of borrowed buffers.
    has_taken: Cell<bool>,
    /// Nothing is sent any more.
    ended: Cell<bool>,
    /// Tasks that wait for room.
    room: RefCell<Vec<Waker>>,
}

impl Account {
    /// Of a client that has borrowed nothing.
    pub fn new(clients: &Rc<Clients>) -> Account {
        let (lent_bytes, queued_bytes, has_taken, ended, room) = Default::default();
        Account { clients: Rc::clone(clients), lent_bytes, queued_bytes, has_taken, ended, room }
    }

    /// Borrows `bytes` of buffers if that needs no waiting. Who gets them gives them to a reply or back.
    pub fn borrow_now(&self, bytes: usize) -> bool {
        self.borrow_at(bytes, None)
    }

    /// As [`Account::borrow_now`], within the client's share alone: for what it may take its time with.
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

    /// Borrows `bytes` of buffers as soon as they may be had; `None` when nothing is sent any more, or nobody `wants` them.
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
            // Whose own replies hold it up keeps nobody else from his turn.
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

    /// Gives back what was borrowed.
    pub fn give_back(&self, bytes: usize) {
        if bytes > 0 {
            let left = self.lent_bytes.get().checked_sub(bytes).expect("what is given back was borrowed");
            self.lent_bytes.set(left);
            self.clients.budget.take_back(bytes);
            self.release_room();
        }
    }

    /// A queued reply holds `bytes` of what was borrowed.
    pub fn queue(&self, bytes: usize) {
        self.queued_bytes.set(self.queued_bytes.get() + bytes);
    }

    /// What queued replies hold.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes.get()
    }

    /// Replies that held `bytes` are no longer queued, and the client has taken them if the send `succeeded`.
    pub fn sent(&self, bytes: usize, succeeded: bool) {
        self.queued_bytes.set(self.queued_bytes.get().checked_sub(bytes).expect("what was sent was queued"));
        self.give_back(bytes);
        self.has_taken.set(self.has_taken.get() || succeeded && bytes > 0);
    }

    /// Nothing is sent any more, and nothing is queued.
    pub fn end(&self) {
        self.ended.set(true);
        self.give_back(self.queued_bytes.take());
        self.release_room();
    }

    /// True when nothing is sent any more.
    pub fn has_ended(&self) -> bool {
        self.ended.get()
    }

    /// Wakes the tasks that wait for room.
    pub fn release_room(&self) {
        self.room.borrow_mut().drain(..).for_each(|waker| waker.wake());
    }
}

/// Buffers that the answer to a read may fill; given back when dropped.
pub struct Loan<'a> {
    account: &'a Account,
    bytes: usize,
}

impl Loan<'_> {
    /// Lets the queued reply have it.
    pub fn into_bytes(mut self) -> usize {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        self.account.give_back(self.bytes);
    }
}
