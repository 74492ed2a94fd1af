//! A point: figures of some seconds; two points can be merged.

use super::latencies::Latencies;
use super::series::{Kind, SERIES, SERIES_COUNT};

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
    pub values: [Value; SERIES_COUNT],
    /// Latencies of reads and of writes, as clients see them.
    pub latencies: [Latencies; 2],
}

impl Point {
    /// A point of one sample that covers `seconds`, from levels and increases.
    pub fn of_sample(start: u64, seconds: u64, figures: &[u64; SERIES_COUNT], latencies: [Latencies; 2]) -> Point {
        let value = |index: usize| Value::of_sample(SERIES[index].kind, figures[index], seconds);
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
