//! What a simulated disk is told to be, and what it counts.

use crate::model::SsdSpec;
use crate::{Geometry, Nanos};

/// How long an operation takes: a time drawn between two bounds. Different draws complete operations out of order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// At least.
    pub min: Nanos,
    /// At most.
    pub max: Nanos,
}

impl Latency {
    /// Always the same.
    pub const fn fixed(time: Nanos) -> Latency {
        Latency { min: time, max: time }
    }

    /// Anything from `min` to `max`, both included.
    pub const fn between(min: Nanos, max: Nanos) -> Latency {
        Latency { min, max }
    }
}

/// How long a disk's operations take. All 0: they complete inside the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// Reads.
    pub read: Latency,
    /// Writes and zero-ranges.
    pub write: Latency,
    /// Flushes.
    pub flush: Latency,
    /// Reads and writes take what this device makes of them, queues included, in place of the times above.
    pub ssd: Option<SsdSpec>,
}

impl Timing {
    /// No time at all: a content store behind a model.
    pub const INSTANT: Timing = {
        let none = Latency::fixed(Nanos::ZERO);
        Timing { read: none, write: none, flush: none, ssd: None }
    };

    /// Everything between `min` and `max`.
    pub const fn between(min: Nanos, max: Nanos) -> Timing {
        let any = Latency::between(min, max);
        Timing { read: any, write: any, flush: any, ssd: None }
    }

    /// The times of a flash device that survives a loss of power: a flush has nothing to wait for.
    pub const fn of_ssd(spec: SsdSpec) -> Timing {
        Timing { ssd: Some(spec), ..Timing::INSTANT }
    }
}

/// Whether a completed write is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteCache {
    /// Only after a flush.
    #[default]
    Volatile,
    /// At once.
    Through,
}

/// What a simulated disk is.
#[derive(Clone, Debug)]
pub struct SimDiskSpec {
    /// Its geometry; a physical block is written whole or not at all.
    pub geometry: Geometry,
    /// How long its operations take.
    pub timing: Timing,
    /// Whether a completed write is durable.
    pub cache: WriteCache,
}

impl SimDiskSpec {
    /// A quick disk of 512-byte blocks with a volatile write cache.
    pub fn new(size_bytes: u64) -> SimDiskSpec {
        let geometry = Geometry {
            size_bytes,
            logical_block: 512,
            physical_block: 512,
            stripe_bytes: 0,
            queue_depth: 32,
            fast_zero: true,
        };
        let short = Latency::fixed(Nanos::from_micros(100));
        let timing = Timing { read: short, write: short, flush: Latency::fixed(Nanos::from_micros(500)), ssd: None };
        SimDiskSpec { geometry, timing, cache: WriteCache::Volatile }
    }
}

/// What a disk has been asked and done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounts {
    /// Reads submitted.
    pub reads: u64,
    /// Writes submitted.
    pub writes: u64,
    /// Flushes submitted.
    pub flushes: u64,
    /// Zero-ranges submitted.
    pub zeroes: u64,
    /// Bytes of the reads.
    pub read_bytes: u64,
    /// Bytes of the writes.
    pub write_bytes: u64,
    /// Operations that failed.
    pub errors: u64,
}
