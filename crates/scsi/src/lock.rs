//! Ranges of a unit's blocks under writes. Writes go beside each other; COMPARE AND WRITE and its like want their range for themselves,
//! so that nothing is written between their reading and their writing.
//!
//! Whoever waits has its place in line: a range is granted when nothing that it overlaps, and of which one side wants to be alone, was
//! there before it, granted or waiting. So nobody waits for ever, and what is granted is never taken back.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Range;
use std::task::{Poll, Waker};

/// The ranges of a unit that are being written.
#[derive(Default)]
pub struct Locks {
    line: RefCell<BTreeMap<u64, Entry>>,
    /// Of those in line, the ones that want to be alone: while there are none, nobody has to look.
    alone: Cell<usize>,
    next: Cell<u64>,
}

struct Entry {
    blocks: Range<u64>,
    alone: bool,
    waker: Option<Waker>,
}

impl Locks {
    /// True when a write of these blocks would wait for nobody.
    pub fn is_open(&self, blocks: &Range<u64>) -> bool {
        !self.is_blocked(u64::MAX, blocks, false)
    }

    /// Waits until the blocks may be written beside other writes.
    pub async fn write(&self, blocks: Range<u64>) -> Guard<'_> {
        self.enter(blocks, false).await
    }

    /// Waits until nobody else writes any of the blocks.
    pub async fn alone(&self, blocks: Range<u64>) -> Guard<'_> {
        self.enter(blocks, true).await
    }

    async fn enter(&self, blocks: Range<u64>, alone: bool) -> Guard<'_> {
        let number = self.next.get();
        self.next.set(number + 1);
        self.alone.set(self.alone.get() + usize::from(alone));
        self.line.borrow_mut().insert(number, Entry { blocks: blocks.clone(), alone, waker: None });
        // Leaves the line even if nobody waits any more.
        let guard = Guard { locks: self, number };
        poll_fn(|context| {
            if !self.is_blocked(number, &blocks, alone) {
                return Poll::Ready(());
            }
            let mut line = self.line.borrow_mut();
            line.get_mut(&number).expect("it leaves with its guard").waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
        guard
    }

    fn is_blocked(&self, number: u64, blocks: &Range<u64>, alone: bool) -> bool {
        if self.alone.get() == 0 {
            return false;
        }
        let line = self.line.borrow();
        line.range(..number).any(|(_, before)| (before.alone || alone) && overlap(&before.blocks, blocks))
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// The right to write; ends when it is dropped.
pub struct Guard<'a> {
    locks: &'a Locks,
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
            if overlap(&after.blocks, &left.blocks)
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
    fn writes_go_beside_each_other_and_whoever_wants_to_be_alone_waits_for_those_it_overlaps() {
        let locks = Locks::default();
        let first = is_ready(pin!(locks.write(0..10))).expect("nobody else is there");
        let second = is_ready(pin!(locks.write(5..15))).expect("beside the first");
        assert!(is_ready(pin!(locks.alone(20..30))).is_some());
        let mut alone = pin!(locks.alone(8..9));
        assert!(is_ready(alone.as_mut()).is_none());
        drop(first);
        assert!(is_ready(alone.as_mut()).is_none());
        drop(second);
        assert!(is_ready(alone.as_mut()).is_some());
    }

    #[test]
    fn a_write_does_not_overtake_whoever_waits_to_be_alone() {
        let locks = Locks::default();
        let first = is_ready(pin!(locks.write(0..10))).expect("nobody else is there");
        {
            let mut alone = pin!(locks.alone(0..10));
            assert!(is_ready(alone.as_mut()).is_none() && !locks.is_open(&(3..4)) && locks.is_open(&(10..11)));
            let mut late = pin!(locks.write(3..4));
            assert!(is_ready(late.as_mut()).is_none());
            drop(first);
            let alone = is_ready(alone.as_mut()).expect("it is the first in line");
            assert!(is_ready(late.as_mut()).is_none());
            drop(alone);
            assert!(is_ready(late.as_mut()).is_some());
        }
        assert!(locks.line.borrow().is_empty() && locks.is_open(&(0..10)));
    }

    #[test]
    fn whoever_gives_up_waiting_blocks_nobody() {
        let locks = Locks::default();
        let first = is_ready(pin!(locks.write(0..10))).expect("nobody else is there");
        {
            assert!(is_ready(pin!(locks.alone(0..10))).is_none());
        }
        assert!(is_ready(pin!(locks.write(0..10))).is_some());
        drop(first);
    }
}
