//! Plain counters of the data path; nothing here is shared or atomic.

/// Latency of one kind of request, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LatencySummary {
    /// Half of the requests took at most this.
    pub p50_us: f64,
    /// 99 % took at most this.
    pub p99_us: f64,
    /// 99.9 % took at most this.
    pub p999_us: f64,
}

/// What a volume has done since it was attached, and what it holds now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeStats {
    /// Read requests of clients.
    pub reads: u64,
    /// Write requests of clients (zero and discard are counted apart).
    pub writes: u64,
    /// Flush requests of clients.
    pub flushes: u64,
    /// Zero-range and discard requests of clients.
    pub zeroes: u64,
    /// Bytes read by clients.
    pub read_bytes: u64,
    /// Bytes written by clients.
    pub write_bytes: u64,
    /// Reads served whole from memory.
    pub memory_hits: u64,
    /// Reads served in part from memory.
    pub partial_hits: u64,
    /// Reads served not at all from memory.
    pub misses: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Blocks held, in bytes.
    pub memory_bytes: u64,
    /// Not yet on the backing, in bytes.
    pub dirty_bytes: u64,
    /// On the backing and not yet flushed there, in bytes.
    pub written_bytes: u64,
    /// Age of the oldest dirty block, in milliseconds.
    pub dirty_age_ms: u64,
    /// Requests sent to the backing.
    pub backing_reads: u64,
    /// Requests sent to the backing.
    pub backing_writes: u64,
    /// Flushes sent to the backing.
    pub backing_flushes: u64,
    /// Bytes read from the backing.
    pub backing_read_bytes: u64,
    /// Bytes written to the backing.
    pub backing_write_bytes: u64,
    /// Requests that the backing failed.
    pub backing_errors: u64,
    /// Bytes read ahead of sequential streams.
    pub readahead_bytes: u64,
    /// Time that writers were made to wait because dirty data is at its bound, in microseconds.
    pub throttled_us: u64,
    /// Latency of reads.
    pub read_latency: LatencySummary,
    /// Latency of writes.
    pub write_latency: LatencySummary,
    /// What is wrong now, for people; empty when all is well.
    pub alerts: Vec<String>,
}

/// What a core holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CoreStats {
    /// Buffers that the pool may hand out, in bytes.
    pub pool_bytes: u64,
    /// Buffers handed out, in bytes: cached blocks and those on their way.
    pub pool_used_bytes: u64,
    /// Bytes of index and policy.
    pub index_bytes: u64,
}
