//! A volume's records in the flash log, the write-back stage of each, and the changes since the last flush.
//!
//! A record is retired when something newer is durable: a newer record, or the content on the backing. For the backing,
//! a write sent after the record was taken must have completed, and a flush of the backing must cover it (R7,
//! docs/rules.md). [`WritebackStage`] is the write-back stage of a block. Durable records of spilled blocks are indexed
//! compactly in a [`RecordIndex`].
//!
//! A record is *live* until it is retired: the log cannot reuse its segment. It is *retirable* when something newer is
//! durable, and *keepable* if it then holds its block's newest content (a kept record, docs/glossary.md).
//!
//! | file | events and questions |
//! |---|---|
//! | `mod.rs` | look-ups, spill and reload, recovery |
//! | `log_changes.rs` | changes of clients, and the flush of the log that takes them |
//! | `appends.rs` | appends of records |
//! | `backing_writes.rs` | writes and flushes of the backing |
//! | `retirement.rs` | which records may be retired |

mod appends;
mod backing_writes;
pub mod block_index;
mod change_set;
mod log_changes;
mod record_index;
mod retirement;
mod stream_bypass;
mod zero_records;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use flash::{BlockNo, CompletionNo, Position, SegmentNo};

use crate::memory::outdated::OutdatedRanges;
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
    /// The block's older record, live until the new one is durable.
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
    /// True if changes are listed: the volume's flushes may go to the log.
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
    /// Maximum number of changed blocks that are listed individually.
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
    /// Positions of records that are no longer live, and that the log has yet to be told of.
    retirable_positions: Vec<Position>,
    /// The part of them that holds the newest content of its blocks.
    keepable_records: BTreeMap<BlockNo, Position>,
    /// Violates R2, for tests of the checker: records of changed blocks are keepable, too.
    pub is_keep_sabotaged: bool,
}

impl LogTracker {
    /// Starts the list of changes, with at most `changed_blocks_max` individual blocks. `survives_restart`: memory
    /// outlives the process.
    pub fn start_tracking(&mut self, changed_blocks_max: usize, survives_restart: bool) {
        (self.tracks_changes, self.changed_blocks_max, self.outdated) =
            (true, changed_blocks_max, survives_restart.then(OutdatedRanges::default));
    }

    /// The blocks whose records are out of date; `None` unless memory outlives the process.
    pub fn outdated(&mut self) -> Option<&mut OutdatedRanges> {
        self.outdated.as_mut()
    }

    /// True if a recovery may find data of one of these blocks, also in a retired record: the newest change of the
    /// block is not in the log yet.
    pub fn may_recover_data(&self, blocks: &Range<BlockNo>) -> bool {
        self.entries.range(blocks.clone()).next().is_some()
            || self.record_index.has_any(blocks)
            || (self.may_have_records && self.has_unlogged_change(blocks))
    }

    /// True if a recovery may find records of the volume.
    pub fn has_records(&self) -> bool {
        self.may_have_records
    }

    /// Number of blocks with live records.
    pub fn len(&self) -> usize {
        self.entries.len() + self.record_index.len()
    }

    /// True if any records are live, so that the log cannot reuse their segments.
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
        let next_entry = self.entries.range(from..).nth(examined_records_max).map(|(block, _)| *block);
        let next = next_indexed.into_iter().chain(next_entry).min();
        let end = next.unwrap_or(BlockNo::MAX);
        let indexed = self.record_index.iter_from(from).take_while(|(block, _)| *block < end);
        let spilled = indexed.filter(|(_, entry)| entry.is_spilled).map(|(block, entry)| (block, entry.position));
        let entries = self.entries.range(from..end);
        let unsent = entries.filter_map(|(block, entry)| Some((*block, self.unsent_position(*block, entry)?)));
        let inside = spilled.chain(unsent).filter(|(_, position)| segments.contains(&position.segment()));
        let first = found.len();
        found.extend(inside.map(|(block, _)| block));
        found[first..].sort_unstable();
        next
    }

    /// True if the block's newest content is a record in these segments, and its write to the backing has not begun.
    pub fn is_newest_in_segments(&self, block: BlockNo, segments: &BTreeSet<SegmentNo>) -> bool {
        let unsent = || self.entries.get(&block).and_then(|entry| self.unsent_position(block, entry));
        self.spilled_position(block).or_else(unsent).is_some_and(|position| segments.contains(&position.segment()))
    }

    /// The position of an entry that holds its block's newest content, if its write to the backing has not begun.
    fn unsent_position(&self, block: BlockNo, entry: &BlockEntry) -> Option<Position> {
        let is_unsent = entry.older.is_none() && entry.stage == WritebackStage::NotSent;
        entry.position.filter(|_| is_unsent && self.is_unchanged(block))
    }

    /// True if the dirty block's record is durable, holds its newest content, and no write of it to the backing has
    /// begun. To be called between flushes of the log, in contrast to [`LogTracker::is_newest_in_segments`]: no changes
    /// are taken then. A changed range needs no check: a dirty block inside it was written later, so it is also listed
    /// as a block.
    pub fn can_spill(&self, block: BlockNo) -> bool {
        debug_assert!(self.taken_changes.is_none(), "blocks are spilled between flushes of the log");
        let entry = self.entries.get(&block);
        let is_unsent = entry.is_some_and(|entry| {
            entry.position.is_some() && entry.older.is_none() && entry.stage == WritebackStage::NotSent
        });
        is_unsent && !self.changes.covers_whole_volume && !self.changes.blocks.contains(&block)
    }

    /// Takes note that the block leaves memory: its record holds the same content.
    pub fn spill(&mut self, block: BlockNo) {
        assert!(self.can_spill(block), "a spilled block has a durable record of the same content");
        let entry = self.entries.remove(&block).expect("the entry exists");
        let position = entry.position.expect("the entry exists");
        self.record_index.insert(block, IndexEntry { position, is_spilled: true });
        self.outdated.iter_mut().for_each(|outdated| outdated.remove(block.single()));
    }

    /// Takes note that the content of a spilled block is in memory again.
    pub fn record_reload(&mut self, block: BlockNo) {
        let IndexEntry { position, is_spilled } = self.record_index.remove(block).expect("a reloaded block is spilled");
        assert!(is_spilled, "an old record is not a block's content");
        self.entries
            .insert(block, BlockEntry { position: Some(position), older: None, stage: WritebackStage::NotSent });
    }

    /// Takes note that newer content of these blocks exists. Returns how many of them were spilled.
    pub fn supersede(&mut self, blocks: Range<BlockNo>) -> u64 {
        self.record_index.supersede(blocks)
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

    /// True if any of these segments has live records of zero-ranges.
    pub fn has_zeroes_in_segments(&self, segments: &BTreeSet<SegmentNo>) -> bool {
        self.zero_records.are_in_segments(segments)
    }

    /// The blocks with live records in these segments, in order.
    pub fn blocks_in_segments(&self, segments: &BTreeSet<SegmentNo>) -> Vec<BlockNo> {
        let is_inside = |entry: &BlockEntry| {
            let mut positions = entry.position.iter().chain(&entry.older);
            positions.any(|position| segments.contains(&position.segment()))
        };
        let entries = self.entries.iter().filter(|(_, entry)| is_inside(entry)).map(|(block, _)| *block);
        let mut blocks: Vec<BlockNo> = entries.chain(self.record_index.blocks_in_segments(segments)).collect();
        blocks.sort_unstable();
        blocks
    }

    /// Removes the record of a block that is not spilled from the index, so that a [`BlockEntry`] can replace it.
    fn take_from_index(&mut self, block: BlockNo) -> Option<Position> {
        let IndexEntry { position, is_spilled } = self.record_index.remove(block)?;
        assert!(!is_spilled, "a spilled block is neither sent nor appended");
        Some(position)
    }
}

#[cfg(test)]
mod tests {
    use flash::VolumeId;
    use seam::Nanos;

    use super::*;

    #[test]
    fn record_of_a_flush_in_progress_is_kept_once_it_is_appended() {
        let kept = |appended_end: u64, is_rewritten: bool| {
            let (mut tracker, block) = (LogTracker::default(), BlockNo(5));
            tracker.start_tracking(1_000, false);
            tracker.record_change(block);
            tracker.begin_log_flush(&[]);
            tracker.begin_append(block, WritebackStage::Written(CompletionNo(1)));
            let contents = [(block.single(), RecordContent::Data)];
            tracker.on_appends_durable(&contents, &[Position::from_words([1, 2, 3])]);
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
        tracker.begin_log_flush(&[]);
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
        let taken = tracker.begin_log_flush(&[]);
        [4, 5].into_iter().for_each(|block| tracker.record_stream_change(BlockNo(block), Nanos(10), 8));
        tracker.end_log_flush(&taken, false);
        let without_stream = tracker.begin_log_flush_except_streams(Nanos(5), &[]);
        assert!(without_stream.blocks.is_empty(), "the stream bypasses the log");
        tracker.end_log_flush(&without_stream, false);
        [4, 5].into_iter().for_each(|block| tracker.record_clean(BlockNo(block).single()));
        let ranges: Vec<_> = tracker.begin_log_flush(&[]).ranges.clone().into_iter().collect();
        let expected = [(BlockNo(4), (BlockNo(6), RangeChange::Outdated)), (BlockNo(6), (BlockNo(9), zeroed))];
        assert_eq!(ranges, expected);
    }
}
