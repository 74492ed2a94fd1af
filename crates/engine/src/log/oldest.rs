//! Room in a full log: its tail is linear, so what holds its oldest segments is brought to the backing first, and nothing else need be.

use std::ops::Range;
use std::rc::Rc;

use seam::Seam;

use crate::RequestError;
use crate::memory::{BlockNo, Sectors};
use crate::shard::recall::Recall;
use crate::shard::wait::WriteWait;
use crate::shard::{Shard, ShardRef};

/// Blocks that are brought at once.
const AT_ONCE: usize = 256;
/// Resting blocks that are recalled together.
const RECALL_RUN: u64 = 64;

impl<S: Seam> Shard<S> {
    /// Brings what of this volume holds the oldest part of the log durably to the backing. What is on its way or in doubt there is left to
    /// who brings everything.
    pub(super) async fn bring_oldest(self: &ShardRef<S>) -> Result<(), RequestError> {
        let Some(store) = self.core.log() else { return Err(RequestError::ShuttingDown) };
        let blocks = self.state.borrow().ledger.in_segments(&store.oldest_segments());
        if blocks.is_empty() {
            return Ok(());
        }
        let losses = self.state.borrow().losses;
        for some in blocks.chunks(AT_ONCE) {
            for run in some.chunk_by(|block, next| block + 1 == *next) {
                self.recall_oldest(run[0]..run[0] + run.len() as u64).await?;
            }
            let wait = Rc::new(WriteWait::default());
            self.with(|state, memory| {
                for block in some {
                    let id = memory.find(self.number, BlockNo(*block));
                    if id.is_some_and(|id| memory.slot(id).dirty.is_some()) {
                        state.waits.add(*block, &wait);
                    }
                }
            });
            self.await_written(Some(wait), false, losses).await?;
        }
        self.sync_or_flush(losses).await
    }

    /// Brings what rests of these blocks into memory, as far as nobody else is at it.
    async fn recall_oldest(self: &ShardRef<S>, blocks: Range<u64>) -> Result<(), RequestError> {
        let mut next = blocks.start;
        while next < blocks.end {
            let run = {
                let state = self.state.borrow();
                let free = |block: u64| state.ticket_for(BlockNo(block), Sectors::ALL).is_none();
                state.ledger.next_resting(next, RECALL_RUN, RECALL_RUN, free)
            };
            let Some(run) = run.filter(|run| run.start < blocks.end) else { return Ok(()) };
            let run = run.start..run.end.min(blocks.end);
            next = run.end;
            self.recall(run, Recall::Destage).await?;
        }
        Ok(())
    }
}
