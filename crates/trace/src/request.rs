//! A request of a trace, the same whatever file it came from.

/// What a request may carry at most, in bytes. No block layer sends more at once: a longer one is a broken record, which would
/// keep whoever counts its blocks busy for hours.
pub const TRANSFER_BYTES_MAX: u64 = 1 << 30;

/// Where every disk ends at the latest, in bytes: offsets are signed numbers to operating systems.
pub const DISK_BYTES_MAX: u64 = 1 << 63;

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// To read; also every request of a trace that does not say.
    Read,
    /// To write.
    Write,
    /// To forget the content.
    Discard,
    /// To make durable what was acknowledged; has neither place nor length.
    Flush,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it was sent, in nanoseconds since the first request of the trace; none where the trace does not say. Later
    /// requests may be older by a little: traces are kept in the order in which their authors wrote them.
    pub time_ns: Option<u64>,
    /// What was asked.
    pub op: Op,
    /// First byte. `at + len` is at most [`DISK_BYTES_MAX`].
    pub at: u64,
    /// Bytes; of reads and writes 1 to [`TRANSFER_BYTES_MAX`].
    pub len: u64,
    /// Which disk, where the trace is of several: the trace's own number, or in the order in which names appeared.
    pub device: u32,
}
