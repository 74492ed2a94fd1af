//! Range locks of a volume's writes. Plain writes share a range. An operation that reads before it writes (COMPARE AND
//! WRITE, a write of a part of a sector) locks its range exclusively. No other write then comes between its read and
//! its write.
//!
//! Requests queue in order. A range is granted when no earlier entry, granted or waiting, overlaps it while one of both
//! is exclusive. No request starves, and a granted lock is never revoked.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Range;
use std::task::{Poll, Waker};

/// The locked ranges and the waiting ones. `T` is a position in a unit of the caller's choice (bytes, blocks).
#[derive(Default)]
pub struct RangeLocks<T> {
    queue: RefCell<BTreeMap<u64, Entry<T>>>,
    /// Number of exclusive entries; at zero, no request has to search the queue.
    exclusive_entries: Cell<usize>,
    next_entry_number: Cell<u64>,
}

/// A range that is locked or waits for its lock.
struct Entry<T> {
    range: Range<T>,
    is_exclusive: bool,
    waker: Option<Waker>,
}

impl<T: Copy + Ord> RangeLocks<T> {
    /// True if a write of this range would not wait.
    pub fn is_free(&self, range: &Range<T>) -> bool {
        !self.is_blocked(u64::MAX, range, false)
    }

    /// Waits for a shared lock: the range may be written beside other writes.
    pub async fn lock_shared(&self, range: Range<T>) -> Guard<'_, T> {
        self.enter(range, false).await
    }

    /// Waits for an exclusive lock: no other write overlaps the range.
    pub async fn lock_exclusive(&self, range: Range<T>) -> Guard<'_, T> {
        self.enter(range, true).await
    }

    /// Queues a range and waits until it is granted.
    async fn enter(&self, range: Range<T>, is_exclusive: bool) -> Guard<'_, T> {
        let number = self.next_entry_number.get();
        self.next_entry_number.set(number + 1);
        self.exclusive_entries.set(self.exclusive_entries.get() + usize::from(is_exclusive));
        self.queue.borrow_mut().insert(number, Entry { range: range.clone(), is_exclusive, waker: None });
        // The guard removes the entry even if the caller stops waiting.
        let guard = Guard { locks: self, entry_number: number };
        poll_fn(|context| {
            if !self.is_blocked(number, &range, is_exclusive) {
                return Poll::Ready(());
            }
            let mut queue = self.queue.borrow_mut();
            queue.get_mut(&number).expect("the guard removes the entry").waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
        guard
    }

    /// True if an entry before `number` conflicts with the range.
    fn is_blocked(&self, number: u64, range: &Range<T>, is_exclusive: bool) -> bool {
        if self.exclusive_entries.get() == 0 {
            return false;
        }
        let queue = self.queue.borrow();
        queue
            .range(..number)
            .any(|(_, before)| (before.is_exclusive || is_exclusive) && are_overlapping(&before.range, range))
    }
}

fn are_overlapping<T: Ord>(left: &Range<T>, right: &Range<T>) -> bool {
    left.start < right.end && right.start < left.end
}

/// A lock that is granted or waits in the queue; dropping it releases the range.
pub struct Guard<'a, T: Copy + Ord> {
    locks: &'a RangeLocks<T>,
    entry_number: u64,
}

impl<T: Copy + Ord> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        let mut queue = self.locks.queue.borrow_mut();
        let released = queue.remove(&self.entry_number).expect("a guard has one entry");
        if released.is_exclusive {
            self.locks.exclusive_entries.set(self.locks.exclusive_entries.get() - 1);
        }
        for (_, after) in queue.range_mut(self.entry_number..) {
            if are_overlapping(&after.range, &released.range)
                && let Some(waker) = after.waker.take()
            {
                waker.wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::Context;

    use super::*;

    fn poll_once<'a>(future: Pin<&mut (impl Future<Output = Guard<'a, u64>> + 'a)>) -> Option<Guard<'a, u64>> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(guard) => Some(guard),
            Poll::Pending => None,
        }
    }

    #[test]
    fn exclusive_range_waits_for_the_writes_it_overlaps() {
        let locks = RangeLocks::default();
        let first = poll_once(pin!(locks.lock_shared(0..10))).expect("no other entry");
        let second = poll_once(pin!(locks.lock_shared(5..15))).expect("shared with the first");
        assert!(poll_once(pin!(locks.lock_exclusive(20..30))).is_some());
        let mut exclusive = pin!(locks.lock_exclusive(8..9));
        assert!(poll_once(exclusive.as_mut()).is_none());
        drop(first);
        assert!(poll_once(exclusive.as_mut()).is_none());
        drop(second);
        assert!(poll_once(exclusive.as_mut()).is_some());
    }

    #[test]
    fn write_does_not_overtake_a_waiting_exclusive_range() {
        let locks = RangeLocks::default();
        let first = poll_once(pin!(locks.lock_shared(0..10))).expect("no other entry");
        {
            let mut exclusive = pin!(locks.lock_exclusive(0..10));
            assert!(poll_once(exclusive.as_mut()).is_none() && !locks.is_free(&(3..4)) && locks.is_free(&(10..11)));
            let mut late = pin!(locks.lock_shared(3..4));
            assert!(poll_once(late.as_mut()).is_none());
            drop(first);
            let lock = poll_once(exclusive.as_mut()).expect("first in the queue");
            assert!(poll_once(late.as_mut()).is_none());
            drop(lock);
            assert!(poll_once(late.as_mut()).is_some());
        }
        assert!(locks.queue.borrow().is_empty() && locks.is_free(&(0..10)));
    }

    #[test]
    fn abandoned_wait_holds_up_no_write() {
        let locks = RangeLocks::default();
        let first = poll_once(pin!(locks.lock_shared(0..10))).expect("no other entry");
        {
            assert!(poll_once(pin!(locks.lock_exclusive(0..10))).is_none());
        }
        assert!(poll_once(pin!(locks.lock_shared(0..10))).is_some());
        drop(first);
    }
}
