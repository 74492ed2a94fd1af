//! A request of a trace, independent of the file format.

/// Longest transfer of a request, in bytes. Block layers send less at once; a longer request is a broken record, and
/// counting its blocks would take hours.
pub const TRANSFER_BYTES_MAX: u64 = 1 << 30;

/// Largest size of a disk, in bytes: operating systems use signed offsets.
pub const DISK_BYTES_MAX: u64 = 1 << 63;

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Read; also every request of a trace without directions.
    Read,
    /// Write.
    Write,
    /// Discard.
    Discard,
    /// Flush, without offset and length.
    Flush,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Time in nanoseconds since the first request of the trace; `None` if the trace has no times. Requests are in file
    /// order, so that a later request may have a slightly earlier time.
    pub time_ns: Option<u64>,
    /// Operation.
    pub op: Op,
    /// Offset in bytes. `at + len` is at most [`DISK_BYTES_MAX`].
    pub at: u64,
    /// Length in bytes; of reads and writes 1 to [`TRANSFER_BYTES_MAX`].
    pub len: u64,
    /// Disk number: the trace's own number, or the order in which disk names appear.
    pub device: u32,
}
