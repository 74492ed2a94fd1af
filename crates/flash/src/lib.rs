//! The flash store: dirty data in a log that is mirrored on two devices, so that a flush is one sequential write and one device flush
//! away, however random the writes were.
//!
//! The store knows volumes by their incarnation alone and nothing of the engine above it. The write path (`commit.rs`) and its recovery
//! (`recovery/`) share the format (`format/`), which `docs/design/format.md` describes byte by byte.
//!
//! What keeps data safe, and where it is upheld:
//!
//! - **R6** `commit.rs`: an append returns when its batch is durable on every member in service.
//! - **R7** `segments.rs`: a segment is used again when the durable tail has passed it, and the tail passes live records never.
//! - **R10** `membership.rs`: fewer copies are relied upon after every survivor durably knows of them.
//! - **R11** `read.rs`: every block that is read is checked; a bad one comes from the mirror and is repaired.

mod abort;
mod commit;
mod create;
mod device;
mod error;
pub mod format;
mod hang;
mod inspect;
mod journal;
mod manifest;
mod members;
mod membership;
mod pages;
mod read;
mod record;
mod recovery;
mod scrub;
mod segments;
mod slow;
mod store;
mod wait;

pub use create::FormatOptions;
pub use error::StoreError;
pub use format::superblock::MemberState;
pub use format::superblock::Ownership;
pub use format::superblock::Role;
pub use inspect::{DeviceFound, Inspection, StoreIdentity, SuperblockFound, identify, inspect};
pub use manifest::{MANIFEST_BYTES_MAX, Manifest, read_manifest};
pub use members::{JobKind, JobReport};
pub use pages::{
    Amount, MapLoaded, PAGE_BLOCKS, PageMember, PageShare, Pages, PagesOf, PagesStats, PutError, REGION_BLOCKS,
    ShareError, Unread, WriteMark,
};
pub use record::{Content, Owner, Position, Record, Recovered, RecoveredContent};
pub use recovery::OpenOptions;
pub use scrub::ScrubStats;
pub use store::{MemberReport, MemberStatus, Sabotage, Store};
pub use wait::Boxed;
