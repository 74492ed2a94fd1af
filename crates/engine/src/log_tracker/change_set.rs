//! The changes of a volume since the last flush of the log.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use flash::BlockNo;

use crate::memory::outdated::OutdatedRanges;

/// Maximum number of listed ranges; beyond it the whole volume counts as changed.
pub const RANGES_MAX: usize = 1024;
/// Number of listed ranges from which single outdated blocks are listed as blocks.
const OUTDATED_RANGES_MAX: usize = RANGES_MAX / 4;

/// The kind of a change to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeChange {
    /// It was zeroed; the backing may release its space if `may_unmap`.
    Zeroed { may_unmap: bool },
    /// Its newest content is on the backing or discarded, so that its records are out of date.
    Outdated,
}

/// Changes since the last flush.
#[derive(Clone, Debug, Default)]
pub struct ChangeSet {
    /// Blocks whose newest content was written.
    pub blocks: BTreeSet<BlockNo>,
    /// Changed ranges by their first block, with the block past the last; they do not overlap. The content of their
    /// blocks is newer if these are in `blocks` as well.
    pub ranges: BTreeMap<BlockNo, (BlockNo, RangeChange)>,
    /// True if there were too many changes to list: every block of the volume then counts as changed.
    pub covers_whole_volume: bool,
}

impl ChangeSet {
    /// True if any of `blocks` has changed.
    pub fn overlaps(&self, blocks: &Range<BlockNo>) -> bool {
        self.covers_whole_volume || self.blocks.range(blocks.clone()).next().is_some() || self.overlaps_ranges(blocks)
    }

    /// True if any of `blocks` lies in a changed range.
    pub fn overlaps_ranges(&self, blocks: &Range<BlockNo>) -> bool {
        self.ranges.range(..blocks.end).next_back().is_some_and(|(_, (end, _))| *end > blocks.start)
    }

    /// The changed parts of `blocks`.
    pub fn changed_parts_of(&self, blocks: Range<BlockNo>) -> Vec<Range<BlockNo>> {
        let single = self.blocks.range(blocks.clone()).map(|block| block.single());
        let ranges = self.ranges.range(..blocks.end).rev().take_while(|(_, (end, _))| *end > blocks.start);
        single.chain(ranges.map(|(start, (end, _))| *start.max(&blocks.start)..*end.min(&blocks.end))).collect()
    }

    /// True if there is nothing to make durable.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.ranges.is_empty() && !self.covers_whole_volume
    }

    /// Adds a range, which replaces older changes of its blocks.
    pub fn add_range(&mut self, range: Range<BlockNo>, change: RangeChange) {
        while let Some(block) = self.blocks.range(range.clone()).next().copied() {
            self.blocks.remove(&block);
        }
        self.cut_ranges(&range);
        self.ranges.insert(range.start, (range.end, change));
        if self.ranges.len() > RANGES_MAX {
            self.mark_whole_volume();
        }
    }

    /// Replaces the change of a block by an outdated range, joined with its neighbours. While there are many ranges, a
    /// block without such neighbours stays a block of its own.
    pub fn mark_outdated(&mut self, block: BlockNo) {
        if !self.blocks.contains(&block) {
            return;
        }
        self.cut_ranges(&block.single());
        let is_outdated = |(_, change): &(BlockNo, RangeChange)| *change == RangeChange::Outdated;
        let before = self.ranges.range(..block).next_back().map(|(start, range)| (*start, *range));
        let before = before.filter(|(_, range)| range.0 == block && is_outdated(range)).map(|(start, _)| start);
        let after = self.ranges.get(&block.next()).copied().filter(is_outdated).map(|(end, _)| end);
        if before.is_none() && after.is_none() && self.ranges.len() >= OUTDATED_RANGES_MAX {
            return;
        }
        self.blocks.remove(&block);
        if after.is_some() {
            self.ranges.remove(&block.next());
        }
        let range = (after.unwrap_or(block.next()), RangeChange::Outdated);
        self.ranges.insert(before.unwrap_or(block), range);
    }

    /// True if any range was zeroed.
    pub fn has_zeroed_ranges(&self) -> bool {
        self.ranges.values().any(|(_, change)| *change != RangeChange::Outdated)
    }

    /// Cuts `blocks` out of the ranges, which do not overlap.
    pub fn cut_ranges(&mut self, blocks: &Range<BlockNo>) {
        while let Some((start, (end, change))) =
            self.ranges.range(..blocks.end).next_back().map(|(key, value)| (*key, *value))
            && end > blocks.start
        {
            self.ranges.remove(&start);
            if end > blocks.end {
                self.ranges.insert(blocks.end, (end, change));
            }
            if start < blocks.start {
                self.ranges.insert(start, (blocks.start, change));
            }
        }
    }

    /// Replaces the listed changes by one of the whole volume.
    pub fn mark_whole_volume(&mut self) {
        *self = ChangeSet { covers_whole_volume: true, ..ChangeSet::default() };
    }

    /// Removes blocks that have not changed from `outdated`.
    pub fn retain_changed(&self, outdated: &mut OutdatedRanges) {
        if !self.covers_whole_volume {
            outdated.keep_only(|blocks| self.changed_parts_of(blocks));
        }
    }

    /// Adds `older` changes to these.
    pub fn add_older(&mut self, mut older: ChangeSet, blocks_max: usize) {
        if older.covers_whole_volume || self.covers_whole_volume {
            return self.mark_whole_volume();
        }
        let newer = std::mem::take(self);
        newer.ranges.into_iter().for_each(|(start, (end, change))| older.add_range(start..end, change));
        older.blocks.extend(newer.blocks);
        if older.blocks.len() > blocks_max {
            older.mark_whole_volume();
        }
        *self = older;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: u64 = 24;
    const ZEROED: RangeChange = RangeChange::Zeroed { may_unmap: true };

    fn range(blocks: Range<u64>) -> Range<BlockNo> {
        BlockNo(blocks.start)..BlockNo(blocks.end)
    }

    /// The changes of each block: whether it is in `blocks`, and the change of its range.
    type Model = Vec<(bool, Option<RangeChange>)>;

    fn model_of(changed: &ChangeSet) -> Model {
        let mut model: Model = (0..BLOCKS).map(|block| (changed.blocks.contains(&BlockNo(block)), None)).collect();
        for (start, (end, change)) in &changed.ranges {
            for block in start.0..end.0 {
                let replaced = model[block as usize].1.replace(*change);
                assert_eq!(replaced, None, "block {block} is in two ranges");
            }
        }
        model
    }

    /// Each change has the same effect on the set as on every block alone, also if a failed flush gives older changes
    /// back.
    #[test]
    fn random_changes_match_a_model_of_each_block() {
        for seed in 0..400 {
            let (mut changed, mut model): (ChangeSet, Model) =
                (ChangeSet::default(), vec![(false, None); BLOCKS as usize]);
            let mut taken: Option<(ChangeSet, Model)> = None;
            let mut state: u64 = seed * 2 + 1;
            for _ in 0..60 {
                state = state.wrapping_mul(6_364_136_223_846_793_005_u64).wrapping_add(1_442_695_040_888_963_407);
                let (kind, first, len) = ((state >> 33) % 8, (state >> 40) % BLOCKS, 1 + (state >> 50) % 6);
                let (block, blocks) = (first as usize, first..(first + len).min(BLOCKS));
                match kind {
                    0 | 1 => {
                        changed.blocks.insert(BlockNo(first));
                        model[block].0 = true;
                    }
                    2 => {
                        changed.blocks.insert(BlockNo(first));
                        changed.cut_ranges(&BlockNo(first).single());
                        model[block] = (true, None);
                    }
                    3 | 4 => {
                        changed.mark_outdated(BlockNo(first));
                        if model[block].0 {
                            model[block] = (false, Some(RangeChange::Outdated));
                        }
                    }
                    5 => {
                        let change = if state & 1 == 0 { ZEROED } else { RangeChange::Outdated };
                        changed.add_range(range(blocks.clone()), change);
                        blocks.for_each(|block| model[block as usize] = (false, Some(change)));
                    }
                    6 if taken.is_none() => {
                        let empty = vec![(false, None); BLOCKS as usize];
                        taken = Some((std::mem::take(&mut changed), std::mem::replace(&mut model, empty)));
                    }
                    _ => {
                        if let Some((older, older_model)) = taken.take() {
                            changed.add_older(older, usize::MAX);
                            for (newer, older) in model.iter_mut().zip(older_model) {
                                *newer = match *newer {
                                    (is_block, Some(change)) => (is_block, Some(change)),
                                    (is_block, None) => (is_block || older.0, older.1),
                                };
                            }
                        }
                    }
                }
                assert_eq!(model_of(&changed), model, "seed {seed}, after a change of kind {kind} at {first}");
                for block in 0..BLOCKS {
                    let is_in_range = changed.overlaps_ranges(&BlockNo(block).single());
                    assert_eq!(is_in_range, model[block as usize].1.is_some(), "seed {seed}, block {block}");
                }
            }
        }
    }

    #[test]
    fn outdated_blocks_become_one_range() {
        let mut changed = ChangeSet::default();
        let order = [4, 2, 3, 7, 6, 5];
        changed.blocks.extend(order.map(BlockNo));
        order.iter().for_each(|block| changed.mark_outdated(BlockNo(*block)));
        assert!(changed.blocks.is_empty() && !changed.has_zeroed_ranges());
        assert_eq!(changed.ranges.into_iter().collect::<Vec<_>>(), [(BlockNo(2), (BlockNo(8), RangeChange::Outdated))]);
    }

    #[test]
    fn scattered_outdated_blocks_never_mark_the_whole_volume() {
        let mut changed = ChangeSet::default();
        let blocks = || (0..4 * RANGES_MAX as u64).map(|number| BlockNo(number * 2));
        changed.blocks.extend(blocks());
        blocks().for_each(|block| changed.mark_outdated(block));
        assert!(!changed.covers_whole_volume && changed.ranges.len() == OUTDATED_RANGES_MAX);
        assert_eq!(changed.blocks.len(), 4 * RANGES_MAX - OUTDATED_RANGES_MAX);
    }
}
