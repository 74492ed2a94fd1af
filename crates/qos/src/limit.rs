//! Limits in requests and bytes per second, with a burst. They use the generic cell rate algorithm: a token bucket that
//! stores one point in time instead of tokens.

use seam::Nanos;

use crate::Fault;

/// Bytes that count as one request; a longer request counts once for each such piece that it begins.
pub const LIMIT_REQUEST_BYTES: u64 = 128 << 10;
/// Longest delay that is caught up afterwards: timers fire late.
const CATCH_UP_MAX: Nanos = Nanos::from_millis(10);
/// Upper bound of catch-up time plus one request: any second exceeds the limit by at most a fiftieth.
const EXCESS_MAX: Nanos = Nanos::from_millis(20);
/// Nanoseconds per second.
const SECOND: u64 = 1_000_000_000;

/// Limits of a volume; 0 means no limit or no burst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Requests per second.
    pub iops: u64,
    /// Burst: requests of unused credit that can be saved up.
    pub burst_iops: u64,
    /// Bytes per second.
    pub bytes: u64,
    /// Burst: bytes of unused credit that can be saved up.
    pub burst_bytes: u64,
}

impl Limits {
    /// True if no limit is set.
    pub fn is_none(&self) -> bool {
        self.iops == 0 && self.bytes == 0
    }
}

/// Meter of one rate.
#[derive(Clone, Copy, Debug)]
struct Meter {
    per_second: u64,
    burst: u64,
    /// Time at which the rate has paid for all requests admitted so far (the theoretical arrival time).
    paid_until: Nanos,
}

impl Meter {
    fn new(per_second: u64, burst: u64, now: Nanos) -> Option<Meter> {
        (per_second > 0).then_some(Meter { per_second, burst, paid_until: now })
    }

    /// Time that `amount` takes at the rate; rounded up, so that rounding never exceeds the limit.
    fn time_of(&self, amount: u64) -> Nanos {
        let nanos = (u128::from(amount) * u128::from(SECOND)).div_ceil(u128::from(self.per_second));
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// When a request of `amount` may enter. Tolerance: the time by which requests may be ahead of the rate.
    fn next_at(&self, amount: u64) -> Nanos {
        let catch_up = CATCH_UP_MAX.0.min(EXCESS_MAX.0.saturating_sub(self.time_of(amount).0));
        let tolerance = self.time_of(self.burst).0.max(catch_up);
        Nanos(self.paid_until.0.saturating_sub(tolerance))
    }

    fn take(&mut self, now: Nanos, amount: u64) {
        self.paid_until = self.paid_until.max(now) + self.time_of(amount);
    }
}

/// Computes when the next request of a volume may enter.
#[derive(Clone, Debug, Default)]
pub struct Limiter {
    limits: Limits,
    requests: Option<Meter>,
    bytes: Option<Meter>,
    fault: Fault,
}

impl Limiter {
    /// A limiter with full bursts.
    pub fn new(limits: Limits, now: Nanos) -> Limiter {
        let requests = Meter::new(limits.iops, limits.burst_iops, now);
        let bytes = Meter::new(limits.bytes, limits.burst_bytes, now);
        Limiter { limits, requests, bytes, fault: Fault::None }
    }

    /// The same limiter with a deliberate fault, for tests.
    pub fn with_fault(limits: Limits, now: Nanos, fault: Fault) -> Limiter {
        Limiter { fault, ..Limiter::new(limits, now) }
    }

    /// The limits in force.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Replaces the limits. A meter whose limit is unchanged keeps its state.
    pub fn change(&mut self, limits: Limits, now: Nanos) {
        let new = Limiter::new(limits, now);
        let old = self.limits;
        if (old.iops, old.burst_iops) != (limits.iops, limits.burst_iops) {
            self.requests = new.requests;
        }
        if (old.bytes, old.burst_bytes) != (limits.bytes, limits.burst_bytes) {
            self.bytes = new.bytes;
        }
        self.limits = limits;
    }

    /// When a request of `bytes` may enter; a time in the past means now.
    pub fn next_at(&self, bytes: u64) -> Nanos {
        if self.fault == Fault::IgnoreLimit {
            return Nanos::ZERO;
        }
        let by_requests = self.requests.map_or(Nanos::ZERO, |meter| meter.next_at(requests_of(bytes)));
        let by_bytes = self.bytes.map_or(Nanos::ZERO, |meter| meter.next_at(bytes));
        by_requests.max(by_bytes)
    }

    /// Records that a request of `bytes` enters now.
    pub fn take(&mut self, now: Nanos, bytes: u64) {
        if let Some(meter) = &mut self.requests {
            meter.take(now, requests_of(bytes));
        }
        if let Some(meter) = &mut self.bytes {
            meter.take(now, bytes);
        }
    }
}

fn requests_of(bytes: u64) -> u64 {
    bytes.div_ceil(LIMIT_REQUEST_BYTES).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entry times of requests that all wait from the start, if timers fire late by `late`.
    fn flood(limits: Limits, bytes: u64, late: Nanos, until: Nanos) -> Vec<Nanos> {
        let (mut limiter, mut now, mut entry_times) = (Limiter::new(limits, Nanos::ZERO), Nanos::ZERO, Vec::new());
        while now < until {
            let next = limiter.next_at(bytes);
            if next > now {
                now = next + late;
            }
            limiter.take(now, bytes);
            entry_times.push(now);
        }
        entry_times
    }

    fn max_in_a_second(entry_times: &[Nanos]) -> usize {
        let within =
            |first: &Nanos| entry_times.iter().filter(|at| **at >= *first && at.since(*first).0 < SECOND).count();
        entry_times.iter().map(within).max().unwrap_or(0)
    }

    #[test]
    fn every_second_stays_within_limit_and_uses_most_of_it() {
        for late in [0, 100, 3_000] {
            let limits = Limits { iops: 500, ..Limits::default() };
            let entry_times = flood(limits, 4096, Nanos::from_micros(late), Nanos::from_secs(5));
            assert!(max_in_a_second(&entry_times) <= 510, "{late} us late: {}", max_in_a_second(&entry_times));
            assert!(entry_times.len() >= 2_500, "{late} us late: {} in 5 s", entry_times.len());
            let limits = Limits { bytes: 20_000_000, ..Limits::default() };
            for bytes in [4096, 65_536, 1 << 20] {
                let entry_times = flood(limits, bytes, Nanos::from_micros(late), Nanos::from_secs(5));
                let max_bytes = max_in_a_second(&entry_times) as u64 * bytes;
                assert!(max_bytes <= 20_000_000 + (400_000).max(bytes), "{late} us late, {bytes}: {max_bytes}");
                // Lateness beyond the catch-up time is lost.
                assert!(
                    entry_times.len() as u64 * bytes >= 90_000_000,
                    "{late} us late, {bytes}: {}",
                    entry_times.len()
                );
            }
        }
    }

    #[test]
    fn burst_is_available_once_and_again_after_saving_up() {
        let limits = Limits { iops: 100, burst_iops: 50, ..Limits::default() };
        let mut limiter = Limiter::new(limits, Nanos::ZERO);
        let burst = |limiter: &mut Limiter, now: Nanos| {
            let mut count = 0;
            while limiter.next_at(4096) <= now {
                limiter.take(now, 4096);
                count += 1;
            }
            count
        };
        assert_eq!(burst(&mut limiter, Nanos::ZERO), 51);
        assert_eq!(burst(&mut limiter, Nanos::from_millis(100)), 10);
        assert_eq!(burst(&mut limiter, Nanos::from_secs(10)), 51, "the burst does not grow beyond its size");
    }

    #[test]
    fn stricter_limit_holds_and_long_request_counts_several_times() {
        let limits = Limits { iops: 100, bytes: 1 << 20, ..Limits::default() };
        let small = flood(limits, 512, Nanos::ZERO, Nanos::from_secs(2));
        assert!((199..=203).contains(&small.len()), "{}", small.len());
        let large = flood(limits, 128 << 10, Nanos::ZERO, Nanos::from_secs(2));
        assert!((16..=18).contains(&large.len()), "{}", large.len());
        let only_requests = Limits { iops: 100, ..Limits::default() };
        let longest = flood(only_requests, 1 << 20, Nanos::ZERO, Nanos::from_secs(2));
        assert!((25..=27).contains(&longest.len()), "{}", longest.len());
    }

    #[test]
    fn changed_limit_holds_at_once_and_other_meter_keeps_state() {
        let mut limiter = Limiter::new(Limits { iops: 1, bytes: 1_000, ..Limits::default() }, Nanos::ZERO);
        limiter.take(Nanos::ZERO, 100_000);
        let now = Nanos::from_secs(1);
        limiter.change(Limits { iops: 1_000, bytes: 1_000, ..Limits::default() }, now);
        assert_eq!(limiter.next_at(1), Nanos::from_millis(99_990), "the byte meter keeps its debt");
        limiter.change(Limits::default(), now);
        assert_eq!((limiter.next_at(1 << 30), limiter.limits().is_none()), (Nanos::ZERO, true));
    }
}
