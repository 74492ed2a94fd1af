//! Clients: guests and plain programs that write sequence-numbered blocks, read and flush.

use std::collections::BTreeSet;

/// Kind of a client's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Mixed,
    /// Reads and flushes.
    ReadsOnly,
    /// Reads, which need no storage once the blocks are cached.
    NoFlushes,
}

/// A client.
#[derive(Debug)]
pub struct Client {
    pub volume: usize,
    pub home: usize,
    pub work: Work,
    pub connection: Option<u64>,
    /// The connection of a migration's target, and the migration's number.
    pub target: Option<u64>,
    pub migrations: usize,
    pub called_off: bool,
    /// The operations in progress, and how many there are at once.
    pub pending: BTreeSet<usize>,
    pub depth: usize,
    /// The guest stops at the source of a migration: it begins no operation.
    pub is_stopping: bool,
    /// Time between two operations at most.
    pub pause_max: u64,
    /// Time after which the client gives a request up and connects anew.
    pub request_timeout: u64,
    /// Flushes completed that were invoked after the end of all faults.
    pub flushes_after_faults: u32,
    pub writes_after_faults: u32,
    pub reads_after_faults: u32,
    pub failed_ops: u32,
}

impl Client {
    /// True if a write and a flush have succeeded since the end of all faults.
    pub fn has_written(&self) -> bool {
        self.writes_after_faults > 0 && self.flushes_after_faults > 0
    }

    /// True if the client's reads and flushes are served. Writes of the second of two writers wait, and may fail.
    pub fn is_served(&self) -> bool {
        self.work == Work::Mixed || self.flushes_after_faults + self.reads_after_faults > 0
    }
}

/// A connection of a client.
#[derive(Debug)]
pub struct Connection {
    pub client: usize,
    pub node: usize,
    /// The node's session; `None` until the node has accepted.
    pub session: Option<u64>,
    /// Number of the event that accepted it.
    pub opened_at: u64,
    pub is_open: bool,
    /// The volume was handed over, and nothing but flushes was sent since: the flushes cover nothing new.
    pub is_drained: bool,
    /// The client has sent a write.
    pub has_written: bool,
    /// Flushes that cover nothing.
    pub empty_flushes: BTreeSet<usize>,
}
