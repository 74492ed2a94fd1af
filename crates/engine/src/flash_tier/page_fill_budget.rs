//! Rate limit of page fills by the recent reads of a backing.

use std::cell::Cell;

use seam::Nanos;

/// Bytes per second below which bandwidth does not delay the clients of a backing: a fifth of a gigabit link.
const PAGE_FILL_BYTES_PER_SECOND: u64 = 25_000_000;
/// Nanoseconds of a second.
const SECOND_NS: u64 = 1_000_000_000;

/// Fixed one-second rate limit of page fills; reads of whole blocks from the backing count, whatever their cause.
#[derive(Default)]
pub struct PageFillBudget {
    /// Number of the second in which `read_bytes` were read.
    current_second: Cell<u64>,
    read_bytes: Cell<u64>,
}

impl PageFillBudget {
    /// Records that `len_bytes` were read.
    pub fn record_read(&self, now: Nanos, len_bytes: u64) {
        let second = now.0 / SECOND_NS;
        let before = if self.current_second.replace(second) == second { self.read_bytes.get() } else { 0 };
        self.read_bytes.set(before + len_bytes);
    }

    /// True if reading `len_bytes` more stays within the limit.
    pub fn has_room(&self, now: Nanos, len_bytes: u64) -> bool {
        let spent = if self.current_second.get() == now.0 / SECOND_NS { self.read_bytes.get() } else { 0 };
        spent + len_bytes <= PAGE_FILL_BYTES_PER_SECOND
    }
}
