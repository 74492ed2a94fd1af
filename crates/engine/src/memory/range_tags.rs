//! Range tags in persisted memory, updated as the ranges change. Each records a range of blocks whose newest content is
//! zeroes, or for which the records in the log are outdated.

use std::collections::BTreeMap;

use flash::BlockNo;
use seam::RangeTag;

/// Range tags of one kind (zeroes or outdated) of a volume, keyed by first block.
#[derive(Default)]
pub struct RangeTags {
    /// First blocks of ranges that appeared, disappeared or changed their end since the last update.
    changed_ranges: Vec<BlockNo>,
    /// Tags now in persisted memory, each with its index there; `None` if the table of range tags was full.
    stored_tags: BTreeMap<BlockNo, (RangeTag, Option<u32>)>,
}

impl RangeTags {
    /// Records that the range at `start` has changed.
    pub fn mark_changed(&mut self, start: BlockNo) {
        self.changed_ranges.push(start);
    }

    /// Discards the recorded changes, for a daemon without persisted memory.
    pub fn discard_changes(&mut self) {
        self.changed_ranges.clear();
    }

    /// Writes the tags of changed ranges through `write_tag`; `range_at` returns the present range at a first block.
    /// Returns the indexes of obsolete tags, which the caller removes.
    pub fn update(
        &mut self,
        range_at: impl Fn(BlockNo) -> Option<RangeTag>,
        mut write_tag: impl FnMut(RangeTag) -> Option<u32>,
    ) -> Vec<u32> {
        let mut obsolete = Vec::new();
        for start in std::mem::take(&mut self.changed_ranges) {
            let present = range_at(start);
            if present == self.stored_tags.get(&start).map(|(tag, _)| *tag) {
                continue;
            }
            // The new tag is written before the caller removes the old one: in the other order, a kill in between
            // would leave the range without a tag. In this order it leaves both, and both count: outdated ranges are
            // merged, and zeroes of either range are written again. Newer tags of blocks override zeroes.
            let old = match present {
                Some(present) => self.stored_tags.insert(start, (present, write_tag(present))),
                None => self.stored_tags.remove(&start),
            };
            obsolete.extend(old.and_then(|(_, index)| index));
        }
        obsolete
    }
}
