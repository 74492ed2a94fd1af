//! A volume: its state, its counters, its part of memory and flash, its slowest requests.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{BackingRequests, LatencyCountsReport, MissRatioCurve, Notice, QosUse, UnitReport};

/// What a volume is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeState {
    /// Serving and caching.
    Active,
    /// Serving, everything passed through.
    Paused,
    /// Serving, hits served, nothing added.
    Frozen,
    /// Not served: its backing could not be opened or is another one than before.
    Refused,
    /// Being removed: destaging what is dirty.
    Removing,
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
        }
    }
}

/// Quantiles of one kind of request, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Quantiles {
    /// Half took at most this.
    pub p50: f64,
    /// 99 % took at most this.
    pub p99: f64,
    /// 99.9 % took at most this.
    pub p999: f64,
}

/// Latency of a volume's requests, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LatencyReport {
    /// Of reads.
    pub read: Quantiles,
    /// Of writes.
    pub write: Quantiles,
}

/// Everything about a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeReport {
    /// Name that clients see.
    pub name: String,
    /// Identity for life, 16 hexadecimal digits; empty while it is refused.
    pub incarnation: String,
    /// What it is doing.
    pub state: VolumeState,
    /// When writes are acknowledged.
    pub policy: String,
    /// Size that clients see.
    pub size_bytes: u64,
    /// Where its data lies.
    pub backing: String,
    /// What the backing says it is; empty while it is refused.
    pub backing_identity: String,
    /// Smallest unit of the backing.
    pub logical_block_bytes: u32,
    /// Unit that the backing writes whole or not at all: what was not flushed may tear down to it in a crash.
    pub physical_block_bytes: u32,
    /// Group of volumes that share spindles; empty = none.
    pub datastore: String,
    /// `vm` and any other.
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
    pub prefetched_hits: u64,
    /// Reads served whole from caches, flash taking part.
    pub flash_hits: u64,
    /// Reads served in part from a cache.
    pub partial_hits: u64,
    /// Reads served not at all from a cache.
    pub misses: u64,
    /// Bytes read by clients, by source.
    #[serde(default)]
    pub source_bytes: SourceBytes,
    /// Pages promoted to flash.
    pub promotions: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Blocks held in memory.
    pub memory_bytes: u64,
    /// Not yet on the backing.
    pub dirty_bytes: u64,
    /// On the backing and not yet flushed there.
    pub written_bytes: u64,
    /// Age of the oldest dirty block.
    pub dirty_age_ms: u64,
    /// Bytes of content written to flash since the start: promoted, and one copy of what went to the log.
    pub flash_written_bytes: u64,
    /// In the flash log and not durable on the backing.
    #[serde(default)]
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
    /// Requests that the backing failed.
    pub backing_errors: u64,
    /// Age of the oldest request that the backing has not answered; 0: it has answered all.
    #[serde(default)]
    pub backing_unanswered_ms: u64,
    /// Bytes read ahead of sequential streams.
    pub readahead_bytes: u64,
    /// Time that writers were made to wait because dirty data was at its bound.
    pub throttled_us: u64,
    /// Quantiles.
    pub latency_us: LatencyReport,
    /// How many requests took how long.
    #[serde(default)]
    pub latency_counts: LatencyCountsReport,
    /// What was asked of the backing in which way and for which reason.
    #[serde(default)]
    pub backing_requests: Vec<BackingRequests>,
    /// What it has to do with the flash cache.
    #[serde(default)]
    pub flash: FlashUse,
    /// What it may have of the memory.
    #[serde(default)]
    pub memory: MemoryUse,
    /// What it is entitled to beside others and held to, and how long that made it wait.
    #[serde(default)]
    pub qos: QosUse,
    /// What caches of other sizes would miss; told where one volume is asked for, while it is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub miss_ratio_curve: Option<MissRatioCurve>,
    /// Dirty blocks that were read and of which no flash device has a good copy: reading them fails until they are written again. A hundred
    /// ranges at most, in order.
    #[serde(default)]
    pub lost: Vec<LostRange>,
    /// Bytes of all of them.
    #[serde(default)]
    pub lost_bytes: u64,
    /// What initiators know it by, where there is an iSCSI target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<UnitReport>,
    /// What is wrong now.
    #[schema(value_type = Vec<String>)]
    pub alerts: Vec<Notice>,
    /// Names why it is refused, where `docs/admin/refusals.md` lists that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}

impl VolumeReport {
    /// A report of a volume that has done nothing.
    pub fn idle(name: &str, state: VolumeState, policy: &str, backing: &str) -> Self {
        VolumeReport {
            name: name.to_owned(),
            incarnation: String::new(),
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
            miss_ratio_curve: None,
            lost: Vec::new(),
            lost_bytes: 0,
            unit: None,
            alerts: Vec::new(),
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

/// Neighbouring lost blocks of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LostRange {
    /// First byte.
    pub at_bytes: u64,
    /// Bytes.
    pub length_bytes: u64,
}

/// What a volume may have of the memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryUse {
    /// What the volumes' miss-ratio curves give it; absent while it has what it wins of what all share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_bytes: Option<u64>,
    /// What of it nobody takes away from it: a size or percent.
    #[serde(default)]
    pub min: String,
    /// What it may have at most: a size, percent, or `none`.
    #[serde(default)]
    pub max: String,
}

/// What a volume has to do with the flash cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlashUse {
    /// Its pages from before the start were compared with the backing; until then reads go there.
    pub checked: bool,
    /// Pages that it has there.
    #[serde(default)]
    pub pages: u64,
    /// Bytes that can be read from them.
    #[serde(default)]
    pub cached_bytes: u64,
    /// What of the flash nobody takes away from it: a size or percent.
    #[serde(default)]
    pub min: String,
    /// What of the flash it may have at most: a size, percent, or `none`.
    #[serde(default)]
    pub max: String,
    /// Pages that are pinned.
    #[serde(default)]
    pub pinned_pages: u64,
    /// Those of them that are there whole.
    #[serde(default)]
    pub pinned_whole_pages: u64,
    /// Why the last one that is not could not be brought; empty where it is on its way.
    #[serde(default)]
    pub pin_waits: String,
    /// Bytes read from flash.
    pub read_bytes: u64,
    /// Blocks that flash could not give, or gave wrong.
    pub bad_blocks: u64,
    /// Bytes of content that promotion has written.
    pub promoted_bytes: u64,
    /// Bytes of dirty content written to the log; each copy of it is as much.
    #[serde(default)]
    pub logged_bytes: u64,
    /// Why reads were no hits, and how many.
    pub not_hit: BTreeMap<String, u64>,
    /// Why pages that clients used were not promoted, and how many.
    pub not_promoted: BTreeMap<String, u64>,
}

/// One of the slowest requests of the last hour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SlowReport {
    /// Since it ended.
    pub ago_ms: u64,
    /// `read`, `write`, `flush` or `zero`.
    pub asked: String,
    /// First byte.
    pub offset_bytes: u64,
    /// Bytes.
    pub length_bytes: u64,
    /// How long it took.
    pub took_us: u64,
    /// The step that it waited in longest: `gate`, `limit`, `shares`, `throttle`, `flash`, `joined`, `backing`, `destage` or `log`.
    pub step: String,
    /// How long there.
    pub waited_us: u64,
}

/// A recorder of a volume's requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceOpened {
    /// Its number.
    pub recorder: u64,
    /// Bytes that the volume has.
    pub size_bytes: u64,
}

/// What was recorded since the last time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traced {
    /// Requests, the oldest first: nanoseconds since recording began, what was asked (0 read, 1 write, 2 discard or zeroes, 3
    /// flush), first byte, bytes.
    pub requests: Vec<(u64, u8, u64, u64)>,
    /// Requests after these that were lost, for there was no room to keep them.
    pub lost: u64,
    /// More are there already.
    pub more: bool,
}
