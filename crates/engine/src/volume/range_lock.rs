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

/// The locked ranges and the waiting ones, in units of the caller's choice (bytes, blocks).
#[derive(Default)]
pub struct RangeLocks {
    line: RefCell<BTreeMap<u64, Entry>>,
    /// Number of exclusive entries; at zero, no request has to search the queue.
    alone: Cell<usize>,
    next: Cell<u64>,
}

struct Entry {
    range: Range<u64>,
    alone: bool,
    waker: Option<Waker>,
}

impl RangeLocks {
    /// True if a write of this range would not wait.
    pub fn is_open(&self, range: &Range<u64>) -> bool {
        !self.is_blocked(u64::MAX, range, false)
    }

    /// Waits for a shared lock: the range may be written beside other writes.
    pub async fn write(&self, range: Range<u64>) -> Guard<'_> {
        self.enter(range, false).await
    }

    /// Waits for an exclusive lock: no other write overlaps the range.
    pub async fn alone(&self, range: Range<u64>) -> Guard<'_> {
        self.enter(range, true).await
    }

    async fn enter(&self, range: Range<u64>, alone: bool) -> Guard<'_> {
        let number = self.next.get();
        self.next.set(number + 1);
        self.alone.set(self.alone.get() + usize::from(alone));
        self.line.borrow_mut().insert(number, Entry { range: range.clone(), alone, waker: None });
        // The guard removes the entry even if the caller stops waiting.
        let guard = Guard { locks: self, number };
        poll_fn(|context| {
            if !self.is_blocked(number, &range, alone) {
                return Poll::Ready(());
            }
            let mut line = self.line.borrow_mut();
            line.get_mut(&number).expect("it leaves with its guard").waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
        guard
    }

    fn is_blocked(&self, number: u64, range: &Range<u64>, alone: bool) -> bool {
        if self.alone.get() == 0 {
            return false;
        }
        let line = self.line.borrow();
        line.range(..number).any(|(_, before)| (before.alone || alone) && overlap(&before.range, range))
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// A lock, or a place in the queue; dropping it releases the range.
pub struct Guard<'a> {
    locks: &'a RangeLocks,
    number: u64,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let mut line = self.locks.line.borrow_mut();
        let left = line.remove(&self.number).expect("it was put in line once");
        if left.alone {
            self.locks.alone.set(self.locks.alone.get() - 1);
        }
        for (_, after) in line.range_mut(self.number..) {
            if overlap(&after.range, &left.range)
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

    fn is_ready<'a>(future: Pin<&mut (impl Future<Output = Guard<'a>> + 'a)>) -> Option<Guard<'a>> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(guard) => Some(guard),
            Poll::Pending => None,
        }
    }

    #[test]
    fn exclusive_range_waits_for_the_writes_it_overlaps() {
        let locks = RangeLocks::default();
        let first = is_ready(pin!(locks.write(0..10))).expect("no other entry");
        let second = is_ready(pin!(locks.write(5..15))).expect("shared with the first");
        assert!(is_ready(pin!(locks.alone(20..30))).is_some());
        let mut alone = pin!(locks.alone(8..9));
        assert!(is_ready(alone.as_mut()).is_none());
        drop(first);
        assert!(is_ready(alone.as_mut()).is_none());
        drop(second);
        assert!(is_ready(alone.as_mut()).is_some());
    }

    #[test]
    fn write_does_not_overtake_a_waiting_exclusive_range() {
        let locks = RangeLocks::default();
        let first = is_ready(pin!(locks.write(0..10))).expect("no other entry");
        {
            let mut alone = pin!(locks.alone(0..10));
            assert!(is_ready(alone.as_mut()).is_none() && !locks.is_open(&(3..4)) && locks.is_open(&(10..11)));
            let mut late = pin!(locks.write(3..4));
            assert!(is_ready(late.as_mut()).is_none());
            drop(first);
            let alone = is_ready(alone.as_mut()).expect("first in the queue");
            assert!(is_ready(late.as_mut()).is_none());
            drop(alone);
            assert!(is_ready(late.as_mut()).is_some());
        }
        assert!(locks.line.borrow().is_empty() && locks.is_open(&(0..10)));
    }

    #[test]
    fn abandoned_wait_holds_up_no_write() {
        let locks = RangeLocks::default();
        let first = is_ready(pin!(locks.write(0..10))).expect("no other entry");
        {
            assert!(is_ready(pin!(locks.alone(0..10))).is_none());
        }
        assert!(is_ready(pin!(locks.write(0..10))).is_some());
        drop(first);
    }
}
