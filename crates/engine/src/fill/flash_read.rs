//! Reads from flash, as part of a fill.

use std::ops::Range;

use flash::{BlockAddress, BlockNo, PageReadError, Position, ReadRequest};
use seam::{BLOCK_BYTES, Nanos, Seam};

use crate::backing::Priority;
use crate::flash_tier::page_and_index;
use crate::shard::Shard;

/// Result of reading a range from flash: the blocks found, and buffers for the others.
pub struct FlashRead<S: Seam> {
    /// Content, by block.
    pub content: Vec<Option<S::Block>>,
    /// A buffer for each block without content.
    pub buffers: Vec<Option<S::BlockMut>>,
    /// Number of blocks on flash that could not be read.
    pub unreadable_blocks: usize,
    /// Time spent waiting for I/O slots.
    pub slot_wait: Nanos,
}

impl<S: Seam> FlashRead<S> {
    /// Runs of blocks without content, as indexes into the range.
    pub fn missing_runs(&self) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for index in (0..self.content.len()).filter(|index| self.content[*index].is_none()) {
            match runs.last_mut() {
                Some(run) if run.end == index => run.end += 1,
                _ => runs.push(index..index + 1),
            }
        }
        runs
    }

    /// The buffers of these blocks of the range.
    fn take_buffers(&mut self, range: &Range<BlockNo>, blocks: &[BlockNo]) -> Vec<S::BlockMut> {
        let indexes = blocks.iter().map(|block| block.distance_from(range.start) as usize);
        indexes.map(|index| self.buffers[index].take().expect("a block is read once")).collect()
    }

    /// Records the results of reading these blocks of the range. Returns the number of blocks with content.
    fn record_results(
        &mut self,
        range: &Range<BlockNo>,
        blocks: &[BlockNo],
        read: Vec<Result<S::Block, PageReadError<S::BlockMut>>>,
    ) -> u64 {
        let mut read_blocks = 0;
        for (block, result) in blocks.iter().zip(read) {
            let index = block.distance_from(range.start) as usize;
            match result {
                Ok(content) => {
                    self.content[index] = Some(content);
                    read_blocks += 1;
                }
                Err(unread) => {
                    self.unreadable_blocks += usize::from(matches!(unread, PageReadError::Bad(_)));
                    self.buffers[index] = Some(unread.into_buffer());
                }
            }
        }
        read_blocks
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
            unreadable_blocks: 0,
            slot_wait: Nanos::ZERO,
        };
        let pages = self.readable_pages().cloned();
        let is_in_page = |block: BlockNo| {
            let (page, index) = page_and_index(block);
            pages.as_ref().is_some_and(|pages| pages.valid_blocks(page) >> index & 1 == 1)
        };
        let is_on_flash = |block: &BlockNo| is_in_page(*block) || self.kept_position(*block).is_some();
        let head = BlockNo::each(&blocks).take_while(is_on_flash).count() as u64;
        let tail = BlockNo::each(&(blocks.start.plus(head)..blocks.end)).rev().take_while(is_on_flash).count() as u64;
        let parts = [blocks.start.range_of_len(head), blocks.end.minus(tail)..blocks.end];
        let (in_pages, in_log): (Vec<BlockNo>, Vec<BlockNo>) =
            parts.iter().flat_map(BlockNo::each).partition(|block| is_in_page(*block));
        let mut read_blocks = 0;
        let are_adjacent_in_page =
            |block: &BlockNo, next: &BlockNo| block.next() == *next && block.page().0 == next.page().0;
        for run in in_pages.chunk_by(are_adjacent_in_page) {
            let Some(pages) = &pages else { break };
            let (page, from) = page_and_index(run[0]);
            let io_slot = self.acquire_flash_slot((run.len() * BLOCK_BYTES) as u64, priority).await;
            read_result.slot_wait += io_slot.slot_wait;
            let buffers = read_result.take_buffers(&blocks, run);
            let read = pages.read(page, from..from + run.len() as u32, buffers).await;
            drop(io_slot);
            read_blocks += read_result.record_results(&blocks, run, read);
        }
        read_blocks += self.read_kept(&blocks, &in_log, &mut read_result, priority).await;
        let counters = &self.flash_tier.counters;
        counters.add(&counters.read_blocks, read_blocks);
        counters.add(&counters.bad_blocks, read_result.unreadable_blocks as u64);
        read_result
    }

    /// Reads blocks of a range from their kept records. Returns the number of blocks with content.
    async fn read_kept(
        &self,
        range: &Range<BlockNo>,
        blocks: &[BlockNo],
        read_result: &mut FlashRead<S>,
        priority: Priority,
    ) -> u64 {
        let kept = blocks.iter().filter_map(|block| Some((*block, self.kept_position(*block)?)));
        let (blocks, positions): (Vec<BlockNo>, Vec<Position>) = kept.unzip();
        let Some(store) = self.core.log().filter(|_| !blocks.is_empty()) else { return 0 };
        let io_slot = self.acquire_flash_slot((blocks.len() * BLOCK_BYTES) as u64, priority).await;
        read_result.slot_wait += io_slot.slot_wait;
        let buffers = read_result.take_buffers(range, &blocks);
        let addresses = blocks.iter().map(|block| BlockAddress { volume_id: self.volume_id, block: *block });
        let requests = addresses.zip(&positions).zip(buffers);
        let requests = requests
            .map(|((address, position), buffer)| ReadRequest { address, position: *position, buffer })
            .collect();
        let read = store.read_kept(requests).await;
        drop(io_slot);
        for ((block, position), result) in blocks.iter().zip(&positions).zip(&read) {
            if matches!(result, Err(PageReadError::Bad(_))) {
                self.kept_records.borrow_mut().remove_position(*block, *position);
            }
        }
        let read_blocks = read_result.record_results(range, &blocks, read);
        let counters = &self.flash_tier.counters;
        counters.add(&counters.kept_blocks_read, read_blocks);
        read_blocks
    }
}
