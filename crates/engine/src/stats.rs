//! Plain counters of the data path; nothing here is shared or atomic.

use std::cell::{Cell, RefCell};
use std::fmt;

use seam::{DiskError, Nanos};

use crate::backing::{Cause, Op};
use crate::histogram::{Histogram, Steps, TOLD_OCTAVES};

/// Latency of one kind of request, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LatencySummary {
    /// Half of the requests took at most this.
    pub p50_us: f64,
    /// 99 % took at most this.
    pub p99_us: f64,
    /// 99.9 % took at most this.
    pub p999_us: f64,
}

/// How many requests of one kind took how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyCounts {
    /// How many took less than 2 to the power of each of [`TOLD_OCTAVES`] nanoseconds.
    pub below: [u64; TOLD_OCTAVES.len()],
    /// How many there were.
    pub all: u64,
    /// What they took together, in nanoseconds.
    pub sum_ns: u64,
}

/// What was asked of a backing in one way and for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackingCount {
    /// In which way.
    pub op: Op,
    /// For which reason.
    pub cause: Cause,
    /// Requests.
    pub requests: u64,
    /// Their bytes; of a zero-range, those that read as zeroes after it.
    pub bytes: u64,
    /// How many took how long, from where they had their place in the backing's queue.
    pub latency: LatencyCounts,
}

/// What a volume has done since it was attached, and what it holds now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeStats {
    /// Read requests of clients.
    pub reads: u64,
    /// Write requests of clients (zero and discard are counted apart).
    pub writes: u64,
    /// Flush requests of clients.
    pub flushes: u64,
    /// Zero-range and discard requests of clients.
    pub zeroes: u64,
    /// Bytes read by clients.
    pub read_bytes: u64,
    /// Bytes written by clients.
    pub write_bytes: u64,
    /// Reads served whole from memory.
    pub memory_hits: u64,
    /// Reads served whole from memory and flash, at least a block from flash.
    pub flash_hits: u64,
    /// Reads served in part from memory or flash.
    pub partial_hits: u64,
    /// Reads served from neither.
    pub misses: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Blocks held, in bytes.
    pub memory_bytes: u64,
    /// What the division of memory gives it, in bytes; `None` while it has what it wins of the common pool.
    pub memory_target_bytes: Option<u64>,
    /// Not yet on the backing, in bytes.
    pub dirty_bytes: u64,
    /// On the backing and not yet flushed there, in bytes.
    pub written_bytes: u64,
    /// Bytes in the flash log that are not durable on the backing.
    pub flash_dirty_bytes: u64,
    /// What of it is not in memory.
    pub resting_bytes: u64,
    /// Memory that knows where that is, in bytes.
    pub resting_index_bytes: u64,
    /// Age of the oldest dirty block, in milliseconds.
    pub dirty_age_ms: u64,
    /// Requests sent to the backing.
    pub backing_reads: u64,
    /// Requests sent to the backing.
    pub backing_writes: u64,
    /// Flushes sent to the backing.
    pub backing_flushes: u64,
    /// Bytes read from the backing.
    pub backing_read_bytes: u64,
    /// Bytes written to the backing.
    pub backing_write_bytes: u64,
    /// Requests that the backing failed.
    pub backing_errors: u64,
    /// Age of the oldest request that the backing has not answered, in milliseconds; 0: it has answered all.
    pub backing_unanswered_ms: u64,
    /// What of all this was asked for which reason, as far as anything was.
    pub backing: Vec<BackingCount>,
    /// Bytes read ahead of sequential streams.
    pub readahead_bytes: u64,
    /// Time that writers were made to wait because dirty data is at its bound, in microseconds.
    pub throttled_us: u64,
    /// Latency of reads.
    pub read_latency: LatencySummary,
    /// Latency of writes.
    pub write_latency: LatencySummary,
    /// How many reads took how long.
    pub read_counts: LatencyCounts,
    /// How many writes took how long.
    pub write_counts: LatencyCounts,
    /// What it has to do with the flash cache.
    pub flash: FlashStats,
    /// Who it waited for.
    pub qos: QosStats,
    /// Present problems; empty when all is well.
    pub problems: Vec<VolumeProblem>,
}

/// A present problem of a volume, as far as the engine knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeProblem {
    /// Its clean pages on flash were dropped; the text is the reason.
    PagesDropped(String),
    /// Destage fails.
    DestageFailing {
        /// The last error of the backing.
        error: String,
        /// Dirty data that is kept and tried again.
        dirty_bytes: u64,
    },
}

impl fmt::Display for VolumeProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VolumeProblem::PagesDropped(reason) => f.write_str(reason),
            VolumeProblem::DestageFailing { error, dirty_bytes } => write!(
                f,
                "dirty data does not get to the backing ({error}); {} KiB are kept and tried again",
                dirty_bytes / 1024
            ),
        }
    }
}

/// Requests of a volume that waited because of its limit, or for others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QosStats {
    /// Requests of clients that waited because of its limit.
    pub limit_waits: u64,
    /// How long they waited together, in microseconds.
    pub limit_waited_us: u64,
    /// Requests to its datastore or to flash that waited for those of others.
    pub share_waits: u64,
    /// How long they waited together, in microseconds.
    pub share_waited_us: u64,
}

/// What a volume has to do with the flash cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlashStats {
    /// Its pages from before it was attached were compared with the backing; until then nothing is served from them.
    pub checked: bool,
    /// Bytes read from flash.
    pub read_bytes: u64,
    /// Blocks that flash could not give, or gave wrong.
    pub bad_blocks: u64,
    /// Pages that it has there.
    pub pages: u64,
    /// Bytes that can be read from them.
    pub cached_bytes: u64,
    /// Pages that are pinned.
    pub pinned_pages: u64,
    /// Those of them that are there whole, as last seen.
    pub pinned_whole: u64,
    /// Why the last one that is not could not be brought.
    pub pin_waits: Option<&'static str>,
    /// Pages promoted.
    pub promotions: u64,
    /// Bytes of content put on flash.
    pub promoted_bytes: u64,
    /// Bytes of dirty content written to the log, each copy of which is as much.
    pub logged_bytes: u64,
    /// Why reads were no hits: reason and how often.
    pub not_hit: Vec<(&'static str, u64)>,
    /// Why pages that clients used were not promoted: reason and how often.
    pub not_promoted: Vec<(&'static str, u64)>,
}

/// What limits promotion on a core.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromotionStats {
    /// Bytes that may still be written for promotion; `None` without a limit.
    pub left_bytes: Option<u64>,
    /// Of so many promotions that were earned one is carried out, for what they have lately brought.
    pub one_of: u64,
    /// Bytes of memory that the history of uses takes.
    pub history_bytes: u64,
}

/// What a core holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CoreStats {
    /// Buffers that the pool may hand out, in bytes.
    pub pool_bytes: u64,
    /// Buffers handed out, in bytes: cached blocks and those on their way.
    pub pool_used_bytes: u64,
    /// Bytes of index and policy.
    pub index_bytes: u64,
    /// What limits promotion.
    pub promotion: PromotionStats,
}

/// Where a read was served from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadKind {
    /// All of it from memory.
    Memory,
    /// All of it from memory and flash, at least a block from flash.
    Flash,
    /// Some of it from memory or flash.
    Part,
    /// Nothing of it.
    Miss,
}

/// One counter.
pub type Counter = Cell<u64>;

/// What a shard counts.
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
    flash_hits: Counter,
    partial_hits: Counter,
    misses: Counter,
    /// Requests of clients that failed.
    pub errors: Counter,
    /// Requests to the backing, how long they took, and their bytes, by what and why.
    backing: [[(Steps, Counter); Cause::ALL.len()]; Op::ALL.len()],
    /// Requests that the backing failed.
    pub backing_errors: Counter,
    /// Bytes read ahead.
    pub readahead_bytes: Counter,
    /// Microseconds that writers waited for room.
    pub throttled_us: Counter,
    /// Requests that waited for those of others.
    pub share_waits: Counter,
    /// How long they waited together, in microseconds.
    pub share_waited_us: Counter,
    /// Bytes of dirty content written to the flash log.
    pub logged_bytes: Counter,
    /// Latency of reads.
    pub read_latency: Histogram,
    write_latency: Histogram,
    /// The backing's last error.
    pub last_error: RefCell<Option<DiskError>>,
}

impl Counters {
    /// Adds to one counter.
    pub fn add(&self, counter: &Counter, count: u64) {
        counter.set(counter.get() + count);
    }

    /// Requests of clients that moved data.
    pub fn requests(&self) -> u64 {
        self.reads.get() + self.writes.get()
    }

    /// A read was served from memory without waiting: its latency is below what the clock is worth asking for.
    pub fn read_hit(&self, bytes: u64) {
        self.add(&self.reads, 1);
        self.add(&self.read_bytes, bytes);
        self.add(&self.memory_hits, 1);
        self.read_latency.add(Nanos::from_micros(1));
    }

    /// A read that had to wait for something was served.
    pub fn read_served(&self, bytes: u64, kind: ReadKind) {
        self.add(&self.reads, 1);
        self.add(&self.read_bytes, bytes);
        let counter = match kind {
            ReadKind::Memory => &self.memory_hits,
            ReadKind::Flash => &self.flash_hits,
            ReadKind::Part => &self.partial_hits,
            ReadKind::Miss => &self.misses,
        };
        self.add(counter, 1);
    }

    /// A write was acknowledged.
    pub fn write_done(&self, bytes: u64, latency: Nanos) {
        self.add(&self.writes, 1);
        self.add(&self.write_bytes, bytes);
        self.write_latency.add(latency.max(Nanos::from_micros(1)));
    }

    /// A request to the backing ended.
    pub fn backing(&self, op: Op, cause: Cause, bytes: u64, ok: bool, took: Nanos) {
        let (requests, all_bytes) = &self.backing[op as usize][cause as usize];
        requests.add(took);
        self.add(all_bytes, bytes);
        self.add(&self.backing_errors, u64::from(!ok));
    }

    /// Requests to the backing of one kind, and their bytes.
    fn asked(&self, op: Op) -> (u64, u64) {
        let causes = self.backing[op as usize].iter();
        causes.fold((0, 0), |sum, (requests, bytes)| (sum.0 + requests.counts().all, sum.1 + bytes.get()))
    }

    fn backing_counts(&self) -> Vec<BackingCount> {
        let mut counts = Vec::new();
        for (_, op) in Op::ALL {
            for (_, cause) in Cause::ALL {
                let (requests, bytes) = &self.backing[op as usize][cause as usize];
                let latency = requests.counts();
                counts.push(BackingCount { op, cause, requests: latency.all, bytes: bytes.get(), latency });
            }
        }
        counts.retain(|count| count.requests > 0);
        counts
    }

    /// The counters, as they are shown.
    pub fn snapshot(&self) -> VolumeStats {
        VolumeStats {
            reads: self.reads.get(),
            writes: self.writes.get(),
            flushes: self.flushes.get(),
            zeroes: self.zeroes.get(),
            read_bytes: self.read_bytes.get(),
            write_bytes: self.write_bytes.get(),
            memory_hits: self.memory_hits.get(),
            flash_hits: self.flash_hits.get(),
            partial_hits: self.partial_hits.get(),
            misses: self.misses.get(),
            errors: self.errors.get(),
            backing_reads: self.asked(Op::Read).0,
            backing_writes: self.asked(Op::Write).0 + self.asked(Op::Zero).0,
            backing_flushes: self.asked(Op::Flush).0,
            backing_read_bytes: self.asked(Op::Read).1,
            backing_write_bytes: self.asked(Op::Write).1,
            backing: self.backing_counts(),
            backing_errors: self.backing_errors.get(),
            readahead_bytes: self.readahead_bytes.get(),
            throttled_us: self.throttled_us.get(),
            read_latency: self.read_latency.summary(),
            write_latency: self.write_latency.summary(),
            read_counts: self.read_latency.counts(),
            write_counts: self.write_latency.counts(),
            ..VolumeStats::default()
        }
    }
}
