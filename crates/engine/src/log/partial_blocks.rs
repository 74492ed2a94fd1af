//! Partial blocks: dirty blocks of which only some sectors are in memory, as clients write them whose requests do not
//! begin and end at blocks. The log takes whole blocks, so the other sectors are read first (R3).
//!
//! A log flush that an operation waits for fills its partial blocks, many at once. One that nothing waits for leaves
//! them out, because the log is faster than these reads. A task then fills them, and a later flush logs them.

use seam::{DiskError, Seam};
use task_sync::{BoxFuture, join};

use crate::backing::Cause;
use crate::log_tracker::ChangeSet;
use crate::memory::{BlockNo, MemoryCache, Sectors};
use crate::shard::{Shard, ShardRef};

/// Maximum number of partial blocks that are filled at once.
const FILLS_MAX: usize = 32;
/// Number of blocks of later chunks that are searched for partial ones.
const WINDOW_BLOCKS: usize = 512;

impl<S: Seam> Shard<S> {
    /// True if only some sectors of the block are in memory, and their content is not on the backing.
    pub fn is_partial(&self, memory: &MemoryCache<S>, block: BlockNo) -> bool {
        memory.find(self.number, block).is_some_and(|id| {
            let slot = memory.slot(id);
            !slot.is_clean() && slot.present != Sectors::ALL
        })
    }

    /// The partial blocks among these changes that a log flush which nothing waits for leaves out.
    pub fn partial_blocks_to_leave_out(&self, memory: &MemoryCache<S>, changed: &ChangeSet) -> Vec<BlockNo> {
        if self.partial_fill_failed.take() {
            return Vec::new();
        }
        let blocks = changed.blocks.iter().copied();
        let is_left_out =
            |block: &BlockNo| self.is_partial(memory, *block) && !changed.overlaps_ranges(&block.single());
        blocks.filter(is_left_out).collect()
    }

    /// Fills blocks that a flush has left out, in a task. While one does so, these are left to a later flush.
    pub fn fill_left_out(self: &ShardRef<S>, blocks: Vec<BlockNo>) {
        if blocks.is_empty() || self.partial_fill_running.replace(true) {
            return;
        }
        let shard = self.clone();
        self.seam().spawn(async move {
            let mut remaining = blocks.as_slice();
            while !remaining.is_empty() && shard.uses_log() && !shard.is_abandoned.get() {
                let partial = shard.first_partial_blocks(&mut remaining, FILLS_MAX, usize::MAX);
                if shard.fill_blocks(&partial).await.iter().any(Result::is_err) {
                    shard.partial_fill_failed.set(true);
                    break;
                }
            }
            shard.partial_fill_running.set(false);
        });
    }

    /// Fills the first of these partial blocks, and of those among the first of the `further` blocks.
    pub async fn fill_partial_blocks(&self, partial: &[BlockNo], further: &[BlockNo]) -> Result<(), DiskError> {
        let mut blocks = partial[..partial.len().min(FILLS_MAX)].to_vec();
        let needed = blocks.len();
        blocks.extend(self.first_partial_blocks(&mut { further }, FILLS_MAX - needed, WINDOW_BLOCKS));
        // A block of a later chunk whose fill fails is filled again with its chunk.
        self.fill_blocks(&blocks).await.into_iter().take(needed).collect()
    }

    /// Takes `blocks` up to a number of partial ones, which it returns. It examines at most `window` blocks.
    fn first_partial_blocks(&self, blocks: &mut &[BlockNo], count: usize, window: usize) -> Vec<BlockNo> {
        self.with(|_, memory| {
            let mut partial = Vec::new();
            for _ in 0..window {
                let Some((block, rest)) = blocks.split_first().filter(|_| partial.len() < count) else { break };
                *blocks = rest;
                partial.extend(self.is_partial(memory, *block).then_some(*block));
            }
            partial
        })
    }

    /// Fills blocks at once: an array serves many reads in the time of one. The first fill waits for a buffer. The
    /// others take only free buffers, so no fill waits for one that another holds. Returns the results of the blocks
    /// that got one.
    async fn fill_blocks(&self, blocks: &[BlockNo]) -> Vec<Result<(), DiskError>> {
        let mut fills: Vec<BoxFuture<'_, Result<(), DiskError>>> = Vec::new();
        for block in blocks.iter().copied() {
            let Some(buffers) = self.core.alloc_all(1, fills.is_empty()).await else { break };
            fills.push(Box::pin(async move {
                let filled = self.fill_into(block.single(), buffers, None, Cause::Destage).await;
                self.counters.add(&self.counters.backing_errors, u64::from(filled.is_err()));
                filled.map(drop)
            }));
        }
        join(fills).await
    }
}
