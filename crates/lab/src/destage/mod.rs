//! Orders and paces of destage, compared: a write cache in front of a modelled array.
//!
//! The model has the write side alone. The engine's destage depends on its log, its memory and its pages, and none of
//! them can be exchanged without the others; here the order and the pace are all that differs. The cache holds dirty
//! blocks and nothing else, so a read that does not find all of its blocks there goes to the array. Every order writes
//! neighbouring blocks with one request, up to the end of a stripe. A request that the cache serves takes 100 µs.

mod acp;
mod alru;
mod comparison;
mod dirty_blocks;
mod loads;
mod oldest_log;
mod pace;
mod simulation;
mod wow;

use seam::Nanos;
use seam::model::ArraySpec;

pub use comparison::{Comparison, ComparisonRow, compare};
pub use loads::Load;

use acp::Acp;
use alru::Alru;
use dirty_blocks::{DirtyBlocks, Run};
use oldest_log::{OldestLog, Space};
use pace::{Batches, IdleBatches, LinearThreshold, Pace, QueueLimit};
use wow::Wow;

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: u64 = 4_096;
/// Time of a request that the cache serves.
pub(crate) const CACHE_TIME: Nanos = Nanos::from_micros(100);
/// Requests in the queue of each disk of the array, as the engine assumes.
const QUEUE_PER_DISK: u64 = 32;

/// State that orders and paces know besides the dirty blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DestageState {
    /// The present time.
    pub now: Nanos,
    /// Blocks of the cache that are in use.
    pub used_blocks: u64,
    /// Blocks of the cache.
    pub capacity_blocks: u64,
    /// Writes of destage that are in flight.
    pub writes_in_flight: u64,
    /// Time of the last request of a client.
    pub last_request: Nanos,
    /// Last time at which a read was in flight to the array.
    pub last_read: Option<Nanos>,
    /// Time since which the cache has held its oldest dirty data.
    pub oldest_since: Option<Nanos>,
    /// True if clients have sent no request for 200 ms.
    pub is_idle: bool,
}

impl DestageState {
    /// Fill of the cache in percent.
    pub fn used_percent(&self) -> u64 {
        self.used_blocks * 100 / self.capacity_blocks.max(1)
    }
}

/// The order in which dirty blocks are written to the array, and the space that they take until then.
pub(crate) trait Order {
    /// Records a write of a client. `was_held`: the cache held the block; `was_dirty`: dirty, not only in flight.
    fn record_write(&mut self, block: u64, was_held: bool, was_dirty: bool);

    /// Records that the blocks of a run are in flight and no longer dirty.
    fn record_start(&mut self, run: Run);

    /// The next run of at most `blocks_max` writable blocks; `None` if no block is due.
    fn next_run(&mut self, dirty: &DirtyBlocks, state: &DestageState, blocks_max: u64) -> Option<Run>;

    /// Moves the head of a log after writes of clients, and its tail after destage.
    fn advance_tail(&mut self, _dirty: &DirtyBlocks, _now: Nanos) {}

    /// Blocks of the cache that are in use.
    fn used_blocks(&self, dirty: &DirtyBlocks) -> u64 {
        dirty.occupied()
    }

    /// Free blocks that a write of `blocks` needs, of which the cache does not hold `new`.
    fn blocks_needed(&self, _blocks: u64, new: u64) -> u64 {
        new
    }

    /// Time since which the cache has held its oldest dirty data.
    fn oldest_since(&self, dirty: &DirtyBlocks) -> Option<Nanos> {
        dirty.by_age().next().map(|(_, version)| version.written_at)
    }
}

/// An order with its pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Hotset: the oldest part of the log by address, with a limit of its writes in the disks' queue.
    Hotset,
    /// Hotset's order and pace in a cache without dead records.
    HotsetInPlace,
    /// WOW with its linear threshold.
    Wow,
    /// WOW's order with Hotset's pace.
    WowPacedAsHotset,
    /// Hotset's order with WOW's linear threshold.
    HotsetPacedAsWow,
    /// ACP of Open CAS.
    Acp,
    /// ACP's order with Hotset's pace.
    AcpPacedAsHotset,
    /// ALRU of Open CAS.
    Alru,
}

impl Policy {
    /// All policies with their names.
    pub const ALL: [(&'static str, Policy); 8] = [
        ("hotset", Policy::Hotset),
        ("hotset, no dead records", Policy::HotsetInPlace),
        ("hotset, wow's pace", Policy::HotsetPacedAsWow),
        ("wow", Policy::Wow),
        ("wow, hotset's pace", Policy::WowPacedAsHotset),
        ("acp", Policy::Acp),
        ("acp, hotset's pace", Policy::AcpPacedAsHotset),
        ("alru", Policy::Alru),
    ];

    fn order(self, stripe_blocks: u64) -> Box<dyn Order> {
        match self {
            Policy::Hotset | Policy::HotsetPacedAsWow => Box::new(OldestLog::new(Space::Log, stripe_blocks)),
            Policy::HotsetInPlace => Box::new(OldestLog::new(Space::InPlace, stripe_blocks)),
            Policy::Wow | Policy::WowPacedAsHotset => Box::new(Wow::new(stripe_blocks)),
            Policy::Acp => Box::new(Acp::new(stripe_blocks, true)),
            Policy::AcpPacedAsHotset => Box::new(Acp::new(stripe_blocks, false)),
            Policy::Alru => Box::new(Alru::new(stripe_blocks)),
        }
    }

    fn pace(self, array: &ArraySpec) -> Box<dyn Pace> {
        match self {
            Policy::Hotset | Policy::HotsetInPlace | Policy::WowPacedAsHotset | Policy::AcpPacedAsHotset => {
                Box::new(QueueLimit::new(QUEUE_PER_DISK * array.disks as u64))
            }
            Policy::Wow | Policy::HotsetPacedAsWow => Box::new(LinearThreshold),
            Policy::Acp => Box::new(Batches::default()),
            Policy::Alru => Box::<IdleBatches>::default(),
        }
    }

    /// Number of the oldest blocks that are written when a client's write finds no room, as Open CAS evicts; 0: the
    /// order continues.
    fn eviction_blocks(self) -> usize {
        if matches!(self, Policy::Acp | Policy::Alru) { 32 } else { 0 }
    }
}
