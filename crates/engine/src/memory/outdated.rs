//! Blocks whose log records may be out of date: their newest content is on the backing, and their tombstones come with
//! the next flush. No other structure records this.
//!
//! The list is needed only where memory outlives the process: after a kill, no old record may overwrite content
//! acknowledged since, flushed or not. Ranges never overlap or touch.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use flash::{BlockNo, VolumeId};
use seam::{RangeKind, RangeTag};

use super::range_tags::RangeTags;

/// Number of ranges above which the log is flushed without a client's request.
const CROWDED: usize = 1_024;
/// Limit of ranges, above what any image of persisted memory can hold. A range without a tag marks the image as
/// incomplete, so dropping further ranges loses nothing.
const RANGES_MAX: usize = 1 << 16;

/// The ranges of a volume whose log records are out of date.
#[derive(Default)]
pub struct Outdated {
    /// First block of each range, and the block past its last.
    ranges: BTreeMap<BlockNo, BlockNo>,
    tags: RangeTags,
}

impl Outdated {
    /// Adds blocks whose newest content no record holds.
    pub fn add(&mut self, blocks: Range<BlockNo>) {
        let (mut start, mut end) = (blocks.start, blocks.end);
        assert!(start < end, "a range holds a block at least");
        if self.ranges.len() > RANGES_MAX {
            return;
        }
        while let Some((left, until)) = self.before(end.next()).filter(|(_, until)| *until >= start) {
            if left <= blocks.start && until >= blocks.end {
                return;
            }
            self.ranges.remove(&left);
            self.tags.mark_changed(left);
            (start, end) = (start.min(left), end.max(until));
        }
        self.ranges.insert(start, end);
        self.tags.mark_changed(start);
    }

    /// Removes blocks whose newest content a record may hold, or of which the log has no record.
    pub fn remove(&mut self, blocks: Range<BlockNo>) {
        while let Some((start, end)) = self.before(blocks.end).filter(|(_, end)| *end > blocks.start) {
            self.ranges.remove(&start);
            self.tags.mark_changed(start);
            for (start, end) in [(start, blocks.start), (blocks.end, end)] {
                if start < end {
                    self.ranges.insert(start, end);
                    self.tags.mark_changed(start);
                }
            }
        }
    }

    /// Keeps only blocks that have changed since the last flush: the written ones in `blocks` and the zeroed ones in
    /// `zeroed`. For all others the log is up to date.
    pub fn keep_only(&mut self, blocks: &BTreeSet<BlockNo>, zeroed: &BTreeMap<BlockNo, BlockNo>) {
        if self.ranges.is_empty() {
            return;
        }
        let ranges = std::mem::take(&mut self.ranges);
        ranges.keys().for_each(|start| self.tags.mark_changed(*start));
        for (start, end) in ranges {
            blocks.range(start..end).for_each(|block| self.add(block.single()));
            for (other_start, other_end) in zeroed.range(..end).filter(|(_, other_end)| **other_end > start) {
                self.add((*other_start).max(start)..(*other_end).min(end));
            }
        }
    }

    /// True if there are so many ranges that the log should be flushed.
    pub fn is_crowded(&self) -> bool {
        self.ranges.len() > CROWDED
    }

    /// See [`RangeTags::update`].
    pub fn update_tags(&mut self, owner: VolumeId, write_tag: impl FnMut(RangeTag) -> Option<u32>) -> Vec<u32> {
        let ranges = &self.ranges;
        let kind = RangeKind::Outdated;
        self.tags.update(
            |start| ranges.get(&start).map(|end| RangeTag { owner: owner.0, start: start.0, end: end.0, kind }),
            write_tag,
        )
    }

    /// The last range that starts before `end`.
    fn before(&self, end: BlockNo) -> Option<(BlockNo, BlockNo)> {
        self.ranges.range(..end).next_back().map(|(start, end)| (*start, *end))
    }
}

#[cfg(test)]
mod tests {
    use seam::sim::Rng;

    use super::*;

    fn blocks_of(range: Range<u64>) -> Range<BlockNo> {
        BlockNo(range.start)..BlockNo(range.end)
    }

    fn ranges(outdated: &Outdated) -> Vec<(u64, u64)> {
        outdated.ranges.iter().map(|(start, end)| (start.0, end.0)).collect()
    }

    /// The blocks covered by the tags, which are stored as the seam stores them.
    fn follow(outdated: &mut Outdated, places: &mut Vec<Option<RangeTag>>) -> BTreeSet<u64> {
        let gone = outdated.update_tags(VolumeId(1), |tag| {
            places.push(Some(tag));
            Some(places.len() as u32 - 1)
        });
        gone.into_iter().for_each(|place| places[place as usize] = None);
        places.iter().flatten().flat_map(|tag| tag.start..tag.end).collect()
    }

    #[test]
    fn adjacent_blocks_merge_and_a_removal_splits_a_range() {
        let mut outdated = Outdated::default();
        [4..5, 6..7, 5..6, 10..20, 12..14].into_iter().for_each(|blocks| outdated.add(blocks_of(blocks)));
        assert_eq!(ranges(&outdated), [(4, 7), (10, 20)]);
        outdated.remove(blocks_of(6..12));
        assert_eq!(ranges(&outdated), [(4, 6), (12, 20)]);
        outdated.remove(blocks_of(14..15));
        assert_eq!(ranges(&outdated), [(4, 6), (12, 14), (15, 20)]);
        let blocks = BTreeSet::from([1, 5, 13].map(BlockNo));
        let zeroed = BTreeMap::from([(14, 16), (19, 30)].map(|(start, end)| (BlockNo(start), BlockNo(end))));
        outdated.keep_only(&blocks, &zeroed);
        assert_eq!(ranges(&outdated), [(5, 6), (13, 14), (15, 16), (19, 20)]);
        outdated.keep_only(&BTreeSet::new(), &BTreeMap::new());
        assert_eq!(ranges(&outdated), []);
    }

    #[test]
    fn tags_match_blocks_added_and_removed() {
        let (rng, mut outdated) = (Rng::new(7, 0), Outdated::default());
        let (mut model, mut places) = (BTreeSet::new(), Vec::new());
        for _ in 0..2_000 {
            let start = rng.below(60);
            let blocks = start..start + 1 + rng.below(6);
            if rng.below(2) == 0 {
                model.extend(blocks.clone());
                outdated.add(blocks_of(blocks));
            } else {
                model.retain(|block| !blocks.contains(block));
                outdated.remove(blocks_of(blocks));
            }
            assert_eq!(follow(&mut outdated, &mut places), model);
        }
    }
}
