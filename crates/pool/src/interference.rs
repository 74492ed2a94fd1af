//! The delay that moves cause for clients' requests: latencies beside copies, compared with those without.
//!
//! Devices of a pool may share a disk below the pool, where the copy of one stands in front of the requests of the
//! other. No queue length shows that, only the latency of the requests. Requests are timed while slices move.

use seam::Nanos;

use crate::number::GroupNo;

/// Requests without a copy beside them that a group needs for a comparison.
const BASELINE_MIN: u32 = 256;
/// Requests after which old ones count half.
const HALVE_AT: u64 = 1 << 17;
/// The tail of a group is exceeded by one in this many of its requests.
const TAIL_ONE_IN: i64 = 100;
/// Step of the tail at a request that exceeds it, as a part of the tail: the first one, and the one after
/// [`BASELINE_MIN`] requests.
const TAIL_STEPS: [u64; 2] = [4, 16];
/// Weight of a request in the mean of its group.
const MEAN_WEIGHT: i64 = 256;

/// Latency of a group's requests without a copy beside them, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Baseline {
    requests: u32,
    /// Running mean.
    mean_ns: i64,
    /// Estimate of the latency that one in [`TAIL_ONE_IN`] requests exceeds.
    tail_ns: u64,
}

impl Baseline {
    fn add(&mut self, latency: u64) {
        if self.requests == 0 {
            (self.mean_ns, self.tail_ns) = (latency as i64, latency.max(1));
        }
        self.requests = self.requests.saturating_add(1);
        let weight = MEAN_WEIGHT.min(i64::from(self.requests));
        self.mean_ns += (latency as i64 - self.mean_ns) / weight;
        let step = self.tail_ns / TAIL_STEPS[usize::from(self.requests > BASELINE_MIN)];
        if latency > self.tail_ns {
            self.tail_ns += step.max(1);
        } else {
            self.tail_ns -= step / TAIL_ONE_IN as u64;
        }
    }

    fn is_known(&self) -> bool {
        self.requests >= BASELINE_MIN
    }
}

/// A request in flight that is timed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimedRequest {
    started_at: Nanos,
    is_beside_copy: bool,
    copies_begun: u64,
}

/// Latencies of the pool's clients while slices move.
#[derive(Debug, Default)]
pub(crate) struct Interference {
    groups: Vec<Baseline>,
    /// Copies in flight.
    copies: u32,
    /// Copies that ever began.
    copies_begun: u64,
    /// Requests that ended, and the sum of their latencies.
    requests: u64,
    latency_sum_ns: u64,
    /// Requests beside a copy that exceeded their group's tail, minus the expected one in [`TAIL_ONE_IN`]; scaled by
    /// it.
    late_excess: i64,
    /// Latency of the requests beside a copy, less the mean of their group.
    delay_ns: i64,
}

impl Interference {
    /// Counts a copy that begins.
    pub fn begin_copy(&mut self) {
        self.copies += 1;
        self.copies_begun += 1;
    }

    /// Counts the end of a copy.
    pub fn end_copy(&mut self) {
        self.copies = self.copies.checked_sub(1).expect("a copy ends once");
    }

    /// Begins to time a request.
    pub fn begin(&self, now: Nanos) -> TimedRequest {
        TimedRequest { started_at: now, is_beside_copy: self.copies > 0, copies_begun: self.copies_begun }
    }

    /// Ends a request to a group.
    pub fn end(&mut self, group: GroupNo, request: TimedRequest, now: Nanos) {
        if group.index() >= self.groups.len() {
            self.groups.resize_with(group.index() + 1, Baseline::default);
        }
        let (baseline, latency) = (&mut self.groups[group.index()], now.since(request.started_at).0);
        let is_beside_copy = request.is_beside_copy || self.copies_begun > request.copies_begun;
        if !is_beside_copy {
            baseline.add(latency);
        } else if baseline.is_known() {
            self.late_excess += if latency > baseline.tail_ns { TAIL_ONE_IN - 1 } else { -1 };
            self.delay_ns = self.delay_ns.saturating_add_unsigned(latency).saturating_sub(baseline.mean_ns);
        }
        self.requests += 1;
        self.latency_sum_ns = self.latency_sum_ns.saturating_add(latency);
        if self.requests == HALVE_AT {
            (self.requests, self.latency_sum_ns) = (self.requests / 2, self.latency_sum_ns / 2);
            (self.late_excess, self.delay_ns) = (self.late_excess / 2, self.delay_ns / 2);
        }
    }

    /// True if clients use a group whose latency without copies is not known yet.
    pub fn lacks_baseline(&self, group: GroupNo) -> bool {
        self.groups.get(group.index()).is_some_and(|baseline| baseline.requests > 0 && !baseline.is_known())
    }

    /// True if copies have made at most `late_ppm` of the requests exceed the tail, and have added at most
    /// `delay_ppm` to their latency.
    pub fn is_within_limits(&self, late_ppm: u64, delay_ppm: u64) -> bool {
        let limit = |whole: u64, ppm: u64| i128::from(whole) * i128::from(ppm) / 1_000_000;
        i128::from(self.late_excess) <= limit(self.requests, late_ppm) * i128::from(TAIL_ONE_IN)
            && i128::from(self.delay_ns) <= limit(self.latency_sum_ns, delay_ppm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: GroupNo = GroupNo(0);

    /// Latencies from 100 to 200 us, one in 200 of 1,000 us.
    fn latency(number: u64) -> u64 {
        if number.is_multiple_of(200) { 1_000_000 } else { 100_000 + number * 7_919 % 100_000 }
    }

    /// Requests one after the other, each beside a copy or none, with their latencies after `change`.
    fn run(interference: &mut Interference, count: u64, copies: bool, change: impl Fn(u64) -> u64) {
        for number in 0..count {
            if copies {
                interference.begin_copy();
            }
            let request = interference.begin(Nanos::ZERO);
            interference.end(GROUP, request, Nanos(change(latency(number))));
            if copies {
                interference.end_copy();
            }
        }
    }

    #[test]
    fn copies_beside_unchanged_requests_do_not_count() {
        let mut interference = Interference::default();
        run(&mut interference, 10, false, |latency| latency);
        assert!(interference.lacks_baseline(GROUP));
        run(&mut interference, 20_000, false, |latency| latency);
        assert!(!interference.lacks_baseline(GROUP));
        let tail = interference.groups[0].tail_ns / 1_000;
        assert!((195..1_000).contains(&tail), "{tail} us are exceeded by one in {TAIL_ONE_IN}");
        for _ in 0..20 {
            run(&mut interference, 1_000, true, |latency| latency);
            run(&mut interference, 1_000, false, |latency| latency);
        }
        assert!(interference.is_within_limits(1_000, 10_000), "{interference:?}");
    }

    #[test]
    fn late_requests_exceed_the_limit_until_more_requests_end() {
        let mut interference = Interference::default();
        run(&mut interference, 10_000, false, |latency| latency);
        run(&mut interference, 60, true, |latency| latency + 2_000_000);
        assert!(!interference.is_within_limits(2_500, u64::MAX), "{interference:?}");
        run(&mut interference, 20_000, false, |latency| latency);
        assert!(interference.is_within_limits(2_500, u64::MAX), "60 of 30,000 are 0.2 %: {interference:?}");
    }

    #[test]
    fn copies_that_delay_all_requests_a_little_exceed_the_limit_of_the_mean() {
        let mut interference = Interference::default();
        run(&mut interference, 10_000, false, |latency| latency);
        run(&mut interference, 5_000, true, |latency| latency + latency / 4);
        assert!(!interference.is_within_limits(1_000_000, 30_000), "{interference:?}");
        assert!(interference.is_within_limits(1_000_000, 120_000), "{interference:?}");
    }

    #[test]
    fn request_during_which_a_copy_begins_is_beside_it() {
        let mut interference = Interference::default();
        run(&mut interference, 1_000, false, |latency| latency);
        let request = interference.begin(Nanos::ZERO);
        interference.begin_copy();
        interference.end_copy();
        interference.end(GROUP, request, Nanos::from_millis(50));
        assert!(interference.late_excess > 0);
        assert_eq!(interference.groups[0].requests, 1_000);
    }
}
