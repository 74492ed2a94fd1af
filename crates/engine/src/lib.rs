//! The data path of a request: volumes, the memory cache, destage, backings.
//!
//! The engine is generic over the [`seam::Seam`] and does not depend on executors, sockets or files. It reaches the
//! outside only through the seam, so that the same code serves clients and runs in the simulated world.
//!
//! # Layers
//!
//! No module uses a type, function or method of a module above it. From top to bottom:
//!
//! | modules | content |
//! |---|---|
//! | [`evidence`] | a backing's content before it is attached |
//! | [`core`](mod@core) | the engine of one core, with its volumes |
//! | [`volume`] | calls of front ends: checks, gate, limits |
//! | `admin`, `shutdown`, `recovery` | operations of an administrator; shutdown; recovery before a volume is served |
//! | `backing_check`, `data_path` | comparison of flash pages with the backing at a start; requests of clients |
//! | `tick` | work that depends on time while there is dirty data |
//! | `destage`, `log` | destage to the backing; flushes that the flash log answers |
//! | `flush` | flushes that close an epoch and wait for its destage |
//! | `pages` | flushes of the backing, promotion of durable content to flash |
//! | `fill` | reads of absent blocks into memory, reload of spilled ones |
//! | `shard` | state of a volume on one core, its transitions and limits |
//! | `flash_tier`, `log_tracker` | state of a volume's clean pages; state of its log records |
//! | [`backing`], `memory`, [`policy`], [`stats`], [`telemetry`], ... | parts that know no volume |
//!
//! The volume's state is one type, `Shard`, and each layer adds methods to it. A lower layer that needs an upper one
//! sets a condition: data is dirty, a block is waited for. The upper layer waits for it (`Shard::destage_work`,
//! `Shard::progress`).

mod admin;
pub mod backing;
mod backing_check;
mod byte_offset;
pub mod core;
mod data_path;
mod destage;
pub mod evidence;
mod fill;
mod flash_tier;
mod flush;
mod histogram;
mod log;
mod log_tracker;
mod memory;
mod page_hash;
mod pages;
pub mod policy;
mod recovery;
pub mod request;
mod shard;
mod shutdown;
pub mod spec;
pub mod stats;
pub mod telemetry;
mod tick;
pub mod volume;
mod wait;

pub use backing::{AnyDisk, Backing, DatastoreStats, DatastoreVolumeStats, Episode, GroupDisk, ReservationError};
pub use byte_offset::ByteOffset;
pub use core::{AttachError, Core};
pub use flash::{BlockNo, PAGE_BLOCKS, PageAmount, PageNo, QuotaError, VolumeId};
pub use histogram::{
    BACKING_BOUNDS_LOG2, BucketCounts, FineLatencyHistogram, LATENCY_BUCKET_COUNT, latency_bucket_end_ns,
};
pub use memory::{PREFETCHED_ENTRIES_MAX, pool_bytes_for};
pub use qos::{Limits, Threshold};
pub use request::{OwnedBlocks, RequestError, WriteFlags, WriteSource, ZeroFlags};
pub use shard::core_state::{AGE_PRESSURE_PERCENT_MAX, CROWDED_FREE_SEGMENTS_DIVISOR, LOG_TARGET_PERCENT};
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
pub use volume::transfer::{RetainedBatch, RetainedBlocks, RetainedPosition};
