//! What a core and a volume are told to be.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use flash::{Amount, PageShare};
use qos::{Entitlement, Limits, Threshold};
use seam::Nanos;

/// When a write is acknowledged and what stays in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WritePolicy {
    /// Acknowledged from memory; a flush is acknowledged when everything before it is durable.
    #[default]
    WriteBack,
    /// Acknowledged when it is on the backing; stays cached.
    WriteThrough,
    /// Acknowledged when it is on the backing; not cached.
    WriteAround,
    /// Nothing is cached.
    None,
    /// Acknowledged from memory, and so are flushes; at most `VolumeSpec::defer` old. Must be asked for by name.
    WriteBackVolatile,
}

impl WritePolicy {
    /// All of them, by their names in the configuration.
    pub const ALL: [(&'static str, WritePolicy); 5] = [
        ("write-back", WritePolicy::WriteBack),
        ("write-through", WritePolicy::WriteThrough),
        ("write-around", WritePolicy::WriteAround),
        ("none", WritePolicy::None),
        ("write-back-volatile", WritePolicy::WriteBackVolatile),
    ];

    /// True when a write is acknowledged before it is on the backing.
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
        let found = WritePolicy::ALL.iter().find(|(name, _)| *name == text).map(|(_, policy)| *policy);
        found.ok_or_else(|| {
            let names: Vec<_> = WritePolicy::ALL.iter().map(|(name, _)| *name).collect();
            format!("unknown policy \"{text}\"; one of {}", names.join(", "))
        })
    }
}

/// What an administrator switched the cache to.
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

/// What one core is given.
#[derive(Clone, Debug)]
pub struct CoreSpec {
    /// Part of the pool that dirty and written blocks may take, in percent.
    pub dirty_max_percent: u32,
    /// Age at which dirty data is destaged even if nothing else asks for it.
    pub dirty_age_max: Nanos,
    /// Largest amount read ahead of one sequential stream, in bytes; 0 turns readahead off.
    pub readahead_max_bytes: u64,
    /// What promotes a page to flash.
    pub admission: AdmissionRule,
    /// Bytes that promotion may write to flash in a day (`flash.endurance_dwpd` times its size); 0: no limit.
    pub flash_bytes_a_day: u64,
    /// Part of a volume's bound of dirty blocks, in percent, from which on those leave memory that the flash log holds.
    pub rest_percent: u32,
    /// Blocks spread over a volume's pages that are compared with its backing when it is attached; 0: nothing is compared, not even what was
    /// destaged last, for whoever knows that nobody else writes there.
    pub flash_check_blocks: usize,
    /// How often memory is divided anew between volumes by their miss-ratio curves; 0: never, and each loses in proportion to what it has.
    pub divide_every: Nanos,
    /// Latency of flash past which the shares of volumes count there.
    pub flash_threshold: Threshold,
    /// Deliberate faults for tests that prove that a checker can fail.
    pub sabotage: Sabotage,
}

/// What promotes a page to flash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AdmissionRule {
    /// A return that comes neither too soon nor too late.
    #[default]
    LateReturn,
    /// The third touch, however close together they are; to be compared with.
    ThirdTouch,
}

/// How much of the flash the clean pages of a volume may have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FlashShare {
    /// Any at all (`flash = true`).
    pub enabled: bool,
    /// As long as it has no more than this, none of it goes for other volumes.
    pub min: Amount,
    /// When it has this, a new page takes the place of one of its own.
    pub max: Option<Amount>,
    /// Pages that stay: sorted, apart from each other.
    pub pinned: Vec<Range<u64>>,
}

impl Default for FlashShare {
    fn default() -> Self {
        FlashShare { enabled: true, min: Amount::Pages(0), max: None, pinned: Vec::new() }
    }
}

impl FlashShare {
    /// What the store is told of it.
    pub fn of_pages(&self) -> PageShare {
        PageShare { min: self.min, max: self.max, pinned: self.pinned.clone() }
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
            rest_percent: 50,
            flash_check_blocks: 1_200,
            divide_every: Nanos::from_secs(10),
            flash_threshold: Threshold::Latency(Nanos::from_millis(5)),
            sabotage: Sabotage::None,
        }
    }
}

/// A deliberate fault, so that a test can show that a checker notices it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sabotage {
    /// The engine as it should be.
    #[default]
    None,
    /// A flush is acknowledged before the backing is flushed.
    FlushEarly,
    /// A partial block's sectors are forgotten when it is filled.
    LosePartialWrite,
    /// A discarded block's cached copy stays readable.
    StaleAfterDiscard,
    /// Written data is called clean when a backing reconnects.
    DropWrittenAtReconnect,
    /// A fill is installed whatever was written meanwhile (R2).
    NoTickets,
    /// An overwrite changes a buffer that is on its way to the disk (R1).
    OverwriteInFlight,
    /// Allocation status of the backing is reported for a dirty block (R4).
    ZeroForDirty,
    /// A flush is acknowledged without its records being durable in the flash log (R6).
    AckBeforeLog,
    /// What reached the backing past the flash log gets no tombstone there (R8).
    NoTombstones,
    /// A write leaves the copy on flash as it is (R2).
    StaleOnFlash,
    /// The backing is written without its region being in flux (R8).
    NoMarks,
    /// A record of the flash log is let go by a write that was sent before the record was taken (R7).
    TrustOldWrite,
    /// A block that rests on flash is taken for clean: a fill brings the backing's older content (R2).
    FillOverResting,
    /// A page that was read for a client goes to flash whatever was written while it waited (R2).
    PageOverWrite,
    /// A recall installs what it read over what was written meanwhile (R2).
    RecallOverWrite,
    /// A buffer that takes another one's place is not noted in memory that outlives the process.
    NoNotes,
    /// What the flash log has that is out of date is not noted in memory that outlives the process.
    OldRecords,
}

/// What a volume is.
#[derive(Clone, Debug)]
pub struct VolumeSpec {
    /// Its name: NBD export, LUN name. Never an identity.
    pub name: String,
    /// Its identity for life; never used twice.
    pub incarnation: u64,
    /// When writes are acknowledged.
    pub policy: WritePolicy,
    /// Whether the cache takes part, from the start.
    pub mode: CacheMode,
    /// Writes are refused.
    pub read_only: bool,
    /// Volumes with the same datastore share spindles.
    pub datastore: String,
    /// `vm` and any other.
    pub labels: BTreeMap<String, String>,
    /// `write-back-volatile` alone: age at which a write is durable at the latest, while the backing takes as much as is written.
    pub defer: Nanos,
    /// Its part of the memory.
    pub memory: MemoryShare,
    /// Its part of the flash.
    pub flash: FlashShare,
    /// What it is entitled to beside others, and held to.
    pub qos: Qos,
    /// Its clean pages on flash may be old: they are dropped before any is served.
    pub drops_pages: bool,
    /// Which clients have to hear that acknowledged writes are lost.
    pub unflushed_loss: UnflushedLoss,
}

/// Which clients may still rely on writes that were acknowledged, that no flush covered, and that ended with an earlier daemon. Front ends
/// fail the first flush of each, once: a flush that succeeds would say that those writes are durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnflushedLoss {
    /// Nothing is lost.
    #[default]
    None,
    /// The machine was started anew since: clients on it ended too, others may have outlived it.
    RemoteClients,
    /// The daemon alone ended: any client may have outlived it.
    AllClients,
}

/// What a volume is entitled to beside others, and held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Qos {
    /// Its weight beside the volumes of its datastore while that is congested.
    pub shares: u32,
    /// Requests of 4 KiB a second to its datastore that are its own; 0: none.
    pub reservation_iops: u64,
    /// What clients may ask of it.
    pub limits: Limits,
}

impl Qos {
    /// What most volumes have.
    pub const NORMAL_SHARES: u32 = 1_000;

    /// What a datastore is told of it.
    pub fn entitlement(&self) -> Entitlement {
        Entitlement { shares: self.shares, reservation: self.reservation_iops }
    }
}

impl Default for Qos {
    fn default() -> Self {
        Qos { shares: Qos::NORMAL_SHARES, reservation_iops: 0, limits: Limits::default() }
    }
}

/// The name by which flash is told among the datastores, as none in a configuration can be called.
pub const FLASH_DATASTORE: &str = "(flash)";

/// What a datastore is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatastoreSpec {
    /// Its name, by which volumes refer to it.
    pub name: String,
    /// Latency past which it is congested.
    pub threshold: Threshold,
    /// Accesses that a small write costs disks that do not say: 1, or 4 for RAID 5.
    pub write_cost: u32,
}

impl DatastoreSpec {
    /// One that finds its threshold.
    pub fn new(name: &str) -> Self {
        DatastoreSpec { name: name.to_owned(), threshold: Threshold::Auto, write_cost: 1 }
    }
}

/// How much of the memory the blocks of a volume may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryShare {
    /// As long as it has no more than this, none of it goes for other volumes.
    pub min_bytes: u64,
    /// It has no more than this, what is not clean aside.
    pub max_bytes: Option<u64>,
}

impl VolumeSpec {
    /// A volume with defaults for everything but its name and identity.
    pub fn new(name: &str, incarnation: u64) -> Self {
        VolumeSpec {
            name: name.to_owned(),
            incarnation,
            policy: WritePolicy::default(),
            mode: CacheMode::default(),
            read_only: false,
            datastore: String::new(),
            labels: BTreeMap::new(),
            defer: Nanos::from_secs(10),
            memory: MemoryShare::default(),
            flash: FlashShare::default(),
            qos: Qos::default(),
            drops_pages: false,
            unflushed_loss: UnflushedLoss::None,
        }
    }
}
