//! Flushes to the backing. A flush is acknowledged when all writes acknowledged before it are on the backing, and the
//! backing is flushed.

use std::rc::Rc;

use seam::{DiskError, Seam};

use crate::RequestError;
use crate::memory::zeroes::ZeroState;
use crate::pages::BackingFlushResult;
use crate::shard::write_wait::{WaitFor, WriteWait};
use crate::shard::{Shard, ShardRef};

impl<S: Seam> Shard<S> {
    /// Makes all writes acknowledged before this call durable on the backing.
    pub async fn flush_all(self: &ShardRef<S>) -> Result<(), RequestError> {
        let target = self.state.borrow().epochs.current();
        let flushed = self
            .run_shared(|state| &state.backing_flush.single_flight, target.0, async || self.run_flush().await)
            .await;
        flushed.map_err(RequestError::from)
    }

    /// Waits until none of these operations is in flight.
    pub fn wait_for_operations(&self, operation_ids: Vec<u64>) -> impl Future<Output = ()> + '_ {
        self.progress.wait_for(move || {
            let state = self.state.borrow();
            let is_running = state.operations.iter().any(|operation| operation_ids.contains(&operation.id));
            (!is_running).then_some(())
        })
    }

    /// Makes all present zero-ranges durable on the backing, with few other blocks.
    pub async fn flush_zeroes(self: &ShardRef<S>) -> Result<(), RequestError> {
        let backing_losses = self.state.borrow().backing_losses;
        loop {
            let wait = Rc::new(WriteWait::default());
            let operations = self.with_state(|state, _| {
                let ranges = state.zeroes.iter().map(|(start, range)| (start, range.state));
                let ranges: Vec<_> = ranges.filter(|(_, state)| !matches!(state, ZeroState::Written(_))).collect();
                let dirty = ranges.iter().filter(|(_, range)| *range == ZeroState::Dirty);
                dirty.for_each(|(start, _)| state.write_waits.add(*start, &wait));
                let sent = ranges.into_iter().filter_map(|(_, range)| match range {
                    ZeroState::InFlight(operation) => Some(operation),
                    _ => None,
                });
                sent.collect::<Vec<_>>()
            });
            self.wait_until_written(Some(wait), WaitFor::Written, backing_losses).await?;
            if operations.is_empty() {
                break;
            }
            // A range whose write fails is dirty again, and is waited for in the next round.
            self.wait_for_operations(operations).await;
        }
        self.flush_backing_or_rewrite(backing_losses).await
    }

    /// Closes the current epoch and makes all closed epochs durable on the backing.
    async fn run_flush(self: &ShardRef<S>) -> Result<(), DiskError> {
        let closed = self.with_state(|state, _| {
            state.backing_flush.single_flight.begin();
            state.backing_flush.is_stuck = false;
            state.failures.end_pauses();
            state.close_epoch()
        });
        // Boxed, because the compiler limits the depth of nested futures.
        let result = Box::pin(self.destage_closed_epochs()).await;
        self.state.borrow_mut().backing_flush.single_flight.finish(result.clone().map(|()| closed.0));
        self.progress.notify();
        result
    }

    async fn destage_closed_epochs(self: &ShardRef<S>) -> Result<(), DiskError> {
        loop {
            self.destage_work.notify();
            self.progress
                .wait_for(|| {
                    let state = self.state.borrow();
                    (state.epochs.closing_units() == 0 || state.backing_flush.is_stuck).then_some(())
                })
                .await;
            if self.state.borrow().epochs.closing_units() > 0 {
                let last = self.counters.last_error.borrow().clone();
                return Err(last.unwrap_or(DiskError::Io("writes to the backing fail".into())));
            }
            match self.flush_backing().await {
                BackingFlushResult::Durable if self.state.borrow().epochs.closing_units() == 0 => return Ok(()),
                BackingFlushResult::Durable | BackingFlushResult::Lost => {}
                BackingFlushResult::Failed(error) => return Err(error),
            }
        }
    }

    /// Flushes the backing, so that completed writes are durable. If the backing has lost data since the caller read
    /// `backing_losses`, that data is dirty again, and a full flush writes it anew.
    pub async fn flush_backing_or_rewrite(self: &ShardRef<S>, backing_losses: u64) -> Result<(), RequestError> {
        if self.state.borrow().backing_losses != backing_losses {
            return self.flush_all().await;
        }
        match self.flush_backing().await {
            BackingFlushResult::Durable => Ok(()),
            BackingFlushResult::Lost => self.flush_all().await,
            BackingFlushResult::Failed(error) => Err(error.into()),
        }
    }

    /// Waits until the blocks of `wait` have the state `wait_for` on the backing. `backing_losses`: the number of
    /// losses of the backing before any of the blocks was sent.
    pub async fn wait_until_written(
        self: &ShardRef<S>,
        wait: Option<Rc<WriteWait>>,
        wait_for: WaitFor,
        backing_losses: u64,
    ) -> Result<(), RequestError> {
        let Some(wait) = wait else { return Ok(()) };
        self.destage_work.notify();
        wait.wait_for_all().await?;
        if wait.was_replaced() {
            self.flush_all().await?;
        } else if wait_for == WaitFor::Durable {
            self.flush_backing_or_rewrite(backing_losses).await?;
        }
        Ok(())
    }
}
