//! Flushes to the backing. A flush is acknowledged when all writes acknowledged before it are on the backing, and the
//! backing is flushed.

use std::rc::Rc;

use seam::{DiskError, Seam};

use crate::RequestError;
use crate::memory::zeroes::ZeroState;
use crate::pages::SyncResult;
use crate::shard::wait::WriteWait;
use crate::shard::{Shard, ShardRef};

impl<S: Seam> Shard<S> {
    /// Makes all writes acknowledged before this call durable on the backing.
    pub async fn flush_all(self: &ShardRef<S>) -> Result<(), RequestError> {
        let target = self.state.borrow().epochs.current();
        let flushed =
            self.run_shared(|state| &state.flushing.single_flight, target.0, async || self.run_flush().await).await;
        flushed.map_err(RequestError::from)
    }

    /// Waits until none of these operations is in flight.
    pub fn wait_for_operations(&self, numbers: Vec<u64>) -> impl Future<Output = ()> + '_ {
        self.progress.wait_for(move || {
            let state = self.state.borrow();
            let is_running = state.operations.iter().any(|operation| numbers.contains(&operation.id));
            (!is_running).then_some(())
        })
    }

    /// Makes all present zero-ranges durable on the backing, with few other blocks.
    pub async fn flush_zeroes(self: &ShardRef<S>) -> Result<(), RequestError> {
        let losses = self.state.borrow().losses;
        loop {
            let wait = Rc::new(WriteWait::default());
            let operations = self.with(|state, _| {
                let ranges = state.zeroes.iter().map(|(start, range)| (start, range.state));
                let ranges: Vec<_> = ranges.filter(|(_, state)| !matches!(state, ZeroState::Written(_))).collect();
                let dirty = ranges.iter().filter(|(_, range)| *range == ZeroState::Dirty);
                dirty.for_each(|(start, _)| state.waits.add(*start, &wait));
                let sent = ranges.into_iter().filter_map(|(_, range)| match range {
                    ZeroState::InFlight(operation) => Some(operation),
                    _ => None,
                });
                sent.collect::<Vec<_>>()
            });
            self.await_written(Some(wait), false, losses).await?;
            if operations.is_empty() {
                break;
            }
            // A range whose write fails is dirty again, and is waited for in the next round.
            self.wait_for_operations(operations).await;
        }
        self.sync_or_flush(losses).await
    }

    /// Closes the current epoch and makes all closed epochs durable on the backing.
    async fn run_flush(self: &ShardRef<S>) -> Result<(), DiskError> {
        let closed = self.with(|state, _| {
            state.flushing.single_flight.begin();
            state.flushing.stuck = false;
            state.failed.end_pauses();
            state.close_epoch()
        });
        // Boxed, because the compiler limits the depth of nested futures.
        let result = Box::pin(self.destage_closed_epochs()).await;
        self.state.borrow_mut().flushing.single_flight.finish(result.clone().map(|()| closed.0));
        self.progress.notify();
        result
    }

    async fn destage_closed_epochs(self: &ShardRef<S>) -> Result<(), DiskError> {
        loop {
            self.work.notify();
            self.progress
                .wait_for(|| {
                    let state = self.state.borrow();
                    (state.epochs.closing() == 0 || state.flushing.stuck).then_some(())
                })
                .await;
            if self.state.borrow().epochs.closing() > 0 {
                let last = self.counters.last_error.borrow().clone();
                return Err(last.unwrap_or(DiskError::Io("writes to the backing fail".into())));
            }
            match self.sync().await {
                SyncResult::Durable if self.state.borrow().epochs.closing() == 0 => return Ok(()),
                SyncResult::Durable | SyncResult::Lost => {}
                SyncResult::Failed(error) => return Err(error),
            }
        }
    }

    /// Makes a FUA write durable whose blocks are on the backing. If the backing has lost data since (`losses` has
    /// changed), that is dirty again and has to be written anew.
    pub async fn sync_or_flush(self: &ShardRef<S>, losses: u64) -> Result<(), RequestError> {
        if self.state.borrow().losses != losses {
            return self.flush_all().await;
        }
        match self.sync().await {
            SyncResult::Durable => Ok(()),
            SyncResult::Lost => self.flush_all().await,
            SyncResult::Failed(error) => Err(error.into()),
        }
    }

    /// Waits until the blocks of `wait` are on the backing, and durable there if `fua`.
    /// `losses`: the backing's count of losses before any of the blocks was sent.
    pub async fn await_written(
        self: &ShardRef<S>,
        wait: Option<Rc<WriteWait>>,
        fua: bool,
        losses: u64,
    ) -> Result<(), RequestError> {
        let Some(wait) = wait else { return Ok(()) };
        self.work.notify();
        wait.wait_for_all().await?;
        if wait.was_replaced() {
            self.flush_all().await?;
        } else if fua {
            self.sync_or_flush(losses).await?;
        }
        Ok(())
    }
}
