//! Blocks that a flush of the backing has made durable: input of the ring of recent writes, of refreshes, and of the
//! removal of transit blocks from memory.

use std::collections::VecDeque;
use std::ops::Range;

use crate::memory::BlockNo;

/// Blocks that have just become durable on the backing, and clean.
pub struct DestagedBlocks<B> {
    /// The last ones, at most `LAST_BLOCKS_MAX`, with their content; `None`: zeroes.
    pub last_blocks: VecDeque<(BlockNo, Option<B>)>,
    /// The first ones, at most `FIRST_BLOCKS_MAX`.
    pub first_blocks: Vec<BlockNo>,
    /// The last ones of which memory holds only a part, at most [`PARTIAL_BLOCKS_MAX`].
    pub partial_blocks: VecDeque<BlockNo>,
    /// The transit blocks among them.
    pub transit_blocks: Vec<BlockNo>,
}

/// Maximum number of blocks in [`DestagedBlocks::last_blocks`].
const LAST_BLOCKS_MAX: usize = 256;
/// Maximum number of blocks in [`DestagedBlocks::partial_blocks`].
pub const PARTIAL_BLOCKS_MAX: usize = 32;
/// Maximum number of blocks in [`DestagedBlocks::first_blocks`].
const FIRST_BLOCKS_MAX: usize = 4_096;
/// Maximum number of blocks of one zero-range in [`DestagedBlocks::last_blocks`], spread over the range, so that other
/// blocks fit.
const BLOCKS_PER_RANGE_MAX: u64 = 8;

impl<B> Default for DestagedBlocks<B> {
    fn default() -> Self {
        DestagedBlocks {
            last_blocks: VecDeque::new(),
            first_blocks: Vec::new(),
            partial_blocks: VecDeque::new(),
            transit_blocks: Vec::new(),
        }
    }
}

impl<B> DestagedBlocks<B> {
    /// Adds a whole block.
    pub fn add(&mut self, block: BlockNo, content: B) {
        self.add_last(block, Some(content));
        if self.first_blocks.len() < FIRST_BLOCKS_MAX {
            self.first_blocks.push(block);
        }
    }

    /// Adds a block of which memory holds only a part.
    pub fn add_partial(&mut self, block: BlockNo) {
        if self.partial_blocks.len() == PARTIAL_BLOCKS_MAX {
            self.partial_blocks.pop_front();
        }
        self.partial_blocks.push_back(block);
    }

    /// Adds a zero-range.
    pub fn add_zeroes(&mut self, blocks: Range<BlockNo>) {
        let count = BlockNo::count(&blocks);
        let sample_count = count.min(BLOCKS_PER_RANGE_MAX);
        (0..sample_count).for_each(|number| self.add_last(blocks.start.plus(number * count / sample_count), None));
    }

    fn add_last(&mut self, block: BlockNo, content: Option<B>) {
        if self.last_blocks.len() == LAST_BLOCKS_MAX {
            self.last_blocks.pop_front();
        }
        self.last_blocks.push_back((block, content));
    }
}
