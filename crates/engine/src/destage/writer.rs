//! Carries out the pump's jobs: writes runs of blocks and zero-ranges to the backing, and records success or failure.

use std::ops::Range;
use std::rc::Rc;

use seam::{BLOCK_BYTES, Disk, DiskError, Piece, Seam};

use crate::ByteOffset;
use crate::backing::{BackingOp, Cause, Permit, Priority};
use crate::memory::{BlockNo, Sectors};
use crate::shard::retry::is_backing_gone;
use crate::shard::state::InFlightBlock;
use crate::shard::write_wait::WriteWait;
use crate::shard::{Shard, ShardRef};
use crate::spec::Sabotage;

/// Longest write of zeroes to a backing that cannot zero, in blocks.
const ZERO_STEP_BLOCKS: u64 = 256;
/// Longest zero request if its regions must be marked dirty, in blocks: 16 regions.
const MARKED_ZERO_BLOCKS_MAX: u64 = 16 * flash::REGION_BLOCKS;

/// A block to write to the backing.
pub struct BlockWrite<B> {
    /// State of the block when its write began.
    pub sent: InFlightBlock,
    /// Its content, frozen (R1, docs/rules.md).
    pub data: B,
    /// Its valid sectors.
    pub present: Sectors,
}

/// Adjacent blocks whose sectors follow each other without a gap, to write in one request, or one block.
pub struct WriteJob<B> {
    /// Number of the operation.
    pub operation_id: u64,
    /// First block.
    pub first_block: BlockNo,
    /// The blocks, in order.
    pub block_writes: Vec<BlockWrite<B>>,
    /// Requests waiting for each block.
    pub waits: Vec<Vec<Rc<WriteWait>>>,
}

/// Adjacent sectors of a block: bytes from `offset_in_block` on.
struct SectorRun<'a, B> {
    block: BlockNo,
    data: &'a B,
    offset_in_block: usize,
    len_bytes: usize,
}

/// A zero-range to write.
pub struct ZeroJob {
    /// Number of the operation.
    pub operation_id: u64,
    /// The blocks.
    pub blocks: Range<BlockNo>,
    /// True if the backing may release the space.
    pub may_unmap: bool,
    /// Requests waiting for the range.
    pub waits: Vec<Rc<WriteWait>>,
}

impl<S: Seam> Shard<S> {
    /// Priority of a write to the backing: foreground if a client waits for its blocks, or for destage as such.
    fn priority_of_write(&self, is_awaited: bool) -> Priority {
        match is_awaited || self.client_waits_for_progress(&self.state.borrow()) {
            true => Priority::Foreground,
            false => Priority::Background,
        }
    }

    /// Writes a run. If it fails as a whole, each block is tried alone, so that a bad sector fails only its own block.
    pub async fn write_run(self: &ShardRef<S>, job: WriteJob<S::Block>, permit: Permit) {
        let write_intent = self.begin_write(job.first_block.range_of_len(job.block_writes.len() as u64)).await;
        let connection_epoch = self.disk.connection_epoch();
        let priority = self.priority_of_write(job.waits.iter().any(|waits| !waits.is_empty()));
        let mut results = vec![self.write_to_backing(job.first_block, &job.block_writes, priority).await];
        let has_failed = results[0].is_err();
        if job.block_writes.len() > 1 && results[0].as_ref().is_err_and(|error| !is_backing_gone(error)) {
            results.clear();
            for (index, block_write) in job.block_writes.iter().enumerate() {
                let block_write = std::slice::from_ref(block_write);
                results.push(self.write_to_backing(job.first_block.plus(index as u64), block_write, priority).await);
            }
        } else {
            results.resize(job.block_writes.len(), results[0].clone());
        }
        if has_failed {
            self.count_failed_run(&job, &results);
        }
        drop(permit);
        self.detect_reconnect();
        if self.disk.connection_epoch() != connection_epoch {
            // Writes that completed before the connection broke may be lost: they count as failed.
            let lost = Err(DiskError::Io("the backing reconnected during the write".into()));
            results.iter_mut().for_each(|result| *result = lost.clone());
        }
        self.finish_write(job, &results, self.disk.connection_epoch() != connection_epoch);
        self.end_write(write_intent, results.iter().all(Result::is_ok));
        self.destage_work.notify();
        self.progress.notify();
    }

    /// Counts a run that failed as a whole; `results` has the result of each block, tried alone.
    fn count_failed_run(&self, job: &WriteJob<S::Block>, results: &[Result<(), DiskError>]) {
        let is_retry = {
            let state = self.state.borrow();
            let has_failed_before = |block_write: &BlockWrite<_>| state.failures.contains(block_write.sent.block);
            let mut failed = job.block_writes.iter().zip(results).filter(|(_, result)| result.is_err()).peekable();
            match failed.peek() {
                Some(_) => failed.all(|(block_write, _)| has_failed_before(block_write)),
                None => job.block_writes.iter().any(has_failed_before),
            }
        };
        self.count_backing_error(job.waits.iter().any(|waits| !waits.is_empty()), is_retry);
    }

    /// Updates the states of a run's blocks after its write, and answers the requests that wait for them. `is_lost`:
    /// the backing reconnected meanwhile, so that the requests go on waiting.
    fn finish_write(&self, job: WriteJob<S::Block>, results: &[Result<(), DiskError>], is_lost: bool) {
        let now = self.seam().now();
        let deferred = self.policy.get().defers_writes();
        self.with_state(|state, memory| {
            state.end_operation(job.operation_id);
            for ((block_write, result), waits) in job.block_writes.iter().zip(results).zip(job.waits) {
                let block = block_write.sent.block;
                match result {
                    Ok(()) => state.complete_write(memory, &block_write.sent),
                    // No acknowledgement covers this content: its writers get the error, and the backing's content is
                    // valid again.
                    Err(_)
                        if !is_lost
                            && !deferred
                            && !waits.is_empty()
                            && state.may_abandon(memory, &block_write.sent) =>
                    {
                        state.invalidate_fills(block.single(), Sectors::ALL);
                        self.invalidate_flash(block.single());
                        state.abandon_write(memory, &block_write.sent);
                    }
                    Err(_) => {
                        state.fail_write(memory, &block_write.sent, now);
                        if is_lost {
                            state.failures.remove(block);
                        }
                    }
                }
                match (result, is_lost) {
                    (Err(_), true) => state.write_waits.reassign(block, waits),
                    _ => waits.iter().for_each(|wait| wait.finish_one(result.as_ref())),
                }
            }
        });
        let completed = results.iter().filter(|result| result.is_ok()).count() as u64;
        self.throttle.record_progress(completed);
        match results.iter().find_map(|result| result.as_ref().err()) {
            Some(error) if !is_lost => {
                *self.counters.last_error.borrow_mut() = Some(error.clone());
                match completed {
                    0 => self.retry.record_failure(error, now),
                    _ => self.retry.record_success(),
                }
            }
            Some(_) => {}
            None => self.retry.record_success(),
        }
    }

    /// Writes the valid sectors of several blocks in one request, or of a single block run by run.
    async fn write_to_backing(
        &self,
        first: BlockNo,
        block_writes: &[BlockWrite<S::Block>],
        priority: Priority,
    ) -> Result<(), DiskError> {
        let runs = first.onward().zip(block_writes).flat_map(|(block, write)| {
            let runs = write.present.runs();
            runs.map(move |(start, len)| SectorRun { block, data: &write.data, offset_in_block: start, len_bytes: len })
        });
        let runs: Vec<_> = runs.collect();
        if block_writes.len() > 1 {
            let is_continued =
                |pair: &[BlockWrite<S::Block>]| pair[0].present.is_suffix() && pair[1].present.is_prefix();
            assert!(block_writes.windows(2).all(is_continued), "the sectors of a run have no gap");
            return self.write_sectors(&runs, priority).await;
        }
        for run in &runs {
            self.write_sectors(std::slice::from_ref(run), priority).await?;
        }
        Ok(())
    }

    /// Writes sectors that follow each other without a gap in one request, as far as they lie inside the volume.
    async fn write_sectors(&self, runs: &[SectorRun<'_, S::Block>], priority: Priority) -> Result<(), DiskError> {
        let Some(first) = runs.first() else { return Ok(()) };
        let piece_of = |run: &SectorRun<'_, S::Block>| {
            let len = run.len_bytes.min(self.bytes_inside(run.block).saturating_sub(run.offset_in_block));
            (len > 0).then(|| Piece::new(run.data.clone(), run.offset_in_block, len))
        };
        let pieces: Vec<_> = runs.iter().filter_map(piece_of).collect();
        match pieces.is_empty() {
            true => Ok(()),
            false => {
                self.write_pieces(ByteOffset::of(first.block).plus(first.offset_in_block as u64), pieces, priority)
                    .await
            }
        }
    }

    /// Sends one write to the backing, under an I/O slot.
    async fn write_pieces(
        &self,
        at: ByteOffset,
        pieces: Vec<Piece<S::Block>>,
        priority: Priority,
    ) -> Result<(), DiskError> {
        let bytes = seam::block::pieces_len(&pieces) as u64;
        let io_slot = self.acquire_io_slot(BackingOp::Write, at, bytes, priority).await;
        let began = self.seam().now();
        let result = self.disk.write(at.0, pieces).await;
        drop(io_slot);
        self.counters.count_backing_request(BackingOp::Write, Cause::Destage, bytes, self.seam().now().since(began));
        result
    }

    /// Zeroes a range on the backing, by writing zeroes if the backing has no such request.
    pub async fn zero_range(self: &ShardRef<S>, job: ZeroJob, permit: Permit) {
        let connection_epoch = self.disk.connection_epoch();
        let mut result = Ok(());
        let mut next = job.blocks.start;
        while result.is_ok() && next < job.blocks.end {
            // Dirty regions are limited: a long range marks some at a time, and waits for a flush to free more.
            let step_end = if self.flash_tier.has_flash_cache() {
                next.align_down(MARKED_ZERO_BLOCKS_MAX).plus(MARKED_ZERO_BLOCKS_MAX)
            } else {
                job.blocks.end
            };
            let step = next..step_end.min(job.blocks.end);
            next = step.end;
            let write_intent = self.begin_write(step.clone()).await;
            let priority = self.priority_of_write(!job.waits.is_empty());
            result = self.zero_on_backing(step, &job, priority).await;
            self.end_write(write_intent, result.is_ok());
        }
        if result.is_err() {
            let is_retry = self.state.borrow().failures.contains(job.blocks.start);
            self.count_backing_error(!job.waits.is_empty(), is_retry);
        }
        drop(permit);
        self.detect_reconnect();
        let lost = self.disk.connection_epoch() != connection_epoch;
        if lost {
            result = Err(DiskError::Io("the backing reconnected during the write".into()));
        }
        let now = self.seam().now();
        let deferred = self.policy.get().defers_writes();
        self.with_state(|state, _| {
            state.end_operation(job.operation_id);
            if lost {
                state.reassign_zero_waits(job.operation_id, job.blocks.clone(), &job.waits);
            }
            match &result {
                Ok(()) => state.complete_zeroes(job.operation_id, job.blocks.clone()),
                Err(_) if !lost && !deferred && !job.waits.is_empty() => {
                    state.invalidate_fills(job.blocks.clone(), Sectors::ALL);
                    state.abandon_zeroes(job.operation_id, job.blocks.clone(), now);
                }
                Err(_) => {
                    state.fail_zeroes(job.operation_id, job.blocks.clone(), now);
                    if lost {
                        state.failures.remove_all(job.blocks.clone());
                    }
                }
            }
            if !lost {
                job.waits.iter().for_each(|wait| wait.finish_one(result.as_ref()));
            }
        });
        match &result {
            Ok(()) => self.retry.record_success(),
            Err(error) if !lost => {
                *self.counters.last_error.borrow_mut() = Some(error.clone());
                self.retry.record_failure(error, now);
            }
            Err(_) => {}
        }
        self.throttle.record_progress(1);
        self.destage_work.notify();
        self.progress.notify();
    }

    /// Sends a zero request for a part of a job's range, or writes zeroes if the backing has no such request.
    async fn zero_on_backing(
        &self,
        blocks: Range<BlockNo>,
        job: &ZeroJob,
        priority: Priority,
    ) -> Result<(), DiskError> {
        let at = ByteOffset::of(blocks.start);
        let end = blocks.end.offset().min(self.size_bytes.get());
        let bytes = end.saturating_sub(at.0);
        // The I/O slot charges a zero request as one block: few disks take long for zeroes, and congestion detection
        // covers them.
        let io_slot = self.acquire_io_slot(BackingOp::Zero, at, BLOCK_BYTES as u64, priority).await;
        let began = self.seam().now();
        let may_unmap = job.may_unmap && !self.needs_space(job.operation_id, &blocks);
        let result = self.disk.zero(at.0, bytes, may_unmap).await;
        drop(io_slot);
        self.counters.count_backing_request(BackingOp::Zero, Cause::Destage, bytes, self.seam().now().since(began));
        if result == Err(DiskError::Unsupported) {
            return self.write_zeroes(blocks, priority).await;
        }
        result
    }

    /// True if blocks of a range that an operation zeroes may still need their space: a write was acknowledged since
    /// the range was selected, or a recovery would find older data of them in the log.
    fn needs_space(&self, operation_id: u64, blocks: &Range<BlockNo>) -> bool {
        let state = self.state.borrow();
        let may_need_it = !state.is_zeroed_by(operation_id, blocks) || state.log_tracker.may_recover_data(blocks);
        self.disk.allocates_at_first_write() && may_need_it && !self.has_sabotage(Sabotage::UnmapOverWrite)
    }

    /// Writes zeroes to a range, in steps of [`ZERO_STEP_BLOCKS`].
    async fn write_zeroes(&self, blocks: Range<BlockNo>, priority: Priority) -> Result<(), DiskError> {
        let mut next = blocks.start;
        while next < blocks.end {
            let step = next..blocks.end.min(next.plus(ZERO_STEP_BLOCKS));
            let pieces = BlockNo::each(&step).filter(|block| self.bytes_inside(*block) > 0);
            let pieces = pieces.map(|block| Piece::new(self.seam().zero_block(), 0, self.bytes_inside(block)));
            let pieces: Vec<_> = pieces.collect();
            if !pieces.is_empty() {
                self.write_pieces(ByteOffset::of(step.start), pieces, priority).await?;
            }
            next = step.end;
        }
        Ok(())
    }

    /// Fills a partial block for a backing that accepts whole blocks only.
    pub async fn fill_for_destage(self: &ShardRef<S>, block: BlockNo) {
        let result = self.fill(block.single(), None, Cause::Destage).await.map(drop);
        let now = self.seam().now();
        if result.is_err() {
            let is_retry = self.state.borrow().failures.contains(block);
            self.count_backing_error(false, is_retry);
        }
        self.with_state(|state, _| {
            state.filling_blocks.remove(&block);
            if let Err(error) = &result {
                state.failures.add(block, now);
                let waits = state.write_waits.take_waits(block.single());
                waits.iter().for_each(|wait| wait.finish_one(Err(error)));
            }
        });
        if let Err(error) = result {
            self.retry.record_failure(&error, now);
            *self.counters.last_error.borrow_mut() = Some(error);
        }
        self.destage_work.notify();
        self.progress.notify();
    }
}
