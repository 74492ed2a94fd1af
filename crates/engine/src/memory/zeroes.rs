//! Zero-ranges (R4, docs/rules.md): whole blocks whose newest content is zeroes, kept without memory for each block.
//!
//! Ranges never overlap. A written block leaves its range; the rest of the range stays.

use std::collections::BTreeMap;
use std::ops::Range;

use flash::{Epoch, VolumeId};
use seam::{Nanos, RangeKind, RangeTag};

use super::range_tags::RangeTags;
use super::{BlockNo, UnflushedWrite};

/// Maximum number of zero-ranges in a shard. At the limit a request that adds one waits for destage.
pub const RANGES_MAX: usize = 1 << 12;
/// From this number of ranges on, destage starts without a flush or a waiting request.
pub const DESTAGE_START_RANGES: usize = RANGES_MAX / 2;
/// Longest range that merging creates, in blocks: other writes to the backing can run between two ranges.
const MERGED_BLOCKS_MAX: u64 = 1 << 16;

/// Write-back state of a zero-range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroState {
    /// Not on the backing.
    Dirty,
    /// The operation with this number is writing it to the backing.
    InFlight(u64),
    /// On the backing, not flushed there.
    Written(UnflushedWrite),
}

/// A run of blocks that read as zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroRange {
    /// One past its last block.
    pub end: BlockNo,
    /// Oldest epoch whose content the range carries.
    pub epoch: Epoch,
    /// Its write-back state.
    pub state: ZeroState,
    /// Time at which the range became dirty.
    pub dirty_since: Nanos,
    /// True if the backing may release the space.
    pub may_unmap: bool,
    /// True if only this range still holds acknowledged content, so that a failed write must not abandon it.
    pub holds_acknowledged_data: bool,
}

impl ZeroRange {
    /// True if merging the two ranges loses no information.
    fn merges_with(&self, other: &ZeroRange) -> bool {
        let dirty = self.state == ZeroState::Dirty && other.state == ZeroState::Dirty;
        let same = (self.epoch, self.may_unmap, self.holds_acknowledged_data)
            == (other.epoch, other.may_unmap, other.holds_acknowledged_data);
        dirty && same
    }
}

/// The zero-ranges of a volume.
#[derive(Default)]
pub struct ZeroRanges {
    ranges: BTreeMap<BlockNo, ZeroRange>,
    /// The ranges' tags in persisted memory.
    tags: RangeTags,
}

impl ZeroRanges {
    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// True if there are no ranges.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The range that contains a block.
    pub fn find(&self, block: BlockNo) -> Option<(BlockNo, ZeroRange)> {
        let (start, range) = self.ranges.range(..=block).next_back()?;
        (block < range.end).then_some((*start, *range))
    }

    /// True if a block reads as zeroes because of a range.
    pub fn contains(&self, block: BlockNo) -> bool {
        !self.ranges.is_empty() && self.find(block).is_some()
    }

    /// True if any of `blocks` is in a range.
    pub fn overlaps(&self, blocks: &Range<BlockNo>) -> bool {
        self.ranges.range(..blocks.end).next_back().is_some_and(|(_, range)| range.end > blocks.start)
    }

    /// All ranges, by their first block, in order.
    pub fn iter(&self) -> impl Iterator<Item = (BlockNo, &ZeroRange)> {
        self.ranges.iter().map(|(start, range)| (*start, range))
    }

    /// The range that starts at `start`.
    pub fn get_mut(&mut self, start: BlockNo) -> Option<&mut ZeroRange> {
        self.ranges.get_mut(&start)
    }

    /// Adds a range over blocks that are in no range.
    pub fn insert(&mut self, start: BlockNo, range: ZeroRange) {
        assert!(start < range.end, "a range holds a block at least");
        assert!(!self.overlaps(&(start..range.end)), "zero-ranges do not overlap");
        self.ranges.insert(start, range);
        self.tags.mark_changed(start);
    }

    /// See [`RangeTags::discard_changes`].
    pub fn discard_tag_changes(&mut self) {
        self.tags.discard_changes();
    }

    /// See [`RangeTags::update`].
    pub fn update_tags(&mut self, volume_id: VolumeId, write_tag: impl FnMut(RangeTag) -> Option<u32>) -> Vec<u32> {
        let ranges = &self.ranges;
        let tag_at = |start| {
            let ZeroRange { end, may_unmap, .. } = *ranges.get(&start)?;
            Some(RangeTag { volume_id: volume_id.0, start: start.0, end: end.0, kind: RangeKind::Zeroes { may_unmap } })
        };
        self.tags.update(tag_at, write_tag)
    }

    /// Start of the range that ends at `start`, if the two may be merged.
    pub fn mergeable_predecessor(&self, start: BlockNo) -> Option<BlockNo> {
        let range = self.ranges.get(&start)?;
        let (left, before) = self.ranges.range(..start).next_back()?;
        (before.end == start && before.merges_with(range) && range.end.distance_from(*left) <= MERGED_BLOCKS_MAX)
            .then_some(*left)
    }

    /// Merges the range at `right` into the one at `left`, which ends where it starts.
    pub fn merge(&mut self, left: BlockNo, right: BlockNo) {
        let taken = self.ranges.remove(&right).expect("a range that may be merged");
        let kept = self.ranges.get_mut(&left).expect("a range that may be merged");
        (kept.end, kept.dirty_since) = (taken.end, kept.dirty_since.min(taken.dirty_since));
        [left, right].into_iter().for_each(|start| self.tags.mark_changed(start));
    }

    /// Start of the range that begins where the one at `start` ends.
    pub fn adjacent_successor(&self, start: BlockNo) -> Option<BlockNo> {
        let end = self.ranges.get(&start)?.end;
        self.ranges.contains_key(&end).then_some(end)
    }

    /// First blocks of the ranges in `blocks` that operation `id` is writing.
    pub fn in_flight(&self, blocks: Range<BlockNo>, id: u64) -> Vec<BlockNo> {
        let starts = self.ranges.range(blocks).filter(|(_, range)| range.state == ZeroState::InFlight(id));
        starts.map(|(start, _)| *start).collect()
    }

    /// Removes the range that starts at `start`.
    pub fn remove(&mut self, start: BlockNo) -> Option<ZeroRange> {
        self.tags.mark_changed(start);
        self.ranges.remove(&start)
    }

    /// Cuts `blocks` out of all ranges. Returns the removed ranges and their remainders, from which the caller updates
    /// its counts.
    pub fn cut(&mut self, blocks: Range<BlockNo>) -> CutResult {
        let mut cut = CutResult::default();
        let starts: Vec<BlockNo> = {
            let before = self.ranges.range(..blocks.start).next_back().filter(|(_, range)| range.end > blocks.start);
            before.into_iter().chain(self.ranges.range(blocks.clone())).map(|(start, _)| *start).collect()
        };
        for start in starts {
            let range = self.ranges.remove(&start).expect("a listed range exists");
            cut.removed.push((start, range));
            self.tags.mark_changed(start);
            if start < blocks.start {
                let part = ZeroRange { end: blocks.start, ..range };
                self.ranges.insert(start, part);
                cut.remainders.push((start, part));
            }
            if range.end > blocks.end {
                self.ranges.insert(blocks.end, range);
                self.tags.mark_changed(blocks.end);
                cut.remainders.push((blocks.end, range));
            }
        }
        cut
    }
}

/// Result of [`ZeroRanges::cut`].
#[derive(Debug, Default)]
pub struct CutResult {
    /// The ranges before the cut.
    pub removed: Vec<(BlockNo, ZeroRange)>,
    /// Their remainders.
    pub remainders: Vec<(BlockNo, ZeroRange)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(end: u64) -> ZeroRange {
        ZeroRange {
            end: BlockNo(end),
            epoch: Epoch(1),
            state: ZeroState::Dirty,
            dirty_since: Nanos::ZERO,
            may_unmap: false,
            holds_acknowledged_data: false,
        }
    }

    #[test]
    fn write_in_the_middle_splits_a_range() {
        let mut zeroes = ZeroRanges::default();
        zeroes.insert(BlockNo(10), range(20));
        let cut = zeroes.cut(BlockNo(14).single());
        assert_eq!((cut.removed.len(), cut.remainders.len()), (1, 2));
        assert!(zeroes.contains(BlockNo(13)) && !zeroes.contains(BlockNo(14)) && zeroes.contains(BlockNo(15)));
        assert!(!zeroes.contains(BlockNo(20)) && !zeroes.contains(BlockNo(9)));
    }

    #[test]
    fn only_equal_adjacent_dirty_ranges_merge() {
        let mut zeroes = ZeroRanges::default();
        zeroes.insert(BlockNo(0), range(4));
        zeroes.insert(BlockNo(4), range(8));
        zeroes.insert(BlockNo(8), ZeroRange { may_unmap: true, ..range(12) });
        zeroes.insert(BlockNo(12), ZeroRange { epoch: Epoch(2), may_unmap: true, ..range(16) });
        zeroes.insert(BlockNo(17), range(20));
        assert_eq!(
            [4, 8, 12, 17].map(|start| zeroes.mergeable_predecessor(BlockNo(start))),
            [Some(BlockNo(0)), None, None, None]
        );
        zeroes.merge(BlockNo(0), BlockNo(4));
        assert_eq!((zeroes.find(BlockNo(7)).map(|(start, _)| start), zeroes.len()), (Some(BlockNo(0)), 4));
        assert_eq!(
            (zeroes.adjacent_successor(BlockNo(0)), zeroes.adjacent_successor(BlockNo(12))),
            (Some(BlockNo(8)), None)
        );
    }

    #[test]
    fn cut_across_several_ranges_removes_or_trims_each() {
        let mut zeroes = ZeroRanges::default();
        zeroes.insert(BlockNo(0), range(4));
        zeroes.insert(BlockNo(6), range(8));
        zeroes.insert(BlockNo(9), range(20));
        let cut = zeroes.cut(BlockNo(2)..BlockNo(10));
        assert_eq!((cut.removed.len(), cut.remainders.len()), (3, 2));
        let ranges: Vec<_> = zeroes.iter().map(|(start, range)| (start.0, range.end.0)).collect();
        assert_eq!(ranges, [(0, 2), (10, 20)]);
    }
}
