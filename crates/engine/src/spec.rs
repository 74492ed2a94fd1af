//! Settings of a core, a volume and a datastore.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use flash::{PageAmount, PageNo, PageQuota, VolumeId};
use qos::{Entitlement, Limits, Threshold};
use seam::Nanos;

/// Write policy: the time of acknowledgement, and whether a written block stays in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WritePolicy {
    /// Acknowledged from memory. A flush is acknowledged when all earlier writes are durable.
    #[default]
    WriteBack,
    /// Acknowledged when on the backing; stays cached.
    WriteThrough,
    /// Acknowledged when on the backing; not cached.
    WriteAround,
    /// No block is cached.
    None,
    /// Writes and flushes are acknowledged from memory; a write is durable after at most [`VolumeSpec::deferral_age`].
    /// Never a default.
    WriteBackVolatile,
}

impl WritePolicy {
    /// All policies with their names in the configuration.
    pub const ALL: [(&'static str, WritePolicy); 5] = [
        ("write-back", WritePolicy::WriteBack),
        ("write-through", WritePolicy::WriteThrough),
        ("write-around", WritePolicy::WriteAround),
        ("none", WritePolicy::None),
        ("write-back-volatile", WritePolicy::WriteBackVolatile),
    ];

    /// True if a write is acknowledged before it is on the backing.
    pub fn defers_writes(self) -> bool {
        matches!(self, WritePolicy::WriteBack | WritePolicy::WriteBackVolatile)
    }
}

impl fmt::Display for WritePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = WritePolicy::ALL.iter().find(|(_, policy)| policy == self).map(|(name, _)| *name);
        f.write_str(name.expect("every policy has a name"))
    }
}

impl FromStr for WritePolicy {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let policy = WritePolicy::ALL.iter().find(|(name, _)| *name == text).map(|(_, policy)| *policy);
        policy.ok_or_else(|| {
            let names: Vec<_> = WritePolicy::ALL.iter().map(|(name, _)| *name).collect();
            format!("unknown policy \"{text}\"; one of {}", names.join(", "))
        })
    }
}

/// Cache mode set by an administrator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CacheMode {
    /// Serve hits, admit misses.
    #[default]
    Active,
    /// Pass everything through, cache nothing (dirty data still drains).
    Paused,
    /// Serve hits, add nothing.
    Frozen,
}

impl fmt::Display for CacheMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CacheMode::Active => "active",
            CacheMode::Paused => "paused",
            CacheMode::Frozen => "frozen",
        })
    }
}

/// Settings of a core.
#[derive(Clone, Debug)]
pub struct CoreSpec {
    /// Part of the pool that dirty and written blocks may take, in percent.
    pub dirty_max_percent: u32,
    /// Age at which dirty data without a log is destaged even if nothing else triggers it. Changes of this age are
    /// logged, and logged data is destaged at 30 times this age.
    pub dirty_age_max: Nanos,
    /// Largest amount read ahead of one sequential stream, in bytes; 0 turns readahead off.
    pub readahead_max_bytes: u64,
    /// The rule by which a page is promoted to flash.
    pub admission: AdmissionRule,
    /// Bytes that promotion may write to flash in a day (`flash.endurance_dwpd` times its size); 0: no limit.
    pub flash_bytes_a_day: u64,
    /// Dirty blocks from which on blocks are spilled to the flash log, in percent of the volume's limit.
    pub spill_percent: u32,
    /// Number of blocks, spread over a volume's pages, that are compared with its backing on attach. 0: no comparison,
    /// not even of the blocks destaged last; only safe if nothing else writes to the backing.
    pub flash_check_blocks: usize,
    /// Interval at which memory is partitioned anew between volumes by their miss-ratio curves. 0: never; volumes then
    /// lose blocks in proportion to their size.
    pub repartition_interval: Nanos,
    /// Latency of flash past which shares of volumes act there.
    pub flash_threshold: Threshold,
    /// Deliberate faults for tests that prove that a checker can fail.
    pub sabotage: Sabotage,
}

/// The rule by which a page is promoted to flash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AdmissionRule {
    /// A return neither too soon nor too late.
    #[default]
    LateReturn,
    /// The third touch, however close together the touches are; for comparison.
    ThirdTouch,
}

/// The part of the flash for the clean pages of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FlashQuota {
    /// Whether the volume uses flash at all (`flash = true`).
    pub is_enabled: bool,
    /// Amount up to which its pages are not evicted for other volumes.
    pub min: PageAmount,
    /// Amount from which on a new page replaces one of the volume's own.
    pub max: Option<PageAmount>,
    /// Pinned pages, as sorted and disjoint ranges.
    pub pinned: Vec<Range<PageNo>>,
}

impl Default for FlashQuota {
    fn default() -> Self {
        FlashQuota { is_enabled: true, min: PageAmount::Pages(0), max: None, pinned: Vec::new() }
    }
}

impl FlashQuota {
    /// The setting in the form that the flash store takes.
    pub fn to_page_quota(&self) -> PageQuota {
        PageQuota { min: self.min, max: self.max, pinned: self.pinned.clone() }
    }
}

impl Default for CoreSpec {
    fn default() -> Self {
        CoreSpec {
            dirty_max_percent: 50,
            dirty_age_max: Nanos::from_secs(10),
            readahead_max_bytes: 1 << 20,
            admission: AdmissionRule::default(),
            flash_bytes_a_day: 0,
            spill_percent: 50,
            flash_check_blocks: 1_200,
            repartition_interval: Nanos::from_secs(10),
            flash_threshold: Threshold::Latency(Nanos::from_millis(5)),
            sabotage: Sabotage::None,
        }
    }
}

/// A deliberate fault, to prove that a checker detects it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sabotage {
    /// No fault.
    #[default]
    None,
    /// A flush is acknowledged before the backing is flushed.
    FlushEarly,
    /// The sectors of a partial block are lost when it is filled.
    LosePartialWrite,
    /// The cached copy of a discarded block stays readable.
    StaleAfterDiscard,
    /// Written data is treated as clean after a reconnect of the backing.
    DropWrittenAtReconnect,
    /// A fill is installed even if a write came between (R2, docs/rules.md).
    NoFillGuards,
    /// An overwrite changes a buffer in flight to the disk (R1).
    OverwriteInFlight,
    /// The backing's allocation status is reported for a dirty block (R4).
    ZeroForDirty,
    /// A flush is acknowledged before its records are durable in the flash log (R6).
    AckBeforeLog,
    /// A write that bypasses the flash log gets no tombstone there (R8).
    NoTombstones,
    /// A write does not invalidate the copy on flash (R2).
    StaleOnFlash,
    /// The backing is written without marking its region as dirty in the write-intent log (R8).
    NoDirtyRegions,
    /// A record of the flash log is retired by a write that was sent before the record was taken (R7).
    TrustOldWrite,
    /// A spilled block is treated as clean: a fill installs the backing's older content (R2).
    FillOverSpilled,
    /// A page read for a client is promoted even if a write came between (R2).
    PageOverWrite,
    /// A reload of spilled blocks overwrites later writes (R2).
    ReloadOverWrite,
    /// A buffer that replaces another one gets no persistence tag.
    NoPersistenceTags,
    /// Outdated records of the flash log are not tagged as outdated in persisted memory.
    OldRecords,
    /// A write does not remove the kept record of its block (R2).
    KeptOverWrite,
    /// A record is kept although its block has changed since it was made (R2).
    KeepChangedBlock,
    /// A flush of the log that an operation waits for leaves out the blocks of streams (R6).
    LeaveOutStreams,
    /// A flush of the log that an operation waits for leaves out blocks of which only some sectors are in memory (R6).
    LeaveOutPartial,
    /// A write is acknowledged although its backing may lack space for it.
    NoReservation,
    /// A zero-range releases the space of a block that was written since it was selected.
    UnmapOverWrite,
    /// A volume gets a block of a sibling that the sibling's backing lacks.
    ShareDirtyBlock,
    /// A volume gets blocks of a sibling whose backing stores other content there.
    ShareOtherContent,
    /// A backing is not marked when its volume begins to use the flash log (R6).
    NoUndestagedMark,
    /// A block of the former owner is admitted although it was changed since (R2).
    TransferOverWrite,
}

impl Sabotage {
    /// True when this fault is set. Without the feature `sabotage` it is always false, and the compiler removes the
    /// faults.
    pub(crate) const fn is(self, fault: Sabotage) -> bool {
        cfg!(feature = "sabotage") && self as u8 == fault as u8
    }
}

/// Settings of a volume.
#[derive(Clone, Debug)]
pub struct VolumeSpec {
    /// Name of the volume, NBD export and LUN. Never an identity.
    pub name: String,
    /// Persistent identity; never reused.
    pub volume_id: VolumeId,
    /// When writes are acknowledged.
    pub policy: WritePolicy,
    /// Cache mode at the start.
    pub mode: CacheMode,
    /// Refuse writes.
    pub read_only: bool,
    /// Name of the datastore; volumes of one datastore share disks.
    pub datastore: String,
    /// Labels: `vm` and any other.
    pub labels: BTreeMap<String, String>,
    /// `write-back-volatile` only: deferral age at which a write is durable at the latest, while the backing keeps up
    /// with the writes.
    pub deferral_age: Nanos,
    /// Bounds of its part of the memory.
    pub memory: MemoryQuota,
    /// Bounds of its part of the flash.
    pub flash: FlashQuota,
    /// Shares, reservation and limits.
    pub qos: Qos,
    /// Its clean pages on flash may be outdated: they are dropped before any is served.
    pub drops_pages: bool,
    /// The flash log may answer its flushes under `write-back`. If not, it still uses clean pages on flash.
    pub allows_log: bool,
    /// The clients whose next flush must report lost acknowledged writes.
    pub unflushed_loss: UnflushedLoss,
    /// Another host owns the content, and its backing forwards reads to that host. Changes wait for the volume's
    /// successor, and a flush has nothing to do.
    pub is_standby: bool,
    /// Number of the ownership of a volume that another host has released: blocks that this host has in memory may be
    /// admitted ([`Volume::admit_transferred`]), until
    /// [`Volume::end_transfer`].
    ///
    /// [`Volume::admit_transferred`]: crate::Volume::admit_transferred
    /// [`Volume::end_transfer`]: crate::Volume::end_transfer
    pub awaits_transfer: Option<u64>,
}

/// Clients that may still rely on lost writes: acknowledged, covered by no flush, and lost when an earlier daemon
/// ended. Front ends fail the first flush of each such client once, because a successful flush would confirm the lost
/// writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnflushedLoss {
    /// No writes are lost.
    #[default]
    None,
    /// The machine was restarted since: its own clients ended too, but remote clients may have survived.
    RemoteClients,
    /// Only the daemon ended: any client may have survived.
    AllClients,
}

/// Shares, reservation and limits of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Qos {
    /// Weight among the volumes of its datastore while that is congested.
    pub shares: u32,
    /// Reserved requests of 4 KiB per second to its datastore; 0: none.
    pub reservation_iops: u64,
    /// Limits on the requests of clients.
    pub limits: Limits,
}

impl Qos {
    /// The default weight.
    pub const NORMAL_SHARES: u32 = 1_000;

    /// The part of the setting that concerns the datastore.
    pub fn entitlement(&self) -> Entitlement {
        Entitlement { shares: self.shares, reservation: self.reservation_iops }
    }
}

impl Default for Qos {
    fn default() -> Self {
        Qos { shares: Qos::NORMAL_SHARES, reservation_iops: 0, limits: Limits::default() }
    }
}

/// The name of flash among the datastores; a configured datastore cannot have this name.
pub const FLASH_DATASTORE: &str = "(flash)";

/// Settings of a datastore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatastoreSpec {
    /// Its name, by which volumes refer to it.
    pub name: String,
    /// Latency past which the datastore is congested.
    pub threshold: Threshold,
    /// Accesses of a small write, for disks that do not report it: 1, or 4 for RAID 5.
    pub write_cost: u32,
}

impl DatastoreSpec {
    /// A datastore that finds its threshold automatically.
    pub fn new(name: &str) -> Self {
        DatastoreSpec { name: name.to_owned(), threshold: Threshold::Auto, write_cost: 1 }
    }
}

/// Bounds of the memory for the blocks of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryQuota {
    /// Up to this size, its blocks are not evicted for other volumes.
    pub min_bytes: u64,
    /// Maximum size; blocks that are not clean may exceed it.
    pub max_bytes: Option<u64>,
}

impl VolumeSpec {
    /// A volume with defaults for everything but its name and identity.
    pub fn new(name: &str, volume_id: VolumeId) -> Self {
        VolumeSpec {
            name: name.to_owned(),
            volume_id,
            policy: WritePolicy::default(),
            mode: CacheMode::default(),
            read_only: false,
            datastore: String::new(),
            labels: BTreeMap::new(),
            deferral_age: Nanos::from_secs(10),
            memory: MemoryQuota::default(),
            flash: FlashQuota::default(),
            qos: Qos::default(),
            drops_pages: false,
            allows_log: true,
            unflushed_loss: UnflushedLoss::None,
            is_standby: false,
            awaits_transfer: None,
        }
    }
}
