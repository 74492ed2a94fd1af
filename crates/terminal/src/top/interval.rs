//! Differences between two samples of a daemon's counters.
//!
//! Differences are taken per volume before they are summed. So a removed volume does not lower a sum, and a new one, or
//! one that returned under the same name, adds only its own counts.

use std::collections::BTreeMap;

use api::totals::Totals;
use messages::{StatusReport, VolumeReport};

/// Shortest interval between samples: a rate over a few milliseconds is noise.
const INTERVAL_MS_MIN: u64 = 50;

/// Counts between two samples, and the time between them. Gauges are from the later sample.
pub struct Interval {
    seconds: f64,
    /// All volumes together.
    pub totals: Totals,
    /// Each volume, in the later sample's order.
    pub volumes: Vec<VolumeReport>,
}

impl Interval {
    /// The interval between `before` and `now`; `None` if they come from different daemon processes, or are less than
    /// `INTERVAL_MS_MIN` milliseconds apart.
    pub fn between(before: &StatusReport, now: &StatusReport) -> Option<Interval> {
        let elapsed_ms = now.uptime_ms.checked_sub(before.uptime_ms).filter(|elapsed| *elapsed >= INTERVAL_MS_MIN)?;
        if now.pid != before.pid {
            return None;
        }
        let earlier: BTreeMap<_, _> = before.volumes.iter().map(|volume| (&volume.name, volume)).collect();
        let volumes: Vec<_> =
            now.volumes.iter().map(|volume| increase_since(volume, earlier.get(&volume.name).copied())).collect();
        Some(Interval { seconds: elapsed_ms as f64 / 1e3, totals: Totals::of(&volumes), volumes })
    }

    /// A count as a rate per second.
    pub fn rate(&self, count: u64) -> f64 {
        count as f64 / self.seconds
    }
}

/// All counters that become rates.
fn counters(volume: &mut VolumeReport) -> [&mut u64; 21] {
    [
        &mut volume.reads,
        &mut volume.writes,
        &mut volume.flushes,
        &mut volume.zeroes,
        &mut volume.read_bytes,
        &mut volume.write_bytes,
        &mut volume.memory_hits,
        &mut volume.prefetched_hits,
        &mut volume.flash_hits,
        &mut volume.partial_hits,
        &mut volume.misses,
        &mut volume.source_bytes.memory,
        &mut volume.source_bytes.prefetched,
        &mut volume.source_bytes.flash,
        &mut volume.source_bytes.backing,
        &mut volume.errors,
        &mut volume.backing_reads,
        &mut volume.backing_writes,
        &mut volume.backing_read_bytes,
        &mut volume.backing_write_bytes,
        &mut volume.backing_errors,
    ]
}

/// `now` with the increase of each counter. If one has decreased, the volume has restarted, and all its counters count
/// from zero.
fn increase_since(now: &VolumeReport, before: Option<&VolumeReport>) -> VolumeReport {
    let mut increase = now.clone();
    let Some(mut before) = before.filter(|before| before.volume_id == now.volume_id).cloned() else {
        return increase;
    };
    let latencies = std::mem::take(&mut before.latency_counts);
    let earlier = counters(&mut before).map(|count| *count);
    let has_not_restarted = counters(&mut increase).into_iter().zip(&earlier).all(|(now, earlier)| *now >= *earlier);
    if has_not_restarted {
        counters(&mut increase).into_iter().zip(&earlier).for_each(|(now, earlier)| *now -= *earlier);
        increase.latency_counts = increase.latency_counts.since(&latencies);
    }
    increase
}

/// Reads by source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// Fully served from memory.
    pub memory: u64,
    /// Fully served from memory after readahead from the array.
    pub prefetched: u64,
    /// Fully served from caches, at least one block from flash.
    pub flash: u64,
    /// Served by the array, including partial hits, which also waited for it.
    pub array: u64,
}

impl Sources {
    /// Sources of one volume.
    pub fn of(volume: &VolumeReport) -> Sources {
        Sources {
            memory: volume.memory_hits,
            prefetched: volume.prefetched_hits,
            flash: volume.flash_hits,
            array: volume.misses + volume.partial_hits,
        }
    }

    /// Sources of all volumes.
    pub fn of_all(totals: &Totals) -> Sources {
        Sources {
            memory: totals.memory_hits,
            prefetched: totals.prefetched_hits,
            flash: totals.flash_hits,
            array: totals.misses + totals.partial_hits,
        }
    }

    /// Hit ratio: the fraction of reads that caused no array read, neither on demand nor by readahead. `None` without
    /// reads.
    pub fn hit_ratio(self) -> Option<f64> {
        let total = self.memory + self.prefetched + self.flash + self.array;
        (total > 0).then(|| (self.memory + self.flash) as f64 / total as f64)
    }
}
