//! Evidence of the backing: destaged content that the next start compares with it. A volume without any gets some
//! before its first changes go to the log, and at a stop, because destage from the log begins minutes later.

use std::cell::Cell;
use std::rc::Rc;

use flash::VolumePages;
use seam::{BLOCK_BYTES, Block, Nanos, Seam};

use super::pump::{EXAMINED_BLOCKS_MAX, Job};
use crate::fill::reload::ReloadReason;
use crate::memory::{BlockNo, Sectors};
use crate::shard::{Shard, ShardRef};

/// Number of blocks that are destaged as evidence: the content of a single one may equal the former content.
const EVIDENCE_BLOCKS: usize = 4;
/// Longest time that a flush of the log waits for an attempt.
const WAIT_MAX: Nanos = Nanos::from_secs(1);
/// Minimum time between the starts of two attempts: the volume may have no block with content that can be destaged now.
const ATTEMPT_INTERVAL: Nanos = Nanos::from_millis(100);

impl<S: Seam> Shard<S> {
    /// Destages evidence if the ring of recent writes has no entry with content, and waits until it is recorded, but at
    /// most [`WAIT_MAX`]. Call it before changes go to the log: a crash otherwise leaves data in the log and nothing
    /// that proves the backing.
    pub async fn ensure_evidence(self: &ShardRef<S>) {
        self.begin_evidence();
        let Some(ends_at) = self.flash_tier.evidence.running_since().map(|began_at| began_at + WAIT_MAX) else {
            return;
        };
        let has_ended = || !self.flash_tier.evidence.is_running() || self.seam().now() >= ends_at;
        if has_ended() {
            return;
        }
        let shard = Rc::clone(self);
        self.seam().spawn(async move {
            shard.seam().sleep(Nanos(ends_at.0.saturating_sub(shard.seam().now().0))).await;
            shard.progress.notify();
        });
        self.progress.wait_for(|| has_ended().then_some(())).await;
    }

    /// Starts an attempt in a task if evidence is missing and an attempt is due.
    fn begin_evidence(self: &ShardRef<S>) {
        if !self.must_begin_evidence() || !self.flash_tier.evidence.begin(self.seam().now(), ATTEMPT_INTERVAL) {
            return;
        }
        let shard = Rc::clone(self);
        self.seam().spawn(async move {
            shard.destage_evidence(&shard.is_destage_held).await;
            if !shard.is_destage_held.get()
                && shard.flush_backing().await.is_durable()
                && let Some(pages) = shard.flash_tier.pages.clone()
            {
                pages.make_records_durable().await;
            }
            shard.flash_tier.evidence.end();
            shard.progress.notify();
        });
    }

    /// True if the ring has no entry with content although changes are about to go to the log, and destage may begin.
    /// While the map of clean pages is not read, the content of the ring is unknown.
    fn must_begin_evidence(&self) -> bool {
        let has_none = |pages: &VolumePages<S>| pages.is_loaded() && !pages.has_recorded_content();
        self.flash_tier.pages.as_ref().is_some_and(has_none)
            && self.state.borrow().log_tracker.has_changes()
            && !self.is_destage_held.get()
            && !self.is_stopping.get()
            && !self.flash_tier.is_suspended()
    }

    /// Destages a few blocks of a volume whose ring of recent writes has only zeroes, or that has destaged nothing
    /// since the attach. The next start compares them with the backing: nothing else would prove that the backing is
    /// not an older copy. No further write begins once `is_cancelled` is set: at a stop it would leave a region dirty
    /// whose recent writes count as proof.
    pub async fn destage_evidence(self: &ShardRef<S>, is_cancelled: &Cell<bool>) {
        if !self.lacks_evidence() {
            return;
        }
        self.reload_evidence().await;
        let mut from = BlockNo(0);
        for _ in 0..EVIDENCE_BLOCKS {
            if is_cancelled.get() {
                return;
            }
            let job = self.with_state(|state, memory| {
                let is_chosen = |block: BlockNo| {
                    let slot = memory.slot(memory.find(self.volume_number, block).expect("a dirty block has a slot"));
                    let has_content = slot.data.as_ref().is_some_and(|data| !data.is_zero(0, BLOCK_BYTES));
                    let is_whole = slot.present == Sectors::ALL && self.is_inside(block);
                    is_whole && has_content && self.is_writable(state, memory, block)
                };
                let boundary = self.run_boundary_blocks();
                let run = state.dirty_blocks.next_run(from, boundary, EXAMINED_BLOCKS_MAX, is_chosen, |_| false);
                let run = run.ok().flatten()?;
                from = run.end;
                self.prepare_write(state, memory, run.start.single(), run.start)
            });
            let Some(Job::Write(job, permit)) = job else { return };
            self.write_run(job, permit).await;
        }
    }

    /// Reloads a few spilled blocks if memory has no dirty ones: all dirty blocks are spilled after a recovery.
    async fn reload_evidence(self: &ShardRef<S>) {
        let reload = self.with_state(|state, memory| {
            let is_unguarded = |block: BlockNo| state.fill_guard_for(block, Sectors::ALL).is_none();
            let count = EVIDENCE_BLOCKS as u64;
            let run =
                state.log_tracker.next_spilled_run(BlockNo::ZERO, self.run_boundary_blocks(), count, is_unguarded);
            let run = run.filter(|_| state.not_clean_units() == 0)?;
            let buffers: Vec<_> = BlockNo::each(&run).map_while(|_| memory.alloc()).collect();
            Some((run.start.range_of_len(buffers.len() as u64), buffers)).filter(|(run, _)| !run.is_empty())
        });
        if let Some((run, buffers)) = reload {
            // If the reload fails, the volume still has no evidence.
            drop(self.reload_into(run, buffers, ReloadReason::Destage).await);
        }
    }
}
