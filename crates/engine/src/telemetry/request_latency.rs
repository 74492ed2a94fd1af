//! Latency of client requests: the total that clients see, with its service time and held time.
//!
//! *Held* is the time for which the volume's limit, or requests of other volumes by their shares, kept a request back.
//! The rest is *service*. Few volumes hold requests, so the two histograms exist from the first held request on.

use std::cell::{Cell, OnceCell};

use seam::Nanos;

use crate::histogram::{BucketCounts, LatencyHistogram};

/// Latency of a request that is served without a clock reading.
const UNMEASURED_LATENCY: Nanos = Nanos::from_micros(1);

/// Latencies of one kind of request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyStats {
    /// Service and held time together: what clients see.
    pub total: BucketCounts,
    /// The two apart; `None` if no request was held yet.
    pub parts: Option<LatencyParts>,
}

/// Service and held time of all requests of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyParts {
    /// Time without held time.
    pub service: BucketCounts,
    /// Held time; requests that were not held are in the first bucket.
    pub held: BucketCounts,
}

/// Counts latencies of one kind of request.
#[derive(Default)]
pub struct RequestLatency {
    unmeasured_requests: Cell<u64>,
    total: LatencyHistogram,
    held_requests: OnceCell<Box<HeldRequests>>,
}

/// Latencies of held requests only.
#[derive(Default)]
struct HeldRequests {
    total: LatencyHistogram,
    service: LatencyHistogram,
    held: LatencyHistogram,
}

impl RequestLatency {
    /// Counts a request that was served without waiting: too short for a clock reading, it counts as 1 us.
    pub fn add_unmeasured(&self) {
        self.unmeasured_requests.set(self.unmeasured_requests.get() + 1);
    }

    /// Counts a request that took `total`, of which it was held for `held`.
    pub fn add(&self, total: Nanos, held: Nanos) {
        let total = total.max(UNMEASURED_LATENCY);
        self.total.add(total);
        if held > Nanos::ZERO {
            let requests = self.held_requests.get_or_init(Box::default);
            requests.total.add(total);
            requests.service.add(total.since(held).max(UNMEASURED_LATENCY));
            requests.held.add(held);
        }
    }

    /// All counts.
    pub fn stats(&self) -> LatencyStats {
        let total = LatencyHistogram::default();
        total.add_all(&self.total);
        total.add_times(UNMEASURED_LATENCY, self.unmeasured_requests.get());
        let parts = self.held_requests.get().map(|requests| {
            let (service, held) = (LatencyHistogram::default(), LatencyHistogram::default());
            service.add_all(&total);
            service.subtract(&requests.total);
            let not_held = service.counts().total();
            service.add_all(&requests.service);
            held.add_times(Nanos::ZERO, not_held);
            held.add_all(&requests.held);
            LatencyParts { service: service.counts(), held: held.counts() }
        });
        LatencyStats { total: total.counts(), parts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_time_is_in_the_total_and_not_in_the_service() {
        let latency = RequestLatency::default();
        (0..8).for_each(|_| latency.add_unmeasured());
        latency.add(Nanos::from_micros(100), Nanos::ZERO);
        assert_eq!(latency.stats().parts, None);
        latency.add(Nanos::from_micros(16_100), Nanos::from_millis(16));
        let LatencyStats { total, parts } = latency.stats();
        let LatencyParts { service, held } = parts.expect("a request was held");
        assert_eq!((total.total(), service.total(), held.total()), (10, 10, 10));
        assert_eq!((total.sum_ns, service.sum_ns, held.sum_ns), (16_208_000, 208_000, 16_000_000));
        // Both measured requests took 100 us to serve, and only one of them was held.
        assert_eq!(service.buckets.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [8, 2]);
        assert_eq!(held.buckets.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [9, 1]);
        assert_eq!(total.buckets.len(), 3);
    }
}
