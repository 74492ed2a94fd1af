//! Rate, state and counters of the scrub.

/// Counters of the scrub since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubStats {
    /// Complete passes over the log.
    pub rounds: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Blocks with a copy that was bad or unreadable.
    pub damaged_blocks: u64,
    /// Bad copies that were rewritten.
    pub repaired_copies: u64,
    /// Blocks without a good copy.
    pub lost_blocks: u64,
}

/// Rate and state of the scrub.
#[derive(Default)]
pub(crate) struct Scrub {
    /// Maximum rate; `None` stops the scrub.
    pub(crate) bytes_per_second: Option<u64>,
    /// The task of the scrub runs.
    pub(crate) is_running: bool,
    /// Its counters.
    pub(crate) stats: ScrubStats,
}
