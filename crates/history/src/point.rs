//! A point: figures of some seconds; two points can be merged.

use super::series::{COUNT, Kind, SERIES};

/// Buckets of a latency histogram: one below each reported bound of the engine, and one above.
pub const BUCKETS: usize = 12;

/// One figure over some seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Value {
    /// Sum of the increases, or of the levels at each sample.
    pub sum: u64,
    /// Smallest increase per second, or smallest level.
    pub min: u64,
    /// Largest increase per second, or largest level.
    pub max: u64,
}

/// Latencies of reads or writes over some seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// Sum in microseconds.
    pub sum_us: u64,
    /// Requests by bucket, not cumulative.
    pub counts: [u64; BUCKETS],
}

/// Figures of some seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// First second, since 1970.
    pub start: u64,
    /// Number of samples.
    pub samples: u64,
    /// Seconds that the samples cover.
    pub seconds: u64,
    /// Figures, in the order of the list of series.
    pub values: [Value; COUNT],
    /// Latencies of reads and of writes.
    pub latencies: [Latencies; 2],
}

impl Point {
    /// A point of one sample that covers `seconds`, from levels and increases.
    pub fn of_sample(start: u64, seconds: u64, figures: &[u64; COUNT], latencies: [Latencies; 2]) -> Point {
        let value = |at: usize| Value::of_sample(SERIES[at].kind, figures[at], seconds);
        Point { start, samples: 1, seconds, values: std::array::from_fn(value), latencies }
    }

    /// Merges another point.
    pub fn merge(&mut self, other: &Point) {
        self.start = self.start.min(other.start);
        self.samples += other.samples;
        self.seconds += other.seconds;
        self.values.iter_mut().zip(&other.values).for_each(|(value, other)| value.merge(other));
        self.latencies.iter_mut().zip(&other.latencies).for_each(|(latencies, other)| latencies.merge(other));
    }
}

impl Value {
    /// A value of one sample that covers `seconds`.
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
    /// Number of requests.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds another histogram, bucket by bucket.
    pub fn merge(&mut self, other: &Latencies) {
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
        self.counts.iter_mut().zip(other.counts).for_each(|(count, other)| *count += other);
    }

    /// Latency that the fraction `part` of requests did not exceed, interpolated linearly within its bucket; `None`
    /// without requests. In the last bucket, which has no upper bound, it is the lower bound.
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
    fn percentile_is_interpolated_and_survives_merging() {
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
        // The mean of both p99 values would be about 200; the true value is the latency of request 100 of 101.
        assert!(quick.percentile_us(0.99, &bounds).is_some_and(|us| us > 256.0 && us <= 512.0));
        assert_eq!(quick.percentile_us(1.0, &bounds), Some(1024.0));
        assert_eq!(Latencies::default().percentile_us(0.5, &bounds), None);
    }
}
