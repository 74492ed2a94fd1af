//! Blocks whose log records may be out of date: their newest content is on the backing, and the next flush appends
//! their tombstones. Only this list records them until then.
//!
//! The list is needed only where memory outlives the process: after a kill, no old record may overwrite content
//! acknowledged since, flushed or not. Ranges never overlap or touch.

use std::collections::BTreeMap;
use std::ops::Range;

use flash::{BlockNo, VolumeId};
use seam::{RangeKind, RangeTag};

use super::range_tags::RangeTags;

/// Number of ranges above which the log is flushed without a client's request.
const FLUSH_ABOVE_RANGES: usize = 1_024;
/// Number of ranges above which none is added. Persisted memory has no more tags than this, so its image is marked
/// incomplete by then; further ranges can be dropped safely.
const RANGES_MAX: usize = 1 << 16;

/// The ranges of a volume whose log records are out of date.
#[derive(Default)]
pub struct OutdatedRanges {
    /// First block of each range, and the block past its last.
    ranges: BTreeMap<BlockNo, BlockNo>,
    tags: RangeTags,
}

impl OutdatedRanges {
    /// Adds blocks whose newest content no record holds.
    pub fn add(&mut self, blocks: Range<BlockNo>) {
        let (mut start, mut end) = (blocks.start, blocks.end);
        assert!(start < end, "a range holds a block at least");
        if self.ranges.len() > RANGES_MAX {
            return;
        }
        while let Some((left, left_end)) = self.last_before(end.next()).filter(|(_, left_end)| *left_end >= start) {
            if left <= blocks.start && left_end >= blocks.end {
                return;
            }
            self.ranges.remove(&left);
            self.tags.mark_changed(left);
            (start, end) = (start.min(left), end.max(left_end));
        }
        self.ranges.insert(start, end);
        self.tags.mark_changed(start);
    }

    /// Removes blocks whose newest content a record may hold, or of which the log has no record.
    pub fn remove(&mut self, blocks: Range<BlockNo>) {
        while let Some((start, end)) = self.last_before(blocks.end).filter(|(_, end)| *end > blocks.start) {
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

    /// Keeps only blocks that have changed since the last flush: `changed_parts` of each range. For all others the log
    /// is up to date.
    pub fn keep_only(&mut self, changed_parts: impl Fn(Range<BlockNo>) -> Vec<Range<BlockNo>>) {
        if self.ranges.is_empty() {
            return;
        }
        let ranges = std::mem::take(&mut self.ranges);
        ranges.keys().for_each(|start| self.tags.mark_changed(*start));
        for (start, end) in ranges {
            changed_parts(start..end).into_iter().for_each(|part| self.add(part));
        }
    }

    /// True if there are so many ranges that the log should be flushed.
    pub fn needs_flush(&self) -> bool {
        self.ranges.len() > FLUSH_ABOVE_RANGES
    }

    /// See [`RangeTags::update`].
    pub fn update_tags(&mut self, volume_id: VolumeId, write_tag: impl FnMut(RangeTag) -> Option<u32>) -> Vec<u32> {
        let ranges = &self.ranges;
        let kind = RangeKind::Outdated;
        self.tags.update(
            |start| ranges.get(&start).map(|end| RangeTag { volume_id: volume_id.0, start: start.0, end: end.0, kind }),
            write_tag,
        )
    }

    /// The last range that starts before `end`.
    fn last_before(&self, end: BlockNo) -> Option<(BlockNo, BlockNo)> {
        self.ranges.range(..end).next_back().map(|(start, end)| (*start, *end))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use seam::sim::Rng;

    use super::*;

    fn blocks_of(range: Range<u64>) -> Range<BlockNo> {
        BlockNo(range.start)..BlockNo(range.end)
    }

    fn ranges(outdated: &OutdatedRanges) -> Vec<(u64, u64)> {
        outdated.ranges.iter().map(|(start, end)| (start.0, end.0)).collect()
    }

    /// Updates `tags`, which stand for the seam's table of range tags, and returns the blocks that they cover.
    fn apply_tags(outdated: &mut OutdatedRanges, tags: &mut Vec<Option<RangeTag>>) -> BTreeSet<u64> {
        let obsolete = outdated.update_tags(VolumeId(1), |tag| {
            tags.push(Some(tag));
            Some(tags.len() as u32 - 1)
        });
        obsolete.into_iter().for_each(|index| tags[index as usize] = None);
        tags.iter().flatten().flat_map(|tag| tag.start..tag.end).collect()
    }

    #[test]
    fn adjacent_blocks_merge_and_a_removal_splits_a_range() {
        let mut outdated = OutdatedRanges::default();
        [4..5, 6..7, 5..6, 10..20, 12..14].into_iter().for_each(|blocks| outdated.add(blocks_of(blocks)));
        assert_eq!(ranges(&outdated), [(4, 7), (10, 20)]);
        outdated.remove(blocks_of(6..12));
        assert_eq!(ranges(&outdated), [(4, 6), (12, 20)]);
        outdated.remove(blocks_of(14..15));
        assert_eq!(ranges(&outdated), [(4, 6), (12, 14), (15, 20)]);
        outdated.keep_only(|blocks| match blocks.start.0 {
            4 => vec![blocks_of(5..6)],
            12 => vec![blocks_of(13..14)],
            _ => vec![blocks_of(15..16), blocks_of(19..20)],
        });
        assert_eq!(ranges(&outdated), [(5, 6), (13, 14), (15, 16), (19, 20)]);
        outdated.keep_only(|_| Vec::new());
        assert_eq!(ranges(&outdated), []);
    }

    #[test]
    fn tags_match_blocks_added_and_removed() {
        let (rng, mut outdated) = (Rng::new(7, 0), OutdatedRanges::default());
        let (mut model, mut tags) = (BTreeSet::new(), Vec::new());
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
            assert_eq!(apply_tags(&mut outdated, &mut tags), model);
        }
    }
}
