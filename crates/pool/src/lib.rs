//! The pool: volumes of slices on tiers of different devices. A slice is allocated at its first write and can move to
//! another group while clients use it.
//!
//! A volume is a disk of the seam ([`PoolDisk`]): the caches lie above it, and the engine cannot tell it from another
//! backing. The crate knows the seam and nothing of the engine. `docs/design/pool.md` describes the mechanism,
//! `docs/design/pool-format.md` the layout on the groups byte by byte.
//!
//! The rules that keep data safe, and the modules that uphold them:
//!
//! 1. A map entry is durable only after the zeroes and data of its slot: `journal/commit.rs`.
//! 2. A slot is reused only after the entry that replaced its last one is durable, and no request uses it:
//!    `changes.rs`, `state.rs`.
//! 3. A flush returns when the groups with the volume's writes are flushed and its map entries are durable on every
//!    metadata copy: `journal/commit.rs`.
//! 4. A write during a move reaches the target before the map does: `mover.rs`.
//! 5. A slot that several volumes share is not written: a write gets a private copy first (`change.rs`, `sharing.rs`).
//! 6. An imported disk is untouched until its volume is complete durably, and then its superblocks are the only blocks
//!    that change on it: `import`.
//! 7. The pool relies on fewer metadata copies only after so many groups have durably recorded it that no opening
//!    misses it: `membership.rs`.
//! 8. Groups that were continued without each other are never opened together: `timeline.rs`.

mod apply;
mod buffers;
mod change;
mod changes;
mod check;
mod create;
mod detached;
mod device;
mod disk;
mod error;
mod export;
mod family;
mod flush;
pub mod format;
mod give_up;
mod group_content;
mod group_set;
mod groups;
pub mod heat;
mod heat_image;
mod import;
mod interference;
mod io;
mod journal;
mod late;
mod lost;
mod map;
mod membership;
mod metadata_requests;
mod mover;
mod number;
mod open;
mod outcome;
pub mod planner;
mod policy;
mod pool;
mod probe;
mod releases;
mod relocation;
mod relocation_report;
mod resize;
mod retired;
mod sabotage;
mod sharing;
mod signatures;
mod slice_bits;
mod slots;
mod snapshots;
mod state;
mod timeline;
mod volume_heat;

pub use check::{CheckReport, Finding};
pub use create::{CreateOptions, TierSpec};
pub use disk::PoolDisk;
pub use error::PoolError;
pub use export::{ExportPlan, ExportStep, MetadataRange};
pub use format::superblock::MemberState;
pub use group_content::{GroupContent, read_group_content, read_pool_identity};
pub use groups::DrainReport;
pub use heat_image::HeatImageError;
pub use import::ImportReport;
pub use lost::{LostRange, LostVolume};
pub use mover::{CopyRequest, Flow, LAST_PASS_BLOCKS, MOVES_MAX, MoveError, MoveOutcome, Pace, unpaced};
pub use number::{
    CheckpointNo, FamilySlice, GroupNo, PoolGeneration, Sequence, SliceAddress, SliceNo, SlotAddress, SlotNo, TierNo,
    VolumeId,
};
pub use open::OpenOptions;
pub use policy::{GroupRoom, Provisioning, TierPolicy, VolumeSpec, place};
pub use pool::{GroupReport, Pool, VolumeReport};
pub use probe::{ProbeResult, probe};
pub use relocation::{
    GroupLoad, MoveRate, RelocationPlan, RelocationSettings, RelocationWindows, VolumeCell, VolumeCells,
};
pub use relocation_report::{PlannedMove, RelocationEnd, RelocationProgress, RelocationQueue, RelocationReport};
pub use sabotage::Sabotage;
pub use snapshots::SnapshotReport;
pub use state::{PoolCounts, ServedRequests};
pub use task_sync::BoxFuture;
