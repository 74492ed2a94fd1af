//! Latency histograms with eight buckets an octave, so that a percentile is at most an eighth too high.
//! [`FineLatencyHistogram`] resolves all latencies, for measurements of load generators. [`LatencyHistogram`] has the
//! [latency buckets](LATENCY_BUCKET_COUNT), in which latencies of client requests are reported. [`OctaveCounts`] counts
//! requests to backings in a few wide buckets.

use std::cell::Cell;

use seam::Nanos;

use crate::{LatencyCounts, LatencySummary};

/// Buckets in an octave.
const BUCKETS_PER_OCTAVE: usize = 8;
/// Octaves of a [`FineLatencyHistogram`].
const OCTAVES: usize = 40;
/// Buckets of a [`FineLatencyHistogram`].
const BUCKETS: usize = BUCKETS_PER_OCTAVE * OCTAVES;

/// Upper bounds of the buckets in which latencies of requests to backings are reported, in powers of two of a
/// nanosecond: 16 us, 66 us, 262 us, 1.05 ms, each octave to 34 ms, 134 ms and 1.07 s. They are whole octaves, so that
/// the reported counts are exact.
pub const BACKING_BOUNDS_LOG2: [u32; 11] = [14, 16, 18, 20, 21, 22, 23, 24, 25, 27, 30];

/// The first [latency bucket](LATENCY_BUCKET_COUNT) ends at 2 to this power of a nanosecond: 16.4 us.
const FIRST_END_OCTAVE: usize = 14;
/// The last one begins at 2 to this power of a nanosecond: 34.4 s.
const LAST_START_OCTAVE: usize = 35;
/// Bucket of a [`FineLatencyHistogram`] that ends where the first latency bucket does.
const FIRST_FINE_BUCKET: usize = FIRST_END_OCTAVE * BUCKETS_PER_OCTAVE - 1;

/// Number of latency buckets, in which the latencies of client requests are counted, reported and stored: one below
/// 16.4 us, eight an octave up to 34.4 s, and one above.
pub const LATENCY_BUCKET_COUNT: usize = (LAST_START_OCTAVE - FIRST_END_OCTAVE) * BUCKETS_PER_OCTAVE + 2;

/// Upper end of a latency bucket in nanoseconds, which latencies of the bucket do not reach; `None` for the last one.
pub fn latency_bucket_end_ns(bucket: usize) -> Option<u64> {
    assert!(bucket < LATENCY_BUCKET_COUNT, "bucket {bucket} of {LATENCY_BUCKET_COUNT}");
    (bucket < LATENCY_BUCKET_COUNT - 1).then(|| bucket_end_ns(FIRST_FINE_BUCKET + bucket))
}

/// The latency bucket of a latency in nanoseconds.
fn latency_bucket_of(ns: u64) -> usize {
    bucket_of(ns).saturating_sub(FIRST_FINE_BUCKET).min(LATENCY_BUCKET_COUNT - 1)
}

/// Number of requests by [latency bucket](LATENCY_BUCKET_COUNT). Empty buckets are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketCounts {
    /// Bucket and number of requests, by rising bucket.
    pub buckets: Vec<(usize, u64)>,
    /// Sum of the latencies, in nanoseconds.
    pub sum_ns: u64,
}

impl BucketCounts {
    /// Number of requests.
    pub fn total(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }
}

/// A histogram of [latency buckets](LATENCY_BUCKET_COUNT).
pub struct LatencyHistogram {
    buckets: Vec<Cell<u64>>,
    sum_ns: Cell<u64>,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        LatencyHistogram { buckets: vec![Cell::new(0); LATENCY_BUCKET_COUNT], sum_ns: Cell::new(0) }
    }
}

impl LatencyHistogram {
    /// Counts one latency.
    pub fn add(&self, latency: Nanos) {
        self.add_times(latency, 1);
    }

    /// Counts `times` requests of one latency.
    pub fn add_times(&self, latency: Nanos, times: u64) {
        let bucket = &self.buckets[latency_bucket_of(latency.0)];
        bucket.set(bucket.get() + times);
        self.sum_ns.set(self.sum_ns.get().saturating_add(latency.0.saturating_mul(times)));
    }

    /// Adds the counts of another histogram.
    pub fn add_all(&self, other: &LatencyHistogram) {
        for (bucket, more) in self.buckets.iter().zip(&other.buckets) {
            bucket.set(bucket.get() + more.get());
        }
        self.sum_ns.set(self.sum_ns.get().saturating_add(other.sum_ns.get()));
    }

    /// Subtracts the counts of `part`, whose requests this histogram has counted as well.
    pub fn subtract(&self, part: &LatencyHistogram) {
        for (bucket, less) in self.buckets.iter().zip(&part.buckets) {
            assert!(less.get() <= bucket.get(), "a part is not larger than the whole");
            bucket.set(bucket.get() - less.get());
        }
        self.sum_ns.set(self.sum_ns.get().saturating_sub(part.sum_ns.get()));
    }

    /// The counts.
    pub fn counts(&self) -> BucketCounts {
        let counts = self.buckets.iter().map(Cell::get).enumerate();
        BucketCounts { buckets: counts.filter(|(_, count)| *count > 0).collect(), sum_ns: self.sum_ns.get() }
    }
}

/// Counts of latencies from a nanosecond to 18 minutes.
pub struct FineLatencyHistogram {
    buckets: Vec<Cell<u64>>,
    sum_ns: Cell<u64>,
}

impl Default for FineLatencyHistogram {
    fn default() -> Self {
        FineLatencyHistogram { buckets: vec![Cell::new(0); BUCKETS], sum_ns: Cell::new(0) }
    }
}

impl FineLatencyHistogram {
    /// Counts one latency.
    pub fn add(&self, latency: Nanos) {
        let bucket = &self.buckets[bucket_of(latency.0)];
        bucket.set(bucket.get() + 1);
        self.sum_ns.set(self.sum_ns.get().saturating_add(latency.0));
    }

    /// Adds the counts of another histogram.
    pub fn add_all(&self, other: &FineLatencyHistogram) {
        for (bucket, more) in self.buckets.iter().zip(&other.buckets) {
            bucket.set(bucket.get() + more.get());
        }
        self.sum_ns.set(self.sum_ns.get().saturating_add(other.sum_ns.get()));
    }

    /// Counts of latencies below each of [`BACKING_BOUNDS_LOG2`], and of all.
    pub fn counts(&self) -> LatencyCounts {
        let mut counts = LatencyCounts { sum_ns: self.sum_ns.get(), ..LatencyCounts::default() };
        let sum = |buckets: &[Cell<u64>]| buckets.iter().map(Cell::get).sum::<u64>();
        let mut from = 0;
        for (below, bound_log2) in counts.below.iter_mut().zip(BACKING_BOUNDS_LOG2) {
            let end = bound_log2 as usize * BUCKETS_PER_OCTAVE;
            counts.all += sum(&self.buckets[from..end]);
            (*below, from) = (counts.all, end);
        }
        counts.all += sum(&self.buckets[from..]);
        counts
    }

    /// Percentiles, each as the upper end of its bucket.
    pub fn summary(&self) -> LatencySummary {
        let total: u64 = self.buckets.iter().map(Cell::get).sum();
        let (mut seen, mut next) = (0, 0);
        let mut percentile_us = |fraction: f64| {
            let rank = ((total as f64 * fraction).ceil() as u64).min(total);
            while seen < rank {
                seen += self.buckets[next].get();
                next += 1;
            }
            if next == 0 { 0.0 } else { bucket_end_ns(next - 1) as f64 / 1000.0 }
        };
        // In order of rank, so that the buckets are scanned once.
        LatencySummary { p50_us: percentile_us(0.5), p99_us: percentile_us(0.99), p999_us: percentile_us(0.999) }
    }
}

/// The bucket of a latency in a [`FineLatencyHistogram`].
fn bucket_of(ns: u64) -> usize {
    let ns = ns.max(1);
    let octave = ns.ilog2() as usize;
    let step = if octave >= 3 { (ns >> (octave - 3)) & 7 } else { (ns << (3 - octave)) & 7 };
    (octave * BUCKETS_PER_OCTAVE + step as usize).min(BUCKETS - 1)
}

/// Upper end of a bucket of a [`FineLatencyHistogram`], in nanoseconds.
fn bucket_end_ns(bucket: usize) -> u64 {
    let (octave, step) = (bucket / BUCKETS_PER_OCTAVE, (bucket % BUCKETS_PER_OCTAVE) as u64);
    ((9 + step) << octave) >> 3
}

/// A histogram with the bounds of [`BACKING_BOUNDS_LOG2`] only: a 25th of a [`FineLatencyHistogram`]'s memory, but
/// no percentiles.
#[derive(Default)]
pub struct OctaveCounts {
    /// Counts between each bound and the one before it; the last count is of latencies past all bounds.
    between: [Cell<u64>; BACKING_BOUNDS_LOG2.len() + 1],
    sum_ns: Cell<u64>,
}

impl OctaveCounts {
    /// Counts one latency.
    pub fn add(&self, latency: Nanos) {
        let is_below = |bound_log2: &u32| latency.0 < 1 << bound_log2;
        let index = BACKING_BOUNDS_LOG2.iter().position(is_below).unwrap_or(BACKING_BOUNDS_LOG2.len());
        self.between[index].set(self.between[index].get() + 1);
        self.sum_ns.set(self.sum_ns.get().saturating_add(latency.0));
    }

    /// Counts of latencies below each of [`BACKING_BOUNDS_LOG2`], and of all.
    pub fn counts(&self) -> LatencyCounts {
        let mut counts = LatencyCounts { sum_ns: self.sum_ns.get(), ..LatencyCounts::default() };
        for (below, between) in counts.below.iter_mut().zip(&self.between) {
            counts.all += between.get();
            *below = counts.all;
        }
        counts.all += self.between[BACKING_BOUNDS_LOG2.len()].get();
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_an_eighth() {
        let histogram = FineLatencyHistogram::default();
        for us in 1..=1000u64 {
            histogram.add(Nanos::from_micros(us));
        }
        let summary = histogram.summary();
        for (measured, truth) in [(summary.p50_us, 500.0), (summary.p99_us, 990.0), (summary.p999_us, 999.0)] {
            assert!(measured >= truth && measured <= truth * 1.13, "{measured} for {truth}");
        }
        assert_eq!(FineLatencyHistogram::default().summary(), LatencySummary::default());
    }

    #[test]
    fn latency_buckets_are_gapless_from_16_us_to_34_s() {
        let ends: Vec<u64> = (0..LATENCY_BUCKET_COUNT).filter_map(latency_bucket_end_ns).collect();
        assert_eq!(
            (ends.len(), ends.first(), ends.last()),
            (LATENCY_BUCKET_COUNT - 1, Some(&(1 << 14)), Some(&(1 << 35)))
        );
        for (bucket, end) in ends.iter().enumerate() {
            assert_eq!((latency_bucket_of(end - 1), latency_bucket_of(*end)), (bucket, bucket + 1), "end {end} ns");
        }
        for pair in ends.windows(2) {
            assert!(pair[0] < pair[1] && pair[1] - pair[0] <= pair[0] / 8, "{pair:?}");
        }
        assert_eq!((latency_bucket_of(0), latency_bucket_of(u64::MAX)), (0, LATENCY_BUCKET_COUNT - 1));
        for bound_log2 in BACKING_BOUNDS_LOG2 {
            assert!(ends.contains(&(1 << bound_log2)), "2^{bound_log2} ns is a bound of the backings' histograms only");
        }
    }

    #[test]
    fn latency_histogram_lists_occupied_buckets() {
        let (whole, part) = (LatencyHistogram::default(), LatencyHistogram::default());
        whole.add_times(Nanos::from_micros(1), 3);
        part.add(Nanos::from_micros(20));
        whole.add_all(&part);
        assert_eq!(whole.counts(), BucketCounts { buckets: vec![(0, 3), (2, 1)], sum_ns: 23_000 });
        whole.subtract(&part);
        assert_eq!((whole.counts().total(), whole.counts().sum_ns), (3, 3_000));
    }

    #[test]
    fn reported_counts_are_exact() {
        let (histogram, octaves) = (FineLatencyHistogram::default(), OctaveCounts::default());
        let latencies = [1, (1 << 14) - 1, 1 << 14, (1 << 22) - 1, 1 << 22, 1 << 40];
        latencies.iter().for_each(|ns| histogram.add(Nanos(*ns)));
        latencies.iter().for_each(|ns| octaves.add(Nanos(*ns)));
        let counts = histogram.counts();
        assert_eq!(octaves.counts(), counts);
        for (below, octave) in counts.below.iter().zip(BACKING_BOUNDS_LOG2) {
            assert_eq!(*below, latencies.iter().filter(|ns| **ns < 1 << octave).count() as u64, "below 2^{octave} ns");
        }
        assert_eq!((counts.all, counts.sum_ns), (6, latencies.iter().sum()));
    }
}
