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
}

const fn cell(name: &'static str, pattern: &'static str, bytes: u32, depth: u32, connections: u32) -> Cell {
    Cell { name, pattern, bytes, depth, connections }
}

/// Everything is in memory.
pub const HITS: [Cell; 10] = [
    cell("4 KiB random read, depth 1", "randread", 4096, 1, 1),
    cell("4 KiB random read, depth 32", "randread", 4096, 32, 1),
    cell("4 KiB random read, depth 1, 4 connections", "randread", 4096, 1, 4),
    cell("4 KiB random read, depth 32, 4 connections", "randread", 4096, 32, 4),
    cell("4 KiB random write, depth 1", "randwrite", 4096, 1, 1),
    cell("4 KiB random write, depth 32", "randwrite", 4096, 32, 1),
    cell("4 KiB random write, depth 1, 4 connections", "randwrite", 4096, 1, 4),
    cell("4 KiB random write, depth 32, 4 connections", "randwrite", 4096, 32, 4),
    cell("64 KiB sequential read, depth 8", "read", 65536, 8, 1),
    cell("64 KiB sequential write, depth 8", "write", 65536, 8, 1),
];

/// A request at a time, with server and client bound to processors.
pub const PLACED: [Cell; 2] = [
    cell("4 KiB random read, depth 1", "randread", 4096, 1, 1),
    cell("4 KiB random write, depth 1", "randwrite", 4096, 1, 1),
];

/// Hardly anything is in memory.
pub const MISSES: [Cell; 2] = [
    cell("4 KiB random read, depth 1", "randread", 4096, 1, 1),
    cell("4 KiB random read, depth 32", "randread", 4096, 32, 1),
];
