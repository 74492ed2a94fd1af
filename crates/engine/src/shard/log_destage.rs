//! State of destage from the log.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::BTreeSet;

use seam::Nanos;

use crate::memory::BlockNo;
use crate::wait::Signal;

/// Age from which logged data is destaged, as a multiple of the age for dirty data without a log.
pub const LOGGED_AGE_FACTOR: u64 = 30;
/// Maximum number of batches that all volumes of a core read from the log at once: more would fill the queues of the
/// devices, and reads of clients wait behind them.
const READ_BATCHES_MAX: usize = 2;

/// State of a volume's destage from the log.
#[derive(Default)]
pub struct LogDestage {
    /// A round is running.
    pub is_running: Cell<bool>,
    /// Earliest time of the next round.
    pub next_round_at: Cell<Nanos>,
    /// Earliest time of the next round by age alone.
    pub next_round_by_age_at: Cell<Nanos>,
    /// Binary logarithm of the factor by which the segments of a round may hold more live records than the round takes
    /// blocks. It grows while rounds find few blocks, for example because other volumes have the oldest records.
    pub widening_log2: Cell<u32>,
    queued_blocks: RefCell<BTreeSet<BlockNo>>,
    /// The segments of the last round hold records of zero-ranges.
    pub includes_zeroes: Cell<bool>,
    /// Destage waits for the record of a zero-range, which a flush of the log in the background appends.
    pub is_zero_range_waiting: Cell<bool>,
    /// The last flush of the log failed.
    pub has_log_flush_failed: Cell<bool>,
}

impl LogDestage {
    /// Blocks of the current batch that the pump has not selected yet. Entries may be out of date.
    pub fn queued_blocks(&self) -> RefMut<'_, BTreeSet<BlockNo>> {
        self.queued_blocks.borrow_mut()
    }

    /// True if the segments of the last round hold records of zero-ranges.
    pub fn includes_zeroes(&self) -> bool {
        self.includes_zeroes.get()
    }

    /// Records whether the last flush of the log succeeded.
    pub fn record_log_flush(&self, has_succeeded: bool) {
        self.has_log_flush_failed.set(!has_succeeded);
    }
}

/// Batches that all volumes of a core read from the log, at most [`READ_BATCHES_MAX`].
#[derive(Default)]
pub struct BatchReads {
    running_reads: Cell<usize>,
    ended: Signal,
}

impl BatchReads {
    /// Begins a batch; waits while as many others are being read as may be.
    pub async fn begin(&self) -> BatchRead<'_> {
        self.ended.wait_for(|| (self.running_reads.get() < READ_BATCHES_MAX).then_some(())).await;
        self.running_reads.set(self.running_reads.get() + 1);
        BatchRead(self)
    }
}

/// A batch that is being read from the log.
pub struct BatchRead<'a>(&'a BatchReads);

impl Drop for BatchRead<'_> {
    fn drop(&mut self) {
        self.0.running_reads.set(self.0.running_reads.get() - 1);
        self.0.ended.notify();
    }
}
