//! Retirement: which records something newer replaces, durably (R7, docs/rules.md). [`LogTracker`] collects their
//! positions; `shard/retire.rs` passes them to the log.

use std::collections::BTreeMap;
use std::ops::Range;

use flash::{BlockNo, Position};

use super::LogTracker;
use super::change_set::ChangeSet;

impl LogTracker {
    /// Retires the record of a block, whose content is durable on the backing. `is_keepable`: it is also the newest
    /// content, so that the log may serve reads from it.
    pub(super) fn retire_record(&mut self, block: BlockNo, is_keepable: bool) {
        let entry = self.entries.remove(&block).expect("the entry exists");
        if let Some(position) = entry.position.filter(|_| is_keepable) {
            self.keepable_records.insert(block, position);
        }
        self.retirable_positions.extend(entry.position);
        self.retirable_positions.extend(entry.older);
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

    /// Retires records of zero-ranges, of which it examines `examined_records_max`, at a low cost. Zeroes are durable
    /// on the backing unless they wait for it, as `waits_for_backing` reports; newer content is durable when it no
    /// longer counts as changed.
    pub fn retire_zeroes(&mut self, examined_records_max: usize, waits_for_backing: impl Fn(&Range<BlockNo>) -> bool) {
        let (changed, taken) = (&self.changes, self.taken_changes.as_deref());
        let is_durable = |blocks: &Range<BlockNo>| {
            let is_changed = changed.overlaps(blocks) || taken.is_some_and(|taken| taken.overlaps(blocks));
            !is_changed && !waits_for_backing(blocks)
        };
        self.zero_records.retire(examined_records_max, is_durable, &mut self.retirable_positions);
    }

    /// Like [`LogTracker::retire_zeroes`] for all records of zero-ranges, at a higher cost: newer content is also
    /// durable if it is clean, even if it still counts as changed. `has_unclean` reports whether a range has a block
    /// that is not clean.
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

    /// Retires the records of these blocks, which a newer record or a tombstone replaces.
    pub(super) fn retire_replaced_records(&mut self, blocks: Range<BlockNo>) {
        self.zero_records.cut(&blocks, &mut self.retirable_positions);
        self.retirable_positions.extend(self.record_index.remove_range(blocks.clone()));
        // Removed one by one: splitting and joining the tree would cost as much as everything past the range.
        let removed: Vec<BlockNo> = self.entries.range(blocks).map(|(block, _)| *block).collect();
        for entry in removed.iter().filter_map(|block| self.entries.remove(block)) {
            assert!(entry.position.is_some(), "no record is appended while a tombstone is");
            self.retirable_positions.extend(entry.position);
        }
    }

    /// Takes the positions of the records that have become retirable since the last call.
    pub fn take_retirable_positions(&mut self) -> Vec<Position> {
        std::mem::take(&mut self.retirable_positions)
    }

    /// Takes the retirable records that are keepable, with their blocks.
    pub fn take_keepable_records(&mut self) -> BTreeMap<BlockNo, Position> {
        std::mem::take(&mut self.keepable_records)
    }
}
