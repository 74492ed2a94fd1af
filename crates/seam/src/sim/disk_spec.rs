//! Configuration and counters of a simulated disk.

use crate::model::SsdSpec;
use crate::{Geometry, Nanos};

/// Latency of an operation, drawn between two bounds. Different draws complete operations out of order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Lower bound.
    pub min: Nanos,
    /// Upper bound.
    pub max: Nanos,
}

impl Latency {
    /// A constant latency.
    pub const fn fixed(time: Nanos) -> Latency {
        Latency { min: time, max: time }
    }

    /// A latency from `min` to `max`, both included.
    pub const fn between(min: Nanos, max: Nanos) -> Latency {
        Latency { min, max }
    }
}

/// Latencies of a disk's operations. If all are 0, operations complete inside the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// Reads.
    pub read: Latency,
    /// Writes and zero-ranges.
    pub write: Latency,
    /// Flushes.
    pub flush: Latency,
    /// Device model whose latency, queues included, replaces the times above for reads and writes.
    pub ssd: Option<SsdSpec>,
}

impl Timing {
    /// Zero latency: a content store behind a model.
    pub const INSTANT: Timing = {
        let none = Latency::fixed(Nanos::ZERO);
        Timing { read: none, write: none, flush: none, ssd: None }
    };

    /// All operations between `min` and `max`.
    pub const fn between(min: Nanos, max: Nanos) -> Timing {
        let any = Latency::between(min, max);
        Timing { read: any, write: any, flush: any, ssd: None }
    }

    /// The latencies of a flash device with power-loss protection; its flushes take no time.
    pub const fn of_ssd(spec: SsdSpec) -> Timing {
        Timing { ssd: Some(spec), ..Timing::INSTANT }
    }
}

/// Durability of completed writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteCache {
    /// Durable after a flush.
    #[default]
    Volatile,
    /// Durable at once.
    Through,
}

/// Configuration of a simulated disk.
#[derive(Clone, Debug)]
pub struct SimDiskSpec {
    /// Geometry; a physical block is written completely or not at all.
    pub geometry: Geometry,
    /// Latencies.
    pub timing: Timing,
    /// Durability of completed writes.
    pub cache: WriteCache,
}

impl SimDiskSpec {
    /// A fast disk of 512-byte blocks with a volatile write cache.
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

/// Counters of a disk.
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
