//! The data path of a request: volumes, the memory cache, destage, backings.
//!
//! The engine is generic over the [`seam::Seam`] and does not depend on executors, sockets or files. It reaches the
//! outside only through the seam, so that the same code serves clients and runs in the simulated world.

pub mod backing;
mod byte_offset;
pub mod core;
mod destage;
pub mod evidence;
mod histogram;
mod log;
mod memory;
mod page_hash;
pub mod pages;
pub mod policy;
pub mod request;
mod shard;
pub mod spec;
pub mod stats;
pub mod telemetry;
pub mod volume;
mod wait;

pub use backing::{AnyDisk, Backing, DatastoreStats, Episode, MemberStats, ReservationError};
pub use byte_offset::ByteOffset;
pub use core::{AttachError, Core};
pub use flash::{BlockNo, PAGE_BLOCKS, PageAmount, PageNo, QuotaError, VolumeId};
pub use histogram::{BucketCounts, Histogram, LATENCY_BUCKETS, REPORTED_OCTAVES, latency_bucket_end_ns};
pub use memory::{PREFETCHED_ENTRIES_MAX, pool_bytes_for};
pub use qos::{Limits, Threshold};
pub use request::{OwnedBlocks, RequestError, WriteFlags, WriteSource, ZeroFlags};
pub use spec::{
    AdmissionRule, CacheMode, CoreSpec, DatastoreSpec, FLASH_DATASTORE, FlashQuota, MemoryQuota, Qos, UnflushedLoss,
    VolumeSpec, WritePolicy,
};
pub use stats::{
    BackingCount, CoreStats, FlashStats, LatencyCounts, LatencySummary, PromotionStats, QosStats, SourceBytes,
    VolumeProblem, VolumeStats,
};
pub use volume::Volume;
pub use volume::range_lock::RangeLocks;
