//! Trace of a world: a hash of all entries, and on request the entries. The same seed gives the same bytes.

use std::fmt::Write as _;

use crate::Nanos;
use crate::rng::mix;

/// Extent of the recorded trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TraceMode {
    /// A 64-bit hash.
    #[default]
    Hash,
    /// The hash and every entry, 40 bytes each.
    Log,
}

/// Operation of an entry. The numbers are part of the trace's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TraceOp {
    /// A disk's read.
    Read = 1,
    /// A disk's write.
    Write = 2,
    /// A disk's flush.
    Flush = 3,
    /// A disk's zero-range.
    Zero = 4,
    /// Bytes sent on a stream.
    Send = 5,
    /// An entry of the test.
    Note = 6,
}

impl TraceOp {
    const ALL: [TraceOp; 6] =
        [TraceOp::Read, TraceOp::Write, TraceOp::Flush, TraceOp::Zero, TraceOp::Send, TraceOp::Note];
}

/// Phase of the operation. The numbers are part of the trace's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TracePhase {
    /// Submitted.
    Start = 0,
    /// Completed.
    Done = 1,
    /// Failed.
    Failed = 2,
}

/// One entry of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEntry {
    /// Virtual time.
    pub time: Nanos,
    /// Number of the disk or stream in its world.
    pub source: u32,
    /// Operation.
    pub op: TraceOp,
    /// Phase of the operation.
    pub phase: TracePhase,
    /// First byte.
    pub at: u64,
    /// Length in bytes.
    pub len: u64,
    /// A digest of the transferred content; 0 if there is none.
    pub content: u64,
}

const ENTRY_BYTES: usize = 40;

/// The trace of a world.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    mode: TraceMode,
    hash: u64,
    bytes: Vec<u8>,
}

impl Trace {
    pub(super) fn new(mode: TraceMode) -> Trace {
        Trace { mode, hash: 0, bytes: Vec::new() }
    }

    pub(super) fn add(&mut self, entry: TraceEntry) {
        let kind = u64::from(entry.source) << 32 | (entry.op as u64) << 8 | entry.phase as u64;
        let words = [entry.time.0, kind, entry.at, entry.len, entry.content];
        self.hash = words.iter().fold(self.hash, |hash, word| mix(hash ^ word).wrapping_add(*word));
        if self.mode == TraceMode::Log {
            words.iter().for_each(|word| self.bytes.extend_from_slice(&word.to_le_bytes()));
        }
    }

    /// Hash of all entries.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The entries, 40 bytes each: time, number and operation, offset, length, content; 64-bit little-endian. Empty
    /// unless the mode is [`TraceMode::Log`].
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The entries as text, one line each.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for entry in self.bytes.chunks_exact(ENTRY_BYTES) {
            let word = |number: usize| {
                let bytes = entry[number * 8..][..8].try_into().expect("a slice of 8 bytes is an array of 8");
                u64::from_le_bytes(bytes)
            };
            let kind = word(1);
            let op =
                TraceOp::ALL.iter().find(|op| **op as u64 == kind >> 8 & 0xff).expect("only known kinds are written");
            let phase = ["start", "done", "failed"][(kind & 0xff) as usize];
            let (time, source, at, len) = (word(0), kind >> 32, word(2), word(3));
            writeln!(out, "{time:>15} #{source} {op:?} {phase} {at}+{len} {:016x}", word(4))
                .expect("a string takes any text");
        }
        out
    }
}
