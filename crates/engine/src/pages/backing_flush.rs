//! Flushes of the backing: they make written blocks clean, and their content fit for flash.

use flash::CompletionNo;
use seam::{Disk, DiskError, Seam};

use crate::backing::{BackingOp, Cause};
use crate::shard::{Shard, ShardRef};
use crate::spec::Sabotage;

/// Outcome of a flush of the backing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackingFlushResult {
    /// All writes that had completed when it began are durable.
    Durable,
    /// The backing reconnected, or another caller's flush failed: written data is dirty again and must be written anew.
    Lost,
    /// The flush failed; written data is dirty again.
    Failed(DiskError),
}

impl BackingFlushResult {
    /// True if all writes that had completed are durable.
    pub fn is_durable(&self) -> bool {
        *self == BackingFlushResult::Durable
    }
}

impl<S: Seam> Shard<S> {
    /// Flushes the backing: all writes that completed there before this call are durable afterwards, and clean here.
    /// Callers that arrive during a flush share the next one.
    pub async fn flush_backing(self: &ShardRef<S>) -> BackingFlushResult {
        if self.has_sabotage(Sabotage::FlushEarly) {
            self.with_state(|state, memory| state.clean_written(memory, CompletionNo::MAX));
            return BackingFlushResult::Durable;
        }
        // `backing_losses` is read first: this flush does not cover data that a reconnect has just made dirty again.
        let backing_losses = self.state.borrow().backing_losses;
        self.detect_reconnect();
        let target = self.state.borrow().next_completion();
        loop {
            {
                let state = self.state.borrow();
                if state.backing_losses != backing_losses {
                    return BackingFlushResult::Lost;
                }
                if state.flushed_below >= target {
                    return BackingFlushResult::Durable;
                }
            }
            if self.state.borrow().backing_flush.is_running {
                self.progress.wait_for(|| (!self.state.borrow().backing_flush.is_running).then_some(())).await;
                continue;
            }
            let covered = self.with_state(|state, _| {
                state.backing_flush.is_running = true;
                state.next_completion()
            });
            let began = self.seam().now();
            let result = self.disk.flush().await;
            self.counters.count_backing_request(BackingOp::Flush, Cause::Destage, 0, self.seam().now().since(began));
            let is_retry = std::mem::replace(&mut self.state.borrow_mut().backing_flush.has_failed, result.is_err());
            if let Err(error) = &result {
                let is_awaited = self.state.borrow().backing_flush.single_flight.is_running();
                self.count_backing_error(is_awaited, is_retry);
                *self.counters.last_error.borrow_mut() = Some(error.clone());
            }
            self.detect_reconnect();
            let now = self.seam().now();
            let (lost, destaged) = self.with_state(|state, memory| {
                state.backing_flush.is_running = false;
                let mut destaged = Default::default();
                // A flush that spans a reconnect proves nothing, whatever its result: written data is dirty again by
                // now.
                let lost = state.backing_losses != backing_losses;
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
                self.destage_work.notify();
                return BackingFlushResult::Lost;
            }
            if let Err(error) = result {
                self.destage_work.notify();
                return BackingFlushResult::Failed(error);
            }
        }
    }
}
