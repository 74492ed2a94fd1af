//! A point: what came in some seconds, so that two of them make one.

use super::series::{COUNT, Kind, SERIES};

/// Buckets of a latency histogram: below each of the engine's told octaves, and the rest.
pub const BUCKETS: usize = 12;

/// One figure over some seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// All that came, or the sum of what it was at each sample.
    pub sum: u64,
    /// The least that came in a second, or that it was.
    pub min: u64,
    /// The most.
    pub max: u64,
}

/// Latencies of one kind of request over some seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// What they took together, in microseconds.
    pub sum_us: u64,
    /// Requests by bucket, each without those below.
    pub counts: [u64; BUCKETS],
}

/// Some seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// The first of them, since 1970.
    pub start: u64,
    /// Samples in it.
    pub samples: u64,
    /// Seconds that these cover.
    pub seconds: u64,
    /// By place in the list of series.
    pub values: [Value; COUNT],
    /// Of reads, of writes.
    pub latencies: [Latencies; 2],
}

impl Point {
    /// Of one sample that covers `seconds`: what each figure is or has grown by.
    pub fn of_sample(start: u64, seconds: u64, figures: &[u64; COUNT], latencies: [Latencies; 2]) -> Point {
        let value = |at: usize| Value::of_sample(SERIES[at].kind, figures[at], seconds);
        Point { start, samples: 1, seconds, values: std::array::from_fn(value), latencies }
    }

    /// Puts another one's seconds to its own.
    pub fn merge(&mut self, other: &Point) {
        self.start = self.start.min(other.start);
        self.samples += other.samples;
        self.seconds += other.seconds;
        self.values.iter_mut().zip(&other.values).for_each(|(value, other)| value.merge(other));
        self.latencies.iter_mut().zip(&other.latencies).for_each(|(latencies, other)| latencies.merge(other));
    }
}

impl Value {
    /// What a sample says, given that it covers `seconds`.
    pub fn of_sample(kind: Kind, figure: u64, seconds: u64) -> Value {
        let rate = if kind == Kind::Counter { figure / seconds.max(1) } else { figure };
        Value { sum: figure, min: rate, max: rate }
    }

    fn merge(&mut self, other: &Value) {
        self.sum = self.sum.saturating_add(other.sum);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }
}

impl Latencies {
    /// Requests in it.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds another one's, bucket by bucket.
    pub fn merge(&mut self, other: &Latencies) {
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
        self.counts.iter_mut().zip(other.counts).for_each(|(count, other)| *count += other);
    }

    /// The time that `part` of the requests took at most, drawn straight through the bucket that it falls into; none without
    /// requests. Past the last bound there is nothing to draw to: the bound itself is told.
    pub fn percentile_us(&self, part: f64, bounds_us: &[f64]) -> Option<f64> {
        let all = self.count();
        let rank = (all as f64 * part).ceil().max(1.0);
        let mut below = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            if *count > 0 && (below + count) as f64 >= rank {
                let low = if bucket == 0 { 0.0 } else { bounds_us[bucket - 1] };
                let high = bounds_us.get(bucket).copied().unwrap_or(low);
                return Some(low + (high - low) * (rank - below as f64) / *count as f64);
            }
            below += count;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_lies_in_its_bucket_and_merging_first_is_the_same_as_counting_together() {
        let bounds: Vec<f64> = (0..11).map(|at| f64::from(1 << at)).collect();
        let mut quick = Latencies::default();
        quick.counts[3] = 99;
        let mut slow = Latencies::default();
        slow.counts[9] = 1;
        slow.counts[11] = 1;
        assert_eq!(quick.percentile_us(0.5, &bounds), Some(4.0 + 4.0 * 50.0 / 99.0));
        quick.merge(&slow);
        assert_eq!(quick.count(), 101);
        assert!(quick.percentile_us(0.98, &bounds).is_some_and(|us| us <= 8.0));
        // The mean of both p99 would be some 200: the truth is where the 100th of 101 requests is.
        assert!(quick.percentile_us(0.99, &bounds).is_some_and(|us| us > 256.0 && us <= 512.0));
        assert_eq!(quick.percentile_us(1.0, &bounds), Some(1024.0));
        assert_eq!(Latencies::default().percentile_us(0.5, &bounds), None);
    }
}
