//! The life of a request: volumes, the memory cache, destage, backings.
//!
//! Generic over the [`seam::Seam`] it runs on and ignorant of executors, sockets and files: everything outside is
//! reached through the seam, so that the same code serves clients and runs in the simulated world.

pub mod backing;
pub mod core;
pub mod request;
pub mod spec;
pub mod stats;
pub mod volume;

pub use backing::Backing;
pub use core::{AttachError, Core};
pub use request::{RequestError, WriteFlags, WriteSource, ZeroFlags};
pub use spec::{CacheMode, CoreSpec, VolumeSpec, WritePolicy};
pub use stats::{CoreStats, LatencySummary, VolumeStats};
pub use volume::Volume;
