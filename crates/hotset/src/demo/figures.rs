//! From latencies to the figures that are shown.

use serde::Serialize;

use super::workload::Tally;

/// Latency of one kind of request, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Mean.
    pub mean: f64,
    /// Half took at most this.
    pub p50: f64,
    /// 99 % took at most this.
    pub p99: f64,
}

/// What one client saw in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Time.
    pub seconds: f64,
    /// Requests that ended.
    pub requests: u64,
    /// Requests a second.
    pub iops: f64,
    /// Latency of reads.
    pub read_latency_us: Latency,
    /// Latency of writes.
    pub write_latency_us: Latency,
    /// Reads served whole from memory and flash, of all reads, as the daemon counted them.
    pub read_hit_ratio: f64,
    /// Those for which flash was read, of all reads.
    pub flash_hit_ratio: f64,
}

/// Reads that the daemon counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// All.
    pub all: u64,
    /// Served whole from memory.
    pub memory: u64,
    /// Served whole from memory and flash, and not from memory alone.
    pub flash: u64,
}

impl Reads {
    /// Those since `before`.
    pub fn since(self, before: Reads) -> Reads {
        Reads {
            all: self.all.saturating_sub(before.all),
            memory: self.memory.saturating_sub(before.memory),
            flash: self.flash.saturating_sub(before.flash),
        }
    }

    /// Adds others.
    pub fn add(&mut self, other: Reads) {
        self.all += other.all;
        self.memory += other.memory;
        self.flash += other.flash;
    }

    fn ratio(self, of: u64) -> f64 {
        if self.all == 0 { 0.0 } else { of as f64 / self.all as f64 }
    }
}

impl Figures {
    /// The figures of `tally`, which took `seconds`.
    pub fn of(mut tally: Tally, reads: Reads, seconds: f64) -> Figures {
        let requests = tally.requests() as u64;
        Figures {
            seconds,
            requests,
            iops: if seconds > 0.0 { requests as f64 / seconds } else { 0.0 },
            read_latency_us: latency(&mut tally.reads),
            write_latency_us: latency(&mut tally.writes),
            read_hit_ratio: reads.ratio(reads.memory + reads.flash),
            flash_hit_ratio: reads.ratio(reads.flash),
        }
    }
}

fn latency(micros: &mut [u32]) -> Latency {
    if micros.is_empty() {
        return Latency::default();
    }
    micros.sort_unstable();
    let rank = |percent: usize| f64::from(micros[(micros.len() * percent).div_ceil(100).saturating_sub(1)]);
    let sum: u64 = micros.iter().map(|micros| u64::from(*micros)).sum();
    Latency { mean: sum as f64 / micros.len() as f64, p50: rank(50), p99: rank(99) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_latencies() {
        let tally = Tally { reads: (1..=100).rev().collect(), writes: vec![7] };
        let figures = Figures::of(tally, Reads { all: 8, memory: 5, flash: 1 }, 2.0);
        assert_eq!((figures.requests, figures.iops), (101, 50.5));
        assert_eq!(figures.read_latency_us, Latency { mean: 50.5, p50: 50.0, p99: 99.0 });
        assert_eq!(figures.write_latency_us, Latency { mean: 7.0, p50: 7.0, p99: 7.0 });
        assert_eq!((figures.read_hit_ratio, figures.flash_hit_ratio), (0.75, 0.125));
    }

    #[test]
    fn nothing_at_all_is_zero() {
        assert_eq!(Figures::of(Tally::default(), Reads::default(), 0.0), Figures::default());
    }
}
