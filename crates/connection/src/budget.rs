//! Budget of the pool buffers that replies of a core hold: at most a quarter of the pool.
//!
//! A reply's data stay in pool buffers until the socket has accepted them, and the client decides when. Buffers are
//! therefore lent. A loan covers the full length of a read and is made before the read begins. Otherwise two reads that
//! each hold half of their buffers would deadlock. Half of the budget is split evenly, and a loan within the
//! connection's quota never waits for other clients. The other half is for longer reads: one per connection, first
//! come, first served. Clients that have received a reply before go first.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::task::Waker;

/// Limit, lent bytes, and the queue of waiting clients.
pub(crate) struct Budget {
    limit_bytes: usize,
    lent_bytes: Cell<usize>,
    /// Wakers of the waiting clients, in order: clients that have received a reply (`false`), then new ones, each group
    /// by queue number.
    queue: RefCell<BTreeMap<(bool, u64), Waker>>,
    next_number: Cell<u64>,
}

impl Budget {
    /// A budget for a core with a pool of `pool_bytes`.
    pub(crate) fn new(pool_bytes: usize) -> Budget {
        Budget {
            limit_bytes: pool_bytes / 4,
            lent_bytes: Cell::new(0),
            queue: RefCell::default(),
            next_number: Cell::new(0),
        }
    }

    /// Bytes that each of `connections` may borrow without waiting for others.
    pub(crate) fn client_quota_bytes(&self, connections: usize) -> usize {
        self.limit_bytes / 2 / connections.max(1)
    }

    /// Lends `bytes` to a connection that already holds `held` bytes of its `quota`; returns false if it must wait.
    /// Beyond the quota, only a connection without loans that is first in the queue gets a loan. One loan is always
    /// possible, however small the pool.
    pub(crate) fn lend(&self, bytes: usize, held: usize, quota: usize, position: Option<&QueuePosition<'_>>) -> bool {
        let lent = self.lent_bytes.get();
        let within_quota = held + bytes <= quota && lent + bytes <= self.limit_bytes;
        let beyond_quota =
            || held == 0 && self.is_first(position) && (lent == 0 || lent + bytes <= self.limit_bytes / 2);
        let is_lent = within_quota || beyond_quota();
        if is_lent {
            self.lent_bytes.set(lent + bytes);
        }
        is_lent
    }

    /// Returns lent bytes to the budget.
    pub(crate) fn return_bytes(&self, bytes: usize) {
        let lent = self.lent_bytes.get().checked_sub(bytes).expect("returned bytes were lent");
        self.lent_bytes.set(lent);
        self.wake_first();
    }

    /// True while a client is queued.
    pub(crate) fn has_waiting_clients(&self) -> bool {
        !self.queue.borrow().is_empty()
    }

    fn is_first(&self, position: Option<&QueuePosition<'_>>) -> bool {
        let queue = self.queue.borrow();
        queue.keys().next().is_none_or(|first| position.and_then(|position| position.number) == Some(*first))
    }

    fn wake_first(&self) {
        if let Some(first) = self.queue.borrow().values().next() {
            first.wake_by_ref();
        }
    }
}

/// A position in the queue; dropping it leaves the queue.
pub(crate) struct QueuePosition<'a> {
    budget: &'a Budget,
    number: Option<(bool, u64)>,
    /// True for a client that has never received a reply: it is queued behind all others.
    is_new: bool,
}

impl<'a> QueuePosition<'a> {
    /// A position outside the queue. `is_new`: the client has never received a reply.
    pub(crate) fn new(budget: &'a Budget, is_new: bool) -> QueuePosition<'a> {
        QueuePosition { budget, number: None, is_new }
    }

    /// Joins the end of the queue, or keeps the position in it.
    pub(crate) fn enqueue(&mut self, waker: &Waker) {
        let new_number = || (self.is_new, self.budget.next_number.replace(self.budget.next_number.get() + 1));
        let number = *self.number.get_or_insert_with(new_number);
        self.budget.queue.borrow_mut().insert(number, waker.clone());
    }

    /// Leaves the queue and wakes the first client in it.
    pub(crate) fn dequeue(&mut self) {
        if let Some(number) = self.number.take() {
            self.budget.queue.borrow_mut().remove(&number);
            self.budget.wake_first();
        }
    }
}

impl Drop for QueuePosition<'_> {
    fn drop(&mut self) {
        self.dequeue();
    }
}
