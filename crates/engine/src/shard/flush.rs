//! Flushes. A flush is acknowledged when all writes acknowledged before it are on the backing, and the backing is
//! flushed.

use std::rc::Rc;

use flash::CompletionNo;
use seam::{Disk, DiskError, Seam};

use super::single_flight::SingleFlight;
use super::wait::WriteWait;
use super::{Shard, ShardRef};
use crate::backing::{Cause, Op};
use crate::memory::zeroes::ZeroState;
use crate::spec::Sabotage;
use crate::{RequestError, WritePolicy};

/// Outcome of a flush of the backing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncResult {
    /// All writes that had completed when it began are durable.
    Durable,
    /// The backing reconnected, or another caller's flush failed: written data is dirty again and must be written anew.
    Lost,
    /// The flush failed; written data is dirty again.
    Failed(DiskError),
}

impl SyncResult {
    /// True if all writes that had completed are durable.
    pub fn is_durable(&self) -> bool {
        *self == SyncResult::Durable
    }
}

/// Progress of a shard's flushes.
#[derive(Default)]
pub struct FlushProgress {
    /// The flushes that close epochs; all epochs up to the covered one are durable.
    pub single_flight: SingleFlight<DiskError>,
    /// A flush of the backing is in flight.
    pub syncing: bool,
    /// The last flush of the backing failed.
    pub sync_failed: bool,
    /// No write can advance the closed epochs: the remaining ones have failed.
    pub stuck: bool,
}

impl<S: Seam> Shard<S> {
    /// Serves a client's flush.
    pub async fn flush(self: &ShardRef<S>) -> Result<(), RequestError> {
        self.counters.add(&self.counters.flushes, 1);
        // A change to this policy may still fail, and its flushes would have been acknowledged without their data.
        if self.policy.get() == WritePolicy::WriteBackVolatile && !self.is_changing.get() {
            return Ok(());
        }
        if self.flush_involves_log() { self.flush_log().await } else { self.flush_all().await }
    }

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

    /// Flushes the backing: all writes that completed there before this call are durable afterwards, and clean here.
    /// Callers that arrive during a flush share the next one.
    pub async fn sync(self: &ShardRef<S>) -> SyncResult {
        if self.sabotage(Sabotage::FlushEarly) {
            self.with(|state, memory| state.clean_written(memory, CompletionNo::MAX));
            return SyncResult::Durable;
        }
        // `losses` is read first: this flush does not cover data that a reconnect has just made dirty again.
        let losses = self.state.borrow().losses;
        self.detect_reconnect();
        let target = self.state.borrow().sequence();
        loop {
            {
                let state = self.state.borrow();
                if state.losses != losses {
                    return SyncResult::Lost;
                }
                if state.synced >= target {
                    return SyncResult::Durable;
                }
            }
            if self.state.borrow().flushing.syncing {
                self.progress.wait_for(|| (!self.state.borrow().flushing.syncing).then_some(())).await;
                continue;
            }
            let covered = self.with(|state, _| {
                state.flushing.syncing = true;
                state.sequence()
            });
            let began = self.seam().now();
            let result = self.disk.flush().await;
            self.counters.count_backing_request(Op::Flush, Cause::Destage, 0, self.seam().now().since(began));
            let is_retry = std::mem::replace(&mut self.state.borrow_mut().flushing.sync_failed, result.is_err());
            if let Err(error) = &result {
                let is_awaited = self.state.borrow().flushing.single_flight.is_running();
                self.count_backing_error(is_awaited, is_retry);
                *self.counters.last_error.borrow_mut() = Some(error.clone());
            }
            self.detect_reconnect();
            let now = self.seam().now();
            let (lost, destaged) = self.with(|state, memory| {
                state.flushing.syncing = false;
                let mut destaged = Default::default();
                // A flush that spans a reconnect proves nothing, whatever its result: written data is dirty again by
                // now.
                let lost = state.losses != losses;
                match &result {
                    _ if lost => {}
                    Ok(()) => destaged = state.clean_written(memory, covered),
                    Err(_) => state.redirty_written(memory, now),
                }
                (lost, destaged)
            });
            if result.is_ok() && !lost {
                self.keep_records();
                self.record_backing_flush(covered, destaged);
            }
            self.retire_records();
            self.progress.notify();
            if lost {
                self.work.notify();
                return SyncResult::Lost;
            }
            if let Err(error) = result {
                self.work.notify();
                return SyncResult::Failed(error);
            }
        }
    }
}
