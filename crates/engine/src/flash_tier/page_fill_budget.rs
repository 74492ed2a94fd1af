//! Recent load of a backing, which limits page fills.

use std::cell::Cell;

use seam::Nanos;

/// Bytes per second below which bandwidth does not delay the clients of a backing: a quarter of one disk or gigabit
/// link.
const PAGE_FILL_BYTES_PER_SECOND: u64 = 25_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Bytes read from a backing in the present second.
#[derive(Default)]
pub struct PageFillBudget {
    second: Cell<u64>,
    bytes: Cell<u64>,
    /// A flush that lets the next page fill succeed is running.
    pub flush_running: Cell<bool>,
}

impl PageFillBudget {
    /// Records that `bytes` were read.
    pub fn record(&self, now: Nanos, bytes: u64) {
        let second = now.0 / SECOND_NS;
        let before = if self.second.replace(second) == second { self.bytes.get() } else { 0 };
        self.bytes.set(before + bytes);
    }

    /// True if reading `bytes` more stays within the limit.
    pub fn has_room(&self, now: Nanos, bytes: u64) -> bool {
        let spent = if self.second.get() == now.0 / SECOND_NS { self.bytes.get() } else { 0 };
        spent + bytes <= PAGE_FILL_BYTES_PER_SECOND
    }
}
