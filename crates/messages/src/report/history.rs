//! History: figures over time in columns, and the state of the history file.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Figures over time of a volume, of a datastore, or of all volumes. Every column is as long as `at_unix_seconds`;
/// unknown steps are null.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HistoryReport {
    /// The volume; absent for other histories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// The datastore, empty for volumes without one; absent for other histories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datastore: Option<String>,
    /// The pool; absent for other histories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Begin of the range, in seconds since 1970.
    pub from_unix_seconds: u64,
    /// End of the range.
    pub to_unix_seconds: u64,
    /// Seconds between two entries: the requested step, or the finest that is still kept for that time.
    pub step_seconds: u64,
    /// Finest resolution of minima and maxima in the data, in seconds.
    pub tier_seconds: u64,
    /// When each step begins.
    pub at_unix_seconds: Vec<u64>,
    /// Seconds of each step for which data was recorded.
    pub covered_seconds: Vec<u64>,
    /// Figures by name.
    pub series: BTreeMap<String, FigureReport>,
    /// Latencies of `read` and `write`.
    pub latency: BTreeMap<String, LatencyFigures>,
}

/// One figure over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FigureReport {
    /// `counter` for increments, `level` for values at a point in time.
    pub kind: String,
    /// Unit; of a counter, mean, minimum and maximum are per second.
    pub unit: String,
    /// Sum of a counter's increments in each step; empty for a level.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sum: Vec<u64>,
    /// Mean over the recorded seconds.
    pub mean: Vec<f64>,
    /// Minimum over the recorded seconds.
    pub min: Vec<u64>,
    /// Maximum over the recorded seconds.
    pub max: Vec<u64>,
}

/// Latencies over time, of the histograms of all requests of each step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LatencyFigures {
    /// Requests.
    pub count: Vec<u64>,
    /// Mean in microseconds; null without requests, as the next three.
    pub mean_us: Vec<Option<f64>>,
    /// Median.
    pub p50_us: Vec<Option<f64>>,
    /// 99th percentile.
    pub p99_us: Vec<Option<f64>>,
    /// 99.9th percentile.
    pub p999_us: Vec<Option<f64>>,
    /// Upper ends of the histogram's buckets; the last one has none.
    pub bounds_us: Vec<f64>,
    /// For each step the requests of each bucket. They add up, over steps and over volumes.
    pub counts: Vec<Vec<u64>>,
}

/// State of the history file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HistoryHealth {
    /// Present size of the file.
    pub bytes: u64,
    /// Maximum size of the file.
    pub limit_bytes: u64,
    /// Resolutions with their retention, the finest first.
    pub tiers: Vec<TierReport>,
    /// Why nothing can be written now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// Rows dropped since the start because they could not be written in time.
    pub lost_rows: u64,
}

/// A resolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TierReport {
    /// Seconds of a point.
    pub step_seconds: u64,
    /// Configured retention in seconds.
    pub keep_seconds: u64,
    /// Present retention in seconds, if a full file shortens it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shortened_seconds: Option<u64>,
}

impl HistoryReport {
    /// Begin of the first step with data and end of the last one, in seconds since 1970; `None` without data.
    pub fn covered_range(&self) -> Option<(u64, u64)> {
        let is_covered = |step: &usize| self.covered_seconds.get(*step).is_some_and(|covered| *covered > 0);
        let steps = 0..self.at_unix_seconds.len();
        let (first, last) = (steps.clone().find(is_covered)?, steps.rev().find(is_covered)?);
        let end = self.at_unix_seconds[last] + self.step_seconds;
        Some((self.at_unix_seconds[first].max(self.from_unix_seconds), end.min(self.to_unix_seconds)))
    }

    /// The report as comma-separated values, one line a step; unknown values are empty.
    pub fn to_csv(&self) -> String {
        let mut text = String::from("at_unix_seconds,covered_seconds");
        for (name, figures) in &self.series {
            // Writing into a text does not fail, here and below.
            let _ = match figures.sum.is_empty() {
                true => write!(text, ",{name}_mean,{name}_min,{name}_max"),
                false => write!(text, ",{name},{name}_mean,{name}_min,{name}_max"),
            };
        }
        for name in self.latency.keys() {
            let columns = ["count", "mean_us", "p50_us", "p99_us", "p999_us"];
            columns.iter().for_each(|column| text.push_str(&format!(",{name}_latency_{column}")));
        }
        text.push('\n');
        for (step, (begin, covered)) in self.at_unix_seconds.iter().zip(&self.covered_seconds).enumerate() {
            let _ = write!(text, "{begin},{covered}");
            for figures in self.series.values() {
                if let Some(sum) = figures.sum.get(step) {
                    let _ = write!(text, ",{sum}");
                }
                let _ = write!(text, ",{},{},{}", figures.mean[step], figures.min[step], figures.max[step]);
            }
            for figures in self.latency.values() {
                let _ = write!(text, ",{}", figures.count[step]);
                for column in [&figures.mean_us, &figures.p50_us, &figures.p99_us, &figures.p999_us] {
                    let _ = match column[step] {
                        Some(us) => write!(text, ",{us}"),
                        None => write!(text, ","),
                    };
                }
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covered_range_ends_with_the_data() {
        let report = HistoryReport {
            from_unix_seconds: 12,
            to_unix_seconds: 48,
            step_seconds: 10,
            at_unix_seconds: vec![10, 20, 30, 40],
            covered_seconds: vec![0, 3, 10, 0],
            ..HistoryReport::default()
        };
        assert_eq!(report.covered_range(), Some((20, 40)));
        let whole = HistoryReport { covered_seconds: vec![1; 4], ..report.clone() };
        assert_eq!(whole.covered_range(), Some((12, 48)));
        assert_eq!(HistoryReport { covered_seconds: vec![0; 4], ..report }.covered_range(), None);
    }

    #[test]
    fn every_line_has_a_field_for_each_name() {
        let counter = FigureReport {
            kind: "counter".to_owned(),
            unit: "requests".to_owned(),
            sum: vec![3, 0],
            mean: vec![1.5, 0.0],
            min: vec![1, 0],
            max: vec![2, 0],
        };
        let level = FigureReport { sum: Vec::new(), ..counter.clone() };
        let latency = LatencyFigures {
            count: vec![3, 0],
            mean_us: vec![Some(2.5), None],
            p50_us: vec![Some(2.0), None],
            p99_us: vec![Some(3.0), None],
            p999_us: vec![Some(3.0), None],
            ..LatencyFigures::default()
        };
        let report = HistoryReport {
            at_unix_seconds: vec![10, 12],
            covered_seconds: vec![2, 1],
            series: BTreeMap::from([("dirty_bytes".to_owned(), level), ("reads".to_owned(), counter)]),
            latency: BTreeMap::from([("read".to_owned(), latency)]),
            ..HistoryReport::default()
        };
        assert_eq!(
            report.to_csv(),
            "at_unix_seconds,covered_seconds,dirty_bytes_mean,dirty_bytes_min,dirty_bytes_max,reads,reads_mean,\
             reads_min,reads_max,read_latency_count,read_latency_mean_us,read_latency_p50_us,read_latency_p99_us,\
             read_latency_p999_us\n\
             10,2,1.5,1,2,3,1.5,1,2,3,2.5,2,3,3\n12,1,0,0,0,0,0,0,0,0,,,,\n"
        );
    }
}
