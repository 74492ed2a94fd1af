//! The pump: one task a shard that decides what destage writes next.
//!
//! The reasons to write, in order of urgency: a request waits for the block, destage from the log has chosen it, it
//! belongs to a stream that bypasses the log, a flush closed its epoch, the block is too old, there is too much dirty
//! data, clients are idle. The pump always continues in address order from its last position, and extends a run over
//! dirty neighbours up to the stripe.

use std::ops::Range;
use std::rc::Rc;

use flash::Epoch;
use seam::{BLOCK_BYTES, Disk, Nanos, Seam};

use super::writer::{BlockWrite, WriteJob, ZeroJob};
use crate::WritePolicy;
use crate::backing::{Cause, DestageConditions, Permit};
use crate::fill::reload::ReloadReason;
use crate::memory::zeroes::{DESTAGE_START_RANGES, ZeroRange, ZeroState};
use crate::memory::{BlockNo, MemoryCache, Sectors};
use crate::shard::state::State;
use crate::shard::{Shard, ShardRef};

/// Longest run of one write, in blocks, unless the array has a larger stripe.
const RUN_BLOCKS_DEFAULT: u64 = 64;
/// Longest run regardless of the stripe, in blocks.
const RUN_BLOCKS_MAX: u64 = 256;
/// Limit of spilled blocks that are being reloaded.
const RELOADING_BLOCKS_MAX: u64 = 256;
/// Blocks examined in one step.
pub(super) const EXAMINED_BLOCKS_MAX: usize = 4096;
/// Time without requests after which the clients count as idle.
const IDLE_AFTER: Nanos = Nanos::from_millis(200);
/// Time without a write after which a block is unlikely to be written again soon.
const STABLE_AFTER: Nanos = Nanos::from_secs(1);

/// The pump's next action.
pub(super) enum Job<B, M> {
    /// Writes a run of dirty blocks.
    Write(WriteJob<B>, Permit),
    /// Writes a zero-range.
    Zero(ZeroJob, Permit),
    /// Fills a partial block, because the backing accepts whole blocks only.
    Fill(BlockNo),
    /// Reloads spilled blocks into these buffers.
    Reload(Range<BlockNo>, Vec<M>),
    /// Flushes the backing, so that written blocks become clean.
    FlushBacking,
    /// Destages and flushes everything, as a client's flush does.
    FlushVolume,
    /// Lets other tasks run, then continues the search.
    Continue,
    /// Ends the pump: the volume stops and nothing is in flight.
    Stop,
}

/// Result of the search for spilled blocks to reload.
enum ReloadChoice<B, M> {
    /// Blocks to reload, as a [`Job::Reload`].
    Reload(Job<B, M>),
    /// Spilled blocks remain, but memory has no room for them now.
    Later,
    /// No spilled block is to be reloaded.
    Nothing,
}

/// The blocks that destage may choose now.
#[derive(Clone, Copy)]
struct Selection {
    /// Blocks of this epoch and older ones: a flush closed it.
    closed_epoch: Option<Epoch>,
    /// Blocks dirty since this time or longer.
    dirty_before: Option<Nanos>,
    /// All blocks.
    includes_all_blocks: bool,
    /// All zero-ranges.
    includes_all_zero_ranges: bool,
    /// Spilled blocks, too.
    includes_spilled_blocks: bool,
}

impl Selection {
    /// True if a block or range of this epoch, dirty since this time, may be chosen.
    fn selects(&self, epoch: Epoch, since: Nanos) -> bool {
        self.includes_all_blocks
            || self.closed_epoch.is_some_and(|closed| epoch <= closed)
            || self.dirty_before.is_some_and(|limit| since <= limit)
    }

    /// True if nothing in memory may be chosen.
    fn is_empty(&self) -> bool {
        !self.includes_all_blocks
            && !self.includes_all_zero_ranges
            && self.closed_epoch.is_none()
            && self.dirty_before.is_none()
    }
}

/// Runs the pump until the shard stops.
pub async fn run_pump<S: Seam>(shard: ShardRef<S>) {
    let mut cursor = BlockNo(0);
    loop {
        let job = shard.destage_work.wait_for(|| shard.prepare_next_job(&mut cursor)).await;
        match job {
            Job::Stop => return,
            Job::Continue => shard.seam().yield_now().await,
            Job::Write(job, permit) => {
                let shard = Rc::clone(&shard);
                shard.seam().clone().spawn(async move { shard.write_run(job, permit).await });
            }
            Job::Zero(job, permit) => {
                let shard = Rc::clone(&shard);
                shard.seam().clone().spawn(async move { shard.zero_range(job, permit).await });
            }
            Job::Fill(block) => {
                let shard = Rc::clone(&shard);
                shard.seam().clone().spawn(async move { shard.fill_for_destage(block).await });
            }
            Job::Reload(blocks, buffers) => {
                let shard = Rc::clone(&shard);
                shard.seam().clone().spawn(async move {
                    let count = BlockNo::count(&blocks);
                    // A failure is counted and reported; the block pauses before the next attempt.
                    drop(shard.reload_into(blocks, buffers, ReloadReason::Destage).await);
                    shard.state.borrow_mut().reloading_blocks -= count;
                    shard.destage_work.notify();
                    shard.progress.notify();
                });
            }
            Job::FlushBacking => {
                let shard = Rc::clone(&shard);
                shard.seam().clone().spawn(async move {
                    // A failure is counted and reported; the written blocks are then dirty again.
                    shard.flush_backing().await;
                    shard.background_flushes.is_background_flush_running.set(false);
                    shard.destage_work.notify();
                });
            }
            Job::FlushVolume => {
                let shard = Rc::clone(&shard);
                shard.seam().clone().spawn(async move {
                    // A failure is counted and reported; dirty blocks stay dirty and are tried again.
                    let (Ok(()) | Err(_)) = shard.flush_all().await;
                    shard.background_flushes.is_background_flush_running.set(false);
                    shard.destage_work.notify();
                });
            }
        }
    }
}

impl<S: Seam> Shard<S> {
    /// True if a change just made is a reason to wake the pump before its next tick.
    pub fn must_wake_pump(&self) -> bool {
        let state = self.state.borrow();
        let not_clean_units = state.not_clean_units();
        !state.write_waits.is_empty()
            || state.log_tracker.stream_bypass().has_many_waiting(self.stream_bypass_blocks_max())
            || (self.is_under_pressure(not_clean_units) && !self.defers_destage(not_clean_units))
    }

    /// Prepares the pump's next job; `None` while there is nothing to do. `cursor`: the block after the last written
    /// run.
    fn prepare_next_job(&self, cursor: &mut BlockNo) -> Option<Job<S::Block, S::BlockMut>> {
        self.detect_reconnect();
        let now = self.seam().now();
        self.with_state(|state, memory| {
            if self.is_stopping.get()
                && state.operations.is_empty()
                && state.filling_blocks.is_empty()
                && state.reloading_blocks == 0
            {
                return Some(Job::Stop);
            }
            if self.is_destage_held.get() {
                return None;
            }
            self.update_destage_limit(state, now);
            if let Some(job) = self.prepare_urgent_job(state, memory, *cursor) {
                return Some(job);
            }
            if let Some(job) = self.prepare_log_destage_job(state, memory, cursor, now) {
                return Some(job);
            }
            if let Some(job) = self.prepare_stream_job(state, memory, cursor, now) {
                return Some(job);
            }
            let selection = self.select_blocks(state, memory, now);
            let mut must_reload_later = false;
            if !selection.is_empty() {
                if let Some(job) = self.prepare_next_zero(state, &selection) {
                    return Some(job);
                }
                if let Some(job) = self.prepare_next_write(state, memory, cursor, &selection) {
                    return Some(job);
                }
                match self.prepare_reload_job(state, memory, &selection) {
                    ReloadChoice::Reload(job) => return Some(job),
                    ReloadChoice::Later => must_reload_later = true,
                    ReloadChoice::Nothing => {}
                }
            }
            let is_working = !state.operations.is_empty()
                || !state.filling_blocks.is_empty()
                || state.reloading_blocks > 0
                || must_reload_later;
            if state.backing_flush.single_flight.is_running()
                && state.epochs.closing_units() > 0
                && !is_working
                && self.may_destage(false, state.not_clean_units())
                && !self.dispatch.is_full(Cause::Destage)
            {
                state.backing_flush.is_stuck = true;
                self.progress.notify();
            }
            self.prepare_flush_job(state, memory, now)
        })
    }

    /// Sets destage's limit in the backing's queue, and its priority among the volumes of the datastore.
    fn update_destage_limit(&self, state: &State, now: Nanos) {
        let client_waits_for_write = state.backing_flush.single_flight.is_running()
            || !state.write_waits.is_empty()
            || self.partial_blocks.awaited_fill_groups.get() > 0;
        let conditions = DestageConditions {
            pressure_percent: self.destage_pressure(state.not_clean_units()),
            is_awaited: client_waits_for_write,
            are_clients_idle: self.are_clients_idle(now),
        };
        self.dispatch.set_destage_limit(now, conditions);
        if self.client_waits_for_progress(state) {
            self.expedite();
        }
    }

    /// True if zero-ranges are destaged because there are many, or because their records keep old segments in use.
    fn has_many_zero_ranges(&self, state: &State) -> bool {
        state.zeroes.len() >= DESTAGE_START_RANGES || self.log_destage.includes_zeroes()
    }

    /// True if clients have sent no request for a while.
    fn are_clients_idle(&self, now: Nanos) -> bool {
        now.since(self.last_request_at.get()) >= IDLE_AFTER
    }

    /// Determines the blocks that destage may choose now.
    fn select_blocks(&self, state: &mut State, memory: &MemoryCache<S>, now: Nanos) -> Selection {
        let oldest = state.oldest_dirty(memory, self.volume_number);
        let not_clean_units = state.not_clean_units();
        let is_flush_waiting = state.backing_flush.single_flight.is_running() && state.epochs.closing_units() > 0;
        // While destage is deferred, the longer age limit for logged data applies. A waiting flush ends the deferral,
        // because it reloads spilled blocks and needs room in memory.
        let is_deferred = !is_flush_waiting && self.defers_destage(not_clean_units);
        let age_max = if is_deferred { self.logged_age_max() } else { self.dirty_age_max() };
        let is_aged = oldest.is_some_and(|oldest| now.since(oldest) >= age_max);
        let is_idle = self.are_clients_idle(now);
        let must_drain = self.is_draining.get() || (self.mode.get() != crate::CacheMode::Active);
        // While the backing refuses writes, only a flush or a waiting request makes attempts until the pause ends.
        let is_paused = self.retry.is_paused(now);
        let older_than = if is_paused {
            None
        } else if is_idle {
            // A volume whose age limit is short destages idle blocks earlier.
            Some(Nanos(now.0.saturating_sub(STABLE_AFTER.0.min(age_max.0 / 2))))
        } else if is_aged {
            // Half the age, so that one sweep covers many blocks.
            Some(Nanos(now.0.saturating_sub(age_max.0 / 2)))
        } else {
            None
        };
        let is_under_pressure = !is_deferred && self.is_under_pressure(not_clean_units);
        let all_blocks = !is_paused && (must_drain || is_under_pressure || self.core.is_log_crowded());
        let has_many_ranges = self.has_many_zero_ranges(state);
        Selection {
            closed_epoch: is_flush_waiting.then(|| state.epochs.closed()),
            dirty_before: older_than,
            includes_all_blocks: all_blocks,
            includes_all_zero_ranges: !is_paused && has_many_ranges,
            // While the log has room, memory pressure is relieved by spilling, so it does not reload spilled blocks.
            includes_spilled_blocks: is_flush_waiting
                || ((all_blocks || older_than.is_some()) && (is_idle || must_drain || !self.has_log_room())),
        }
    }

    /// Builds a job that a request waits for.
    fn prepare_urgent_job(
        &self,
        state: &mut State,
        memory: &mut MemoryCache<S>,
        cursor: BlockNo,
    ) -> Option<Job<S::Block, S::BlockMut>> {
        if state.write_waits.is_empty() {
            return None;
        }
        let mut urgent = None;
        for block in state.write_waits.blocks_from(cursor).take(EXAMINED_BLOCKS_MAX) {
            if state.is_busy(&block.single()) {
                continue;
            }
            if let Some((start, range)) = state.zeroes.find(block) {
                if range.state == ZeroState::Dirty && !state.is_busy(&(start..range.end)) {
                    urgent = Some((start, true));
                    break;
                }
            } else if state.dirty_blocks.contains(block) && self.is_writable(state, memory, block) {
                urgent = Some((block, false));
                break;
            }
        }
        let (block, is_zero_range) = urgent?;
        if is_zero_range {
            return self.prepare_zero(state, block);
        }
        let boundary = self.run_boundary_blocks();
        let run =
            state.dirty_blocks.next_run(block, boundary, 1, |_| true, |next| self.is_writable(state, memory, next));
        self.prepare_write(state, memory, run.ok().flatten().expect("the block is dirty"), block)
    }

    /// Builds the job of a block that destage from the log has chosen.
    fn prepare_log_destage_job(
        &self,
        state: &mut State,
        memory: &mut MemoryCache<S>,
        cursor: &mut BlockNo,
        now: Nanos,
    ) -> Option<Job<S::Block, S::BlockMut>> {
        let mut queued = self.log_destage.queued_blocks();
        if queued.is_empty()
            || self.retry.is_paused(now)
            || self.dispatch.is_full(Cause::Destage)
            || !self.may_destage(true, state.not_clean_units())
        {
            return None;
        }
        loop {
            let Some(block) = queued.range(*cursor..).next().or_else(|| queued.first()).copied() else {
                // No queued block can be written now: the round continues without a write.
                self.progress.notify();
                return None;
            };
            queued.remove(&block);
            // A block that cannot be written now is found again in the next round.
            if !state.dirty_blocks.contains(block) || !self.is_writable(state, memory, block) {
                continue;
            }
            return self.prepare_background_run(state, memory, cursor, block);
        }
    }

    /// Builds the job of a background write of a writable dirty block and its dirty neighbours, and moves the cursor
    /// past them.
    fn prepare_background_run(
        &self,
        state: &mut State,
        memory: &mut MemoryCache<S>,
        cursor: &mut BlockNo,
        block: BlockNo,
    ) -> Option<Job<S::Block, S::BlockMut>> {
        let joins = |next| self.is_writable(state, memory, next);
        let run = state.dirty_blocks.next_run(block, self.run_boundary_blocks(), 1, |_| true, joins);
        let run = run.ok().flatten().expect("the block is dirty");
        *cursor = run.end;
        self.record_run(true, BlockNo::count(&run));
        self.prepare_write(state, memory, run, block)
    }

    /// Builds the job of a block of a stream that bypasses the log.
    fn prepare_stream_job(
        &self,
        state: &mut State,
        memory: &mut MemoryCache<S>,
        cursor: &mut BlockNo,
        now: Nanos,
    ) -> Option<Job<S::Block, S::BlockMut>> {
        let bypass = state.log_tracker.stream_bypass();
        if !bypass.must_destage_stream(now, self.stream_bypass_blocks_max())
            || state.backing_flush.single_flight.is_running()
            || self.has_many_zero_ranges(state)
            || self.core.log_pressure_percent() == 100
            || self.retry.is_paused(now)
            || self.dispatch.is_full(Cause::Destage)
            || !self.may_destage(true, state.not_clean_units())
        {
            return None;
        }
        let waiting = bypass.waiting_from(*cursor).take(EXAMINED_BLOCKS_MAX);
        let is_ready = |block: &BlockNo| state.dirty_blocks.contains(*block) && self.is_writable(state, memory, *block);
        let first = waiting.copied().find(is_ready)?;
        self.prepare_background_run(state, memory, cursor, first)
    }

    /// Builds the job of the first selected zero-range.
    fn prepare_next_zero(&self, state: &mut State, selection: &Selection) -> Option<Job<S::Block, S::BlockMut>> {
        let start = state.zeroes.iter().find_map(|(start, range)| {
            let is_selected = range.state == ZeroState::Dirty
                && (selection.includes_all_zero_ranges || selection.selects(range.epoch, range.dirty_since))
                && (selection.closed_epoch.is_some() || !self.defer_for_zero_record(state, start, range));
            (is_selected
                && !state.failures.is_paused(start, || self.seam().now())
                && !state.is_busy(&(start..range.end)))
            .then_some(start)
        })?;
        self.prepare_zero(state, start)
    }

    /// Defers the destage of a zero-range while a recovery may find older data of its blocks: the backing could not
    /// release their space. The flush of the log that this requests appends the record of the range. Returns true if
    /// the range is deferred.
    fn defer_for_zero_record(&self, state: &State, start: BlockNo, range: &ZeroRange) -> bool {
        let releases_space = range.may_unmap && self.disk.allocates_at_first_write();
        let is_deferred =
            releases_space && self.has_log_room() && state.log_tracker.may_recover_data(&(start..range.end));
        if is_deferred {
            self.log_destage.request_zero_record();
        }
        is_deferred
    }

    /// Builds the job of the next run of selected dirty blocks from the cursor on, or from the volume's start.
    fn prepare_next_write(
        &self,
        state: &mut State,
        memory: &mut MemoryCache<S>,
        cursor: &mut BlockNo,
        selection: &Selection,
    ) -> Option<Job<S::Block, S::BlockMut>> {
        if self.dispatch.is_full(Cause::Destage) {
            return None;
        }
        let is_background = selection.closed_epoch.is_none();
        if !self.may_destage(is_background, state.not_clean_units()) {
            return None;
        }
        // Without blocks that are old enough, no search is needed.
        let oldest = state.oldest_dirty_in_memory(memory, self.volume_number);
        let is_aged = selection.dirty_before.is_some_and(|limit| oldest.is_some_and(|oldest| oldest <= limit));
        let has_closed_dirty = selection.closed_epoch.is_some() && state.has_closed_dirty_blocks();
        if !(selection.includes_all_blocks || is_aged || has_closed_dirty) {
            return None;
        }
        let boundary = self.run_boundary_blocks();
        for from in [*cursor, BlockNo(0)] {
            let is_eligible = |block: BlockNo| {
                let id = memory.find(self.volume_number, block).expect("a dirty block has a slot");
                let slot = memory.slot(id);
                let is_selected = slot.dirty_epoch.is_some_and(|epoch| selection.selects(epoch, slot.dirty_since));
                is_selected && self.is_writable(state, memory, block)
            };
            match state.dirty_blocks.next_run(from, boundary, EXAMINED_BLOCKS_MAX, is_eligible, |next| {
                self.is_writable(state, memory, next)
            }) {
                Ok(Some(run)) => {
                    *cursor = run.end;
                    let first = run.start;
                    self.record_run(is_background, BlockNo::count(&run));
                    return self.prepare_write(state, memory, run, first);
                }
                Ok(None) => *cursor = BlockNo(0),
                Err(next) => {
                    *cursor = next;
                    return Some(Job::Continue);
                }
            }
        }
        None
    }

    /// Chooses the next run of spilled blocks to reload, in address order and slightly ahead of their writes, and takes
    /// its buffers.
    fn prepare_reload_job(
        &self,
        state: &mut State,
        memory: &mut MemoryCache<S>,
        selection: &Selection,
    ) -> ReloadChoice<S::Block, S::BlockMut> {
        if !selection.includes_spilled_blocks
            || state.log_tracker.spilled_count() == 0
            || self.core.log().is_none_or(|log| log.copies() == 0)
        {
            return ReloadChoice::Nothing;
        }
        if !self.may_destage(selection.closed_epoch.is_none(), state.not_clean_units()) {
            return ReloadChoice::Later;
        }
        // If memory is full, the next run is reloaded once the previous one is in flight.
        let last_run_is_sent = || BlockNo::each(&state.last_reload).all(|block| !state.dirty_blocks.contains(block));
        let has_room = self.has_room_to_reload(state) || (state.reloading_blocks == 0 && last_run_is_sent());
        if !has_room || state.reloading_blocks >= RELOADING_BLOCKS_MAX {
            let is_working = state.reloading_blocks > 0 || !state.operations.is_empty();
            return if is_working { ReloadChoice::Later } else { ReloadChoice::Nothing };
        }
        let boundary = self.run_boundary_blocks();
        let count = (self.not_clean_limit_blocks() / 4).clamp(1, boundary);
        let is_eligible = |block: BlockNo| {
            !state.failures.is_paused(block, || self.seam().now())
                && state.fill_guard_for(block, Sectors::ALL).is_none()
        };
        let run = [state.last_reload.end, BlockNo::ZERO]
            .into_iter()
            .find_map(|from| state.log_tracker.next_spilled_run(from, boundary, count, is_eligible));
        let Some(run) = run else {
            // A client may be reading the remaining blocks.
            return if state.fill_guards.is_empty() { ReloadChoice::Nothing } else { ReloadChoice::Later };
        };
        let buffers: Vec<_> = BlockNo::each(&run).map_while(|_| memory.alloc()).collect();
        if buffers.is_empty() {
            return ReloadChoice::Later;
        }
        let run = run.start.range_of_len(buffers.len() as u64);
        state.reloading_blocks += buffers.len() as u64;
        state.last_reload = run.clone();
        ReloadChoice::Reload(Job::Reload(run, buffers))
    }

    /// True if a dirty block may be written now, or filled for its write.
    pub(super) fn is_writable(&self, state: &State, memory: &MemoryCache<S>, block: BlockNo) -> bool {
        if state.is_busy(&(block.single())) || state.failures.is_paused(block, || self.seam().now()) {
            return false;
        }
        let id = memory.find(self.volume_number, block).expect("a dirty block has a slot");
        let is_whole = memory.slot(id).present == Sectors::ALL;
        is_whole || self.accepts_sectors() || self.may_fill(state, block)
    }

    /// True if a partial block may be filled now. The number of such fills, and of their buffers, is limited to
    /// destage's limit in the backing's queue.
    fn may_fill(&self, state: &State, block: BlockNo) -> bool {
        !state.filling_blocks.contains(&block) && state.filling_blocks.len() < self.dispatch.limit_of(Cause::Destage)
    }

    /// True if the backing accepts single sectors.
    pub fn accepts_sectors(&self) -> bool {
        self.disk.geometry().logical_block as usize <= seam::SECTOR_BYTES
    }

    /// Number of blocks at whose multiples runs end: the stripe of the array, or a default.
    pub(super) fn run_boundary_blocks(&self) -> u64 {
        let stripe = u64::from(self.disk.geometry().stripe_bytes) / BLOCK_BYTES as u64;
        match stripe {
            0 => RUN_BLOCKS_DEFAULT,
            // A whole number of small stripes: they cost no more than one, and none is written in part.
            1..=RUN_BLOCKS_DEFAULT => RUN_BLOCKS_DEFAULT / stripe * stripe,
            _ => stripe.min(RUN_BLOCKS_MAX),
        }
    }

    /// Builds the job that writes the zero-range that begins at `start`, and marks the range as in flight. Returns
    /// `None` if no permit is free.
    fn prepare_zero(&self, state: &mut State, start: BlockNo) -> Option<Job<S::Block, S::BlockMut>> {
        let permit = self.dispatch.try_acquire(Cause::Destage)?;
        let end = state.zeroes.get_mut(start).expect("the chosen range exists").end;
        let blocks = start..end;
        let operation = state.begin_operation(blocks.clone());
        let range = state.zeroes.get_mut(start).expect("the chosen range exists");
        range.state = ZeroState::InFlight(operation);
        let may_unmap = range.may_unmap;
        let waits = state.write_waits.take_waits(blocks.clone());
        Some(Job::Zero(ZeroJob { operation_id: operation, blocks, may_unmap, waits }, permit))
    }

    /// Builds the job that writes the blocks of `run` around `anchor` whose sectors in memory follow each other without
    /// a gap, and marks these blocks as sent. Where a backing accepts single sectors, a request that does not begin and
    /// end at blocks thus stays one write. If the anchor is partial and the backing accepts whole blocks only, the job
    /// fills it instead. Returns `None` if no permit is free.
    pub(super) fn prepare_write(
        &self,
        state: &mut State,
        memory: &mut MemoryCache<S>,
        run: Range<BlockNo>,
        anchor: BlockNo,
    ) -> Option<Job<S::Block, S::BlockMut>> {
        let present = |memory: &MemoryCache<S>, block: BlockNo| {
            memory.slot(memory.find(self.volume_number, block).expect("a dirty block has a slot")).present
        };
        let accepts_sectors = self.accepts_sectors();
        if present(memory, anchor) != Sectors::ALL && !accepts_sectors {
            state.filling_blocks.insert(anchor);
            return Some(Job::Fill(anchor));
        }
        let continues = |block: BlockNo| {
            let (present, next_present) = (present(memory, block), present(memory, block.next()));
            match accepts_sectors {
                true => present.is_suffix() && next_present.is_prefix(),
                false => present == Sectors::ALL && next_present == Sectors::ALL,
            }
        };
        let before = BlockNo::each(&(run.start..anchor)).rev().take_while(|block| continues(*block));
        let after = BlockNo::each(&(anchor..run.end.previous())).take_while(|block| continues(*block));
        let start = before.last().unwrap_or(anchor);
        let end = after.last().map_or(anchor.next(), |block| block.next().next());
        let run = start..end;
        let permit = self.dispatch.try_acquire(Cause::Destage)?;
        let operation = state.begin_operation(run.clone());
        let mut block_writes = Vec::with_capacity(BlockNo::count(&run) as usize);
        for block in BlockNo::each(&run) {
            let id = memory.find(self.volume_number, block).expect("a dirty block has a slot");
            let sent = state.mark_sent(memory, id);
            let slot = memory.slot(id);
            let data = slot.data.clone().expect("a slot in use has content");
            block_writes.push(BlockWrite { sent, data, present: slot.present });
        }
        let waits = BlockNo::each(&run).map(|block| state.write_waits.take_waits(block.single())).collect();
        Some(Job::Write(WriteJob { operation_id: operation, first_block: run.start, block_writes, waits }, permit))
    }

    /// Builds the job of a flush of the backing that no client requested, so that written blocks become clean and do
    /// not grow old.
    fn prepare_flush_job(
        &self,
        state: &mut State,
        memory: &MemoryCache<S>,
        now: Nanos,
    ) -> Option<Job<S::Block, S::BlockMut>> {
        if self.background_flushes.is_background_flush_running.get() {
            return None;
        }
        if self.policy.get() == WritePolicy::WriteBackVolatile
            && !state.backing_flush.single_flight.is_running()
            && !self.retry.is_paused(now)
        {
            let is_aged = state
                .oldest_dirty(memory, self.volume_number)
                .is_some_and(|oldest| now.since(oldest) >= self.dirty_age_max());
            let unflushed = state.unflushed_completions() > 0
                && now.since(self.background_flushes.last_backing_flush_at.get()) >= self.dirty_age_max();
            if is_aged || unflushed {
                self.background_flushes.last_backing_flush_at.set(now);
                self.background_flushes.is_background_flush_running.set(true);
                return Some(Job::FlushVolume);
            }
        }
        if state.backing_flush.is_running || state.unflushed_completions() == 0 || self.retry.is_paused(now) {
            return None;
        }
        // Near the limit a smaller part of the limit triggers a flush, so that writers get room in small steps.
        let divisor = if self.pressure_percent(state.not_clean_units()) >= 70 { 16 } else { 4 };
        let has_many_unflushed = state.unflushed_completions() * divisor >= self.not_clean_limit_blocks().max(divisor)
            || state.written_ranges() * divisor >= DESTAGE_START_RANGES as u64;
        let bypass_max = self.stream_bypass_blocks_max();
        let has_many_bypassing = state.unflushed_completions() as usize > bypass_max / 2
            && state.log_tracker.stream_bypass().has_many_sent(bypass_max);
        let is_overdue = now.since(self.background_flushes.last_backing_flush_at.get()) >= self.dirty_age_max();
        let is_idle = state.dirty_blocks.len() == 0 && state.operations.is_empty() && self.are_clients_idle(now);
        // A flush of the backing retires records of the log.
        let is_crowded = self.core.is_log_crowded() && state.operations.is_empty();
        if has_many_unflushed || has_many_bypassing || is_overdue || is_idle || is_crowded {
            self.background_flushes.last_backing_flush_at.set(now);
            self.background_flushes.is_background_flush_running.set(true);
            return Some(Job::FlushBacking);
        }
        None
    }
}
