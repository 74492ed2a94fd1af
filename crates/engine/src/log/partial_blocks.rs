//! Partial blocks: dirty blocks of which only some sectors are in memory. They come from writes that do not begin and
//! end at block boundaries. The log takes whole blocks, so the other sectors are read first (R3).
//!
//! A log flush that an operation waits for fills its partial blocks, many at once. A background flush leaves them out,
//! because the log is faster than these reads. A task then fills them, and a later flush logs them.

use seam::{DiskError, Seam};
use task_sync::{BoxFuture, join};

use crate::backing::Cause;
use crate::log_tracker::ChangeSet;
use crate::memory::{BlockNo, MemoryCache, Sectors};
use crate::shard::{Shard, ShardRef};

/// Maximum number of partial blocks that are filled at once.
const CONCURRENT_FILLS_MAX: usize = 32;
/// Number of blocks that one search for partial ones examines.
const SEARCHED_BLOCKS_MAX: usize = 512;
/// Maximum number of partial blocks that a flush leaves out: each later flush visits them again.
const LEFT_OUT_BLOCKS_MAX: usize = 4_096;

/// Result of the fill of a block.
type BlockFillResult = (BlockNo, Result<(), DiskError>);

impl<S: Seam> Shard<S> {
    /// True if only some sectors of the block are in memory, and their content is not durable on the backing.
    pub fn is_partial(&self, memory: &MemoryCache<S>, block: BlockNo) -> bool {
        memory.find(self.volume_number, block).is_some_and(|id| {
            let slot = memory.slot(id);
            !slot.is_clean() && slot.present != Sectors::ALL
        })
    }

    /// The partial blocks among these changes that a background flush of the log leaves out.
    pub fn partial_blocks_to_leave_out(&self, memory: &MemoryCache<S>, changed: &ChangeSet) -> Vec<BlockNo> {
        let unfillable = self.partial_blocks.unfillable_blocks.take();
        let is_left_out = |block: &BlockNo| {
            self.is_partial(memory, *block) && !changed.overlaps_ranges(&block.single()) && !unfillable.contains(block)
        };
        changed.blocks.iter().copied().filter(is_left_out).take(LEFT_OUT_BLOCKS_MAX).collect()
    }

    /// Starts a task that fills the blocks that a flush has left out. While an earlier task runs, a later flush finds
    /// them again.
    pub fn start_left_out_fills(self: &ShardRef<S>, blocks: Vec<BlockNo>) {
        let state = &self.partial_blocks;
        state.left_out_blocks.set(blocks.len() as u64);
        if blocks.is_empty() || state.is_filling.replace(true) {
            return;
        }
        let shard = self.clone();
        self.seam().spawn(async move {
            let mut remaining = blocks.as_slice();
            while !remaining.is_empty() && shard.uses_log() && !shard.is_abandoned.get() {
                // Destage gets the other half of its part of the queue. A client's read of a block waits for its fill,
                // so no fill waits for long.
                let fills_max = (shard.dispatch.limit_of(Cause::Destage) / 2).clamp(1, CONCURRENT_FILLS_MAX);
                let partial = shard.take_partial_blocks(&mut remaining, fills_max, SEARCHED_BLOCKS_MAX);
                let filled = shard.fill_blocks(&partial).await;
                let state = &shard.partial_blocks;
                state.left_out_blocks.set(state.left_out_blocks.get().saturating_sub(filled.len() as u64));
                shard.destage_work.notify();
                let failed = filled.iter().filter(|(_, result)| result.is_err()).map(|(block, _)| *block);
                state.unfillable_blocks.borrow_mut().extend(failed);
                if state.unfillable_blocks.borrow().len() >= CONCURRENT_FILLS_MAX {
                    // Not the blocks but the backing fails.
                    break;
                }
            }
            shard.partial_blocks.left_out_blocks.set(0);
            shard.partial_blocks.is_filling.set(false);
        });
    }

    /// Fills the first blocks of `partial`, and at once with them the partial ones among the first `further` blocks.
    /// Fails with the first error of a block of `partial`.
    pub async fn fill_partial_blocks(&self, partial: &[BlockNo], further: &[BlockNo]) -> Result<(), DiskError> {
        let mut blocks = partial[..partial.len().min(CONCURRENT_FILLS_MAX)].to_vec();
        let needed = blocks.len();
        blocks.extend(self.take_partial_blocks(&mut { further }, CONCURRENT_FILLS_MAX - needed, SEARCHED_BLOCKS_MAX));
        let is_awaited = self.flush_batcher.is_run_awaited();
        let awaited_fill_groups = &self.partial_blocks.awaited_fill_groups;
        awaited_fill_groups.update(|count| count + u32::from(is_awaited));
        self.destage_work.notify();
        let filled = self.fill_blocks(&blocks).await;
        awaited_fill_groups.update(|count| count - u32::from(is_awaited));
        // A block of a later chunk whose fill fails is filled again with its chunk.
        filled.into_iter().take(needed).try_for_each(|(_, result)| result)?;
        if self.with_state(|_, memory| blocks.iter().take(needed).all(|block| self.is_partial(memory, *block))) {
            // No buffer was free for the merged content.
            self.core.pause_for_buffers().await;
        }
        Ok(())
    }

    /// Takes blocks from the front of `blocks` until it has `partial_blocks_max` partial ones, which it returns. It
    /// takes at most `examined_blocks_max` blocks.
    fn take_partial_blocks(
        &self,
        blocks: &mut &[BlockNo],
        partial_blocks_max: usize,
        examined_blocks_max: usize,
    ) -> Vec<BlockNo> {
        self.with_state(|_, memory| {
            let mut partial = Vec::new();
            for _ in 0..examined_blocks_max {
                let Some((block, rest)) = blocks.split_first().filter(|_| partial.len() < partial_blocks_max) else {
                    break;
                };
                *blocks = rest;
                partial.extend(self.is_partial(memory, *block).then_some(*block));
            }
            partial
        })
    }

    /// Fills blocks at once: an array serves many reads in the time of one. The first fill waits for a buffer, and the
    /// others do not, so no fill waits for one that another holds. A block that is being filled is not read again.
    /// Returns the results of the blocks that got a buffer.
    async fn fill_blocks(&self, blocks: &[BlockNo]) -> Vec<BlockFillResult> {
        let mut fills: Vec<BoxFuture<'_, BlockFillResult>> = Vec::new();
        for block in blocks.iter().copied() {
            let guard = self.with_state(|state, memory| {
                let present =
                    memory.find(self.volume_number, block).map_or(Sectors::NONE, |id| memory.slot(id).present);
                state.fill_guard_for(block, Sectors::ALL.without(present)).cloned()
            });
            if let Some(guard) = guard {
                fills.push(Box::pin(async move {
                    guard.wait_for_end().await;
                    (block, Ok(()))
                }));
                continue;
            }
            let Some(buffers) = self.core.alloc_all(1, fills.is_empty()).await else { break };
            fills.push(Box::pin(async move {
                let filled = self.fill_into(block.single(), buffers, None, Cause::Destage).await;
                self.counters.add(&self.counters.backing_errors, u64::from(filled.is_err()));
                (block, filled.map(drop))
            }));
        }
        join(fills).await
    }
}
