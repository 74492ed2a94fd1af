//! Flushes of blocks that the log does not take: their content becomes durable on the backing.

use std::rc::Rc;

use seam::Seam;

use crate::RequestError;
use crate::memory::BlockNo;
use crate::memory::zeroes::ZeroState;
use crate::shard::wait::WriteWait;
use crate::shard::{Shard, ShardRef};

impl<S: Seam> Shard<S> {
    /// Makes the present content of these blocks durable on the backing. Other dirty data of the volume may stay: after
    /// the loss of a flash device it is all that the log held, and takes minutes.
    pub(super) async fn destage_blocks(self: &ShardRef<S>, blocks: &[BlockNo]) -> Result<(), RequestError> {
        let losses = self.state.borrow().losses;
        loop {
            for run in blocks.chunk_by(|block, next| block.next() == *next) {
                self.reload_spilled(run[0].run(run.len() as u64)).await?;
            }
            let wait = Rc::new(WriteWait::default());
            let (sent, are_all_known) = self.with(|state, memory| {
                let (mut sent, mut are_all_known) = (Vec::new(), true);
                for block in blocks {
                    let slot = memory.find(self.number, *block).map(|id| memory.slot(id));
                    match (slot, state.zeroes.find(*block)) {
                        (Some(slot), _) if slot.dirty.is_some() => state.waits.add(*block, &wait),
                        (Some(slot), _) if slot.in_flight.is_some() => {
                            sent.extend(state.operation_on(*block));
                        }
                        (Some(_), _) => {}
                        (None, Some((start, range))) => match range.state {
                            ZeroState::Dirty => state.waits.add(start, &wait),
                            ZeroState::InFlight(operation) => sent.push(operation),
                            ZeroState::Written(_) => {}
                        },
                        (None, None) => are_all_known &= !state.log_tracker.is_spilled(*block),
                    }
                }
                (sent, are_all_known)
            });
            if !are_all_known {
                // A client reads the block from the log.
                return self.flush_all().await;
            }
            self.await_written(Some(wait), false, losses).await?;
            if sent.is_empty() {
                return self.sync_or_flush(losses).await;
            }
            // A block whose write fails is dirty again, and is waited for in the next round.
            let are_done = || {
                let is_running = self.state.borrow().operations.iter().any(|operation| sent.contains(&operation.id));
                (!is_running).then_some(())
            };
            self.progress.wait_for(are_done).await;
        }
    }
}
