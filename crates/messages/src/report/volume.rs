//! A volume: its state, its counters, its part of memory and flash, its slowest requests.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    BackingRequests, Counts, FleetReport, LatencyCountsReport, MissRatioCurve, QosUse, StatusProblem, UnitReport,
};

/// State of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeState {
    /// Serving and caching.
    Active,
    /// Serving; all requests bypass the cache.
    Paused,
    /// Serving hits; nothing is added to the cache.
    Frozen,
    /// Not served: its backing cannot be opened or is not the known one.
    Refused,
    /// Being removed: dirty data is destaged.
    Removing,
    /// Not served: another host owns its image.
    Standby,
}

impl VolumeState {
    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            VolumeState::Active => "active",
            VolumeState::Paused => "paused",
            VolumeState::Frozen => "frozen",
            VolumeState::Refused => "refused",
            VolumeState::Removing => "removing",
            VolumeState::Standby => "standby",
        }
    }
}

/// Quantiles of one kind of request, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Quantiles {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
}

/// Latency of a volume's requests since the start, in microseconds: what clients see. A value of at most 16.384 is a
/// bound: shorter latencies are not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LatencyReport {
    /// Of reads.
    pub read: Quantiles,
    /// Of writes.
    pub write: Quantiles,
    /// Service time of reads; absent if no read was held, then it equals `read`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_service: Option<Quantiles>,
    /// Time for which the volume's limit or requests of other volumes held reads; absent if no read was held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_held: Option<Quantiles>,
    /// Service time of writes; absent if no write was held, then it equals `write`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_service: Option<Quantiles>,
    /// Time for which the volume's limit held writes; absent if no write was held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_held: Option<Quantiles>,
}

impl Quantiles {
    /// Quantiles of a histogram; 0 without requests.
    pub fn of(counts: &Counts) -> Quantiles {
        let quantile = |fraction| counts.percentile_us(fraction).unwrap_or(0.0);
        Quantiles { p50: quantile(0.5), p99: quantile(0.99), p999: quantile(0.999) }
    }
}

impl LatencyReport {
    /// Quantiles of histograms.
    pub fn of(counts: &LatencyCountsReport) -> LatencyReport {
        let held = |held: Option<&Counts>| held.map(Quantiles::of);
        LatencyReport {
            read: Quantiles::of(&counts.read),
            write: Quantiles::of(&counts.write),
            read_service: counts.held_reads().map(|_| Quantiles::of(&counts.read_service)),
            read_held: held(counts.held_reads()),
            write_service: counts.held_writes().map(|_| Quantiles::of(&counts.write_service)),
            write_held: held(counts.held_writes()),
        }
    }
}

/// Everything about a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeReport {
    /// Name that clients see.
    pub name: String,
    /// Volume ID, 16 hexadecimal digits; empty while it is refused.
    #[serde(rename = "incarnation")]
    pub volume_id: String,
    /// State.
    pub state: VolumeState,
    /// Write policy.
    pub policy: String,
    /// Size that clients see.
    pub size_bytes: u64,
    /// Its backing.
    pub backing: String,
    /// Identity that the backing reports; empty while the volume is refused.
    pub backing_identity: String,
    /// Smallest unit of the backing.
    pub logical_block_bytes: u32,
    /// Atomic unit of the backing: a crash tears unflushed writes only at its multiples.
    pub physical_block_bytes: u32,
    /// Its datastore; empty: none.
    pub datastore: String,
    /// Labels: `vm` and any others.
    pub labels: BTreeMap<String, String>,
    /// Writes are refused.
    pub read_only: bool,
    /// The data core that serves it.
    pub core: usize,
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
    /// Reads served whole from memory, of blocks that were used before.
    pub memory_hits: u64,
    /// Reads served whole from memory, for which the array was read ahead: no array read was saved.
    #[serde(default)]
    #[schema(required)]
    pub prefetched_hits: u64,
    /// Reads served whole from memory and flash.
    pub flash_hits: u64,
    /// Partial hits: reads served in part from a cache.
    pub partial_hits: u64,
    /// Misses: reads served from the backing alone.
    pub misses: u64,
    /// Bytes read by clients, by source.
    #[serde(default)]
    #[schema(required)]
    pub source_bytes: SourceBytes,
    /// The part of the bytes from memory and flash that another volume of the pool had in its cache, with the same
    /// stored content.
    #[serde(default)]
    #[schema(required)]
    pub sibling_read_bytes: u64,
    /// Bytes taken over from the memory of the host that owned the volume before.
    #[serde(default)]
    #[schema(required)]
    pub transferred_bytes: u64,
    /// Pages promoted to flash.
    pub promotions: u64,
    /// Failed requests.
    pub errors: u64,
    /// Bytes of blocks in memory.
    pub memory_bytes: u64,
    /// Dirty data.
    pub dirty_bytes: u64,
    /// Data on the backing that is not flushed there.
    pub written_bytes: u64,
    /// Age of the oldest dirty block.
    pub dirty_age_ms: u64,
    /// Bytes of content written to flash since the start: promotions, and one copy of logged data.
    pub flash_written_bytes: u64,
    /// Dirty data in the flash log.
    #[serde(default)]
    #[schema(required)]
    pub flash_dirty_bytes: u64,
    /// Reads of the backing.
    pub backing_reads: u64,
    /// Writes to the backing.
    pub backing_writes: u64,
    /// Flushes of the backing.
    pub backing_flushes: u64,
    /// Bytes read from the backing.
    pub backing_read_bytes: u64,
    /// Bytes written to the backing.
    pub backing_write_bytes: u64,
    /// Requests that failed at the backing, without their repetitions.
    pub backing_errors: u64,
    /// Age of the oldest unanswered request to the backing; 0: none.
    #[serde(default)]
    #[schema(required)]
    pub backing_unanswered_ms: u64,
    /// Bytes read ahead.
    pub readahead_bytes: u64,
    /// Time that writes waited because dirty data was at its limit.
    pub throttled_us: u64,
    /// Quantiles of latencies.
    pub latency_us: LatencyReport,
    /// Latency histograms.
    #[serde(default)]
    #[schema(required)]
    pub latency_counts: LatencyCountsReport,
    /// Requests to the backing by operation and cause.
    #[serde(default)]
    #[schema(required)]
    pub backing_requests: Vec<BackingRequests>,
    /// Use of the flash cache.
    #[serde(default)]
    #[schema(required)]
    pub flash: FlashUse,
    /// Quota of memory.
    #[serde(default)]
    #[schema(required)]
    pub memory: MemoryUse,
    /// Quality of service.
    #[serde(default)]
    #[schema(required)]
    pub qos: QosUse,
    /// Its ownership among the hosts, of a volume on storage that several hosts reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetReport>,
    /// Miss-ratio curves; only in the report of one served volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub miss_ratio_curve: Option<MissRatioCurve>,
    /// Lost dirty blocks: no flash device has a good copy, and reads fail until they are written again. A hundred
    /// ranges at most, in order.
    #[serde(default)]
    #[schema(required)]
    pub lost: Vec<LostRange>,
    /// Bytes of all lost blocks.
    #[serde(default)]
    #[schema(required)]
    pub lost_bytes: u64,
    /// Its identity for initiators, if there is an iSCSI target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<UnitReport>,
    /// Present problems.
    #[serde(rename = "alerts")]
    #[schema(value_type = Vec<String>)]
    pub problems: Vec<StatusProblem>,
    /// Code of the refusal (`docs/admin/refusals.md`), if the volume is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}

impl VolumeReport {
    /// True if a limit holds requests above it.
    pub fn is_limited(&self) -> bool {
        self.qos.limit_iops > 0 || self.qos.limit_bytes > 0
    }

    /// A report of a volume without requests.
    pub fn idle(name: &str, state: VolumeState, policy: &str, backing: &str) -> Self {
        VolumeReport {
            name: name.to_owned(),
            volume_id: String::new(),
            state,
            policy: policy.to_owned(),
            size_bytes: 0,
            backing: backing.to_owned(),
            backing_identity: String::new(),
            logical_block_bytes: 0,
            physical_block_bytes: 0,
            datastore: String::new(),
            labels: BTreeMap::new(),
            read_only: false,
            core: 0,
            reads: 0,
            writes: 0,
            flushes: 0,
            zeroes: 0,
            read_bytes: 0,
            write_bytes: 0,
            memory_hits: 0,
            prefetched_hits: 0,
            flash_hits: 0,
            partial_hits: 0,
            misses: 0,
            source_bytes: SourceBytes::default(),
            sibling_read_bytes: 0,
            transferred_bytes: 0,
            promotions: 0,
            errors: 0,
            memory_bytes: 0,
            dirty_bytes: 0,
            written_bytes: 0,
            dirty_age_ms: 0,
            flash_written_bytes: 0,
            flash_dirty_bytes: 0,
            backing_reads: 0,
            backing_writes: 0,
            backing_flushes: 0,
            backing_read_bytes: 0,
            backing_write_bytes: 0,
            backing_errors: 0,
            backing_unanswered_ms: 0,
            readahead_bytes: 0,
            throttled_us: 0,
            latency_us: LatencyReport::default(),
            latency_counts: LatencyCountsReport::default(),
            backing_requests: Vec::new(),
            flash: FlashUse::default(),
            memory: MemoryUse::default(),
            qos: QosUse::default(),
            fleet: None,
            miss_ratio_curve: None,
            lost: Vec::new(),
            lost_bytes: 0,
            unit: None,
            problems: Vec::new(),
            refusal: None,
        }
    }
}

/// Bytes read by clients, by source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SourceBytes {
    /// From memory.
    pub memory: u64,
    /// From memory, read ahead from the array for a first read.
    pub prefetched: u64,
    /// From flash.
    pub flash: u64,
    /// From the array.
    pub backing: u64,
}

/// Adjacent lost blocks of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LostRange {
    /// First byte.
    pub at_bytes: u64,
    /// Bytes.
    pub length_bytes: u64,
}

/// A volume's quota of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryUse {
    /// Target by the volumes' miss-ratio curves; absent while the replacement policy alone divides memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_bytes: Option<u64>,
    /// Guaranteed memory: a size or percentage.
    #[serde(default)]
    #[schema(required)]
    pub min: String,
    /// Most memory: a size, a percentage, or `none`.
    #[serde(default)]
    #[schema(required)]
    pub max: String,
}

/// A volume's use of the flash cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlashUse {
    /// True once its pages from before the start are verified; until then reads use the backing.
    pub checked: bool,
    /// Its pages on flash.
    #[serde(default)]
    #[schema(required)]
    pub pages: u64,
    /// Readable bytes of these pages.
    #[serde(default)]
    #[schema(required)]
    pub cached_bytes: u64,
    /// Guaranteed flash: a size or percentage.
    #[serde(default)]
    #[schema(required)]
    pub min: String,
    /// Most flash: a size, a percentage, or `none`.
    #[serde(default)]
    #[schema(required)]
    pub max: String,
    /// Pinned pages.
    #[serde(default)]
    #[schema(required)]
    pub pinned_pages: u64,
    /// Pinned pages that are complete on flash.
    #[serde(default)]
    #[schema(required)]
    pub pinned_whole_pages: u64,
    /// Reason why the last incomplete pinned page could not be promoted; empty while it is being promoted.
    #[serde(default)]
    #[schema(required)]
    pub pin_waits: String,
    /// Bytes read from flash.
    pub read_bytes: u64,
    /// Bytes of these that were read from log records of data that was already destaged.
    #[serde(default)]
    #[schema(required)]
    pub kept_read_bytes: u64,
    /// Memory of the index of log records, in bytes.
    #[serde(default)]
    #[schema(required)]
    pub log_index_bytes: u64,
    /// Blocks that could not be read from flash, or failed verification.
    pub bad_blocks: u64,
    /// Bytes of content written by promotion.
    pub promoted_bytes: u64,
    /// Bytes of dirty content written to the log, one copy counted.
    #[serde(default)]
    #[schema(required)]
    pub logged_bytes: u64,
    /// Cache misses by reason.
    pub not_hit: BTreeMap<String, u64>,
    /// Used pages that were not promoted, by reason.
    pub not_promoted: BTreeMap<String, u64>,
}

/// One of the slowest requests of the last hour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SlowReport {
    /// Time since its end.
    pub ago_ms: u64,
    /// `read`, `write`, `flush` or `zero`.
    #[serde(rename = "asked")]
    pub operation: String,
    /// First byte.
    pub offset_bytes: u64,
    /// Bytes.
    pub length_bytes: u64,
    /// Its duration.
    pub took_us: u64,
    /// The step in which it waited longest: `gate`, `limit`, `shares`, `throttle`, `flash`, `joined`, `backing`,
    /// `destage` or `log`.
    pub step: String,
    /// Time spent in that step.
    pub waited_us: u64,
}

/// A recorder of a volume's requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceOpened {
    /// Its number.
    pub recorder: u64,
    /// Size of the volume.
    pub size_bytes: u64,
}

/// Requests recorded since the previous query.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traced {
    /// Requests, the oldest first: nanoseconds since recording began, operation (0 read, 1 write, 2 discard or zeroes,
    /// 3 flush), first byte, bytes.
    pub requests: Vec<(u64, u8, u64, u64)>,
    /// Later requests that were lost because the buffer was full.
    pub lost: u64,
    /// True if more requests are available.
    pub more: bool,
}
