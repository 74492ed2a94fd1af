//! Sums over volumes.

use std::collections::BTreeMap;

use messages::report::{BackingRequests, SourceBytes};
use messages::{LatencyCountsReport, VolumeReport};
use serde::Serialize;
use utoipa::ToSchema;

/// Sums over several volumes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Totals {
    /// Number of volumes.
    pub volumes: u64,
    /// Read requests.
    pub reads: u64,
    /// Write requests.
    pub writes: u64,
    /// Flush requests.
    pub flushes: u64,
    /// Zero and discard requests.
    pub zeroes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Reads served whole from memory.
    pub memory_hits: u64,
    /// Reads served whole from memory, for which the array was read ahead.
    pub prefetched_hits: u64,
    /// Reads served whole from caches, flash taking part.
    pub flash_hits: u64,
    /// Reads served in part from a cache.
    pub partial_hits: u64,
    /// Reads served not at all from a cache.
    pub misses: u64,
    /// Bytes read by clients, by source.
    pub source_bytes: SourceBytes,
    /// Requests that failed.
    pub errors: u64,
    /// Blocks held in memory.
    pub memory_bytes: u64,
    /// Dirty data.
    pub dirty_bytes: u64,
    /// Age of the oldest dirty block of all.
    pub dirty_age_ms: u64,
    /// Reads of backings.
    pub backing_reads: u64,
    /// Writes to backings.
    pub backing_writes: u64,
    /// Bytes read from backings.
    pub backing_read_bytes: u64,
    /// Bytes written to backings.
    pub backing_write_bytes: u64,
    /// Requests that backings failed, without their repetitions.
    pub backing_errors: u64,
    /// Requests to backings by operation and cause, with their latencies.
    pub backing_requests: Vec<BackingRequests>,
    /// Latency histograms.
    pub latency_counts: LatencyCountsReport,
}

impl Totals {
    /// The sums over `volumes`.
    pub fn of<'a>(volumes: impl IntoIterator<Item = &'a VolumeReport>) -> Totals {
        let mut totals = Totals::default();
        volumes.into_iter().for_each(|volume| totals.add(volume));
        totals
    }

    fn add(&mut self, volume: &VolumeReport) {
        self.volumes += 1;
        self.reads += volume.reads;
        self.writes += volume.writes;
        self.flushes += volume.flushes;
        self.zeroes += volume.zeroes;
        self.read_bytes += volume.read_bytes;
        self.write_bytes += volume.write_bytes;
        self.memory_hits += volume.memory_hits;
        self.prefetched_hits += volume.prefetched_hits;
        self.flash_hits += volume.flash_hits;
        self.partial_hits += volume.partial_hits;
        self.misses += volume.misses;
        self.source_bytes.memory += volume.source_bytes.memory;
        self.source_bytes.prefetched += volume.source_bytes.prefetched;
        self.source_bytes.flash += volume.source_bytes.flash;
        self.source_bytes.backing += volume.source_bytes.backing;
        self.errors += volume.errors;
        self.memory_bytes += volume.memory_bytes;
        self.dirty_bytes += volume.dirty_bytes;
        self.dirty_age_ms = self.dirty_age_ms.max(volume.dirty_age_ms);
        self.backing_reads += volume.backing_reads;
        self.backing_writes += volume.backing_writes;
        self.backing_read_bytes += volume.backing_read_bytes;
        self.backing_write_bytes += volume.backing_write_bytes;
        self.backing_errors += volume.backing_errors;
        volume.backing_requests.iter().for_each(|requests| self.add_backing_requests(requests));
        self.latency_counts.add(&volume.latency_counts);
    }
}

impl Totals {
    /// Adds the counts of one pair of operation and cause. A linear search is enough: the engine has few such pairs.
    fn add_backing_requests(&mut self, added: &BackingRequests) {
        let same = |sum: &&mut BackingRequests| (&sum.op, &sum.cause) == (&added.op, &added.cause);
        match self.backing_requests.iter_mut().find(same) {
            Some(sum) => {
                sum.requests += added.requests;
                sum.bytes += added.bytes;
                sum.latency.add(&added.latency);
            }
            None => self.backing_requests.push(added.clone()),
        }
    }
}

/// The sums of each datastore, by name. Volumes without one are summed under an empty name.
pub fn by_datastore<'a>(volumes: impl IntoIterator<Item = &'a VolumeReport>) -> BTreeMap<&'a str, Totals> {
    let mut sums: BTreeMap<&str, Totals> = BTreeMap::new();
    volumes.into_iter().for_each(|volume| sums.entry(&volume.datastore).or_default().add(volume));
    sums
}
