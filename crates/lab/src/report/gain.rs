//! Totals of the cache's gain: requests, their sources, requests avoided at the array, and read latency.

use messages::report::{Bucket, HistoryReport, SourceBytes, percentile_us};
use serde::Serialize;

/// Totals over a time span, of a volume or of all volumes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Gain {
    /// Start, in seconds since 1970.
    pub from_unix_seconds: u64,
    /// End, in seconds since 1970.
    pub to_unix_seconds: u64,
    /// Seconds with data.
    pub covered_seconds: u64,
    /// Reads by clients.
    pub reads: u64,
    /// Writes by clients.
    pub writes: u64,
    /// Bytes read by clients.
    pub read_bytes: u64,
    /// Bytes written by clients.
    pub write_bytes: u64,
    /// Reads served completely from memory.
    pub memory_hits: u64,
    /// Reads served completely from memory, for which the array was read ahead.
    pub prefetched_hits: u64,
    /// Reads served completely from flash.
    pub flash_hits: u64,
    /// Reads served by the array, completely or partly.
    pub array_reads: u64,
    /// Bytes read by clients, by source.
    pub source_bytes: SourceBytes,
    /// Reads by the cache from the backing.
    pub backing_reads: u64,
    /// Writes by the cache to the backing.
    pub backing_writes: u64,
    /// Bytes of backing reads.
    pub backing_read_bytes: u64,
    /// Bytes of backing writes.
    pub backing_write_bytes: u64,
    /// Median of read latency; `None` without reads.
    pub read_p50_us: Option<f64>,
    /// 99th percentile of read latency.
    pub read_p99_us: Option<f64>,
    /// `read_p50_us` under its former name, for one release.
    pub read_p50_at_most_us: Option<f64>,
    /// `read_p99_us` under its former name, for one release.
    pub read_p99_at_most_us: Option<f64>,
    /// Time for which limits or shares held reads.
    pub read_held_us: u64,
}

/// The gain of one volume.
pub struct VolumeGain {
    /// The volume's name.
    pub volume: String,
    /// The volume's totals.
    pub gain: Gain,
}

impl Gain {
    /// Sums up the steps of a report.
    pub fn of(history: &HistoryReport) -> Gain {
        let sum = |name: &str| history.series.get(name).map_or(0, |figures| figures.sum.iter().sum());
        Gain {
            from_unix_seconds: history.from_unix_seconds,
            to_unix_seconds: history.to_unix_seconds,
            covered_seconds: history.covered_seconds.iter().sum(),
            reads: sum("reads"),
            writes: sum("writes"),
            read_bytes: sum("read_bytes"),
            write_bytes: sum("write_bytes"),
            memory_hits: sum("memory_hits"),
            prefetched_hits: sum("prefetched_hits"),
            flash_hits: sum("flash_hits"),
            array_reads: sum("misses") + sum("partial_hits"),
            source_bytes: SourceBytes {
                memory: sum("memory_source_bytes"),
                prefetched: sum("prefetched_source_bytes"),
                flash: sum("flash_source_bytes"),
                backing: sum("backing_source_bytes"),
            },
            backing_reads: sum("backing_reads"),
            backing_writes: sum("backing_writes"),
            backing_read_bytes: sum("backing_read_bytes"),
            backing_write_bytes: sum("backing_write_bytes"),
            read_p50_us: read_percentile_us(history, 0.5),
            read_p50_at_most_us: read_percentile_us(history, 0.5),
            read_p99_at_most_us: read_percentile_us(history, 0.99),
            read_p99_us: read_percentile_us(history, 0.99),
            read_held_us: sum("read_held_us"),
        }
    }

    /// Client requests minus requests to the array.
    pub fn avoided_requests(&self) -> u64 {
        (self.reads + self.writes).saturating_sub(self.backing_reads + self.backing_writes)
    }

    /// Client bytes minus bytes transferred to or from the array.
    pub fn avoided_bytes(&self) -> u64 {
        (self.read_bytes + self.write_bytes).saturating_sub(self.backing_read_bytes + self.backing_write_bytes)
    }
}

/// Latency below which `fraction` of all reads lie, from the histograms of all steps together.
fn read_percentile_us(history: &HistoryReport, fraction: f64) -> Option<f64> {
    let latency = history.latency.get("read")?;
    let end_us = |bucket: usize| latency.bounds_us.get(bucket).copied().unwrap_or(f64::INFINITY);
    let count_of_all_steps = |bucket: usize| latency.counts.iter().filter_map(|counts| counts.get(bucket)).sum::<u64>();
    let buckets: Vec<Bucket> = (0..=latency.bounds_us.len())
        .map(|bucket| Bucket {
            from_us: bucket.checked_sub(1).map_or(0.0, end_us),
            to_us: end_us(bucket),
            count: count_of_all_steps(bucket),
        })
        .collect();
    percentile_us(buckets.iter().copied(), fraction)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use messages::report::{FigureReport, LatencyFigures};

    use super::*;

    #[test]
    fn steps_add_up_and_percentiles_are_of_all_requests() {
        let figure = |sum: &[u64]| FigureReport { sum: sum.to_vec(), ..FigureReport::default() };
        let sums = [("reads", [90, 10]), ("writes", [10, 0]), ("memory_hits", [50, 1]), ("backing_reads", [30, 9])];
        let latency = LatencyFigures {
            count: vec![90, 10],
            bounds_us: vec![10.0, 100.0, 1_000.0],
            counts: vec![vec![60, 30, 0, 0], vec![0, 0, 9, 1]],
            ..LatencyFigures::default()
        };
        let history = HistoryReport {
            covered_seconds: vec![60, 30],
            series: sums.iter().map(|(name, sum)| ((*name).to_owned(), figure(sum))).collect(),
            latency: BTreeMap::from([("read".to_owned(), latency)]),
            ..HistoryReport::default()
        };
        let gain = Gain::of(&history);
        assert_eq!((gain.covered_seconds, gain.reads, gain.memory_hits, gain.flash_hits), (90, 100, 51, 0));
        assert_eq!((gain.avoided_requests(), gain.avoided_bytes()), (110 - 39, 0));
        assert_eq!((gain.read_p50_us, gain.read_p99_us), (Some(10.0), Some(1_000.0)));
        assert_eq!(read_percentile_us(&history, 0.75), Some(55.0));
        // The slowest read lies in the unbounded last bucket.
        assert_eq!(read_percentile_us(&history, 1.0), Some(1_000.0));
        assert_eq!(Gain::of(&HistoryReport::default()), Gain::default());
    }
}
