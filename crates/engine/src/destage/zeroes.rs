//! Zero-ranges (R4): whole blocks whose newest content is zeroes, without a block of memory for each.
//!
//! Ranges never overlap each other. A block that is written leaves its range; what is left of the range stays.

use std::collections::BTreeMap;
use std::ops::Range;

use seam::Nanos;

use crate::memory::{BlockNo, Written};

/// How far a zero-range has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroState {
    /// Not on the backing.
    Dirty,
    /// On its way by that operation.
    InFlight(u64),
    /// On the backing, not flushed there.
    Written(Written),
}

/// A run of blocks that read as zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroRange {
    /// One past its last block.
    pub end: u64,
    /// Oldest epoch whose content it carries.
    pub epoch: u64,
    /// How far it has come.
    pub state: ZeroState,
    /// Since when it has been dirty.
    pub since: Nanos,
    /// Space may be released.
    pub may_unmap: bool,
    /// Something in it was acknowledged and only this range still has it: a failure must not take it along.
    pub owed: bool,
}

/// The zero-ranges of a volume.
#[derive(Default)]
pub struct ZeroRanges {
    ranges: BTreeMap<u64, ZeroRange>,
}

impl ZeroRanges {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The range that holds a block.
    pub fn find(&self, block: BlockNo) -> Option<(u64, ZeroRange)> {
        let (start, range) = self.ranges.range(..=block.0).next_back()?;
        (block.0 < range.end).then_some((*start, *range))
    }

    /// True when a block reads as zeroes because of a range.
    pub fn contains(&self, block: BlockNo) -> bool {
        !self.ranges.is_empty() && self.find(block).is_some()
    }

    /// All ranges, by their first block, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &ZeroRange)> {
        self.ranges.iter().map(|(start, range)| (*start, range))
    }

    /// The range that begins at `start`.
    pub fn get_mut(&mut self, start: u64) -> Option<&mut ZeroRange> {
        self.ranges.get_mut(&start)
    }

    /// Adds a range over blocks that no range holds.
    pub fn insert(&mut self, start: u64, range: ZeroRange) {
        assert!(start < range.end, "a range holds a block at least");
        let overlap = self.ranges.range(..range.end).next_back().is_some_and(|(_, other)| other.end > start);
        assert!(!overlap, "zero-ranges do not overlap");
        self.ranges.insert(start, range);
    }

    /// Takes the range that begins at `start` away.
    pub fn remove(&mut self, start: u64) -> Option<ZeroRange> {
        self.ranges.remove(&start)
    }

    /// Cuts `blocks` out of all ranges; what is left of them stays. Returns the parts that were cut out, and how many ranges
    /// there are more (or less) than before, by epoch, so that counts can follow.
    pub fn cut(&mut self, blocks: Range<u64>) -> Cut {
        let mut cut = Cut::default();
        let starts: Vec<u64> = {
            let before = self.ranges.range(..blocks.start).next_back().filter(|(_, range)| range.end > blocks.start);
            before.into_iter().chain(self.ranges.range(blocks.clone())).map(|(start, _)| *start).collect()
        };
        for start in starts {
            let range = self.ranges.remove(&start).expect("just seen");
            cut.removed.push((start, range));
            if start < blocks.start {
                let left = ZeroRange { end: blocks.start, ..range };
                self.ranges.insert(start, left);
                cut.left.push((start, left));
            }
            if range.end > blocks.end {
                self.ranges.insert(blocks.end, range);
                cut.left.push((blocks.end, range));
            }
        }
        cut
    }
}

/// What [`ZeroRanges::cut`] did: ranges as they were, and what is left of them.
#[derive(Debug, Default)]
pub struct Cut {
    /// Ranges that are no more as they were.
    pub removed: Vec<(u64, ZeroRange)>,
    /// What is left of them.
    pub left: Vec<(u64, ZeroRange)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(end: u64) -> ZeroRange {
        ZeroRange { end, epoch: 1, state: ZeroState::Dirty, since: Nanos::ZERO, may_unmap: false, owed: false }
    }

    #[test]
    fn a_block_written_in_the_middle_leaves_two_ranges() {
        let mut zeroes = ZeroRanges::default();
        zeroes.insert(10, range(20));
        let cut = zeroes.cut(14..15);
        assert_eq!((cut.removed.len(), cut.left.len()), (1, 2));
        assert!(zeroes.contains(BlockNo(13)) && !zeroes.contains(BlockNo(14)) && zeroes.contains(BlockNo(15)));
        assert!(!zeroes.contains(BlockNo(20)) && !zeroes.contains(BlockNo(9)));
    }

    #[test]
    fn a_cut_over_several_ranges_takes_all_of_them() {
        let mut zeroes = ZeroRanges::default();
        zeroes.insert(0, range(4));
        zeroes.insert(6, range(8));
        zeroes.insert(9, range(20));
        let cut = zeroes.cut(2..10);
        assert_eq!((cut.removed.len(), cut.left.len()), (3, 2));
        let left: Vec<_> = zeroes.iter().map(|(start, range)| (start, range.end)).collect();
        assert_eq!(left, [(0, 2), (10, 20)]);
    }
}
