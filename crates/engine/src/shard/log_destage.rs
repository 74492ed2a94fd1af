//! State of destage from the log. A *round* destages the blocks whose newest content is a record in the oldest
//! segments. It reloads them in *chunks*, one after the other (`destage/log_destage.rs`).

use std::cell::{Cell, RefCell, RefMut};
use std::collections::BTreeSet;

use seam::Nanos;

use crate::memory::BlockNo;
use crate::wait::Signal;

/// Age from which logged data is destaged, as a multiple of the age for dirty data without a log.
pub const LOGGED_AGE_FACTOR: u64 = 30;
/// Maximum number of chunks that all volumes of a core reload at once: more would fill the queues of the devices, and
/// reads of clients wait behind them.
const CHUNK_RELOADS_MAX: usize = 2;

/// State of a volume's destage from the log.
#[derive(Default)]
pub struct LogDestage {
    /// A round is running.
    is_running: Cell<bool>,
    /// Earliest time of the next round.
    next_round_at: Cell<Nanos>,
    /// Earliest time of the next round by age alone.
    next_round_by_age_at: Cell<Nanos>,
    /// A round takes segments with up to `2^widening_log2` times as many live records as it takes blocks. The exponent
    /// grows by one with each round that finds few blocks, for example because the records are those of other volumes.
    widening_log2: Cell<u32>,
    queued_blocks: RefCell<BTreeSet<BlockNo>>,
    /// The segments of the last round hold records of zero-ranges.
    includes_zeroes: Cell<bool>,
    /// The destage of a zero-range is postponed until the log has a record of it. A background flush of the log is to
    /// append the record.
    is_zero_record_requested: Cell<bool>,
    /// The last flush of the log failed.
    has_log_flush_failed: Cell<bool>,
}

impl LogDestage {
    /// True if no round is running and the pause since the last one has ended.
    pub fn may_begin_round(&self, now: Nanos) -> bool {
        !self.is_running.get() && now >= self.next_round_at.get()
    }

    /// True if the pause of rounds by age has ended.
    pub fn may_begin_round_by_age(&self, now: Nanos) -> bool {
        now >= self.next_round_by_age_at.get()
    }

    /// Begins a round.
    pub fn begin_round(&self) {
        self.is_running.set(true);
    }

    /// Ends a round.
    pub fn end_round(&self) {
        self.is_running.set(false);
    }

    /// Sets the earliest time of the next round.
    pub fn postpone_round(&self, until: Nanos) {
        self.next_round_at.set(until);
    }

    /// Sets the earliest time of the next round by age alone.
    pub fn postpone_round_by_age(&self, until: Nanos) {
        self.next_round_by_age_at.set(until);
    }

    /// Maximum number of live records in the segments of a round that takes at most `blocks_max` blocks.
    pub fn live_records_max(&self, blocks_max: u64) -> u64 {
        blocks_max << self.widening_log2.get()
    }

    /// Widens the next round, because this one found few blocks.
    pub fn widen_round(&self) {
        self.widening_log2.set((self.widening_log2.get() + 1).min(u32::BITS));
    }

    /// Gives the next round its normal width.
    pub fn reset_width(&self) {
        self.widening_log2.set(0);
    }

    /// Blocks of the current chunk that the pump has not selected yet. Entries may be out of date.
    pub fn queued_blocks(&self) -> RefMut<'_, BTreeSet<BlockNo>> {
        self.queued_blocks.borrow_mut()
    }

    /// True if the segments of the last round hold records of zero-ranges.
    pub fn includes_zeroes(&self) -> bool {
        self.includes_zeroes.get()
    }

    /// Sets whether the segments of the last round hold records of zero-ranges.
    pub fn set_includes_zeroes(&self, includes_zeroes: bool) {
        self.includes_zeroes.set(includes_zeroes);
    }

    /// True if a background flush of the log is to append the record of a zero-range.
    pub fn is_zero_record_requested(&self) -> bool {
        self.is_zero_record_requested.get()
    }

    /// Requests a background flush of the log, which appends the record of a zero-range.
    pub fn request_zero_record(&self) {
        self.is_zero_record_requested.set(true);
    }

    /// Ends the request, because the flush has begun.
    pub fn end_zero_record_request(&self) {
        self.is_zero_record_requested.set(false);
    }

    /// True if the last flush of the log failed.
    pub fn has_log_flush_failed(&self) -> bool {
        self.has_log_flush_failed.get()
    }

    /// Records whether the last flush of the log succeeded.
    pub fn record_log_flush(&self, has_succeeded: bool) {
        self.has_log_flush_failed.set(!has_succeeded);
    }
}

/// Chunks that all volumes of a core reload from the log, at most [`CHUNK_RELOADS_MAX`].
#[derive(Default)]
pub struct ChunkReloads {
    running_reloads: Cell<usize>,
    ended: Signal,
}

impl ChunkReloads {
    /// Begins the reload of a chunk, once fewer than [`CHUNK_RELOADS_MAX`] others are running.
    pub async fn begin(&self) -> ChunkReload<'_> {
        self.ended.wait_for(|| (self.running_reloads.get() < CHUNK_RELOADS_MAX).then_some(())).await;
        self.running_reloads.set(self.running_reloads.get() + 1);
        ChunkReload(self)
    }
}

/// Guard: a chunk is being reloaded from the log.
pub struct ChunkReload<'a>(&'a ChunkReloads);

impl Drop for ChunkReload<'_> {
    fn drop(&mut self) {
        self.0.running_reloads.set(self.0.running_reloads.get() - 1);
        self.0.ended.notify();
    }
}
