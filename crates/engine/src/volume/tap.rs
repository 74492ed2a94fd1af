//! A tap on a volume's requests, for whoever records a trace of it.
//!
//! Off it costs a request one branch. On, a request is one store into a ring that was made beforehand: nothing is allocated and nobody
//! waits. A ring that is full loses the request and counts it. A recorder that has not come for a while is gone: its ring is let go.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use seam::Nanos;

use crate::pages::slow::Asked;

/// Requests in a ring: 2 MiB, outside of what memory is configured.
pub const TAP_REQUESTS_MAX: usize = 65_536;
/// A recorder that took nothing for so long is gone.
const GONE_AFTER: Nanos = Nanos::from_secs(10);

/// A request that came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tapped {
    /// When, since the tap was opened.
    pub time: Nanos,
    /// What was asked; zeroes and discards are one.
    pub asked: Asked,
    /// First byte.
    pub at: u64,
    /// Bytes.
    pub len: u64,
}

/// What a recorder takes at once.
#[derive(Debug, Default)]
pub struct Taken {
    /// The oldest requests in the ring.
    pub requests: Vec<Tapped>,
    /// Requests that were lost since the last time, all of them after these.
    pub lost: u64,
    /// More are in the ring.
    pub more: bool,
}

struct Ring {
    recorder: u64,
    begun: Nanos,
    taken: Nanos,
    requests: VecDeque<Tapped>,
    lost: u64,
}

/// A volume's tap.
#[derive(Default)]
pub(super) struct Tap {
    on: Cell<bool>,
    ring: RefCell<Option<Ring>>,
    recorders: Cell<u64>,
}

impl Tap {
    /// A request comes by.
    #[inline]
    pub fn note(&self, now: impl FnOnce() -> Nanos, asked: Asked, at: u64, len: u64) {
        if self.on.get() {
            self.push(now(), asked, at, len);
        }
    }

    #[inline(never)]
    fn push(&self, now: Nanos, asked: Asked, at: u64, len: u64) {
        let mut ring = self.ring.borrow_mut();
        match ring.as_mut() {
            Some(ring) if now < ring.taken + GONE_AFTER => {
                if ring.requests.len() < TAP_REQUESTS_MAX {
                    ring.requests.push_back(Tapped { time: now.since(ring.begun), asked, at, len });
                } else {
                    ring.lost += 1;
                }
            }
            _ => {
                *ring = None;
                self.on.set(false);
            }
        }
    }

    /// Opens it; the recorder's number, or `None` while another one records.
    pub fn open(&self, now: Nanos) -> Option<u64> {
        let mut ring = self.ring.borrow_mut();
        if ring.as_ref().is_some_and(|ring| now < ring.taken + GONE_AFTER) {
            return None;
        }
        let recorder = self.recorders.get() + 1;
        self.recorders.set(recorder);
        let requests = VecDeque::with_capacity(TAP_REQUESTS_MAX);
        *ring = Some(Ring { recorder, begun: now, taken: now, requests, lost: 0 });
        self.on.set(true);
        Some(recorder)
    }

    /// Takes what is there, `most` requests at most; `None` if the tap is no longer this recorder's.
    pub fn take(&self, recorder: u64, most: usize, now: Nanos) -> Option<Taken> {
        let mut ring = self.ring.borrow_mut();
        let ring = ring.as_mut().filter(|ring| ring.recorder == recorder)?;
        ring.taken = now;
        let count = ring.requests.len().min(most);
        let requests: Vec<Tapped> = ring.requests.drain(..count).collect();
        let more = !ring.requests.is_empty();
        // Lost is what found the ring full: it is younger than everything that is in there.
        let lost = if more { 0 } else { std::mem::take(&mut ring.lost) };
        Some(Taken { requests, lost, more })
    }

    /// Closes it, if it is still this recorder's.
    pub fn close(&self, recorder: u64) {
        let mut ring = self.ring.borrow_mut();
        if ring.as_ref().is_some_and(|ring| ring.recorder == recorder) {
            *ring = None;
            self.on.set(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(count: u64) -> Nanos {
        Nanos::from_secs(count)
    }

    fn note(tap: &Tap, now: Nanos, at: u64) {
        tap.note(|| now, Asked::Read, at, 4_096);
    }

    #[test]
    fn a_recorder_gets_what_came_by_while_it_listens() {
        let tap = Tap::default();
        tap.note(|| unreachable!("it is closed"), Asked::Read, 0, 512);
        let recorder = tap.open(second(100)).expect("nobody records");
        assert_eq!(tap.open(second(105)), None, "one at a time");
        (0..5).for_each(|number| note(&tap, second(101 + number), number));
        let first = tap.take(recorder, 3, second(106)).expect("it records");
        assert_eq!((first.requests.len(), first.lost, first.more), (3, 0, true));
        assert_eq!(first.requests[2], Tapped { time: second(3), asked: Asked::Read, at: 2, len: 4_096 });
        let rest = tap.take(recorder, 100, second(107)).expect("it records");
        assert_eq!((rest.requests.len(), rest.more), (2, false));
        tap.close(recorder);
        assert!(tap.take(recorder, 100, second(108)).is_none());
        tap.note(|| unreachable!("it is closed"), Asked::Read, 0, 512);
    }

    #[test]
    fn a_full_ring_loses_what_comes_and_says_how_many() {
        let tap = Tap::default();
        let recorder = tap.open(second(0)).expect("nobody records");
        let room = tap.ring.borrow().as_ref().expect("it is open").requests.capacity();
        (0..TAP_REQUESTS_MAX as u64 + 7).for_each(|at| note(&tap, second(1), at));
        assert_eq!(tap.take(recorder, 1, second(1)).expect("it records").lost, 0);
        let rest = tap.take(recorder, usize::MAX, second(1)).expect("it records");
        assert_eq!((rest.requests.len(), rest.lost), (TAP_REQUESTS_MAX - 1, 7));
        assert_eq!(tap.ring.borrow().as_ref().expect("it is open").requests.capacity(), room, "nothing was allocated");
        assert_eq!(tap.take(recorder, usize::MAX, second(1)).expect("it records").lost, 0);
    }

    #[test]
    fn a_recorder_that_left_without_a_word_holds_nothing_up() {
        let tap = Tap::default();
        let gone = tap.open(second(0)).expect("nobody records");
        note(&tap, second(9), 0);
        note(&tap, second(10), 0);
        assert!(tap.ring.borrow().is_none() && !tap.on.get());
        let next = tap.open(second(11)).expect("the first is gone");
        tap.close(gone);
        assert!(tap.take(gone, 1, second(12)).is_none() && tap.take(next, 1, second(12)).is_some());
    }
}
