//! Flushes of the backing: they make written blocks clean, and their content fit for flash.

use flash::CompletionNo;
use seam::{Disk, DiskError, Seam};

use crate::backing::{Cause, Op};
use crate::shard::{Shard, ShardRef};
use crate::spec::Sabotage;

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

impl<S: Seam> Shard<S> {
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
