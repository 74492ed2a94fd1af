//! Destage from the log. While the log has room, dirty blocks stay in it: most are written again, and only their last
//! version goes to the backing. Once dirty data fills more of the log than its target, or is too old, the oldest
//! records are destaged, in rounds over the oldest segments. A block that was written again has a newer record and is
//! left out.

use std::collections::BTreeSet;
use std::rc::Rc;

use flash::{OldSegments, SegmentChoice, SegmentNo};
use seam::{Nanos, Seam};

use crate::memory::BlockNo;
use crate::shard::log_destage::LOGGED_AGE_FACTOR;
use crate::shard::{Shard, ShardRef};

/// Maximum number of blocks of one round, and of live records in its segments (before `widen_round`).
const ROUND_BLOCKS_MAX: usize = 65_536;
/// Maximum number of blocks that are reloaded together. Reads of clients wait behind larger chunks.
const CHUNK_BLOCKS_MAX: usize = 128;
/// A chunk takes at most this part of the memory for dirty data, so that it does not slow writers.
const CHUNK_MEMORY_DIVISOR: u64 = 8;
/// Maximum number of records examined before the task yields: a longer step delays requests.
const EXAMINED_RECORDS_MAX: usize = 1_024;
/// Pause after a round that found blocks.
const PAUSE_AFTER_ROUND: Nanos = Nanos::from_millis(50);
/// Pause after a round that found none: other volumes have the oldest records, or the records of this volume are not
/// retired yet.
const PAUSE_AFTER_EMPTY_ROUND: Nanos = Nanos::from_millis(250);
/// Addition to the pause after a round that found few blocks, for each record that the next round examines.
const PAUSE_PER_RECORD: Nanos = Nanos(500);
/// A round that finds fewer blocks is followed by a wider one, after a longer pause.
const FEW_BLOCKS_MAX: usize = ROUND_BLOCKS_MAX / 4;

/// Reason for a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoundReason {
    /// Dirty data fills more of the log than its target.
    AboveTarget,
    /// The oldest segment is too old.
    Age,
    /// A smaller device is to join: records past its end must be destaged first.
    SmallerDevice,
}

/// Result of a round that examined all records.
struct Round {
    /// Number of blocks found.
    found_blocks: usize,
    /// More segments are old.
    has_more: bool,
}

impl<S: Seam> Shard<S> {
    /// True if the log takes the volume's dirty data and has room for it.
    pub fn has_log_room(&self) -> bool {
        self.has_usable_log() && self.core.log_pressure_percent() < 100
    }

    /// True if the log takes the volume's dirty data, and its last flush succeeded.
    fn has_usable_log(&self) -> bool {
        self.uses_log()
            && !self.log_destage.has_log_flush_failed()
            && self.core.log().is_some_and(|log| log.copies() > 0)
    }

    /// True if dirty data stays in the log for now. `not_clean_units`: zero-ranges, and blocks in memory that are
    /// not clean.
    pub fn defers_destage(&self, not_clean_units: u64) -> bool {
        self.has_log_room() && !self.has_memory_pressure(not_clean_units)
    }

    /// Age at which logged data is destaged.
    pub fn logged_age_max(&self) -> Nanos {
        Nanos(self.dirty_age_max().0.saturating_mul(LOGGED_AGE_FACTOR))
    }

    /// Starts a round if there is a reason for one and the pause since the last one has ended.
    pub fn start_log_destage_if_due(self: &ShardRef<S>) {
        let (destage, now) = (&self.log_destage, self.seam().now());
        if !destage.may_begin_round(now) {
            return;
        }
        let Some(reason) = self.find_round_reason(now) else {
            return destage.set_includes_zeroes(false);
        };
        destage.begin_round();
        let shard = Rc::clone(self);
        self.seam().spawn(async move {
            let round = shard.run_round(reason).await;
            shard.log_destage.queued_blocks().clear();
            shard.schedule_next_round(reason, round);
            shard.log_destage.end_round();
        });
    }

    /// The reason for a round now, if there is one.
    fn find_round_reason(&self, now: Nanos) -> Option<RoundReason> {
        if !self.may_continue_round() || !self.state.borrow().log_tracker.holds_segments() {
            return None;
        }
        let is_old = || {
            self.log_destage.may_begin_round_by_age(now)
                && self.core.oldest_segment_since().is_some_and(|since| now.since(since) >= self.logged_age_max())
        };
        let is_past_limit = || self.core.log().is_some_and(|log| log.has_segments_past_limit());
        if self.core.is_log_above_target() {
            Some(RoundReason::AboveTarget)
        } else if is_old() {
            Some(RoundReason::Age)
        } else {
            is_past_limit().then_some(RoundReason::SmallerDevice)
        }
    }

    /// Sets the time of the next round. `round`: the result of the last one; `None` if it ended early.
    fn schedule_next_round(&self, reason: RoundReason, round: Option<Round>) {
        let (destage, now) = (&self.log_destage, self.seam().now());
        let pause = match round.as_ref().map(|round| round.found_blocks) {
            Some(0) => PAUSE_AFTER_EMPTY_ROUND,
            Some(_) | None => PAUSE_AFTER_ROUND,
        };
        let found_few = round.as_ref().is_some_and(|round| round.found_blocks < FEW_BLOCKS_MAX);
        let examined = if found_few { self.state.borrow().log_tracker.len() as u64 } else { 0 };
        destage.postpone_round(now + pause + Nanos(PAUSE_PER_RECORD.0 * examined));
        let found_all = round.is_some_and(|round| !round.has_more && round.found_blocks < ROUND_BLOCKS_MAX);
        if reason != RoundReason::AboveTarget && found_all {
            // The open segment stays old: rounds by age would destage each of its new records at once.
            destage.postpone_round_by_age(now + Nanos(self.logged_age_max().0 / 2));
        }
    }

    /// False if a round has to end early.
    fn may_continue_round(&self) -> bool {
        !self.is_stopping.get() && !self.is_destage_held.get() && self.has_usable_log()
    }

    /// True if memory has room for a chunk, or the round ends early.
    fn may_begin_chunk(&self) -> bool {
        !self.slows_writers(self.state.borrow().not_clean_units()) || !self.may_continue_round()
    }

    /// Destages the blocks of the oldest segments, in address order. Returns `None` if the round ended early.
    async fn run_round(self: &ShardRef<S>, reason: RoundReason) -> Option<Round> {
        let destage = &self.log_destage;
        let opened_before = Nanos(self.seam().now().0.saturating_sub(self.logged_age_max().0));
        let choice = SegmentChoice {
            opened_before,
            includes_older_half: reason == RoundReason::AboveTarget,
            live_records_max: destage.live_records_max(ROUND_BLOCKS_MAX as u64),
        };
        let OldSegments { numbers: segments, has_more } = self.core.log()?.select_old_segments(&choice);
        if segments.is_empty() {
            return Some(Round { found_blocks: 0, has_more });
        }
        destage.set_includes_zeroes(self.state.borrow().log_tracker.has_zeroes_in_segments(&segments));
        self.destage_work.notify();
        let blocks = self.find_blocks_in_segments(&segments).await;
        if !self.may_continue_round() {
            return None;
        }
        if blocks.len() < FEW_BLOCKS_MAX {
            destage.widen_round();
        } else {
            destage.reset_width();
        }
        if blocks.is_empty() && !has_more {
            self.state.borrow_mut().raise_spilled_since(opened_before);
        }
        let chunk_blocks_max = (self.not_clean_limit_blocks() / CHUNK_MEMORY_DIVISOR).max(1) as usize;
        for chunk in blocks.chunks(CHUNK_BLOCKS_MAX.min(chunk_blocks_max)) {
            self.progress.wait_for(|| self.may_begin_chunk().then_some(())).await;
            let reload = self.core.chunk_reloads.begin().await;
            if !self.may_continue_round() {
                return None;
            }
            let mut chunk = chunk.to_vec();
            // A round takes minutes: blocks that were written again since have newer records.
            chunk.retain(|block| self.state.borrow().log_tracker.is_newest_in_segments(*block, &segments));
            self.reload_blocks(&chunk).await;
            drop(reload);
            destage.queued_blocks().extend(chunk);
            self.destage_work.notify();
            let is_chunk_taken = || destage.queued_blocks().is_empty() || !self.may_continue_round();
            self.progress.wait_for(|| is_chunk_taken().then_some(())).await;
        }
        if !blocks.is_empty() {
            // The segments are free only when flushes of the backing cover all writes of the round. A failure is
            // counted and reported; the written blocks are then dirty again.
            let next = self.state.borrow().next_operation_id();
            let has_written = || !self.state.borrow().has_operation_before(next) || !self.may_continue_round();
            self.progress.wait_for(|| has_written().then_some(())).await;
            self.flush_backing().await;
        }
        Some(Round { found_blocks: blocks.len(), has_more })
    }

    /// The volume's blocks whose newest content is a record in these segments, in address order: at most
    /// [`ROUND_BLOCKS_MAX`].
    async fn find_blocks_in_segments(&self, segments: &BTreeSet<SegmentNo>) -> Vec<BlockNo> {
        let mut found: Vec<BlockNo> = Vec::new();
        let mut from = Some(BlockNo::ZERO);
        while let Some(first) = from.filter(|_| found.len() < ROUND_BLOCKS_MAX && self.may_continue_round()) {
            from = {
                let tracker = &self.state.borrow().log_tracker;
                tracker.newest_in_segments(first, EXAMINED_RECORDS_MAX, segments, &mut found)
            };
            self.seam().yield_now().await;
        }
        found.truncate(ROUND_BLOCKS_MAX);
        found
    }
}
