//! Computes the displayed figures from latencies.

use serde::Serialize;

use engine::FineLatencyHistogram;

use super::client_counters::ClientCounters;

/// Latency of one kind of request, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// Figures of one client over a span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Length of the span.
    pub seconds: f64,
    /// Completed requests.
    pub requests: u64,
    /// Requests per second.
    pub iops: f64,
    /// Latency of reads.
    pub read_latency_us: Latency,
    /// Latency of writes.
    pub write_latency_us: Latency,
    /// Reads fully served from memory and flash, as a fraction of all reads, by the daemon's counters.
    pub read_hit_ratio: f64,
    /// Reads fully served with at least one block from flash, as a fraction of all reads.
    pub flash_hit_ratio: f64,
}

/// The daemon's counters of reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// All reads.
    pub total: u64,
    /// Fully served from memory.
    pub memory: u64,
    /// Fully served from memory and flash, with at least one block from flash.
    pub flash: u64,
}

impl Reads {
    /// The increase since `before`.
    pub fn since(self, before: Reads) -> Reads {
        Reads {
            total: self.total.saturating_sub(before.total),
            memory: self.memory.saturating_sub(before.memory),
            flash: self.flash.saturating_sub(before.flash),
        }
    }

    /// Adds `other`.
    pub fn add(&mut self, other: Reads) {
        self.total += other.total;
        self.memory += other.memory;
        self.flash += other.flash;
    }

    fn ratio(self, count: u64) -> f64 {
        if self.total == 0 { 0.0 } else { count as f64 / self.total as f64 }
    }
}

impl Figures {
    /// The figures of `counters`, counted over `seconds`.
    pub fn of(counters: &ClientCounters, reads: Reads, seconds: f64) -> Figures {
        let requests = counters.reads.counts().all + counters.writes.counts().all + counters.late;
        Figures {
            seconds,
            requests,
            iops: if seconds > 0.0 { requests as f64 / seconds } else { 0.0 },
            read_latency_us: latency(&counters.reads),
            write_latency_us: latency(&counters.writes),
            read_hit_ratio: reads.ratio(reads.memory + reads.flash),
            flash_hit_ratio: reads.ratio(reads.flash),
        }
    }
}

fn latency(histogram: &FineLatencyHistogram) -> Latency {
    let (counts, summary) = (histogram.counts(), histogram.summary());
    let mean = counts.sum_ns as f64 / 1e3 / counts.all.max(1) as f64;
    Latency { mean, p50: summary.p50_us, p99: summary.p99_us }
}

#[cfg(test)]
mod tests {
    use seam::Nanos;

    use super::*;

    #[test]
    fn figures_follow_from_the_latencies() {
        let mut counters = ClientCounters::default();
        (1..=100).for_each(|micros| counters.record(false, Nanos::from_micros(micros)));
        counters.record(true, Nanos::from_micros(7));
        let mut twice = ClientCounters::default();
        twice.add(&counters);
        twice.record(true, Nanos::from_micros(21_000));
        twice.late += 1;
        let figures = Figures::of(&twice, Reads { total: 8, memory: 5, flash: 1 }, 2.0);
        assert_eq!((figures.requests, figures.iops, twice.fast_writes), (103, 51.5, 1));
        let Latency { mean, p50, p99 } = figures.read_latency_us;
        assert_eq!(mean, 50.5);
        assert!((50.0..57.0).contains(&p50) && (99.0..112.0).contains(&p99), "{p50} and {p99}");
        assert_eq!(figures.write_latency_us.mean, 10_503.5);
        assert_eq!((figures.read_hit_ratio, figures.flash_hit_ratio), (0.75, 0.125));
    }

    #[test]
    fn empty_counters_give_zero_figures() {
        assert_eq!(Figures::of(&ClientCounters::default(), Reads::default(), 0.0), Figures::default());
    }
}
