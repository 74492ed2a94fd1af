//! A volume's records in the flash log, the write-back stage of each, and the changes since the last flush.
//!
//! A record is retired when something newer is durable: a newer record, or the content on the backing. For the backing,
//! a write sent after the record was taken must have completed, and a flush of the backing must cover it (R7,
//! docs/rules.md). [`WritebackStage`] is the write-back stage of a block. Durable records of spilled blocks are held
//! compactly in a [`RecordIndex`].

pub mod block_index;
mod change_set;
mod record_index;
mod stream_bypass;
mod zero_records;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use flash::{BlockNo, CompletionNo, Position, SegmentNo};

use seam::Nanos;

use crate::memory::outdated::OutdatedRanges;
use change_set::RANGES_MAX;
pub use change_set::{ChangeSet, RangeChange};
use record_index::{IndexEntry, RecordIndex};
use stream_bypass::StreamBypass;
use zero_records::ZeroRecords;

/// Number of records of zero-ranges from which a flush waits until the zeroes are on the backing.
const ZERO_RECORDS_MAX: usize = 4096;

/// Write-back stage: how far the content of a block's record, or newer content, has come on its way to the backing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritebackStage {
    /// Not sent.
    NotSent,
    /// A write to the backing is in flight.
    Sent,
    /// On the backing, not yet covered by a flush there. Holds the completion number of the write.
    Written(CompletionNo),
    /// Durable on the backing.
    Durable,
}

/// The records of a block that is not spilled, or whose record is being appended.
struct BlockEntry {
    /// `None` while the record is being appended.
    position: Option<Position>,
    /// The block's older record, held until the new one is durable.
    older: Option<Position>,
    /// How far the content of the newest record has come on its way to the backing.
    stage: WritebackStage,
}

/// Content of an appended record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordContent {
    /// The content of one block.
    Data,
    /// Zeroes; the backing may release the space of the range if `may_unmap`.
    Zeroes { may_unmap: bool },
    /// Older records of the range are dead.
    Tombstone,
}

/// A volume's part of the flash log.
#[derive(Default)]
pub struct LogTracker {
    /// True if changes are recorded.
    tracks_changes: bool,
    /// True if a recovery may find records of the volume.
    may_have_records: bool,
    /// Changes since the last flush took them.
    changes: ChangeSet,
    /// Changed blocks that background flushes leave out.
    stream_bypass: StreamBypass,
    /// The changes that a flush is making durable.
    taken_changes: Option<Rc<ChangeSet>>,
    /// The flush in progress has appended the taken blocks below this one.
    append_cursor: BlockNo,
    /// Blocks whose records a recovery must ignore; `Some` only if memory outlives the process.
    outdated: Option<OutdatedRanges>,
    /// Maximum number of changed blocks that are recorded individually.
    changed_blocks_max: usize,
    entries: BTreeMap<BlockNo, BlockEntry>,
    /// Records that need no [`BlockEntry`]: durable, without an older one, at stage [`WritebackStage::NotSent`]. No
    /// block is in both.
    record_index: RecordIndex,
    /// Records at stage [`WritebackStage::Written`], with the completion number of the write. Entries may be out of
    /// date.
    written_records: VecDeque<(BlockNo, CompletionNo)>,
    /// Records of zero-ranges.
    zero_records: ZeroRecords,
    /// Positions of records that may be retired.
    retirable_positions: Vec<Position>,
    /// Records among these that hold the newest content of their blocks.
    keepable_records: BTreeMap<BlockNo, Position>,
    /// Violates R2, for tests of the checker: records of changed blocks are kept, too.
    pub is_keep_sabotaged: bool,
}

impl LogTracker {
    /// Starts recording changes, at most `changed_blocks_max` blocks individually. `survives_restart`: memory outlives
    /// the process.
    pub fn start_tracking(&mut self, changed_blocks_max: usize, survives_restart: bool) {
        (self.tracks_changes, self.changed_blocks_max, self.outdated) =
            (true, changed_blocks_max, survives_restart.then(OutdatedRanges::default));
    }

    /// The blocks whose records are out of date; `None` unless memory outlives the process.
    pub fn outdated(&mut self) -> Option<&mut OutdatedRanges> {
        self.outdated.as_mut()
    }

    /// Records that the newest content of these blocks is durable on the backing or discarded, and that memory no
    /// longer records it.
    pub fn record_clean(&mut self, blocks: Range<BlockNo>) {
        for block in self.stream_bypass.remove_range(&blocks) {
            self.changes.mark_outdated(block);
        }
        let is_unlogged = self.may_have_records && self.has_unlogged_change(&blocks);
        if let Some(outdated) = self.outdated.as_mut().filter(|_| is_unlogged) {
            outdated.add(blocks);
        }
    }

    /// True if a recovery may find data of one of these blocks, also in a retired record: the newest change of the
    /// block is not in the log yet.
    pub fn may_recover_data(&self, blocks: &Range<BlockNo>) -> bool {
        self.entries.range(blocks.clone()).next().is_some()
            || self.record_index.has_any(blocks)
            || (self.may_have_records && self.has_unlogged_change(blocks))
    }

    /// True if one of these blocks has changed since the last flush of the log, or a flush in progress takes it.
    fn has_unlogged_change(&self, blocks: &Range<BlockNo>) -> bool {
        self.changes.overlaps(blocks) || self.taken_changes.as_deref().is_some_and(|taken| taken.overlaps(blocks))
    }

    /// True if a recovery may find records of the volume.
    pub fn has_records(&self) -> bool {
        self.may_have_records
    }

    /// Number of blocks whose records keep their segments in use.
    pub fn len(&self) -> usize {
        self.entries.len() + self.record_index.len()
    }

    /// True if any records keep their segments in use.
    pub fn holds_segments(&self) -> bool {
        self.len() > 0 || !self.zero_records.is_empty()
    }

    /// Number of spilled blocks: a record alone holds their newest content.
    pub fn spilled_count(&self) -> u64 {
        self.record_index.spilled_count()
    }

    /// Bytes of memory that the index of spilled blocks takes.
    pub fn index_bytes(&self) -> usize {
        self.record_index.memory_bytes()
    }

    /// True if the block is spilled: neither memory nor the backing has its newest content.
    pub fn is_spilled(&self, block: BlockNo) -> bool {
        self.record_index.is_spilled(block)
    }

    /// Position of a spilled block's record.
    pub fn spilled_position(&self, block: BlockNo) -> Option<Position> {
        self.record_index.get(block).filter(|entry| entry.is_spilled).map(|entry| entry.position)
    }

    /// See [`RecordIndex::next_run`].
    pub fn next_spilled_run(
        &self,
        from: BlockNo,
        boundary_blocks: u64,
        run_blocks_max: u64,
        is_eligible: impl Fn(BlockNo) -> bool,
    ) -> Option<Range<BlockNo>> {
        self.record_index.next_run(from, boundary_blocks, run_blocks_max, is_eligible)
    }

    /// Adds to `found` the blocks from `from` on whose newest content is a record in these segments, and whose write to
    /// the backing has not begun. Examines about `examined_records_max` records, and returns the block at which to
    /// continue.
    pub fn newest_in_segments(
        &self,
        from: BlockNo,
        examined_records_max: usize,
        segments: &BTreeSet<SegmentNo>,
        found: &mut Vec<BlockNo>,
    ) -> Option<BlockNo> {
        let next_indexed = self.record_index.iter_from(from).nth(examined_records_max).map(|(block, _)| block);
        let next_held = self.entries.range(from..).nth(examined_records_max).map(|(block, _)| *block);
        let next = next_indexed.into_iter().chain(next_held).min();
        let end = next.unwrap_or(BlockNo::MAX);
        let indexed = self.record_index.iter_from(from).take_while(|(block, _)| *block < end);
        let spilled = indexed.filter(|(_, entry)| entry.is_spilled).map(|(block, entry)| (block, entry.position));
        let held = self.entries.range(from..end);
        let held = held.filter_map(|(block, entry)| Some((*block, self.unsent_position(*block, entry)?)));
        let inside = spilled.chain(held).filter(|(_, position)| segments.contains(&position.segment()));
        let first = found.len();
        found.extend(inside.map(|(block, _)| block));
        found[first..].sort_unstable();
        next
    }

    /// True if the block's newest content is a record in these segments, and its write to the backing has not begun.
    pub fn is_newest_in_segments(&self, block: BlockNo, segments: &BTreeSet<SegmentNo>) -> bool {
        let held = || self.entries.get(&block).and_then(|entry| self.unsent_position(block, entry));
        self.spilled_position(block).or_else(held).is_some_and(|position| segments.contains(&position.segment()))
    }

    /// The position of an entry that holds its block's newest content, if its write to the backing has not begun.
    fn unsent_position(&self, block: BlockNo, entry: &BlockEntry) -> Option<Position> {
        let is_unsent = entry.older.is_none() && entry.stage == WritebackStage::NotSent;
        entry.position.filter(|_| is_unsent && self.is_unchanged(block))
    }

    /// True if the block's record is durable, holds its newest content, and no write of it to the backing has begun.
    pub fn can_spill(&self, block: BlockNo) -> bool {
        let entry = self.entries.get(&block);
        let is_unsent = entry.is_some_and(|entry| {
            entry.position.is_some() && entry.older.is_none() && entry.stage == WritebackStage::NotSent
        });
        is_unsent && !self.changes.covers_whole_volume && !self.changes.blocks.contains(&block)
    }

    /// Records that the block leaves memory: its record holds the same content.
    pub fn spill(&mut self, block: BlockNo) {
        assert!(self.can_spill(block), "a spilled block has a durable record of the same content");
        let entry = self.entries.remove(&block).expect("the entry exists");
        let position = entry.position.expect("the entry exists");
        self.record_index.insert(block, IndexEntry { position, is_spilled: true });
        self.outdated.iter_mut().for_each(|outdated| outdated.remove(block.single()));
    }

    /// Records that the content of a spilled block is in memory again.
    pub fn record_reload(&mut self, block: BlockNo) {
        let IndexEntry { position, is_spilled } = self.record_index.remove(block).expect("a reloaded block is spilled");
        assert!(is_spilled, "an old record is not a block's content");
        self.entries
            .insert(block, BlockEntry { position: Some(position), older: None, stage: WritebackStage::NotSent });
    }

    /// Records that newer content of these blocks exists. Returns how many of them were spilled.
    pub fn supersede(&mut self, blocks: Range<BlockNo>) -> u64 {
        self.record_index.supersede(blocks)
    }

    /// Records that the block's newest content is not in the log.
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

    /// Adds a changed block to the changes; its record is not kept.
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

    /// Takes the list of changes and starts a new one with the changed blocks that are `left_out`.
    pub fn take_changes(&mut self, left_out: &[BlockNo]) -> Rc<ChangeSet> {
        self.stream_bypass.clear();
        self.begin_log_flush(left_out)
    }

    /// Like [`LogTracker::take_changes`], but leaves out the blocks that have bypassed the log since a time later than
    /// `bypassed_after`.
    pub fn take_changes_except_streams(&mut self, bypassed_after: Nanos, left_out: &[BlockNo]) -> Rc<ChangeSet> {
        if self.changes.covers_whole_volume {
            return self.take_changes(left_out);
        }
        self.stream_bypass.remove_older(bypassed_after);
        self.begin_log_flush(left_out)
    }

    /// Takes all changes but the blocks that bypass the log or are `left_out`.
    fn begin_log_flush(&mut self, left_out: &[BlockNo]) -> Rc<ChangeSet> {
        let mut changed = std::mem::take(&mut self.changes);
        let remaining = self.stream_bypass.blocks().chain(left_out.iter().copied());
        self.changes.blocks = remaining.filter(|block| changed.blocks.remove(block)).collect();
        let changed = Rc::new(changed);
        (self.taken_changes, self.append_cursor) = (Some(Rc::clone(&changed)), BlockNo::ZERO);
        changed
    }

    /// Records that the flush in progress has appended all taken ranges, and the taken blocks below `end`.
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
    /// record.
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

    /// True if the changes, or the ranges that are out of date, come close to the limit of what can be recorded.
    pub fn has_many_changes(&self) -> bool {
        let needs_flush = self.outdated.as_ref().is_some_and(OutdatedRanges::needs_flush);
        needs_flush
            || self.changes.blocks.len() > self.changed_blocks_max / 2
            || self.changes.ranges.len() > RANGES_MAX / 2
    }

    /// Records that the block's content is being appended to the log; `stage` is its write-back stage.
    pub fn begin_append(&mut self, block: BlockNo, stage: WritebackStage) {
        self.may_have_records = true;
        let older = match self.entries.remove(&block) {
            Some(entry) => entry.position,
            None => self.take_from_index(block),
        };
        self.entries.insert(block, BlockEntry { position: None, older, stage });
        if let WritebackStage::Written(completion) = stage {
            self.written_records.push_back((block, completion));
        }
    }

    /// Records that these appended records are durable at `positions`.
    pub fn record_appends(&mut self, contents: &[(Range<BlockNo>, RecordContent)], positions: &[Position]) {
        for ((blocks, content), position) in contents.iter().zip(positions) {
            match content {
                RecordContent::Data => self.record_append(blocks.start, *position),
                // Newer content may have become durable on the backing since the record was made: its blocks stay
                // recorded as out of date until the flush ends.
                RecordContent::Zeroes { .. } => {
                    self.drop_older_records(blocks.clone());
                    self.zero_records.insert(blocks.clone(), *position);
                }
                RecordContent::Tombstone => self.record_tombstones(blocks.clone()),
            }
        }
    }

    /// Records that the appended record of the block is durable at `position`.
    fn record_append(&mut self, block: BlockNo, position: Position) {
        let entry = self.entries.get_mut(&block).expect("the append was registered");
        entry.position = Some(position);
        self.retirable_positions.extend(entry.older.take());
        if !self.zero_records.is_empty() {
            self.zero_records.cut(&block.single(), &mut self.retirable_positions);
        }
        let entry = &self.entries[&block];
        if entry.stage == WritebackStage::Durable {
            // Content that changed later is in `changes`; the changes of the flush itself are in the record.
            let is_newest = !self.changes.overlaps(&block.single());
            self.retire_record(block, is_newest);
        }
    }

    /// Records that the append of the block's record failed. A recovery may then find the older record, if there is
    /// one.
    pub fn record_failed_append(&mut self, block: BlockNo) {
        let entry = self.entries.get_mut(&block).expect("the append was registered");
        entry.position = entry.older.take();
        match entry.position {
            // The write in flight may carry content older than that of the older record, so it proves nothing.
            Some(_) => entry.stage = WritebackStage::NotSent,
            None => {
                self.entries.remove(&block);
            }
        }
    }

    /// Records that the first append of a volume without records failed: the log still holds none.
    pub fn record_failed_first_append(&mut self) {
        assert!(!self.holds_segments(), "the first append of a volume without records failed");
        self.may_have_records = false;
    }

    /// Installs records that a recovery found: block, position, and whether the record is valid; in order of block.
    pub fn install_records(&mut self, records: impl Iterator<Item = (BlockNo, Position, bool)>) {
        self.may_have_records = true;
        let entries = records.map(|(block, position, is_valid)| (block, IndexEntry { position, is_spilled: is_valid }));
        self.record_index.bulk_load(entries);
    }

    /// Installs the record of a zero-range that a recovery found.
    pub fn install_zeroes(&mut self, blocks: Range<BlockNo>, position: Position) {
        self.may_have_records = true;
        self.zero_records.insert(blocks, position);
    }

    /// True if there are too many records of zero-ranges to add further ones.
    pub fn has_many_zero_records(&self) -> bool {
        self.zero_records.len() >= ZERO_RECORDS_MAX
    }

    /// True if records of zero-ranges keep any of these segments in use.
    pub fn has_zeroes_in_segments(&self, segments: &BTreeSet<SegmentNo>) -> bool {
        self.zero_records.are_in_segments(segments)
    }

    /// Retires records of zero-ranges, of which it examines `examined_records_max`. Zeroes are durable on the backing
    /// unless they wait for it, as `waits_for_backing` reports; newer content is durable when it no longer counts as
    /// changed.
    pub fn retire_zeroes(&mut self, examined_records_max: usize, waits_for_backing: impl Fn(&Range<BlockNo>) -> bool) {
        let (changed, taken) = (&self.changes, self.taken_changes.as_deref());
        let is_durable = |blocks: &Range<BlockNo>| {
            let is_changed = changed.overlaps(blocks) || taken.is_some_and(|taken| taken.overlaps(blocks));
            !is_changed && !waits_for_backing(blocks)
        };
        self.zero_records.retire(examined_records_max, is_durable, &mut self.retirable_positions);
    }

    /// Like [`LogTracker::retire_zeroes`] for all records, at a higher cost: newer content is also durable if it is
    /// clean. `has_unclean` reports whether a range has a block that is not.
    pub fn retire_durable_zeroes(
        &mut self,
        is_unclean: impl Fn(BlockNo) -> bool,
        has_unclean: impl Fn(&Range<BlockNo>) -> bool,
        waits_for_backing: impl Fn(&Range<BlockNo>) -> bool,
    ) {
        let is_pending = |changes: &ChangeSet, blocks: &Range<BlockNo>| match changes.covers_whole_volume {
            true => has_unclean(blocks),
            false => changes.blocks.range(blocks.clone()).any(|block| is_unclean(*block)),
        };
        let (changed, taken) = (&self.changes, self.taken_changes.as_deref());
        let is_durable = |blocks: &Range<BlockNo>| {
            let is_pending = is_pending(changed, blocks) || taken.is_some_and(|taken| is_pending(taken, blocks));
            !is_pending && !waits_for_backing(blocks)
        };
        self.zero_records.retire(usize::MAX, is_durable, &mut self.retirable_positions);
    }

    /// Records that records of ranges are being appended to the log.
    pub fn begin_range_append(&mut self) {
        self.may_have_records = true;
    }

    /// Records that tombstones of these blocks are durable.
    fn record_tombstones(&mut self, blocks: Range<BlockNo>) {
        self.outdated.iter_mut().for_each(|outdated| outdated.remove(blocks.clone()));
        self.drop_older_records(blocks);
    }

    /// Retires the records of these blocks, which a newer record or a tombstone replaces.
    fn drop_older_records(&mut self, blocks: Range<BlockNo>) {
        self.zero_records.cut(&blocks, &mut self.retirable_positions);
        self.retirable_positions.extend(self.record_index.remove_range(blocks.clone()));
        // Removed one by one: splitting and joining the tree would cost as much as everything past the range.
        let removed: Vec<BlockNo> = self.entries.range(blocks).map(|(block, _)| *block).collect();
        for entry in removed.iter().filter_map(|block| self.entries.remove(block)) {
            assert!(entry.position.is_some(), "no record is appended while a tombstone is");
            self.retirable_positions.extend(entry.position);
        }
    }

    /// Records that tombstones of the whole volume are durable: a recovery finds none of its records.
    pub fn record_all_tombstones(&mut self) {
        self.record_tombstones(BlockNo::ALL);
        self.zero_records.clear(&mut self.retirable_positions);
        self.may_have_records = false;
    }

    /// Records that the block's newest content is being written to the backing.
    pub fn record_send(&mut self, block: BlockNo) {
        self.stream_bypass.record_send(block);
        if let Some(position) = self.take_from_index(block) {
            self.entries
                .insert(block, BlockEntry { position: Some(position), older: None, stage: WritebackStage::NotSent });
        }
        if let Some(entry) = self.entries.get_mut(&block) {
            entry.stage = WritebackStage::Sent;
        }
    }

    /// Records that the write of the block to the backing has completed, with its completion number.
    pub fn record_write(&mut self, block: BlockNo, completion: CompletionNo) {
        if let Some(entry) = self.entries.get_mut(&block)
            && entry.stage == WritebackStage::Sent
        {
            entry.stage = WritebackStage::Written(completion);
            self.written_records.push_back((block, completion));
        }
    }

    /// Records that the write of the block to the backing has failed.
    pub fn record_failed_write(&mut self, block: BlockNo) {
        self.stream_bypass.remove(block);
        if let Some(entry) = self.entries.get_mut(&block)
            && entry.stage == WritebackStage::Sent
        {
            entry.stage = WritebackStage::NotSent;
        }
    }

    /// Records a flush of the backing that covers all completions below `covered`.
    pub fn record_backing_flush(&mut self, covered: CompletionNo) {
        for _ in 0..self.written_records.len() {
            let (block, completion) =
                self.written_records.pop_front().expect("the queue has as many entries as counted");
            if completion >= covered {
                self.written_records.push_back((block, completion));
                continue;
            }
            let Some(entry) =
                self.entries.get_mut(&block).filter(|entry| entry.stage == WritebackStage::Written(completion))
            else {
                continue;
            };
            entry.stage = WritebackStage::Durable;
            if entry.position.is_some() {
                let is_newest = self.holds_newest_content(block);
                self.retire_record(block, is_newest);
            }
        }
    }

    /// Records that the backing may have lost its unflushed writes.
    pub fn record_backing_loss(&mut self) {
        self.stream_bypass.remove_sent();
        for (block, completion) in std::mem::take(&mut self.written_records) {
            if let Some(entry) =
                self.entries.get_mut(&block).filter(|entry| entry.stage == WritebackStage::Written(completion))
            {
                entry.stage = WritebackStage::NotSent;
            }
        }
    }

    /// Retires the records of all blocks that are not spilled and whose newest content is durable on the backing, as
    /// `is_durable` reports. None of these records may be in the middle of an append.
    pub fn retire_records_if(&mut self, is_durable: impl Fn(BlockNo) -> bool) {
        let blocks: Vec<BlockNo> = self.entries.keys().copied().filter(|block| is_durable(*block)).collect();
        // A write of the newest content may have failed since, so these records prove nothing about the backing.
        blocks.into_iter().for_each(|block| self.retire_record(block, false));
        for block in self.record_index.superseded_blocks().into_iter().filter(|block| is_durable(*block)) {
            let position = self.take_from_index(block);
            self.retirable_positions.extend(position);
        }
    }

    /// The blocks whose records keep these segments in use, in order.
    pub fn blocks_in_segments(&self, segments: &BTreeSet<SegmentNo>) -> Vec<BlockNo> {
        let holds = |entry: &BlockEntry| {
            let mut positions = entry.position.iter().chain(&entry.older);
            positions.any(|position| segments.contains(&position.segment()))
        };
        let entries = self.entries.iter().filter(|(_, entry)| holds(entry)).map(|(block, _)| *block);
        let mut blocks: Vec<BlockNo> = entries.chain(self.record_index.blocks_in_segments(segments)).collect();
        blocks.sort_unstable();
        blocks
    }

    /// Removes the record of a block that is not spilled from the index, so that a [`BlockEntry`] can follow it.
    fn take_from_index(&mut self, block: BlockNo) -> Option<Position> {
        let IndexEntry { position, is_spilled } = self.record_index.remove(block)?;
        assert!(!is_spilled, "a spilled block is neither sent nor appended");
        Some(position)
    }

    /// Takes the positions of the records that may be retired since the last call.
    pub fn take_retirable_positions(&mut self) -> Vec<Position> {
        std::mem::take(&mut self.retirable_positions)
    }

    /// Takes the records among those to be retired that hold the newest content of their blocks, with the blocks.
    pub fn take_keepable_records(&mut self) -> BTreeMap<BlockNo, Position> {
        std::mem::take(&mut self.keepable_records)
    }

    /// True if the block has not changed since its record was made.
    fn holds_newest_content(&self, block: BlockNo) -> bool {
        self.is_unchanged(block) || self.is_keep_sabotaged
    }

    /// True if the block has not changed since its record was made.
    fn is_unchanged(&self, block: BlockNo) -> bool {
        let is_changed = |changes: &ChangeSet| changes.overlaps(&block.single());
        let is_pending = block >= self.append_cursor && self.taken_changes.as_deref().is_some_and(is_changed);
        !is_changed(&self.changes) && !is_pending
    }

    /// Retires the record of a block, whose content is durable on the backing. `is_newest`: it is the newest content.
    fn retire_record(&mut self, block: BlockNo, is_newest: bool) {
        let entry = self.entries.remove(&block).expect("the entry exists");
        if let Some(position) = entry.position.filter(|_| is_newest) {
            self.keepable_records.insert(block, position);
        }
        self.retirable_positions.extend(entry.position);
        self.retirable_positions.extend(entry.older);
    }
}

#[cfg(test)]
mod tests {
    use flash::VolumeId;

    use super::*;

    #[test]
    fn record_of_a_flush_in_progress_is_kept_once_it_is_appended() {
        let kept = |appended_end: u64, is_rewritten: bool| {
            let (mut tracker, block) = (LogTracker::default(), BlockNo(5));
            tracker.start_tracking(1_000, false);
            tracker.record_change(block);
            tracker.take_changes(&[]);
            tracker.begin_append(block, WritebackStage::Written(CompletionNo(1)));
            let contents = [(block.single(), RecordContent::Data)];
            tracker.record_appends(&contents, &[Position::from_words([1, 2, 3])]);
            tracker.advance_append_cursor(BlockNo(appended_end));
            if is_rewritten {
                tracker.record_change(block);
            }
            tracker.record_backing_flush(CompletionNo(2));
            tracker.take_keepable_records().contains_key(&block)
        };
        assert!(kept(6, false));
        assert!(!kept(5, false), "the flush has yet to append the block's newest content");
        assert!(!kept(6, true), "the content is newer than the record");
    }

    #[test]
    fn outdated_ranges_stay_while_every_block_counts_as_changed() {
        let mut tracker = LogTracker::default();
        tracker.start_tracking(1_000, true);
        tracker.outdated().expect("memory outlives the process").add(BlockNo(5)..BlockNo(9));
        tracker.changes.mark_whole_volume();
        tracker.end_log_flush(&ChangeSet::default(), true);
        let mut tags = Vec::new();
        let write_tag = |tag: seam::RangeTag| {
            tags.push((tag.start, tag.end));
            Some(0)
        };
        tracker.outdated().expect("memory outlives the process").update_tags(VolumeId(1), write_tag);
        assert_eq!(tags, [(5, 9)]);
        tracker.take_changes(&[]);
        tracker.end_log_flush(&ChangeSet::default(), true);
        let outdated = tracker.outdated().expect("memory outlives the process");
        assert_eq!(outdated.update_tags(VolumeId(1), |_| None), [0]);
    }

    /// The flush that takes the zeroes fails after a stream has written a block of them.
    #[test]
    fn failed_flush_gives_no_older_range_back_over_a_stream() {
        let mut tracker = LogTracker::default();
        tracker.start_tracking(100, false);
        let zeroed = RangeChange::Zeroed { may_unmap: false };
        tracker.record_range_change(BlockNo(5)..BlockNo(9), zeroed);
        let taken = tracker.take_changes(&[]);
        [4, 5].into_iter().for_each(|block| tracker.record_stream_change(BlockNo(block), Nanos(10), 8));
        tracker.end_log_flush(&taken, false);
        let without_stream = tracker.take_changes_except_streams(Nanos(5), &[]);
        assert!(without_stream.blocks.is_empty(), "the stream bypasses the log");
        tracker.end_log_flush(&without_stream, false);
        [4, 5].into_iter().for_each(|block| tracker.record_clean(BlockNo(block).single()));
        let ranges: Vec<_> = tracker.take_changes(&[]).ranges.clone().into_iter().collect();
        let expected = [(BlockNo(4), (BlockNo(6), RangeChange::Outdated)), (BlockNo(6), (BlockNo(9), zeroed))];
        assert_eq!(ranges, expected);
    }
}
