//! Dirty blocks in address order, and the next run of adjacent blocks to write.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::memory::{BLOCKS_PER_PAGE, BlockNo, PageNo};

/// The dirty blocks of a volume that are not in flight to the backing.
#[derive(Default)]
pub struct DirtyBlocks {
    /// A mask of the dirty blocks of each page that has any.
    pages: BTreeMap<PageNo, u16>,
    block_count: u64,
}

impl DirtyBlocks {
    /// Number of blocks.
    pub fn len(&self) -> u64 {
        self.block_count
    }

    /// Adds a block; it may be present already.
    pub fn insert(&mut self, block: BlockNo) {
        let (page, bit) = block.page();
        let mask = self.pages.entry(page).or_insert(0);
        self.block_count += u64::from(*mask & (1 << bit) == 0);
        *mask |= 1 << bit;
    }

    /// Removes a block, if present.
    pub fn remove(&mut self, block: BlockNo) {
        let (page, bit) = block.page();
        if let Some(mask) = self.pages.get_mut(&page)
            && *mask & (1 << bit) != 0
        {
            *mask &= !(1 << bit);
            self.block_count -= 1;
            if *mask == 0 {
                self.pages.remove(&page);
            }
        }
    }

    /// True if the block is present.
    pub fn contains(&self, block: BlockNo) -> bool {
        let (page, bit) = block.page();
        self.pages.get(&page).is_some_and(|mask| mask & (1 << bit) != 0)
    }

    /// The blocks from `from` on, in order.
    pub fn iter_from(&self, from: BlockNo) -> impl Iterator<Item = BlockNo> + '_ {
        let blocks = self.pages.range(from.page().0..).flat_map(|(page, mask)| {
            let (page, mask) = (*page, *mask);
            (0..BLOCKS_PER_PAGE).filter(move |bit| mask & (1 << bit) != 0).map(move |bit| page.block(bit))
        });
        blocks.skip_while(move |block| *block < from)
    }

    /// The run around the first block from `from` on that `is_eligible` accepts: extended both ways over neighbours
    /// that `joins` accepts, within the block's stripe of `boundary_blocks` blocks. Examines at most
    /// `examined_blocks_max` blocks; `Err` holds the block at which to continue.
    pub fn next_run(
        &self,
        from: BlockNo,
        boundary_blocks: u64,
        examined_blocks_max: usize,
        mut is_eligible: impl FnMut(BlockNo) -> bool,
        mut joins: impl FnMut(BlockNo) -> bool,
    ) -> Result<Option<Range<BlockNo>>, BlockNo> {
        assert!(boundary_blocks > 0, "a run has a longest length");
        for (examined, first) in self.iter_from(from).enumerate() {
            if examined >= examined_blocks_max {
                return Err(first);
            }
            if !is_eligible(first) {
                continue;
            }
            // An eligible block in the middle of a dirty run takes along the blocks before it, too.
            let stripe_start = first.align_down(boundary_blocks);
            let mut start = first;
            while start > stripe_start && self.contains(start.previous()) && joins(start.previous()) {
                start = start.previous();
            }
            let mut end = first.next();
            while end < stripe_start.plus(boundary_blocks) && self.contains(end) && joins(end) {
                end = end.next();
            }
            return Ok(Some(start..end));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dirty(blocks: &[u64]) -> DirtyBlocks {
        let mut dirty_blocks = DirtyBlocks::default();
        blocks.iter().for_each(|block| dirty_blocks.insert(BlockNo(*block)));
        dirty_blocks
    }

    #[test]
    fn adjacent_blocks_are_merged_up_to_the_stripe() {
        let dirty_blocks = dirty(&[3, 14, 15, 16, 17, 31, 32, 40]);
        let blocks = |start, end| Some(BlockNo(start)..BlockNo(end));
        let run = |from| dirty_blocks.next_run(BlockNo(from), 16, 100, |_| true, |_| true).expect("few blocks");
        assert_eq!(run(0), blocks(3, 4));
        assert_eq!(run(4), blocks(14, 16));
        assert_eq!(run(16), blocks(16, 18));
        assert_eq!(run(17), blocks(16, 18), "extended back to the start of the stripe");
        assert_eq!(run(18), blocks(31, 32));
        assert_eq!(run(41), None);
    }

    #[test]
    fn search_is_bounded() {
        let dirty_blocks = dirty(&(0..100).collect::<Vec<_>>());
        assert_eq!(dirty_blocks.next_run(BlockNo(0), 16, 10, |_| false, |_| true), Err(BlockNo(10)));
        assert_eq!(dirty_blocks.next_run(BlockNo(95), 16, 10, |_| false, |_| true), Ok(None));
    }

    #[test]
    fn blocks_are_counted_once() {
        let mut dirty_blocks = dirty(&[1, 1, 2]);
        assert_eq!(dirty_blocks.len(), 2);
        dirty_blocks.remove(BlockNo(1));
        dirty_blocks.remove(BlockNo(1));
        assert_eq!(dirty_blocks.len(), 1);
        assert!(!dirty_blocks.contains(BlockNo(1)) && dirty_blocks.contains(BlockNo(2)));
    }
}
