//! Shutdown and drain of a volume, each with a time-out, after which the work goes on in the background.

use std::cell::Cell;
use std::rc::Rc;

use seam::{Disk, DiskResult, Nanos, Seam};

use crate::RequestError;
use crate::memory::BlockNo;
use crate::shard::{Shard, ShardRef};
use task_sync::within;

/// Time that a stop waits for a backing to complete the writes in flight.
const DESTAGE_STOP_TIMEOUT: Nanos = Nanos::from_millis(500);

impl<S: Seam> Shard<S> {
    /// Stops the pump, waits for the writes in flight, and then flushes the backing. The next start can then detect
    /// whether the backing was changed meanwhile: it compares the backing with recent writes, but not in regions with
    /// writes in flight. The wait ends after [`DESTAGE_STOP_TIMEOUT`].
    pub async fn stop_destage_with_timeout(self: &ShardRef<S>) {
        // Never reset: a stopped shard serves no more requests.
        self.is_destage_held.set(true);
        let shard = Rc::clone(self);
        let stop_destage = async move |is_over: Rc<Cell<bool>>| {
            shard.progress.wait_for(|| shard.state.borrow().operations.is_empty().then_some(())).await;
            if !shard.flash_tier.is_checked() && shard.flush_backing().await.is_durable() {
                shard.verify_recent_writes().await;
            }
            shard.destage_evidence(&is_over).await;
            // The next start detects a failed flush, as after a crash.
            if shard.flush_backing().await.is_durable() {
                shard.record_unknown_blocks().await;
            }
        };
        self.run_within(DESTAGE_STOP_TIMEOUT, stop_destage).await;
    }

    /// True if the dirty data consists of zeroes alone, and nothing would prove the backing at the next start: an older
    /// copy of it would be accepted, and mixed with them.
    pub fn has_only_zeroes_without_evidence(&self) -> bool {
        let state = self.state.borrow();
        let zeroes = state.zeroes.len() as u64;
        let has_only_zeroes = zeroes > 0 && state.not_clean_units() == zeroes && state.log_tracker.spilled_count() == 0;
        has_only_zeroes && self.lacks_evidence()
    }

    /// Drains the log ([`Shard::drain_log`]) for at most `limit`. After an error or a time-out the records stay in it.
    pub async fn drain_log_within(self: &ShardRef<S>, limit: Nanos) {
        let shard = Rc::clone(self);
        self.run_within(limit, async move |_| drop(shard.drain_log().await)).await;
    }

    /// Drains the log while requests wait. Returns `None` if the destage takes longer than `limit`: it goes on, but
    /// appends no tombstones, because requests may have written to the volume by its end.
    pub async fn drain_log_if_destaged_within(self: &ShardRef<S>, limit: Nanos) -> Option<Result<(), RequestError>> {
        let (shard, result) = (Rc::clone(self), Rc::new(Cell::new(None)));
        let ended = Rc::clone(&result);
        self.run_within(limit, async move |_| ended.set(Some(shard.flush_all().await))).await;
        match result.take()? {
            Ok(()) => Some(self.append_tombstones_from(BlockNo::ZERO).await),
            Err(error) => Some(Err(error)),
        }
    }

    /// Removes the mark of the backing, whose data is complete. After an error, or without an answer within `limit`,
    /// the mark may stay: it keeps other machines off, and nothing is lost. The backing logs that.
    pub async fn remove_mark_within(&self, limit: Nanos) {
        drop(within(self.seam().sleep(limit), self.remove_undestaged_mark()).await);
    }

    /// Removes the mark of the backing, unless the log has records that a start would recover.
    async fn remove_undestaged_mark(&self) -> DiskResult<()> {
        if !self.has_log || self.state.borrow().log_tracker.has_records() {
            return Ok(());
        }
        self.disk.mark_undestaged(false).await
    }

    /// True if other machines may own the backing after this one: it then has a lineage of owners.
    fn may_other_machines_own_backing(&self) -> bool {
        self.disk.lineage().is_some()
    }

    /// Appends tombstones of all blocks and removes the mark of the backing, before a stop. Does nothing if only this
    /// machine may own the backing, or while records of the volume are live. After `limit` the records, or the mark,
    /// may stay.
    pub async fn clear_log_and_mark_within(self: &ShardRef<S>, limit: Nanos) {
        if !self.may_other_machines_own_backing() || self.state.borrow().log_tracker.holds_segments() {
            return;
        }
        let end = self.seam().now() + limit;
        let shard = Rc::clone(self);
        self.run_within(limit, async move |_| drop(shard.append_tombstones_from(BlockNo::ZERO).await)).await;
        self.remove_mark_within(end.since(self.seam().now())).await;
    }

    /// Runs `work` in its own task. Waits until the task ends, or `limit` has passed; the task goes on then. The flag
    /// that `work` gets is set when the wait is over.
    async fn run_within<W>(self: &ShardRef<S>, limit: Nanos, work: impl FnOnce(Rc<Cell<bool>>) -> W)
    where
        W: Future<Output = ()> + 'static,
    {
        let is_over = Rc::new(Cell::new(false));
        let timer = self.seam().clone();
        let work = work(Rc::clone(&is_over));
        self.spawn_then_set(work, &is_over);
        self.spawn_then_set(async move { timer.sleep(limit).await }, &is_over);
        self.progress.wait_for(|| is_over.get().then_some(())).await;
    }

    /// Starts a task that sets `flag` at its end.
    fn spawn_then_set(self: &ShardRef<S>, work: impl Future<Output = ()> + 'static, flag: &Rc<Cell<bool>>) {
        let (shard, flag) = (Rc::clone(self), Rc::clone(flag));
        self.seam().spawn(async move {
            work.await;
            flag.set(true);
            shard.progress.notify();
        });
    }
}
