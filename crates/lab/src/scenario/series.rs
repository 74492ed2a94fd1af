//! What a scenario shows: points in time, checks against what was published, and what became of them.

/// What one stretch of time brought.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// Its end, in minutes from the start.
    pub minute: f64,
    /// Requests a second.
    pub iops: f64,
    /// Mean, of all requests.
    pub latency_ms: f64,
    /// Latency that 99 of 100 reads keep to.
    pub read_p99_ms: f64,
    /// Latency that 999 of 1,000 reads keep to.
    pub read_p999_ms: f64,
    /// Reads served whole from memory and flash.
    pub read_hit_ratio: f64,
    /// Writes acknowledged within a millisecond.
    pub write_hit_ratio: f64,
    /// Pages on flash, of what it has room for.
    pub flash_fill_ratio: f64,
    /// Dirty data, of memory and one flash device.
    pub dirty_ratio: f64,
    /// Read from the arrays, in 10^6 bytes a second.
    pub backing_read_mb_s: f64,
    /// Written to the arrays.
    pub backing_write_mb_s: f64,
    /// Time that disks were busy, of all.
    pub backing_utilization: f64,
    /// Requests that failed, so far.
    pub errors: u64,
}

/// The points of a run.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// What was run: `with`, `without`, or a variant.
    pub name: String,
    /// In order of time.
    pub points: Vec<Point>,
}

impl Series {
    /// Medians over the points of p99 and p99.9 of reads, in milliseconds. `None`: no points.
    pub fn slowest_reads(&self) -> Option<[f64; 2]> {
        let median = |of: fn(&Point) -> f64| {
            let mut values: Vec<f64> = self.points.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied()
        };
        Some([median(|point| point.read_p99_ms)?, median(|point| point.read_p999_ms)?])
    }
}

/// A figure that has to lie between two bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// What is measured.
    pub name: String,
    /// What it came to.
    pub value: f64,
    /// It must not be less.
    pub low: Option<f64>,
    /// It must not be more.
    pub high: Option<f64>,
    /// Who published the bound, or by which sum it follows.
    pub source: &'static str,
}

impl Check {
    /// At least `low`.
    pub fn at_least(name: impl Into<String>, value: f64, low: f64, source: &'static str) -> Check {
        Check { name: name.into(), value, low: Some(low), high: None, source }
    }

    /// At most `high`.
    pub fn at_most(name: impl Into<String>, value: f64, high: f64, source: &'static str) -> Check {
        Check { name: name.into(), value, low: None, high: Some(high), source }
    }

    /// Between the two.
    pub fn between(name: impl Into<String>, value: f64, low: f64, high: f64, source: &'static str) -> Check {
        Check { name: name.into(), value, low: Some(low), high: Some(high), source }
    }

    /// True when it lies inside.
    pub fn passed(&self) -> bool {
        self.low.is_none_or(|low| self.value >= low) && self.high.is_none_or(|high| self.value <= high)
    }
}

/// What came of a scenario.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Every figure that was held against a bound.
    pub checks: Vec<Check>,
    /// The runs; the first is the one with the cache.
    pub series: Vec<Series>,
    /// What is reported without a bound.
    pub notes: Vec<String>,
}

impl Outcome {
    /// True when every check passed; a scenario without checks shows nothing.
    pub fn passed(&self) -> bool {
        !self.checks.is_empty() && self.checks.iter().all(Check::passed)
    }

    /// Adds a run.
    pub fn run(&mut self, name: &str, points: Vec<Point>) -> &mut Self {
        self.series.push(Series { name: name.to_owned(), points });
        self
    }
}

/// Mean of a column over some points.
pub fn mean(points: &[Point], of: impl Fn(&Point) -> f64) -> f64 {
    points.iter().map(of).sum::<f64>() / points.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_fails_outside_its_bounds_and_an_outcome_without_checks_shows_nothing() {
        assert!(Check::between("x", 1.0, 1.0, 2.0, "").passed());
        assert!(!Check::between("x", 2.1, 1.0, 2.0, "").passed());
        assert!(!Check::at_least("x", f64::NAN, 1.0, "").passed(), "what is no number has passed nothing");
        assert!(!Outcome::default().passed());
    }
}
