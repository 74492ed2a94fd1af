//! Buffers that replies hold, of all connections of a core together: never more than a quarter of the pool.
//!
//! A reply's data lie in the pool's buffers until the socket has taken them, and a client decides when that is. So they are lent:
//! before a read begins, for its full length, or two reads that each hold half of what they need would wait for each other. Half
//! of the budget is split evenly: what stays within its connection's share waits for nobody. The other half is for reads that are
//! longer than the share, one a connection, first come, first served; but whoever has taken an answer before goes before those who never
//! have.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::task::Waker;

/// What may be lent, what is, and who waits in line for it.
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

    /// What one of so many connections is lent without waiting for others.
    pub(crate) fn share_bytes(&self, connections: usize) -> usize {
        self.limit_bytes / 2 / connections.max(1)
    }

    /// Lends `bytes` to a connection that has `held` already and a share of `share`, or says no. Past the share, only whoever holds
    /// nothing is lent anything, when nobody is before it in line. One loan is always possible, however small the pool is.
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

    /// Takes back what was lent.
    pub(crate) fn take_back(&self, bytes: usize) {
        let lent = self.lent_bytes.get().checked_sub(bytes).expect("what comes back was lent");
        self.lent_bytes.set(lent);
        self.call_first();
    }

    /// True while somebody is in line.
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

/// A place in line, once it is taken; leaves the line when dropped.
pub(crate) struct Place<'a> {
    budget: &'a Budget,
    number: Option<(bool, u64)>,
    /// Stands behind those who have taken an answer before.
    is_new: bool,
}

impl<'a> Place<'a> {
    /// Not in line yet. `is_new`: whoever it is for has never taken an answer.
    pub(crate) fn new(budget: &'a Budget, is_new: bool) -> Place<'a> {
        Place { budget, number: None, is_new }
    }

    /// Stands in line, at the end of it unless it does already.
    pub(crate) fn stand(&mut self, waker: &Waker) {
        let next = || (self.is_new, self.budget.next.replace(self.budget.next.get() + 1));
        let number = *self.number.get_or_insert_with(next);
        self.budget.line.borrow_mut().insert(number, waker.clone());
    }

    /// Leaves the line to those behind.
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
