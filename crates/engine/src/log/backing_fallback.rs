//! Flushes of blocks that the log does not take: their content becomes durable on the backing.

use std::rc::Rc;

use seam::Seam;

use crate::RequestError;
use crate::memory::BlockNo;
use crate::memory::zeroes::ZeroState;
use crate::shard::state::Operation;
use crate::shard::write_wait::{WaitFor, WriteWait};
use crate::shard::{Shard, ShardRef};

impl<S: Seam> Shard<S> {
    /// Makes the present content of these blocks durable on the backing. Other dirty data of the volume may stay dirty:
    /// a full destage would take minutes after a flash device is lost.
    pub(super) async fn destage_blocks(self: &ShardRef<S>, blocks: &[BlockNo]) -> Result<(), RequestError> {
        let backing_losses = self.state.borrow().backing_losses;
        self.state.borrow_mut().failures.end_pauses();
        for run in blocks.chunk_by(|block, next| block.next() == *next) {
            self.reload_spilled(run[0].range_of_len(run.len() as u64)).await?;
        }
        let mut remaining = blocks.to_vec();
        while !remaining.is_empty() {
            let wait = Rc::new(WriteWait::default());
            let Some(in_flight) = self.register_write_wait(&remaining, &wait) else {
                // A block is still spilled, because a client's read holds its fill guard.
                return self.flush_all().await;
            };
            if self.wait_until_written(Some(wait), WaitFor::Written, backing_losses).await.is_err() {
                // The failed write may carry newer content than this flush covers, so fall back to a full flush.
                return self.flush_all().await;
            }
            self.wait_for_operations(in_flight.iter().map(|(_, number)| *number).collect()).await;
            // A block whose write failed is dirty again. The backing has the covered content of every other block, even
            // if clients write meanwhile.
            remaining = in_flight.into_iter().map(|(block, _)| block).collect();
        }
        self.flush_backing_or_rewrite(backing_losses).await
    }

    /// Registers `wait` for the dirty ones of these blocks. Returns those in flight, each with its operation; `None` if
    /// a block is on flash alone.
    fn register_write_wait(&self, blocks: &[BlockNo], wait: &Rc<WriteWait>) -> Option<Vec<(BlockNo, u64)>> {
        self.with_state(|state, memory| {
            let mut in_flight = Vec::new();
            for block in blocks {
                let slot = memory.find(self.volume_number, *block).map(|id| memory.slot(id));
                match (slot, state.zeroes.find(*block)) {
                    (Some(slot), _) if slot.dirty_epoch.is_some() => state.write_waits.add(*block, wait),
                    (Some(slot), _) if slot.in_flight_epoch.is_some() => {
                        let writes = |operation: &&Operation| operation.blocks.contains(block);
                        in_flight.extend(state.operations.iter().find(writes).map(|operation| (*block, operation.id)));
                    }
                    (Some(_), _) => {}
                    (None, Some((start, range))) => match range.state {
                        ZeroState::Dirty => state.write_waits.add(start, wait),
                        ZeroState::InFlight(operation) => in_flight.push((*block, operation)),
                        ZeroState::Written(_) => {}
                    },
                    (None, None) if state.log_tracker.is_spilled(*block) => return None,
                    (None, None) => {}
                }
            }
            Some(in_flight)
        })
    }
}
