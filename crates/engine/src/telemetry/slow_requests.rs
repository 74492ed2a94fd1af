//! The slowest requests of the last hour, with the step in which each waited longest.

use std::cell::{Cell, RefCell};

use seam::Nanos;

use super::latency::{LatencyTrace, OpKind, Step};
use crate::ByteOffset;

/// Number of requests kept.
const REQUESTS_MAX: usize = 100;
/// Time for which they are kept.
const RETENTION: Nanos = Nanos::from_secs(3_600);

/// A slow request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowRequest {
    /// End of the request.
    pub ended_at: Nanos,
    /// Its duration.
    pub latency: Nanos,
    /// Its operation.
    pub op: OpKind,
    /// First byte.
    pub at: ByteOffset,
    /// Length in bytes.
    pub len_bytes: u64,
    /// The step in which it waited longest.
    pub step: Step,
    /// Time spent in that step.
    pub step_wait: Nanos,
}

/// The slowest requests of one volume.
#[derive(Default)]
pub struct SlowRequests {
    requests: RefCell<Vec<SlowRequest>>,
    /// Duration above which a request enters the list.
    threshold: Cell<Nanos>,
    /// Time at which the oldest entry expires.
    expires_at: Cell<Nanos>,
}

impl SlowRequests {
    /// Records a request that has ended.
    pub fn record(&self, trace: &LatencyTrace, op: OpKind, at: ByteOffset, len_bytes: u64, now: Nanos) {
        let latency = trace.elapsed(now);
        if latency == Nanos::ZERO || (latency <= self.threshold.get() && now < self.expires_at.get()) {
            return;
        }
        let (step, waited) = trace.longest();
        let mut requests = self.requests.borrow_mut();
        requests.retain(|slow| slow.ended_at + RETENTION > now);
        if requests.len() >= REQUESTS_MAX {
            let fastest = (0..requests.len()).min_by_key(|index| requests[*index].latency).expect("the list is full");
            if requests[fastest].latency < latency {
                requests.swap_remove(fastest);
            }
        }
        if requests.len() < REQUESTS_MAX {
            requests.push(SlowRequest { ended_at: now, latency, op, at, len_bytes, step, step_wait: waited });
        }
        let is_full = requests.len() == REQUESTS_MAX;
        let threshold = requests.iter().map(|slow| slow.latency).min().filter(|_| is_full);
        self.threshold.set(threshold.unwrap_or(Nanos::ZERO));
        let oldest = requests.iter().map(|slow| slow.ended_at).min();
        self.expires_at.set(oldest.map_or(now, |oldest| oldest + RETENTION));
    }

    /// The slowest requests of the last hour, in descending order of duration.
    pub fn list(&self, now: Nanos) -> Vec<SlowRequest> {
        let mut list: Vec<SlowRequest> =
            self.requests.borrow().iter().filter(|slow| slow.ended_at + RETENTION > now).copied().collect();
        list.sort_by_key(|slow| std::cmp::Reverse((slow.latency, slow.ended_at)));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(slow: &SlowRequests, started_at: Nanos, flash_ms: u64, backing_ms: u64) {
        let trace = LatencyTrace::new(started_at);
        trace.record(Step::Flash, started_at + Nanos::from_millis(flash_ms));
        let end = started_at + Nanos::from_millis(flash_ms + backing_ms);
        trace.record(Step::Backing, end);
        slow.record(&trace, OpKind::Read, ByteOffset::ZERO, 4096, end);
    }

    #[test]
    fn slowest_hundred_of_an_hour_are_kept_with_longest_step() {
        let slow = SlowRequests::default();
        for number in 1..=1_000u64 {
            let started_at = Nanos::from_secs(number);
            let (flash, backing) = if number.is_multiple_of(2) { (1, number) } else { (number, 1) };
            request(&slow, started_at, flash, backing);
        }
        let list = slow.list(Nanos::from_secs(1_002));
        assert_eq!(list.len(), 100);
        assert_eq!(
            (list[0].latency, list[0].step, list[0].step_wait),
            (Nanos::from_millis(1_001), Step::Backing, Nanos::from_millis(1_000))
        );
        assert_eq!((list[99].latency, list[99].step), (Nanos::from_millis(902), Step::Flash));
        // An hour later only newer requests count, however fast they were.
        request(&slow, Nanos::from_secs(4_700), 1, 2);
        let list = slow.list(Nanos::from_secs(4_701));
        assert_eq!(list.len(), 1);
        assert_eq!(list[0].step, Step::Backing);
    }
}
