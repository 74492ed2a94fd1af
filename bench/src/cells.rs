//! What is measured: one table for each question.

/// How a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// As the report calls it.
    pub name: &'static str,
    /// fio's name of the pattern.
    pub pattern: &'static str,
    /// Bytes a request.
    pub bytes: u32,
    /// Requests in flight on each connection.
    pub depth: u32,
    /// Connections, each with a client process of its own.
    pub connections: u32,
    /// A flush after so many writes; 0: none.
    pub flush_every: u32,
}

impl Cell {
    /// A cell without flushes: fio's name of the pattern, bytes a request, requests in flight on each connection, connections.
    pub const fn new(name: &'static str, pattern: &'static str, bytes: u32, depth: u32, connections: u32) -> Cell {
        Cell { name, pattern, bytes, depth, connections, flush_every: 0 }
    }
}

/// Everything is in memory.
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

/// A request at a time, with server and client bound to processors.
pub const PLACED: [Cell; 2] = [
    Cell::new("4 KiB random read, depth 1", "randread", 4096, 1, 1),
    Cell::new("4 KiB random write, depth 1", "randwrite", 4096, 1, 1),
];

/// Hardly anything is in memory.
pub const MISSES: [Cell; 2] = [
    Cell::new("4 KiB random read, depth 1", "randread", 4096, 1, 1),
    Cell::new("4 KiB random read, depth 32", "randread", 4096, 32, 1),
];

/// Every write is flushed, or every 32nd.
pub const FLUSHED: [Cell; 3] = [
    Cell { flush_every: 1, ..Cell::new("4 KiB random write, a flush after each, 8 clients", "randwrite", 4096, 1, 8) },
    Cell {
        flush_every: 1,
        ..Cell::new("4 KiB random write, a flush after each, 32 clients", "randwrite", 4096, 1, 32)
    },
    Cell { flush_every: 32, ..Cell::new("4 KiB random write, depth 32, a flush every 32", "randwrite", 4096, 32, 1) },
];
