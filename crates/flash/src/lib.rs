//! The flash store: a log of dirty blocks on two mirrored devices, and a cache of clean pages. A flush costs one
//! sequential write and one device flush, however random the client's writes are.
//!
//! The store knows volumes only by their ID and does not depend on the engine. The write path (`commit.rs`)
//! and recovery (`recovery/`) share the format (`format/`), which `docs/design/format.md` describes byte by byte.
//!
//! The modules depend on each other in one direction. From the lowest to the highest:
//!
//! - `format/` and plain types: `number.rs`, `record.rs`, `device.rs`, `segments.rs` and others.
//! - `page_map/`: the map of clean pages in memory.
//! - `state/`: the state of the open store, and the requests to its devices.
//! - Mechanisms, which are functions over this state: `membership.rs`, `slow_detection.rs`, `read.rs`, `journal/`,
//!   `pages/`, `members/`, `recovery/`, `commit.rs` and others.
//! - `store.rs` and `manifest.rs`: the interface.
//!
//! The rules that keep data safe, and the modules that uphold them:
//!
//! - **R6** `commit.rs`: an append returns when its batch is durable on every member in service.
//! - **R7** `segments.rs`: a segment is reused only after the durable tail has passed it, and the tail never passes a
//!   live record.
//! - **R10** `membership.rs`: the store relies on fewer copies only after every survivor has durably recorded the loss.
//! - **R11** `read.rs`: every block that is read is checked; a bad copy is read from its mirror and repaired.

mod abort;
mod commit;
mod create;
mod device;
mod error;
pub mod format;
mod grace_join;
mod hang_detection;
mod inspect;
mod journal;
mod kept_reads;
mod log_members;
mod log_replay;
mod manifest;
mod member_disk;
mod members;
mod membership;
mod number;
mod page_map;
mod pages;
mod record;
mod record_read;
mod recovery;
mod retirement;
mod sabotage;
mod scrub;
mod segments;
mod slow_detection;
mod state;
mod store;
mod superblocks;

pub use create::FormatOptions;
pub use error::StoreError;
pub use format::superblock::MemberState;
pub use format::superblock::Ownership;
pub use format::superblock::Role;
pub use inspect::{
    DeviceContent, DeviceFindings, Inspection, StoreIdentity, SuperblockSummary, identify, inspect, read_device_content,
};
pub use journal::load::MapLoadOutcome;
pub use kept_reads::KeptResult;
pub use log_replay::{ReplayError, ReplayProgress, ReplayStats};
pub use manifest::{MANIFEST_BYTES_MAX, Manifest, read_manifest};
pub use member_disk::MemberDisk;
pub use members::plan::JoinPlan;
pub use number::{
    BlockNo, BootEpoch, CommitNo, CompletionNo, Epoch, HalfGeneration, MemberNo, MembershipGeneration, PAGE_BLOCKS,
    PageNo, SegmentNo, Sequence, VolumeId,
};
pub use page_map::MemberWrites;
pub use page_map::dirty_regions::REGION_BLOCKS;
pub use page_map::quota::{PageAmount, PageQuota};
pub use pages::{
    PageReadError, PageUsage, Pages, PagesStats, PutError, QuotaError, SlotRoom, VolumePages, WriteIntent,
};
pub use record::{BlockAddress, Content, Position, Record, RecoveredContent, RecoveredRecord};
pub use record_read::ReadRequest;
pub use recovery::OpenOptions;
pub use sabotage::Sabotage;
pub use segments::EXPIRY_MODULUS;
pub use state::jobs::{JobKind, JobReport};
pub use state::members::{MemberReport, MemberStatus};
pub use state::scrub::ScrubStats;
pub use store::{OldSegments, SegmentChoice, Store};
pub use task_sync::BoxFuture;
