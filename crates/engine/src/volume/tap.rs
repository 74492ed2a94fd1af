//! A tap on a volume's requests, for recording a trace.
//!
//! Closed, it costs a request one branch. Open, a request is one store into a preallocated ring, without allocation or
//! waiting. A full ring drops the request and counts it. The ring of a recorder that has taken nothing for a while is
//! freed.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use seam::Nanos;

use crate::ByteOffset;
use crate::telemetry::OpKind;

/// Capacity of a ring in requests: 2 MiB, outside the configured memory.
pub const TAP_REQUESTS_MAX: usize = 65_536;
/// Time after which a recorder that took nothing loses the tap.
const RECORDER_TIMEOUT: Nanos = Nanos::from_secs(10);

/// A recorded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TappedRequest {
    /// Time since the tap was opened.
    pub elapsed: Nanos,
    /// The operation; zeroing and discard are recorded alike.
    pub op: OpKind,
    /// First byte.
    pub at: ByteOffset,
    /// Length in bytes.
    pub len_bytes: u64,
}

/// Requests taken by a recorder in one call.
#[derive(Debug, Default)]
pub struct TappedBatch {
    /// The oldest requests in the ring.
    pub requests: Vec<TappedRequest>,
    /// Requests dropped since the last call, all of them later than these.
    pub dropped_requests: u64,
    /// True if the ring holds more.
    pub has_more: bool,
}

/// The requests of an open tap that its recorder has not taken yet.
struct Ring {
    recorder_number: u64,
    started_at: Nanos,
    last_taken_at: Nanos,
    requests: VecDeque<TappedRequest>,
    dropped_requests: u64,
}

/// The tap of a volume.
#[derive(Default)]
pub(super) struct Tap {
    is_open: Cell<bool>,
    ring: RefCell<Option<Ring>>,
    /// Number of the last recorder.
    last_recorder_number: Cell<u64>,
}

impl Tap {
    /// Records a request if the tap is open.
    #[inline]
    pub fn record(&self, now: impl FnOnce() -> Nanos, op: OpKind, at: ByteOffset, len_bytes: u64) {
        if self.is_open.get() {
            self.push(now(), op, at, len_bytes);
        }
    }

    /// Puts a request into the ring, or frees the ring of a recorder that timed out.
    #[inline(never)]
    fn push(&self, now: Nanos, op: OpKind, at: ByteOffset, len_bytes: u64) {
        let mut ring = self.ring.borrow_mut();
        match ring.as_mut() {
            Some(ring) if now < ring.last_taken_at + RECORDER_TIMEOUT => {
                if ring.requests.len() < TAP_REQUESTS_MAX {
                    ring.requests.push_back(TappedRequest { elapsed: now.since(ring.started_at), op, at, len_bytes });
                } else {
                    ring.dropped_requests += 1;
                }
            }
            _ => {
                *ring = None;
                self.is_open.set(false);
            }
        }
    }

    /// Opens the tap. Returns the recorder's number, or `None` while another one records.
    pub fn open(&self, now: Nanos) -> Option<u64> {
        let mut ring = self.ring.borrow_mut();
        if ring.as_ref().is_some_and(|ring| now < ring.last_taken_at + RECORDER_TIMEOUT) {
            return None;
        }
        let recorder = self.last_recorder_number.get() + 1;
        self.last_recorder_number.set(recorder);
        let requests = VecDeque::with_capacity(TAP_REQUESTS_MAX);
        *ring = Some(Ring {
            recorder_number: recorder,
            started_at: now,
            last_taken_at: now,
            requests,
            dropped_requests: 0,
        });
        self.is_open.set(true);
        Some(recorder)
    }

    /// Takes up to `requests_max` requests; `None` if the tap no longer belongs to this recorder.
    pub fn take(&self, recorder: u64, requests_max: usize, now: Nanos) -> Option<TappedBatch> {
        let mut ring = self.ring.borrow_mut();
        let ring = ring.as_mut().filter(|ring| ring.recorder_number == recorder)?;
        ring.last_taken_at = now;
        let count = ring.requests.len().min(requests_max);
        let requests: Vec<TappedRequest> = ring.requests.drain(..count).collect();
        let has_more = !ring.requests.is_empty();
        // Dropped requests found the ring full, so they are later than all requests in it.
        let dropped = if has_more { 0 } else { std::mem::take(&mut ring.dropped_requests) };
        Some(TappedBatch { requests, dropped_requests: dropped, has_more })
    }

    /// Closes the tap if it still belongs to this recorder.
    pub fn close(&self, recorder: u64) {
        let mut ring = self.ring.borrow_mut();
        if ring.as_ref().is_some_and(|ring| ring.recorder_number == recorder) {
            *ring = None;
            self.is_open.set(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(count: u64) -> Nanos {
        Nanos::from_secs(count)
    }

    fn record_read(tap: &Tap, now: Nanos, at: u64) {
        tap.record(|| now, OpKind::Read, ByteOffset(at), 4_096);
    }

    #[test]
    fn recorder_gets_requests_made_while_tap_is_open() {
        let tap = Tap::default();
        tap.record(|| unreachable!("the tap is closed"), OpKind::Read, ByteOffset::ZERO, 512);
        let recorder = tap.open(second(100)).expect("no recorder is active");
        assert_eq!(tap.open(second(105)), None, "one recorder at a time");
        (0..5).for_each(|number| record_read(&tap, second(101 + number), number));
        let first = tap.take(recorder, 3, second(106)).expect("the recorder is active");
        assert_eq!((first.requests.len(), first.dropped_requests, first.has_more), (3, 0, true));
        assert_eq!(
            first.requests[2],
            TappedRequest { elapsed: second(3), op: OpKind::Read, at: ByteOffset(2), len_bytes: 4_096 }
        );
        let rest = tap.take(recorder, 100, second(107)).expect("the recorder is active");
        assert_eq!((rest.requests.len(), rest.has_more), (2, false));
        tap.close(recorder);
        assert!(tap.take(recorder, 100, second(108)).is_none());
        tap.record(|| unreachable!("the tap is closed"), OpKind::Read, ByteOffset::ZERO, 512);
    }

    #[test]
    fn full_ring_drops_and_counts_requests() {
        let tap = Tap::default();
        let recorder = tap.open(second(0)).expect("no recorder is active");
        let room = tap.ring.borrow().as_ref().expect("the tap is open").requests.capacity();
        (0..TAP_REQUESTS_MAX as u64 + 7).for_each(|at| record_read(&tap, second(1), at));
        assert_eq!(tap.take(recorder, 1, second(1)).expect("the recorder is active").dropped_requests, 0);
        let rest = tap.take(recorder, usize::MAX, second(1)).expect("the recorder is active");
        assert_eq!((rest.requests.len(), rest.dropped_requests), (TAP_REQUESTS_MAX - 1, 7));
        assert_eq!(
            tap.ring.borrow().as_ref().expect("the tap is open").requests.capacity(),
            room,
            "nothing was allocated"
        );
        assert_eq!(tap.take(recorder, usize::MAX, second(1)).expect("the recorder is active").dropped_requests, 0);
    }

    #[test]
    fn vanished_recorder_frees_the_tap() {
        let tap = Tap::default();
        let vanished = tap.open(second(0)).expect("no recorder is active");
        record_read(&tap, second(9), 0);
        record_read(&tap, second(10), 0);
        assert!(tap.ring.borrow().is_none() && !tap.is_open.get());
        let next = tap.open(second(11)).expect("the first recorder is gone");
        tap.close(vanished);
        assert!(tap.take(vanished, 1, second(12)).is_none() && tap.take(next, 1, second(12)).is_some());
    }
}
