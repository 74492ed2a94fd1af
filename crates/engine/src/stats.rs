//! Plain counters of the data path: neither shared nor atomic.

use std::cell::{Cell, RefCell};
use std::fmt;

use seam::{DiskError, Nanos};

use crate::backing::{BackingOp, Cause};
use crate::histogram::{BACKING_BOUNDS_LOG2, OctaveCounts};
use crate::telemetry::{LatencyStats, RequestLatency};

/// Latency of one kind of request, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LatencySummary {
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
}

/// Latency distribution of one kind of request to a backing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyCounts {
    /// Requests faster than 2 to the power of each of [`BACKING_BOUNDS_LOG2`] nanoseconds.
    pub below: [u64; BACKING_BOUNDS_LOG2.len()],
    /// All requests.
    pub all: u64,
    /// Sum of their latencies, in nanoseconds.
    pub sum_ns: u64,
}

/// Requests to a backing of one kind and one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackingCount {
    /// Kind of request.
    pub op: BackingOp,
    /// Cause.
    pub cause: Cause,
    /// Requests.
    pub requests: u64,
    /// Their bytes; for a zero-range, the bytes that read as zeroes after it.
    pub bytes: u64,
    /// Latency, from the moment the request has its permit for the backing's queue.
    pub latency: LatencyCounts,
}

/// Counters of a volume since it was attached, and its present state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeStats {
    /// Read requests of clients.
    pub reads: u64,
    /// Write requests of clients (zero and discard are counted separately).
    pub writes: u64,
    /// Flush requests of clients.
    pub flushes: u64,
    /// Zero-range and discard requests of clients.
    pub zeroes: u64,
    /// Bytes read by clients.
    pub read_bytes: u64,
    /// Bytes written by clients.
    pub write_bytes: u64,
    /// Reads served whole from memory, without any prefetched block that is read for the first time.
    pub memory_hits: u64,
    /// Reads served whole from memory, at least one block of which was prefetched and is read for the first time: the
    /// backing has read it for this request.
    pub prefetched_hits: u64,
    /// Bytes that clients read, by source.
    pub source_bytes: SourceBytes,
    /// The part of them from the cache of another volume with the same stored content, such as a clone's master: from
    /// its memory or its flash.
    pub sibling_read_bytes: u64,
    /// Bytes taken over from the memory of the volume's former owner.
    pub transferred_bytes: u64,
    /// Reads served whole from memory and flash, with at least one block from flash.
    pub flash_hits: u64,
    /// Reads served in part from memory or flash.
    pub partial_hits: u64,
    /// Reads served from neither.
    pub misses: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Cached blocks in memory, in bytes.
    pub memory_bytes: u64,
    /// Memory that the partition among volumes assigns to it, in bytes; `None` while volumes compete for the common
    /// pool.
    pub memory_target_bytes: Option<u64>,
    /// Dirty data in memory, in bytes.
    pub dirty_bytes: u64,
    /// On the backing but not yet flushed there, in bytes.
    pub written_bytes: u64,
    /// Bytes in the flash log that are not durable on the backing. A recovery finds more: also blocks that were
    /// destaged since, until the log reuses their space.
    pub flash_dirty_bytes: u64,
    /// The part of them that is spilled (not in memory).
    pub spilled_bytes: u64,
    /// Memory of the index of spilled blocks, in bytes.
    pub spilled_index_bytes: u64,
    /// Memory for the index of kept records.
    pub kept_index_bytes: u64,
    /// Age of the oldest dirty block, in milliseconds.
    pub dirty_age_ms: u64,
    /// Read requests sent to the backing.
    pub backing_reads: u64,
    /// Write and zero-range requests sent to the backing.
    pub backing_writes: u64,
    /// Flushes sent to the backing.
    pub backing_flushes: u64,
    /// Bytes read from the backing.
    pub backing_read_bytes: u64,
    /// Bytes written to the backing.
    pub backing_write_bytes: u64,
    /// Failed requests to the backing, each counted once: its repetitions count neither while they fail nor in smaller
    /// parts.
    pub backing_errors: u64,
    /// Age of the oldest request that the backing has not answered, in milliseconds; 0 if there is none.
    pub backing_unanswered_ms: u64,
    /// Requests to the backing by kind and cause; combinations without requests are left out.
    pub backing: Vec<BackingCount>,
    /// Bytes read ahead of sequential streams.
    pub readahead_bytes: u64,
    /// Time that writers were slowed because dirty data was near its limit, in microseconds.
    pub throttled_us: u64,
    /// Latency of reads.
    pub read_latency: LatencyStats,
    /// Latency of writes.
    pub write_latency: LatencyStats,
    /// Use of the flash cache.
    pub flash: FlashStats,
    /// Waits caused by quality of service.
    pub qos: QosStats,
    /// Present problems; empty if there are none.
    pub problems: Vec<VolumeProblem>,
}

impl VolumeStats {
    /// Bytes in blocks that the backing does not durably have: dirty data, and data that is on the backing but not yet
    /// flushed there.
    pub fn undestaged_bytes(&self) -> u64 {
        self.dirty_bytes + self.written_bytes
    }

    /// True if the backing durably has all blocks. Zero-ranges that it lacks count as no blocks.
    pub fn has_complete_backing(&self) -> bool {
        self.undestaged_bytes() + self.flash_dirty_bytes == 0
    }
}

/// A present problem of a volume, as far as the engine knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeProblem {
    /// Its clean pages on flash were dropped; the text is the reason.
    PagesDropped(String),
    /// Another process has taken the backing over; the text is the reason. All requests fail.
    BackingLost(String),
    /// Destage fails.
    DestageFailing {
        /// The last error of the backing.
        error: String,
        /// Dirty data that is kept and retried.
        dirty_bytes: u64,
    },
}

impl fmt::Display for VolumeProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VolumeProblem::PagesDropped(reason) | VolumeProblem::BackingLost(reason) => f.write_str(reason),
            VolumeProblem::DestageFailing { error, dirty_bytes } => write!(
                f,
                "destage to the backing fails ({error}); {} KiB of dirty data are kept and retried",
                dirty_bytes / 1024
            ),
        }
    }
}

/// Requests of a volume that waited because of its limit or because of other volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QosStats {
    /// Requests of clients that waited because of its limit.
    pub limit_waits: u64,
    /// Sum of these waits, in microseconds.
    pub limit_waited_us: u64,
    /// Requests to its datastore or to flash that waited for requests of other volumes.
    pub share_waits: u64,
    /// Sum of these waits, in microseconds.
    pub share_waited_us: u64,
}

/// Use of the flash cache by a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlashStats {
    /// Its pages from before the attach have been compared with the backing; no page is served before that.
    pub is_checked: bool,
    /// Bytes read from flash.
    pub read_bytes: u64,
    /// Bytes of these that were read from kept records of the log.
    pub kept_read_bytes: u64,
    /// Blocks that flash failed to read or returned with wrong content.
    pub bad_blocks: u64,
    /// Pages on flash.
    pub page_count: u64,
    /// Valid bytes on these pages.
    pub cached_bytes: u64,
    /// Pages that are pinned.
    pub pinned_pages: u64,
    /// Pinned pages that were complete on flash at the last check.
    pub complete_pinned_pages: u64,
    /// Reason why the last pinned page could not be filled.
    pub pin_wait_reason: Option<&'static str>,
    /// Pages promoted.
    pub promotions: u64,
    /// Bytes written to flash by promotions.
    pub promoted_bytes: u64,
    /// Bytes of dirty content written to the log; each copy of the log takes as much.
    pub logged_bytes: u64,
    /// Cache miss reasons with their counts.
    pub miss_reasons: Vec<(&'static str, u64)>,
    /// Reasons for not promoting a page that a client used, with their counts.
    pub rejection_reasons: Vec<(&'static str, u64)>,
}

/// Limits of promotion on a core.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromotionStats {
    /// Bytes left of the promotion budget; `None` without a limit.
    pub left_bytes: Option<u64>,
    /// One of this many eligible promotions is carried out; depends on the gain of recent promotions.
    pub promote_one_in: u64,
    /// Memory of the history of page uses, in bytes.
    pub history_bytes: u64,
}

/// Memory and promotion state of a core.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CoreStats {
    /// Size of the buffer pool, in bytes.
    pub pool_bytes: u64,
    /// Buffers in use, in bytes: cached blocks and blocks in flight.
    pub pool_used_bytes: u64,
    /// Memory of index and replacement policy, in bytes.
    pub index_bytes: u64,
    /// Limits of promotion.
    pub promotion: PromotionStats,
}

/// Bytes that clients read, by source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceBytes {
    /// From memory.
    pub memory: u64,
    /// From memory, prefetched from the backing for a first read.
    pub prefetched: u64,
    /// From flash.
    pub flash: u64,
    /// From the backing.
    pub backing: u64,
}

impl SourceBytes {
    /// The sum of both.
    fn plus(self, other: SourceBytes) -> SourceBytes {
        SourceBytes {
            memory: self.memory + other.memory,
            prefetched: self.prefetched + other.prefetched,
            flash: self.flash + other.flash,
            backing: self.backing + other.backing,
        }
    }
}

/// Where a read was served from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadKind {
    /// Whole from memory.
    Memory,
    /// Whole from memory, with at least one prefetched block that had not been read.
    Prefetched,
    /// Whole from memory and flash, with at least one block from flash.
    Flash,
    /// Partly from memory or flash.
    Partial,
    /// Not at all from memory or flash.
    Miss,
}

/// One counter.
pub type Counter = Cell<u64>;

/// Counters of a shard.
#[derive(Default)]
pub struct Counters {
    reads: Counter,
    writes: Counter,
    /// Flush requests of clients.
    pub flushes: Counter,
    /// Zero-range and discard requests of clients.
    pub zeroes: Counter,
    read_bytes: Counter,
    write_bytes: Counter,
    memory_hits: Counter,
    prefetched_hits: Counter,
    source_bytes: Cell<SourceBytes>,
    /// Bytes that clients read from the cache of another volume.
    pub sibling_read_bytes: Counter,
    /// Bytes taken over from the memory of the volume's former owner.
    pub transferred_bytes: Counter,
    flash_hits: Counter,
    partial_hits: Counter,
    misses: Counter,
    /// Requests of clients that failed.
    pub errors: Counter,
    /// Requests to the backing with their latency, and their bytes, by kind and cause.
    backing: [[(OctaveCounts, Counter); Cause::ALL.len()]; BackingOp::ALL.len()],
    /// Failed requests to the backing, without their repetitions.
    pub backing_errors: Counter,
    /// Bytes read ahead.
    pub readahead_bytes: Counter,
    /// Microseconds that writers waited for room.
    pub throttled_us: Counter,
    /// Requests that waited for requests of other volumes.
    pub share_waits: Counter,
    /// Sum of these waits, in microseconds.
    pub share_waited_us: Counter,
    /// Bytes of dirty content written to the flash log.
    pub logged_bytes: Counter,
    /// Latency of reads.
    pub read_latency: RequestLatency,
    write_latency: RequestLatency,
    /// The backing's last error.
    pub last_error: RefCell<Option<DiskError>>,
}

impl Counters {
    /// Adds `count` to one counter.
    pub fn add(&self, counter: &Counter, count: u64) {
        counter.set(counter.get() + count);
    }

    /// Read and write requests of clients.
    pub fn requests(&self) -> u64 {
        self.reads.get() + self.writes.get()
    }

    /// Counts a read served from memory without waiting, `prefetched` bytes of it from blocks that were prefetched for
    /// it.
    pub fn count_immediate_read(&self, bytes: u64, prefetched: u64) {
        self.add(&self.reads, 1);
        self.add(&self.read_bytes, bytes);
        self.add(if prefetched == 0 { &self.memory_hits } else { &self.prefetched_hits }, 1);
        self.add_source_bytes(SourceBytes { memory: bytes - prefetched, prefetched, ..SourceBytes::default() });
        self.read_latency.add_unmeasured();
    }

    /// Counts a served read that had to wait.
    pub fn count_read(&self, bytes: u64, kind: ReadKind, sources: SourceBytes) {
        self.add(&self.reads, 1);
        self.add(&self.read_bytes, bytes);
        let counter = match kind {
            ReadKind::Memory => &self.memory_hits,
            ReadKind::Prefetched => &self.prefetched_hits,
            ReadKind::Flash => &self.flash_hits,
            ReadKind::Partial => &self.partial_hits,
            ReadKind::Miss => &self.misses,
        };
        self.add(counter, 1);
        self.add_source_bytes(sources);
    }

    fn add_source_bytes(&self, bytes: SourceBytes) {
        self.source_bytes.set(self.source_bytes.get().plus(bytes));
    }

    /// Counts a write that was acknowledged without waiting.
    pub fn count_immediate_write(&self, bytes: u64) {
        self.add(&self.writes, 1);
        self.add(&self.write_bytes, bytes);
        self.write_latency.add_unmeasured();
    }

    /// Counts an acknowledged write that took `latency`, of which it was held for `held`.
    pub fn count_write(&self, bytes: u64, latency: Nanos, held: Nanos) {
        self.add(&self.writes, 1);
        self.add(&self.write_bytes, bytes);
        self.write_latency.add(latency, held);
    }

    /// Counts a request to the backing that has ended, whether it failed or not.
    pub fn count_backing_request(&self, op: BackingOp, cause: Cause, bytes: u64, latency: Nanos) {
        let (requests, all_bytes) = &self.backing[op as usize][cause as usize];
        requests.add(latency);
        self.add(all_bytes, bytes);
    }

    /// Requests of one kind to the backing, and their bytes.
    fn requests_of(&self, op: BackingOp) -> (u64, u64) {
        let causes = self.backing[op as usize].iter();
        causes.fold((0, 0), |sum, (requests, bytes)| (sum.0 + requests.counts().all, sum.1 + bytes.get()))
    }

    fn backing_counts(&self) -> Vec<BackingCount> {
        let mut counts = Vec::new();
        for (_, op) in BackingOp::ALL {
            for (_, cause) in Cause::ALL {
                let (requests, bytes) = &self.backing[op as usize][cause as usize];
                let latency = requests.counts();
                counts.push(BackingCount { op, cause, requests: latency.all, bytes: bytes.get(), latency });
            }
        }
        counts.retain(|count| count.requests > 0);
        counts
    }

    /// The counters as part of the volume's statistics.
    pub fn snapshot(&self) -> VolumeStats {
        VolumeStats {
            reads: self.reads.get(),
            writes: self.writes.get(),
            flushes: self.flushes.get(),
            zeroes: self.zeroes.get(),
            read_bytes: self.read_bytes.get(),
            write_bytes: self.write_bytes.get(),
            memory_hits: self.memory_hits.get(),
            prefetched_hits: self.prefetched_hits.get(),
            source_bytes: self.source_bytes.get(),
            sibling_read_bytes: self.sibling_read_bytes.get(),
            transferred_bytes: self.transferred_bytes.get(),
            flash_hits: self.flash_hits.get(),
            partial_hits: self.partial_hits.get(),
            misses: self.misses.get(),
            errors: self.errors.get(),
            backing_reads: self.requests_of(BackingOp::Read).0,
            backing_writes: self.requests_of(BackingOp::Write).0 + self.requests_of(BackingOp::Zero).0,
            backing_flushes: self.requests_of(BackingOp::Flush).0,
            backing_read_bytes: self.requests_of(BackingOp::Read).1,
            backing_write_bytes: self.requests_of(BackingOp::Write).1,
            backing: self.backing_counts(),
            backing_errors: self.backing_errors.get(),
            readahead_bytes: self.readahead_bytes.get(),
            throttled_us: self.throttled_us.get(),
            read_latency: self.read_latency.stats(),
            write_latency: self.write_latency.stats(),
            ..VolumeStats::default()
        }
    }
}
