//! Reads from flash, as part of a fill.

use std::ops::Range;

use flash::{BlockNo, PageReadError};
use seam::{BLOCK_BYTES, Nanos, Seam};

use super::page_and_index;
use crate::backing::Priority;
use crate::shard::Shard;

/// Result of reading a range from flash: the blocks found, and buffers for the others.
pub struct FlashRead<S: Seam> {
    /// Content, by block.
    pub content: Vec<Option<S::Block>>,
    /// A buffer for each block without content.
    pub buffers: Vec<Option<S::BlockMut>>,
    /// Number of blocks on flash that could not be read.
    pub unreadable: usize,
    /// Time spent waiting for I/O slots.
    pub waited: Nanos,
}

impl<S: Seam> FlashRead<S> {
    /// Runs of blocks without content, as indexes into the range.
    pub fn missing(&self) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for index in (0..self.content.len()).filter(|index| self.content[*index].is_none()) {
            match runs.last_mut() {
                Some(run) if run.end == index => run.end += 1,
                _ => runs.push(index..index + 1),
            }
        }
        runs
    }
}

impl<S: Seam> Shard<S> {
    /// Reads the blocks at both ends of the range that are on flash. Blocks between two missing ones are left to the
    /// backing, which has to pass over them anyway.
    pub async fn read_from_flash(
        &self,
        blocks: Range<BlockNo>,
        buffers: Vec<S::BlockMut>,
        priority: Priority,
    ) -> FlashRead<S> {
        let mut read_result = FlashRead {
            content: buffers.iter().map(|_| None).collect(),
            buffers: buffers.into_iter().map(Some).collect(),
            unreadable: 0,
            waited: Nanos::ZERO,
        };
        let Some(pages) = self.readable_pages().cloned() else { return read_result };
        let is_on_flash = |block: BlockNo| {
            let (page, index) = page_and_index(block);
            pages.valid_blocks(page) >> index & 1 == 1
        };
        let head = BlockNo::each(&blocks).take_while(|block| is_on_flash(*block)).count() as u64;
        let tail =
            BlockNo::each(&(blocks.start.plus(head)..blocks.end)).rev().take_while(|block| is_on_flash(*block)).count()
                as u64;
        let mut read_blocks = 0;
        for part in [blocks.start.run(head), blocks.end.minus(tail)..blocks.end] {
            let mut next = part.start;
            while next < part.end {
                let (page, from) = page_and_index(next);
                let end = part.end.min(page.next().first_block());
                let indexes = next.since(blocks.start) as usize..end.since(blocks.start) as usize;
                let run_buffers = indexes.clone().map(|index| read_result.buffers[index].take().expect("read once"));
                let run_buffers: Vec<_> = run_buffers.collect();
                let run = from..from + indexes.len() as u32;
                let io_slot = self.acquire_flash_slot(end.since(next) * BLOCK_BYTES as u64, priority).await;
                read_result.waited += io_slot.waited;
                let blocks = pages.read(page, run, run_buffers).await;
                drop(io_slot);
                for (index, block) in indexes.zip(blocks) {
                    match block {
                        Ok(block) => {
                            read_result.content[index] = Some(block);
                            read_blocks += 1;
                        }
                        Err(unread) => {
                            read_result.unreadable += usize::from(matches!(unread, PageReadError::Bad(_)));
                            read_result.buffers[index] = Some(unread.into_buffer());
                        }
                    }
                }
                next = end;
            }
        }
        let counters = &self.flash_tier.counters;
        counters.add(&counters.read_blocks, read_blocks);
        counters.add(&counters.bad_blocks, read_result.unreadable as u64);
        read_result
    }
}
