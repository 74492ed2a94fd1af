//! Buffers of the core's pool that one client's replies have borrowed: from before the read until the reply is sent.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use seam::{BLOCK_BYTES, Seam};

use crate::Clients;
use crate::budget::QueuePosition;

/// Bytes of the buffers that hold the range.
pub fn buffer_bytes(offset: u64, len: usize) -> usize {
    (offset as usize % BLOCK_BYTES + len).next_multiple_of(BLOCK_BYTES)
}

/// Buffers lent to one client.
pub struct BufferAccount {
    clients: Rc<Clients>,
    lent_bytes: Cell<usize>,
    /// Part of the lent bytes that queued replies hold.
    queued_bytes: Cell<usize>,
    /// True once the client has received a reply that held borrowed buffers.
    has_received_reply: Cell<bool>,
    /// True once nothing more is sent.
    ended: Cell<bool>,
    /// Wakers of tasks that wait for buffers.
    waiting: RefCell<Vec<Waker>>,
}

impl BufferAccount {
    /// The account of a new client, without loans.
    pub fn new(clients: &Rc<Clients>) -> BufferAccount {
        BufferAccount {
            clients: Rc::clone(clients),
            lent_bytes: Default::default(),
            queued_bytes: Default::default(),
            has_received_reply: Default::default(),
            ended: Default::default(),
            waiting: Default::default(),
        }
    }

    /// Borrows `bytes` of buffers if that needs no waiting. The caller passes them to a reply or gives them back.
    pub fn borrow_now(&self, bytes: usize) -> bool {
        self.try_borrow(bytes, None)
    }

    /// Like [`BufferAccount::borrow_now`], but only within the client's quota: for buffers that the client may hold for
    /// long.
    pub fn borrow_within_quota(&self, bytes: usize) -> bool {
        self.lent_bytes.get() + bytes <= self.clients.client_quota_bytes() && self.borrow_now(bytes)
    }

    fn try_borrow(&self, bytes: usize, position: Option<&QueuePosition<'_>>) -> bool {
        let (held, quota) = (self.lent_bytes.get(), self.clients.client_quota_bytes());
        let is_lent = self.clients.budget.lend(bytes, held, quota, position);
        if is_lent {
            self.lent_bytes.set(held + bytes);
        }
        is_lent
    }

    /// Waits until `bytes` of buffers can be borrowed. Returns `None` once nothing more is sent or `is_wanted` is
    /// false.
    pub async fn borrow<S: Seam>(&self, seam: &S, bytes: usize, is_wanted: impl Fn() -> bool) -> Option<Loan<'_>> {
        let mut position = QueuePosition::new(&self.clients.budget, !self.has_received_reply.get());
        poll_fn(|context| {
            if self.ended.get() || !is_wanted() {
                return Poll::Ready(None);
            }
            if self.try_borrow(bytes, Some(&position)) {
                return Poll::Ready(Some(Loan { account: self, bytes }));
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            // A client whose own replies hold buffers does not block the queue.
            if self.lent_bytes.get() == 0 {
                position.enqueue(context.waker());
                self.clients.watch_for_stalls(seam);
            } else {
                position.dequeue();
            }
            Poll::Pending
        })
        .await
    }

    /// Returns `bytes` to the budget.
    pub fn release(&self, bytes: usize) {
        if bytes > 0 {
            let borrowed = self.lent_bytes.get().checked_sub(bytes).expect("returned bytes were borrowed");
            self.lent_bytes.set(borrowed);
            self.clients.budget.return_bytes(bytes);
            self.wake_waiting();
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
    pub fn record_sent(&self, bytes: usize, succeeded: bool) {
        self.queued_bytes.set(self.queued_bytes.get().checked_sub(bytes).expect("sent bytes were queued"));
        self.release(bytes);
        self.has_received_reply.set(self.has_received_reply.get() || succeeded && bytes > 0);
    }

    /// Records that nothing is queued or sent any more.
    pub fn end(&self) {
        self.ended.set(true);
        self.release(self.queued_bytes.take());
        self.wake_waiting();
    }

    /// True once nothing more is sent.
    pub fn has_ended(&self) -> bool {
        self.ended.get()
    }

    /// Wakes the tasks that wait for buffers.
    pub fn wake_waiting(&self) {
        self.waiting.borrow_mut().drain(..).for_each(|waker| waker.wake());
    }
}

/// Guard of borrowed buffers for the reply to a read; dropping it returns them.
pub struct Loan<'a> {
    account: &'a BufferAccount,
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
        self.account.release(self.bytes);
    }
}
