//! Changes since the last flush of the log, and the flush in progress that has taken them. The changed blocks of a
//! stream bypass the log for a while.

use std::ops::Range;
use std::rc::Rc;

use flash::BlockNo;
use seam::Nanos;

use super::LogTracker;
use super::change_set::{ChangeSet, RANGES_MAX, RangeChange};
use super::stream_bypass::StreamBypass;
use crate::memory::outdated::OutdatedRanges;

impl LogTracker {
    /// Takes note that the newest content of these blocks is durable on the backing or discarded, and that memory no
    /// longer shows it: a recovery must ignore their records.
    pub fn record_clean(&mut self, blocks: Range<BlockNo>) {
        for block in self.stream_bypass.remove_range(&blocks) {
            self.changes.mark_outdated(block);
        }
        let is_unlogged = self.may_have_records && self.has_unlogged_change(&blocks);
        if let Some(outdated) = self.outdated.as_mut().filter(|_| is_unlogged) {
            outdated.add(blocks);
        }
    }

    /// True if one of these blocks has changed since the last flush of the log, or a flush in progress takes it.
    pub(super) fn has_unlogged_change(&self, blocks: &Range<BlockNo>) -> bool {
        self.changes.overlaps(blocks) || self.taken_changes.as_deref().is_some_and(|taken| taken.overlaps(blocks))
    }

    /// Takes note that the block's newest content is not in the log.
    pub fn record_change(&mut self, block: BlockNo) {
        self.stream_bypass.remove(block);
        self.add_change(block);
    }

    /// Like [`LogTracker::record_change`] for a block that a stream has written at `now`. It bypasses the log unless
    /// `blocks_max` blocks do already. It is then in no changed range, because a flush leaves out the block alone.
    pub fn record_stream_change(&mut self, block: BlockNo, now: Nanos, blocks_max: usize) {
        self.add_change(block);
        // The cut below may split a range.
        if self.changes.ranges.len() < RANGES_MAX / 2 && self.stream_bypass.add(block, now, blocks_max) {
            self.changes.cut_ranges(&block.single());
        } else {
            self.stream_bypass.remove(block);
        }
    }

    /// Adds a changed block to the changes; its record is no longer keepable.
    fn add_change(&mut self, block: BlockNo) {
        self.keepable_records.remove(&block);
        if self.tracks_changes && !self.changes.covers_whole_volume {
            self.changes.blocks.insert(block);
            if self.changes.blocks.len() > self.changed_blocks_max {
                self.changes.mark_whole_volume();
            }
        }
    }

    /// Like [`LogTracker::record_change`], for a range.
    pub fn record_range_change(&mut self, blocks: Range<BlockNo>, change: RangeChange) {
        while let Some(block) = self.keepable_records.range(blocks.clone()).next().map(|(block, _)| *block) {
            self.keepable_records.remove(&block);
        }
        self.stream_bypass.remove_range(&blocks);
        if self.tracks_changes && !self.changes.covers_whole_volume {
            self.changes.add_range(blocks, change);
        }
    }

    /// The changes since the last flush.
    pub fn changes(&self) -> &ChangeSet {
        &self.changes
    }

    /// Begins a flush of the log: takes the list of changes, and starts a new one with the changed blocks that are
    /// `left_out`. [`LogTracker::end_log_flush`] ends it.
    pub fn begin_log_flush(&mut self, left_out: &[BlockNo]) -> Rc<ChangeSet> {
        self.stream_bypass.clear();
        self.take_changes(left_out)
    }

    /// Like [`LogTracker::begin_log_flush`], but leaves out the blocks that have bypassed the log since a time later
    /// than `bypassed_after`.
    pub fn begin_log_flush_except_streams(&mut self, bypassed_after: Nanos, left_out: &[BlockNo]) -> Rc<ChangeSet> {
        if self.changes.covers_whole_volume {
            return self.begin_log_flush(left_out);
        }
        self.stream_bypass.remove_older(bypassed_after);
        self.take_changes(left_out)
    }

    /// Takes all changes but the blocks that bypass the log or are `left_out`.
    fn take_changes(&mut self, left_out: &[BlockNo]) -> Rc<ChangeSet> {
        let mut changed = std::mem::take(&mut self.changes);
        let remaining = self.stream_bypass.blocks().chain(left_out.iter().copied());
        self.changes.blocks = remaining.filter(|block| changed.blocks.remove(block)).collect();
        let changed = Rc::new(changed);
        (self.taken_changes, self.append_cursor) = (Some(Rc::clone(&changed)), BlockNo::ZERO);
        changed
    }

    /// Takes note that the flush in progress has appended all taken ranges, and the taken blocks below `end`.
    pub fn advance_append_cursor(&mut self, end: BlockNo) {
        self.append_cursor = end;
    }

    /// Ends the flush of the taken changes; if it failed, they count as changed again.
    pub fn end_log_flush(&mut self, changed: &ChangeSet, is_durable: bool) {
        self.taken_changes = None;
        match is_durable {
            true => self.outdated.iter_mut().for_each(|outdated| self.changes.retain_changed(outdated)),
            false => {
                self.changes.add_older(changed.clone(), self.changed_blocks_max);
                self.stream_bypass.blocks().for_each(|block| self.changes.cut_ranges(&block.single()));
            }
        }
    }

    /// Number of blocks changed since the last flush, without blocks that bypass the log; 0 if there were too many to
    /// list.
    pub fn changed_blocks_to_log(&self) -> u64 {
        self.changes.blocks.len().saturating_sub(self.stream_bypass.len()) as u64
    }

    /// The blocks of streams that bypass the log.
    pub fn stream_bypass(&self) -> &StreamBypass {
        &self.stream_bypass
    }

    /// True if there are unflushed changes.
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// True if the changes, or the ranges that are out of date, come close to the limit of their lists.
    pub fn has_many_changes(&self) -> bool {
        let needs_flush = self.outdated.as_ref().is_some_and(OutdatedRanges::needs_flush);
        needs_flush
            || self.changes.blocks.len() > self.changed_blocks_max / 2
            || self.changes.ranges.len() > RANGES_MAX / 2
    }

    /// True if the block has not changed since its record was made.
    pub(super) fn is_unchanged(&self, block: BlockNo) -> bool {
        let is_changed = |changes: &ChangeSet| changes.overlaps(&block.single());
        let is_pending = block >= self.append_cursor && self.taken_changes.as_deref().is_some_and(is_changed);
        !is_changed(&self.changes) && !is_pending
    }

    /// True if the block's record is keepable: [`LogTracker::is_unchanged`], or a sabotage ignores changes.
    pub(super) fn is_keepable(&self, block: BlockNo) -> bool {
        self.is_unchanged(block) || self.is_keep_sabotaged
    }
}
