//! Frees space at the tail of a full log. The tail moves over whole segments in order, so destaging the records in the
//! oldest segments suffices.

use std::ops::Range;
use std::rc::Rc;

use seam::Seam;

use crate::RequestError;
use crate::fill::reload::ReloadReason;
use crate::memory::{BlockNo, Sectors};
use crate::shard::write_wait::{WaitFor, WriteWait};
use crate::shard::{Shard, ShardRef};

/// Blocks destaged in one batch.
const DESTAGE_BATCH_BLOCKS: usize = 256;
/// Spilled blocks reloaded in one run.
const RELOAD_RUN_BLOCKS: u64 = 64;

impl<S: Seam> Shard<S> {
    /// Destages this volume's blocks whose records are in the oldest segments, and flushes the backing. It does not
    /// wait for blocks in flight without newer content, nor for spilled blocks under another task's fill guard: a full
    /// destage covers them.
    pub(super) async fn destage_log_tail(self: &ShardRef<S>) -> Result<(), RequestError> {
        let Some(store) = self.core.log() else { return Err(RequestError::ShuttingDown) };
        let segments = store.oldest_segments();
        let blocks = self.state.borrow().log_tracker.blocks_in_segments(&segments);
        let has_zeroes = self.state.borrow().log_tracker.has_zeroes_in_segments(&segments);
        if has_zeroes {
            self.flush_zeroes().await?;
        }
        if blocks.is_empty() {
            return Ok(());
        }
        let backing_losses = self.state.borrow().backing_losses;
        for batch in blocks.chunks(DESTAGE_BATCH_BLOCKS) {
            for run in batch.chunk_by(|block, next| block.next() == *next) {
                self.reload_spilled(run[0].range_of_len(run.len() as u64)).await?;
            }
            let wait = Rc::new(WriteWait::default());
            self.with_state(|state, memory| {
                for block in batch {
                    let id = memory.find(self.volume_number, *block);
                    if id.is_some_and(|id| memory.slot(id).dirty_epoch.is_some()) {
                        state.write_waits.add(*block, &wait);
                    }
                }
            });
            self.wait_until_written(Some(wait), WaitFor::Written, backing_losses).await?;
        }
        self.flush_backing_or_rewrite(backing_losses).await
    }

    /// Reloads the spilled blocks among these, except blocks under another task's fill guard.
    pub(super) async fn reload_spilled(self: &ShardRef<S>, blocks: Range<BlockNo>) -> Result<(), RequestError> {
        let mut next = blocks.start;
        while next < blocks.end {
            let run = {
                let state = self.state.borrow();
                let is_unguarded = |block: BlockNo| state.fill_guard_for(block, Sectors::ALL).is_none();
                state.log_tracker.next_spilled_run(next, RELOAD_RUN_BLOCKS, RELOAD_RUN_BLOCKS, is_unguarded)
            };
            let Some(run) = run.filter(|run| run.start < blocks.end) else { return Ok(()) };
            let run = run.start..run.end.min(blocks.end);
            next = run.end;
            self.reload(run, ReloadReason::Destage).await?;
        }
        Ok(())
    }
}
