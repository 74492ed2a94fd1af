//! What is told of a volume and of the whole daemon; the fields carry their units in their names.

mod advice;
mod alert;
mod certificate;
mod configuration;
mod curve;
mod drive;
mod event;
mod heat;
mod history;
mod iscsi;
mod job;
mod latency;
mod qos;

use std::collections::BTreeMap;

use engine::{FlashStats, LatencySummary, VolumeStats};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use advice::{AdvicePage, Assumptions, AssumptionsReport, SideAdvice, StepAdvice, TodayAdvice, VolumeAdvice};
pub use alert::{AlertKind, AlertReport, Notice, Severity, WebhookHealth};
pub use certificate::CertificateReport;
pub use configuration::{ConfigurationReport, EntryReport, KeyReport, KeySource, TakesEffect};
pub use curve::{Curve, MissRatioCurve, Point};
pub use drive::DriveReport;
pub use event::{DaemonPhase, EventKind, EventReport, EventsHealth, EventsPage};
pub use heat::{HeatReport, HeatRow};
pub use history::{FigureReport, HistoryHealth, HistoryReport, LatencyFigures, TierReport};
pub use iscsi::{IscsiReport, IscsiSessionReport, SlowCommandReport, UnitReport};
pub use job::{EndedJobReport, JobOutcome, JobReport};
pub use latency::{BackingRequests, Counts, CountsBelow, LatencyCountsReport};
pub use qos::{DatastoreReport, EpisodeReport, MemberReport, QosUse};

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

impl From<LatencySummary> for Quantiles {
    fn from(latency: LatencySummary) -> Self {
        Quantiles { p50: latency.p50_us, p99: latency.p99_us, p999: latency.p999_us }
    }
}

/// Latency of a volume's requests, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LatencyReport {
    /// Of reads.
    pub read: Quantiles,
    /// Of writes.
    pub write: Quantiles,
}

/// A change made by command that differs from the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OverrideReport {
    /// The volume.
    pub volume: String,
    /// The key.
    pub key: String,
    /// What holds.
    pub value: String,
    /// What the file says.
    pub file: String,
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
    /// Reads served whole from memory.
    pub memory_hits: u64,
    /// Reads served whole from caches, flash taking part.
    pub flash_hits: u64,
    /// Reads served in part from a cache.
    pub partial_hits: u64,
    /// Reads served not at all from a cache.
    pub misses: u64,
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

impl From<FlashStats> for FlashUse {
    fn from(stats: FlashStats) -> Self {
        let named = |counts: Vec<(&'static str, u64)>| {
            counts.into_iter().filter(|(_, count)| *count > 0).map(|(name, count)| (name.to_owned(), count)).collect()
        };
        FlashUse {
            checked: stats.checked,
            pages: stats.pages,
            cached_bytes: stats.cached_bytes,
            pinned_pages: stats.pinned_pages,
            pinned_whole_pages: stats.pinned_whole,
            pin_waits: stats.pin_waits.unwrap_or_default().to_owned(),
            min: String::new(),
            max: String::new(),
            read_bytes: stats.read_bytes,
            bad_blocks: stats.bad_blocks,
            promoted_bytes: stats.promoted_bytes,
            logged_bytes: stats.logged_bytes,
            not_hit: named(stats.not_hit),
            not_promoted: named(stats.not_promoted),
        }
    }
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
            flash_hits: 0,
            partial_hits: 0,
            misses: 0,
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

    /// Takes over what the engine counted.
    pub fn count(&mut self, stats: VolumeStats) {
        self.reads = stats.reads;
        self.writes = stats.writes;
        self.flushes = stats.flushes;
        self.zeroes = stats.zeroes;
        self.read_bytes = stats.read_bytes;
        self.write_bytes = stats.write_bytes;
        self.memory_hits = stats.memory_hits;
        self.flash_hits = stats.flash_hits;
        self.promotions = stats.flash.promotions;
        self.flash_written_bytes = stats.flash.promoted_bytes + stats.flash.logged_bytes;
        self.flash = stats.flash.into();
        self.qos.count(&stats.qos);
        self.partial_hits = stats.partial_hits;
        self.misses = stats.misses;
        self.errors = stats.errors;
        self.memory_bytes = stats.memory_bytes;
        self.memory.target_bytes = stats.memory_target_bytes;
        self.dirty_bytes = stats.dirty_bytes;
        self.written_bytes = stats.written_bytes;
        self.dirty_age_ms = stats.dirty_age_ms;
        self.backing_reads = stats.backing_reads;
        self.backing_writes = stats.backing_writes;
        self.backing_flushes = stats.backing_flushes;
        self.backing_read_bytes = stats.backing_read_bytes;
        self.backing_write_bytes = stats.backing_write_bytes;
        self.backing_errors = stats.backing_errors;
        self.backing_unanswered_ms = stats.backing_unanswered_ms;
        self.readahead_bytes = stats.readahead_bytes;
        self.throttled_us = stats.throttled_us;
        self.latency_us = LatencyReport { read: stats.read_latency.into(), write: stats.write_latency.into() };
        self.latency_counts = LatencyCountsReport { read: stats.read_counts.into(), write: stats.write_counts.into() };
        self.backing_requests = stats.backing.iter().map(BackingRequests::from).collect();
        self.alerts.extend(stats.problems.iter().map(Notice::from));
    }
}

/// What one data core holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CoreReport {
    /// Its number, from 0.
    pub core: usize,
    /// Volumes that it serves.
    pub volumes: usize,
    /// Connections that it serves.
    pub connections: u64,
    /// Buffers that its pool may hand out.
    pub pool_bytes: u64,
    /// Buffers handed out.
    pub pool_used_bytes: u64,
    /// Index and policy.
    pub index_bytes: u64,
}

/// What was written to a flash device over all restarts, by cause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WrittenReport {
    /// Bytes of clean pages.
    pub promotion_bytes: u64,
    /// Bytes of the log: what was dirty, with headers.
    pub dirty_bytes: u64,
    /// Bytes of the map of clean pages.
    pub journal_bytes: u64,
    /// When counting began, in seconds since 1970.
    pub since_unix_seconds: u64,
}

/// A device of the flash log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FlashDeviceReport {
    /// Its number in the store, from 0.
    pub number: u32,
    /// Its path; empty when it is not there.
    pub device: String,
    /// Its size; 0 when it is not there.
    pub size_bytes: u64,
    /// `log` when it carries what is dirty, too, `pages` when it holds clean pages alone.
    #[serde(default)]
    pub role: String,
    /// Bytes of pages written to it since the start.
    #[serde(default)]
    pub promotion_bytes: u64,
    /// Bytes of the map of pages written to it since the start.
    #[serde(default)]
    pub journal_bytes: u64,
    /// Bytes of the log written to it since the start.
    #[serde(default)]
    pub log_bytes: u64,
    /// What was written to it over all restarts.
    #[serde(default)]
    pub written: WrittenReport,
    /// That as a part of what it is rated for: `endurance_dwpd` a day for five years. Absent where that is 0.
    #[serde(default)]
    pub endurance_used_ratio: Option<f64>,
    /// Days after which all of it is used up at the mean pace so far; absent in the first hour.
    #[serde(default)]
    pub endurance_left_days: Option<u64>,
    /// What the drive under it says of its own health; absent where it is a file, or before the first answer.
    #[serde(default)]
    pub drive: Option<DriveReport>,
    /// Age of the oldest request that it has not answered, in milliseconds; 0: it has answered all.
    #[serde(default)]
    pub unanswered_ms: u64,
    /// `in-service`, `lost` or `stale`.
    pub state: String,
    /// Why it is not in service.
    pub reason: String,
}

impl FlashDeviceReport {
    /// What it is called: by its path, and while it is not there by its number.
    pub fn name(&self) -> String {
        if self.device.is_empty() { format!("number {}", self.number) } else { self.device.clone() }
    }
}

/// A change of the flash devices that is under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlashJobReport {
    /// `add`, `remove`, `replace` or `take-over`.
    pub kind: String,
    /// Which device it is about, by path or number.
    pub device: String,
    /// Bytes copied.
    pub done_bytes: u64,
    /// Of so many.
    pub total_bytes: u64,
    /// How long the rest takes at the pace so far; absent where that is not known.
    pub left_seconds: Option<u64>,
    /// It waits for `flash resume`.
    pub paused: bool,
}

/// A dirty block that no flash device has whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LostBlockReport {
    /// The volume; empty when it is not served.
    pub volume: String,
    /// Its identity, 16 hexadecimal digits.
    pub incarnation: String,
    /// Where the block of 4 KiB lies in it, in bytes.
    pub at_bytes: u64,
}

/// What the scrub of the log has found since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScrubReport {
    /// Times that it has been through.
    pub rounds: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Blocks with a bad copy.
    pub found: u64,
    /// Copies that were repaired.
    pub repaired: u64,
    /// Blocks without a good copy.
    pub lost: u64,
}

/// Clean pages on flash.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PagesReport {
    /// The map of what lies there was read.
    pub loaded: bool,
    /// Why all pages from before the start were dropped, if they were.
    pub dropped: Option<String>,
    /// Pages that fit.
    pub slots: u64,
    /// Pages that are there.
    pub pages: u64,
    /// Bytes that can be read from them.
    pub valid_bytes: u64,
    /// Pages that are compared with the backing before they are trusted again.
    pub suspect: u64,
    /// Pages that had to go for others.
    pub evictions: u64,
    /// Regions of 4 MiB whose pages a crash now would make suspect.
    pub regions_in_flux: u64,
    /// Memory for the map.
    pub memory_bytes: u64,
    /// Bytes that promotion may write now within the devices' endurance; none without a limit.
    pub endurance_left_bytes: Option<u64>,
    /// Of so many promotions that were earned one is carried out, for what they have lately brought.
    pub promotes_one_of: u64,
}

/// The flash log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FlashReport {
    /// It answers flushes.
    pub in_use: bool,
    /// Identity of the store, 32 hexadecimal digits; empty when it is not in use.
    pub store: String,
    /// Its devices.
    pub devices: Vec<FlashDeviceReport>,
    /// Clean pages.
    #[serde(default)]
    pub pages: PagesReport,
    /// Devices in service.
    pub copies: usize,
    /// One copy is enough, as configured.
    pub allow_single_copy: bool,
    /// Segments of the log that are free.
    pub free_segments: usize,
    /// Segments of the log.
    pub segments: usize,
    /// What is in the log and not durable on its backing.
    pub dirty_bytes: u64,
    /// Volumes that this belongs to.
    pub volumes: Vec<String>,
    /// Volumes with data in the log that are not served.
    pub unclaimed: usize,
    /// Devices of the configuration that are not in use, and why.
    #[serde(default)]
    pub absent: Vec<String>,
    /// Why nothing is known of the health of any drive, if that is so.
    #[serde(default)]
    pub drives_unread: Option<String>,
    /// What is being done to the devices.
    #[serde(default)]
    pub job: Option<FlashJobReport>,
    /// Bytes written to all devices since the start for each byte of content, promoted or dirty; absent where there was none.
    #[serde(default)]
    pub write_amplification: Option<f64>,
    /// What the scrub has found.
    #[serde(default)]
    pub scrub: ScrubReport,
    /// Blocks that were read and of which no copy on flash is good: reading them fails until they are written again.
    #[serde(default)]
    pub lost: Vec<LostBlockReport>,
    /// What is wrong now.
    #[schema(value_type = Vec<String>)]
    pub alerts: Vec<Notice>,
    /// Names why it is not used, where `docs/admin/refusals.md` lists that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}

impl StatusReport {
    /// The same without any volume.
    pub fn without_volumes(&self) -> StatusReport {
        StatusReport {
            version: self.version.clone(),
            pid: self.pid,
            uptime_seconds: self.uptime_seconds,
            uptime_ms: self.uptime_ms,
            stopping: self.stopping,
            configuration: self.configuration.clone(),
            state_directory: self.state_directory.clone(),
            state_failed: self.state_failed.clone(),
            memory_not_kept: self.memory_not_kept.clone(),
            listen: self.listen.clone(),
            api: self.api.clone(),
            memory_bytes: self.memory_bytes,
            flash: self.flash.clone(),
            iscsi: self.iscsi.clone(),
            cores: self.cores.clone(),
            datastores: self.datastores.iter().map(DatastoreReport::in_short).collect(),
            volumes: Vec::new(),
            overrides: self.overrides.clone(),
            history: self.history.clone(),
            certificates: self.certificates.clone(),
            jobs: self.jobs.clone(),
            ended_jobs: self.ended_jobs.clone(),
            events: self.events.clone(),
            webhook: self.webhook.clone(),
            alerts: self.alerts.clone(),
            active_alerts: self.active_alerts.clone(),
        }
    }
}

/// The whole daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StatusReport {
    /// Of hotset.
    pub version: String,
    /// Process.
    pub pid: u32,
    /// Time since it started.
    pub uptime_seconds: u64,
    /// The same, for whoever makes rates of the counters.
    #[serde(default)]
    pub uptime_ms: u64,
    /// It is stopping.
    pub stopping: bool,
    /// The configuration's file.
    pub configuration: String,
    /// Where identities and records are kept; absent where an older version says nothing.
    #[serde(default)]
    pub state_directory: Option<String>,
    /// Why nothing can be noted there now; null where it can.
    #[serde(default)]
    pub state_failed: Option<String>,
    /// Why memory does not outlive the daemon although it was to; null where it does, and where nobody asked for it.
    #[serde(default)]
    pub memory_not_kept: Option<String>,
    /// Where clients connect.
    pub listen: Vec<String>,
    /// Where the HTTP interface is; empty where there is none.
    #[serde(default)]
    pub api: String,
    /// Configured memory.
    pub memory_bytes: u64,
    /// The flash log; absent when none is configured.
    #[serde(default)]
    pub flash: Option<FlashReport>,
    /// The iSCSI target; absent where none is configured.
    #[serde(default)]
    pub iscsi: Option<IscsiReport>,
    /// Data cores.
    pub cores: Vec<CoreReport>,
    /// Datastores and flash: whether they are congested, and who has what of them.
    #[serde(default)]
    pub datastores: Vec<DatastoreReport>,
    /// Volumes.
    pub volumes: Vec<VolumeReport>,
    /// Changes made by command that differ from the file.
    pub overrides: Vec<OverrideReport>,
    /// How the history stands; absent where none is kept.
    #[serde(default)]
    pub history: Option<HistoryHealth>,
    /// Certificates that clients are shown.
    #[serde(default)]
    pub certificates: Vec<CertificateReport>,
    /// Long work that is under way.
    #[serde(default)]
    pub jobs: Vec<JobReport>,
    /// That of the last half minute that has ended, the oldest first.
    #[serde(default)]
    pub ended_jobs: Vec<EndedJobReport>,
    /// How the log of events stands.
    #[serde(default)]
    pub events: EventsHealth,
    /// How alerts are delivered; absent where they are not.
    #[serde(default)]
    pub webhook: Option<WebhookHealth>,
    /// What is wrong now.
    pub alerts: Vec<String>,
    /// The same with kind, severity, effect and remedy, the most severe first, as of the last second.
    #[serde(default)]
    pub active_alerts: Vec<AlertReport>,
}
