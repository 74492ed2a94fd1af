//! Results of a scenario: points in time, checks against published figures, and the outcome.

/// Measurements of one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// End of the interval, in minutes from the start.
    pub minute: f64,
    /// Requests per second.
    pub iops: f64,
    /// Mean latency of all requests.
    pub latency_ms: f64,
    /// 99th percentile of read latency.
    pub read_p99_ms: f64,
    /// 99.9th percentile of read latency.
    pub read_p999_ms: f64,
    /// Reads served entirely from memory and flash.
    pub read_hit_ratio: f64,
    /// Writes acknowledged within a millisecond.
    pub fast_write_ratio: f64,
    /// Pages on flash, as a fraction of its capacity.
    pub flash_fill_ratio: f64,
    /// Dirty data, as a fraction of memory and one flash device.
    pub dirty_ratio: f64,
    /// Read from the arrays, in 10^6 bytes per second.
    pub backing_read_mb_s: f64,
    /// Written to the arrays, in 10^6 bytes per second.
    pub backing_write_mb_s: f64,
    /// Fraction of the time that disks were busy.
    pub backing_utilization: f64,
    /// Failed requests so far.
    pub errors: u64,
    /// Requests that the writes of clients caused.
    pub costs: WriteCosts,
}

/// Requests to arrays and flash devices beside the writes of clients that caused most of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WriteCosts {
    /// Writes of clients.
    pub client_writes: u64,
    /// Bytes that they wrote.
    pub client_bytes: u64,
    /// Writes to the arrays.
    pub backing_writes: u64,
    /// Bytes written to the arrays.
    pub backing_bytes: u64,
    /// Reads and writes of the flash devices.
    pub flash_requests: u64,
    /// Bytes written to the flash devices.
    pub flash_bytes: u64,
}

impl WriteCosts {
    /// Combines each field with that of `other`.
    fn combined(self, other: WriteCosts, combine: fn(u64, u64) -> u64) -> WriteCosts {
        WriteCosts {
            client_writes: combine(self.client_writes, other.client_writes),
            client_bytes: combine(self.client_bytes, other.client_bytes),
            backing_writes: combine(self.backing_writes, other.backing_writes),
            backing_bytes: combine(self.backing_bytes, other.backing_bytes),
            flash_requests: combine(self.flash_requests, other.flash_requests),
            flash_bytes: combine(self.flash_bytes, other.flash_bytes),
        }
    }
}

impl std::ops::Add for WriteCosts {
    type Output = WriteCosts;

    fn add(self, other: WriteCosts) -> WriteCosts {
        self.combined(other, |left, right| left + right)
    }
}

impl std::ops::Sub for WriteCosts {
    type Output = WriteCosts;

    fn sub(self, other: WriteCosts) -> WriteCosts {
        self.combined(other, |left, right| left - right)
    }
}

/// The points of one run.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// Name of the run: `with`, `without`, or a variant.
    pub name: String,
    /// Points in order of time.
    pub points: Vec<Point>,
}

impl Series {
    /// Costs of the client writes of all points.
    pub fn write_costs(&self) -> WriteCosts {
        self.points.iter().fold(WriteCosts::default(), |sum, point| sum + point.costs)
    }

    /// Medians over the points of p99 and p99.9 of reads, in milliseconds. `None` without points.
    pub fn median_read_percentiles(&self) -> Option<[f64; 2]> {
        let median = |value_of: fn(&Point) -> f64| {
            let mut values: Vec<f64> = self.points.iter().map(value_of).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied()
        };
        Some([median(|point| point.read_p99_ms)?, median(|point| point.read_p999_ms)?])
    }
}

/// A figure and its bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// Name of the figure.
    pub name: String,
    /// Measured value.
    pub value: f64,
    /// Lower bound, inclusive.
    pub low: Option<f64>,
    /// Upper bound, inclusive.
    pub high: Option<f64>,
    /// Publication of the bound, or the calculation behind it.
    pub source: &'static str,
}

impl Check {
    /// A check that `value` is at least `low`.
    pub fn at_least(name: impl Into<String>, value: f64, low: f64, source: &'static str) -> Check {
        Check { name: name.into(), value, low: Some(low), high: None, source }
    }

    /// A check that `value` is at most `high`.
    pub fn at_most(name: impl Into<String>, value: f64, high: f64, source: &'static str) -> Check {
        Check { name: name.into(), value, low: None, high: Some(high), source }
    }

    /// A check that `value` lies between the bounds.
    pub fn between(name: impl Into<String>, value: f64, low: f64, high: f64, source: &'static str) -> Check {
        Check { name: name.into(), value, low: Some(low), high: Some(high), source }
    }

    /// True when the value lies within the bounds.
    pub fn passed(&self) -> bool {
        self.low.is_none_or(|low| self.value >= low) && self.high.is_none_or(|high| self.value <= high)
    }
}

/// Result of a scenario.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// All checks.
    pub checks: Vec<Check>,
    /// The runs; the first is the one with the cache.
    pub series: Vec<Series>,
    /// Figures without a bound.
    pub notes: Vec<String>,
}

impl Outcome {
    /// True when every check passed. A scenario without checks does not pass.
    pub fn passed(&self) -> bool {
        !self.checks.is_empty() && self.checks.iter().all(Check::passed)
    }

    /// Adds a run.
    pub fn add_run(&mut self, name: &str, points: Vec<Point>) -> &mut Self {
        self.series.push(Series { name: name.to_owned(), points });
        self
    }
}

/// Mean of a column over the points.
pub fn mean(points: &[Point], column: impl Fn(&Point) -> f64) -> f64 {
    points.iter().map(column).sum::<f64>() / points.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_outside_bounds_fails() {
        assert!(Check::between("x", 1.0, 1.0, 2.0, "").passed());
        assert!(!Check::between("x", 2.1, 1.0, 2.0, "").passed());
        assert!(!Check::at_least("x", f64::NAN, 1.0, "").passed(), "NaN passes no check");
    }

    #[test]
    fn outcome_without_checks_fails() {
        assert!(!Outcome::default().passed());
    }
}
