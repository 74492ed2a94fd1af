//! Cells of the measurements: one table per question.

/// Request pattern of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Name in the report.
    pub name: &'static str,
    /// fio's name of the pattern.
    pub pattern: &'static str,
    /// Bytes per request.
    pub bytes: u32,
    /// Requests in flight per connection.
    pub depth: u32,
    /// Number of connections, each with its own client process.
    pub connections: u32,
    /// Number of writes between two flushes; 0 means none.
    pub flush_every: u32,
}

impl Cell {
    /// A cell without flushes: name, fio's pattern, bytes per request, requests in flight per connection, connections.
    pub const fn new(name: &'static str, pattern: &'static str, bytes: u32, depth: u32, connections: u32) -> Cell {
        Cell { name, pattern, bytes, depth, connections, flush_every: 0 }
    }
}

/// All data is in memory.
pub const HITS: [Cell; 10] = [
    Cell::new("4 KiB random read, depth 1", "randread", 4096, 1, 1),
    Cell::new("4 KiB random read, depth 32", "randread", 4096, 32, 1),
    Cell::new("4 KiB random read, depth 1, 4 connections", "randread", 4096, 1, 4),
    Cell::new("4 KiB random read, depth 32, 4 connections", "randread", 4096, 32, 4),
    Cell::new("4 KiB random write, depth 1", "randwrite", 4096, 1, 1),
    Cell::new("4 KiB random write, depth 32", "randwrite", 4096, 32, 1),
    Cell::new("4 KiB random write, depth 1, 4 connections", "randwrite", 4096, 1, 4),
    Cell::new("4 KiB random write, depth 32, 4 connections", "randwrite", 4096, 32, 4),
    Cell::new("64 KiB sequential read, depth 8", "read", 65536, 8, 1),
    Cell::new("64 KiB sequential write, depth 8", "write", 65536, 8, 1),
];

/// Server and client bound to CPUs. Otherwise the rate on two CPUs depends on where the scheduler places the threads,
/// and takes one of two values that differ by a factor of two.
pub const PLACED: [Cell; 4] = [
    Cell::new("4 KiB random read, depth 1", "randread", 4096, 1, 1),
    Cell::new("4 KiB random write, depth 1", "randwrite", 4096, 1, 1),
    Cell::new("4 KiB random read, depth 32", "randread", 4096, 32, 1),
    Cell::new("4 KiB random write, depth 32", "randwrite", 4096, 32, 1),
];

/// Almost no data is in memory.
pub const MISSES: [Cell; 2] = [
    Cell::new("4 KiB random read, depth 1", "randread", 4096, 1, 1),
    Cell::new("4 KiB random read, depth 32", "randread", 4096, 32, 1),
];

/// A flush after every write, or after every 32nd.
pub const FLUSHED: [Cell; 3] = [
    Cell { flush_every: 1, ..Cell::new("4 KiB random write, a flush after each, 8 clients", "randwrite", 4096, 1, 8) },
    Cell {
        flush_every: 1,
        ..Cell::new("4 KiB random write, a flush after each, 32 clients", "randwrite", 4096, 1, 32)
    },
    Cell { flush_every: 32, ..Cell::new("4 KiB random write, depth 32, a flush every 32", "randwrite", 4096, 32, 1) },
];
