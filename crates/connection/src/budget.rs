//! Budget of the pool buffers that replies of a core hold: at most a quarter of the pool.
//!
//! A reply's data stay in pool buffers until the socket has accepted them, and the client decides when. Buffers are
//! therefore lent. A loan covers the full length of a read and is made before the read begins. Otherwise two reads that
//! each hold half of their buffers would deadlock. Half of the budget is split evenly, and a loan within the
//! connection's share never waits for other clients. The other half is for longer reads: one a connection, first come,
//! first served. Clients that have received a reply before go first.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::task::Waker;

/// Limit, lent bytes, and the line of waiting clients.
pub(crate) struct Budget {
    limit_bytes: usize,
    lent_bytes: Cell<usize>,
    line: RefCell<BTreeMap<(bool, u64), Waker>>,
    next: Cell<u64>,
}

impl Budget {
    /// A budget for a core with a pool of that size.
    pub(crate) fn new(pool_bytes: usize) -> Budget {
        Budget { limit_bytes: pool_bytes / 4, lent_bytes: Cell::new(0), line: RefCell::default(), next: Cell::new(0) }
    }

    /// Bytes that each of so many connections may borrow without waiting for others.
    pub(crate) fn share_bytes(&self, connections: usize) -> usize {
        self.limit_bytes / 2 / connections.max(1)
    }

    /// Lends `bytes` to a connection that already holds `held` bytes of a share of `share`; returns false if it must
    /// wait. Past the share, only a connection without loans that is first in line gets a loan. One loan is always
    /// possible, however small the pool.
    pub(crate) fn lend(&self, bytes: usize, held: usize, share: usize, place: Option<&Place<'_>>) -> bool {
        let lent = self.lent_bytes.get();
        let within_share = held + bytes <= share && lent + bytes <= self.limit_bytes;
        let past_it = || held == 0 && self.is_first(place) && (lent == 0 || lent + bytes <= self.limit_bytes / 2);
        let lends = within_share || past_it();
        if lends {
            self.lent_bytes.set(lent + bytes);
        }
        lends
    }

    /// Takes lent bytes back.
    pub(crate) fn take_back(&self, bytes: usize) {
        let lent = self.lent_bytes.get().checked_sub(bytes).expect("returned bytes were lent");
        self.lent_bytes.set(lent);
        self.call_first();
    }

    /// True while a client waits in line.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.line.borrow().is_empty()
    }

    fn is_first(&self, place: Option<&Place<'_>>) -> bool {
        let line = self.line.borrow();
        line.keys().next().is_none_or(|first| place.and_then(|place| place.number) == Some(*first))
    }

    fn call_first(&self) {
        if let Some(first) = self.line.borrow().values().next() {
            first.wake_by_ref();
        }
    }
}

/// A place in line; dropping it leaves the line.
pub(crate) struct Place<'a> {
    budget: &'a Budget,
    number: Option<(bool, u64)>,
    /// True for a client that has never received a reply: it stands behind all others.
    is_new: bool,
}

impl<'a> Place<'a> {
    /// A place that is not in line yet. `is_new`: the client has never received a reply.
    pub(crate) fn new(budget: &'a Budget, is_new: bool) -> Place<'a> {
        Place { budget, number: None, is_new }
    }

    /// Joins the end of the line, or keeps the place in it.
    pub(crate) fn stand(&mut self, waker: &Waker) {
        let next = || (self.is_new, self.budget.next.replace(self.budget.next.get() + 1));
        let number = *self.number.get_or_insert_with(next);
        self.budget.line.borrow_mut().insert(number, waker.clone());
    }

    /// Leaves the line and wakes the next in it.
    pub(crate) fn leave(&mut self) {
        if let Some(number) = self.number.take() {
            self.budget.line.borrow_mut().remove(&number);
            self.budget.call_first();
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
