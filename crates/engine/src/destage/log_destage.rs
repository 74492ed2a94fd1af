//! Destage from the log. While the log has room, dirty blocks stay in it: most are written again, and only their last
//! version goes to the backing. Once dirty data fills more of the log than its target, or is too old, the oldest
//! records are destaged, in rounds over the oldest segments. A block that was written again has a newer record
//! and is left out.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use flash::SegmentNo;
use seam::{Nanos, Seam};

use crate::memory::BlockNo;
use crate::shard::{Shard, ShardRef};

/// Age from which logged data is destaged, as a multiple of the age for dirty data without a log.
const LOGGED_AGE_FACTOR: u64 = 30;
/// Maximum number of records in the segments of one round.
const ROUND_RECORDS_MAX: u64 = 65_536;
/// Maximum number of blocks that are read from the log together. Reads of clients wait behind larger batches.
const BATCH_BLOCKS_MAX: usize = 128;
/// A batch takes at most this part of the memory for dirty data.
const BATCH_MEMORY_DIVISOR: u64 = 8;
/// Records examined in one step.
const EXAMINED_RECORDS_MAX: usize = 4_096;

/// State of a volume's destage from the log.
#[derive(Default)]
pub struct LogDestage {
    is_running: Cell<bool>,
    /// Blocks of the current batch that the pump has not selected yet. Entries may be out of date.
    pub due: RefCell<BTreeSet<BlockNo>>,
    /// The segments of the current round hold records of zero-ranges.
    pub includes_zeroes: Cell<bool>,
}

impl<S: Seam> Shard<S> {
    /// True if dirty data stays in the log for now. `not_clean`: blocks in memory that are not clean.
    pub fn defers_destage(&self, not_clean: u64) -> bool {
        self.uses_log()
            && self.core.log_pressure_percent() < 100
            && !self.has_memory_pressure(not_clean)
            && self.core.log().is_some_and(|log| log.copies() > 0)
    }

    /// Age at which logged data is destaged.
    pub fn logged_age_max(&self) -> Nanos {
        Nanos(self.age_max().0.saturating_mul(LOGGED_AGE_FACTOR))
    }

    /// Starts a round if dirty data fills too much of the log, or is too old.
    pub fn destage_log_if_due(self: &ShardRef<S>) {
        let is_old = |now: Nanos| self.core.log_since().is_some_and(|since| now.since(since) >= self.logged_age_max());
        if self.log_destage.is_running.get()
            || !self.may_continue_round()
            || !self.state.borrow().log_tracker.holds_segments()
            || !(self.core.log_pressure_percent() > 0 || is_old(self.seam().now()))
        {
            return;
        }
        self.log_destage.is_running.set(true);
        let shard = Rc::clone(self);
        self.seam().spawn(async move {
            shard.run_round().await;
            shard.log_destage.includes_zeroes.set(false);
            shard.log_destage.is_running.set(false);
        });
    }

    fn may_continue_round(&self) -> bool {
        !self.stopping.get() && !self.destage_held.get() && self.defers_destage(self.state.borrow().not_clean_blocks())
    }

    /// Destages the blocks of the oldest segments, in address order.
    async fn run_round(self: &ShardRef<S>) {
        let opened_by = Nanos(self.seam().now().0.saturating_sub(self.logged_age_max().0));
        let is_above_target = self.core.log_pressure_percent() > 0;
        let segments = self.core.log().map(|log| log.old_segments(opened_by, is_above_target, ROUND_RECORDS_MAX));
        let Some(segments) = segments else { return };
        let includes_zeroes = self.state.borrow().log_tracker.has_zeroes_in_segments(&segments);
        self.log_destage.includes_zeroes.set(includes_zeroes);
        let blocks = self.blocks_in_segments(&segments).await;
        let batch_blocks_max = (self.last_not_clean_limit() / BATCH_MEMORY_DIVISOR).max(1) as usize;
        for batch in blocks.chunks(BATCH_BLOCKS_MAX.min(batch_blocks_max)) {
            if !self.may_continue_round() {
                return;
            }
            self.reload_blocks(batch).await;
            self.log_destage.due.borrow_mut().extend(batch);
            self.work.notify();
            let is_selected = || self.log_destage.due.borrow().is_empty() || !self.may_continue_round();
            self.progress.wait_for(|| is_selected().then_some(())).await;
        }
    }

    /// The volume's blocks whose newest content is a record in these segments, in address order.
    async fn blocks_in_segments(&self, segments: &BTreeSet<SegmentNo>) -> Vec<BlockNo> {
        let mut found: Vec<BlockNo> = Vec::new();
        let mut from = Some(BlockNo::ZERO);
        while let Some(first) = from {
            from = {
                let tracker = &self.state.borrow().log_tracker;
                tracker.newest_in_segments(first, EXAMINED_RECORDS_MAX, segments, &mut found)
            };
            self.seam().yield_now().await;
        }
        found.sort_unstable();
        found
    }
}
