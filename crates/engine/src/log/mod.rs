//! Flushes answered from the mirrored flash log. A flush appends the changes since the last one and is acknowledged
//! when they are durable on every device in service (R6, docs/rules.md). Destage runs independently; once content is
//! durable on the backing, its log records are retired (`shard/retire.rs`).
//!
//! A block that became durable on the backing without a record of its newest content gets a tombstone before the flush
//! is acknowledged. Otherwise a recovery could restore an older record over it (R8). A zero-range of any length is one
//! record.

mod backing_fallback;
pub mod partial_blocks;
mod spill;
mod tail;

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use flash::{BlockAddress, Content, Record, StoreError};
use seam::{BLOCK_BYTES, Disk, DiskError, Nanos, Seam};

use crate::RequestError;
use crate::log_tracker::{ChangeSet, RangeChange, RecordContent, WritebackStage};
use crate::memory::{BlockNo, MemoryCache};
use crate::shard::core_state::CoreState;
use crate::shard::state::State;
use crate::shard::{Shard, ShardRef};
use crate::spec::Sabotage;

/// Pause after each attempt to free space in a full log.
const FULL_LOG_PAUSE: Nanos = Nanos::from_millis(50);
/// Attempts to free space before the volume bypasses the log.
const APPEND_ATTEMPTS_MAX: u32 = 2;
/// Attempts to append the tombstones of a whole volume, which cannot bypass the log.
const TOMBSTONE_ATTEMPTS_MAX: u32 = 1_200;
/// Upper bound of a volume's blocks: a recovery may find records past an end that has moved.
const VOLUME_BLOCKS_MAX: BlockNo = BlockNo(1 << 34);
/// Longest range of one record, in blocks.
const RECORD_BLOCKS_MAX: u64 = 1 << 31;

/// Length of a batch that no client waits for.
const BACKGROUND_BATCH_BLOCKS: usize = 32;
/// Interval between two such batches of a core: together they take at most 64 MB/s.
const BACKGROUND_BATCH_INTERVAL: Nanos = Nanos::from_millis(2);
/// Interval at which a pause before such a batch checks whether the flush has become urgent.
const BACKGROUND_CHECK_INTERVAL: Nanos = Nanos::from_millis(10);

/// Scope of the data that a flush made durable.
#[derive(PartialEq, Eq)]
enum DurableScope {
    /// The flushed blocks only: in the log, or on the backing where the log does not take them.
    Blocks,
    /// The whole volume, on the backing; the log holds no record of the volume any more.
    Volume,
}

/// The blocks of a record, and their content.
fn blocks_and_content_of<S: Seam>(record: &Record<S>) -> (Range<BlockNo>, RecordContent) {
    let run = |blocks: u32| record.address.block.range_of_len(u64::from(blocks));
    match record.content {
        Content::Data(_) => (run(1), RecordContent::Data),
        Content::Zero { blocks, may_unmap } => (run(blocks), RecordContent::Zeroes { may_unmap }),
        Content::Tombstone { blocks } => (run(blocks), RecordContent::Tombstone),
    }
}

/// How a chunk of blocks is made durable.
enum ChunkPlan<S: Seam> {
    /// The records to append; none if nothing has to be recorded.
    Records(Vec<Record<S>>),
    /// Partial blocks that must be filled first (R3).
    Fill(Vec<BlockNo>),
    /// A block of the chunk can only go through the backing.
    ThroughBacking,
}

/// The parts of `range` outside `blocks`.
fn parts_outside(range: Range<BlockNo>, blocks: &BTreeSet<BlockNo>) -> Vec<Range<BlockNo>> {
    let (mut remaining, mut start) = (Vec::new(), range.start);
    for block in blocks.range(range.clone()).copied().chain([range.end]) {
        remaining.extend((start < block).then_some(start..block));
        start = block.next();
    }
    remaining
}

/// `range` in pieces of at most one record each.
pub fn pieces_of(range: Range<BlockNo>) -> impl Iterator<Item = Range<BlockNo>> {
    // `step_by` comes before `map`: on a `Map` each step would call `next` 2^31 times.
    let starts = (range.start.0..range.end.0).step_by(RECORD_BLOCKS_MAX as usize).map(BlockNo);
    starts.map(move |start| start..range.end.min(start.plus(RECORD_BLOCKS_MAX)))
}

/// The error of a request that the store failed.
fn to_request_error(error: &StoreError) -> RequestError {
    DiskError::Io(error.to_string()).into()
}

impl<S: Seam> CoreState<S> {
    /// Reacts to a full log: every shard destages the blocks whose records fill it.
    fn destage_to_free_log(&self) {
        for shard in self.shards() {
            shard.retire_durable_zero_records();
            shard.destage_work.notify();
            let needs_flush = {
                let state = shard.state.borrow();
                state.log_tracker.holds_segments()
                    && state.log_tracker.has_changes()
                    && !state.log_flush.single_flight.is_running()
            };
            if needs_flush {
                // A flush appends newer records or tombstones, so that old records can be retired. The next flush
                // reports an error.
                let shard = Rc::clone(&shard);
                self.seam().spawn(async move { drop(shard.flush_log().await) });
            }
        }
    }
}

impl<S: Seam> Shard<S> {
    /// Makes all writes acknowledged before this call durable, in the log or on the backing.
    pub async fn flush_log(self: &ShardRef<S>) -> Result<(), RequestError> {
        let _waiting = self.flush_batcher.add_operation();
        self.flush_batcher.add_request();
        self.join_log_flush().await
    }

    /// Joins or starts the shared log flush. Without a waiting operation (`add_operation`) its batches are small and
    /// paced, because reads would wait behind the programs of large ones (docs/design/flash-log.md), and streams that
    /// bypass the log are left out.
    async fn join_log_flush(self: &ShardRef<S>) -> Result<(), RequestError> {
        let target = self.state.borrow().log_flush.last_flush_number + 1;
        self.run_shared(|state| &state.log_flush.single_flight, target, async || self.run_log_flush().await).await
    }

    /// Runs one flush of the log for all callers that share it: takes the changes, makes them durable, and records the
    /// result.
    async fn run_log_flush(self: &ShardRef<S>) -> Result<(), RequestError> {
        self.state.borrow_mut().log_flush.single_flight.begin();
        let flushes = self.flush_batcher.wait_for_batch(self.seam()).await;
        self.ensure_evidence().await;
        let started_at = self.seam().now();
        // Takes the blocks of bypassing streams too if `must_log_all`. Partial blocks are taken only for a waiting
        // operation, or if the list of changes is long.
        let takes_all = self.must_log_all() && !self.has_sabotage(Sabotage::LeaveOutStreams);
        let takes_partial = self.flush_batcher.is_run_awaited() && !self.has_sabotage(Sabotage::LeaveOutPartial);
        let (number, changed, left_out) = self.with_state(|state, memory| {
            state.log_flush.last_flush_number += 1;
            state.log_flush.last_flush_began_at = started_at;
            let bypassed_after = Nanos(started_at.0.saturating_sub(self.dirty_age_max().0));
            let left_out = match takes_partial || state.log_tracker.has_many_changes() {
                true => Vec::new(),
                false => self.partial_blocks_to_leave_out(memory, state.log_tracker.changes()),
            };
            let changed = match takes_all {
                true => state.log_tracker.begin_log_flush(&left_out),
                false => state.log_tracker.begin_log_flush_except_streams(bypassed_after, &left_out),
            };
            (state.log_flush.last_flush_number, changed, left_out)
        });
        self.start_left_out_fills(left_out);
        // Boxed, because the compiler limits the depth of nested futures.
        let result = Box::pin(self.make_durable(&changed)).await;
        let now = self.seam().now();
        if flushes > 0 {
            self.flush_batcher.record_run(now, flushes, now.since(started_at));
        }
        self.with_state(|state, _| {
            state.log_flush.single_flight.finish(result.clone().map(|()| number));
            state.log_tracker.end_log_flush(&changed, result.is_ok());
        });
        self.log_destage.record_log_flush(result.is_ok());
        if result.is_ok() {
            self.spill_if_full();
        }
        self.retire_records();
        self.progress.notify();
        result
    }

    /// Flushes the log before a full destage, so that the zero-ranges are recorded; without a record the backing may
    /// not release their space. A failure is ignored: the destage then writes the zeroes, and may keep their space
    /// allocated.
    pub async fn log_zero_ranges(self: &ShardRef<S>) {
        if self.disk.allocates_at_first_write() && self.uses_log() {
            drop(self.flush_log().await);
        }
    }

    /// Drains the log of this volume: destages the whole volume and appends tombstones, so that a recovery finds none
    /// of its records.
    pub async fn drain_log(self: &ShardRef<S>) -> Result<(), RequestError> {
        self.flush_all().await?;
        self.append_tombstones_from(BlockNo::ZERO).await
    }

    /// Waits until no log flush is in progress.
    pub async fn wait_for_log_flush(&self) {
        let _waiting = self.flush_batcher.add_operation();
        self.progress.wait_for(|| (!self.state.borrow().log_flush.single_flight.is_running()).then_some(())).await;
    }

    /// Appends tombstones of all blocks from `first` on, whose content is durable on the backing or discarded.
    pub async fn append_tombstones_from(self: &ShardRef<S>, first: BlockNo) -> Result<(), RequestError> {
        if !self.state.borrow().log_tracker.has_records() {
            return Ok(());
        }
        self.wait_for_log_flush().await;
        self.state.borrow_mut().log_flush.single_flight.begin();
        let result = match first {
            BlockNo::ZERO => self.append_all_tombstones().await,
            first => self.append_tombstones(std::iter::once(first..VOLUME_BLOCKS_MAX)).await.map(drop),
        };
        self.with_state(|state, _| state.log_flush.single_flight.finish_exclusive());
        self.retire_records();
        self.progress.notify();
        result
    }

    /// Like [`Shard::append_tombstones_from`] with the first block past the volume's end, before the volume is served.
    /// It waits neither for space in the log nor for the backing: in a full log, the next flush appends the tombstones.
    pub async fn append_tombstones_past_end(self: &ShardRef<S>) -> Result<(), RequestError> {
        let past_end = pieces_of(self.end_block()..VOLUME_BLOCKS_MAX).map(|piece| (piece, RecordContent::Tombstone));
        let pieces: Vec<_> = past_end.collect();
        let Some(store) = self.store() else { return Err(RequestError::ShuttingDown) };
        match store.append_tombstones(self.build_range_records(&pieces)).await {
            Ok(positions) => self.with_state(|state, _| state.log_tracker.on_appends_durable(&pieces, &positions)),
            // No acknowledgement relies on these tombstones.
            Err(StoreError::Full | StoreError::Unrecorded { .. }) => {}
            Err(error) => return Err(to_request_error(&error)),
        }
        self.retire_records();
        Ok(())
    }

    /// Records that the log needs tombstones of all blocks from `first` on, which the next flush appends.
    pub fn queue_tombstones_from(&self, first: BlockNo) {
        self.with_state(|state, _| {
            state.log_tracker.record_range_change(first..VOLUME_BLOCKS_MAX, RangeChange::Outdated);
            state.log_tracker.record_clean(first..VOLUME_BLOCKS_MAX);
        });
    }

    /// Makes the changes durable: first the ranges, then the blocks, in chunks of at most one batch.
    async fn make_durable(self: &ShardRef<S>, changed: &ChangeSet) -> Result<(), RequestError> {
        if changed.covers_whole_volume || (changed.has_zeroed_ranges() && !self.uses_log()) {
            self.flush_all().await?;
            return self.append_all_tombstones().await;
        }
        if !changed.ranges.is_empty() && self.state.borrow().log_tracker.has_many_zero_records() {
            self.flush_zeroes().await?;
            self.with_state(|state, memory| state.retire_durable_zeroes(memory, self.volume_number));
        }
        let ranges = changed.ranges.iter().flat_map(|(start, (end, change))| {
            let parts = parts_outside(*start..*end, &changed.blocks).into_iter();
            parts.flat_map(move |part| self.split_at_end(part, *change))
        });
        if self.append_ranges(ranges).await? == DurableScope::Volume {
            return Ok(());
        }
        let blocks: Vec<BlockNo> = changed.blocks.iter().copied().collect();
        let batch_max = self.store().map_or(1, |store| store.records_max());
        let mut remaining = blocks.as_slice();
        while !remaining.is_empty() {
            let batch_len = self.pause_before_batch().await.unwrap_or(batch_max);
            let (chunk, rest) = remaining.split_at(batch_len.min(batch_max).min(remaining.len()));
            remaining = rest;
            let end = chunk.last().expect("a chunk has blocks").next();
            if self.log_chunk(chunk, remaining).await? == DurableScope::Volume {
                break;
            }
            self.state.borrow_mut().log_tracker.advance_append_cursor(end);
        }
        Ok(())
    }

    /// Waits until the next background batch of this core may begin. Returns its length in blocks; `None` if the flush
    /// is urgent.
    async fn pause_before_batch(&self) -> Option<usize> {
        while !self.is_log_flush_urgent() {
            let (now, begin) = (self.seam().now(), self.core.next_background_batch_at.get());
            if now >= begin {
                self.core.next_background_batch_at.set(now + BACKGROUND_BATCH_INTERVAL);
                return Some(BACKGROUND_BATCH_BLOCKS);
            }
            self.flush_batcher.pause(self.seam(), begin.min(now + BACKGROUND_CHECK_INTERVAL)).await;
        }
        None
    }

    /// True if the log flush in progress takes all changes, or the log has little room.
    fn is_log_flush_urgent(&self) -> bool {
        self.must_log_all() || self.core.log_pressure_percent() == 100
    }

    /// True if an operation waits for the log flush in progress, memory has little room, or the list of changes is
    /// long: then no block bypasses the log.
    fn must_log_all(&self) -> bool {
        let state = self.state.borrow();
        self.flush_batcher.is_run_awaited()
            || self.has_memory_pressure(state.not_clean_units())
            || state.log_tracker.has_many_changes()
    }

    /// Makes the blocks durable. `further` blocks follow in later chunks.
    async fn log_chunk(
        self: &ShardRef<S>,
        blocks: &[BlockNo],
        further: &[BlockNo],
    ) -> Result<DurableScope, RequestError> {
        let mut tried = 0;
        loop {
            let had_records = self.state.borrow().log_tracker.has_records();
            let records = match self.with_state(|state, memory| self.build_chunk_records(state, memory, blocks)) {
                ChunkPlan::Records(records) if records.is_empty() => return Ok(DurableScope::Blocks),
                ChunkPlan::Records(records) => records,
                // If the fill fails, the present sectors go to the backing.
                ChunkPlan::Fill(partial) if self.fill_partial_blocks(&partial, further).await.is_ok() => continue,
                ChunkPlan::Fill(_) | ChunkPlan::ThroughBacking => {
                    self.destage_blocks(blocks).await?;
                    let runs = blocks.chunk_by(|block, next| block.next() == *next);
                    return self.append_tombstones(runs.map(|run| run[0].range_of_len(run.len() as u64))).await;
                }
            };
            let contents: Vec<(Range<BlockNo>, RecordContent)> = records.iter().map(blocks_and_content_of).collect();
            let data_blocks = || {
                contents.iter().filter(|(_, content)| *content == RecordContent::Data).map(|(blocks, _)| blocks.start)
            };
            let Some(store) = self.store() else { return Err(RequestError::ShuttingDown) };
            if self.has_sabotage(Sabotage::AckBeforeLog) {
                drop(records);
                self.with_state(|state, _| data_blocks().for_each(|block| state.log_tracker.on_append_failed(block)));
                return Ok(DurableScope::Blocks);
            }
            // A batch whose membership change is not yet recorded must not be acknowledged, but its records are in the
            // log (R10).
            let (result, unrecorded) = match store.append(records).await {
                Err(StoreError::Unrecorded { reason, positions }) => {
                    (Ok(positions), Some(StoreError::Unrecorded { reason, positions: Vec::new() }))
                }
                result => (result, None),
            };
            if result.is_ok() {
                let blocks = data_blocks().count() as u64;
                self.counters.add(&self.counters.logged_bytes, blocks * BLOCK_BYTES as u64);
            }
            self.with_state(|state, _| match &result {
                Ok(positions) => state.log_tracker.on_appends_durable(&contents, positions),
                Err(error) => {
                    data_blocks().for_each(|block| state.log_tracker.on_append_failed(block));
                    if *error == StoreError::Full && !had_records {
                        state.log_tracker.on_first_append_failed();
                    }
                }
            });
            self.retire_records();
            match result {
                Ok(_) => return unrecorded.map_or(Ok(DurableScope::Blocks), |error| Err(to_request_error(&error))),
                Err(StoreError::Full) if tried < APPEND_ATTEMPTS_MAX && !self.core.is_log_still_full() => {
                    // Content on the backing needs no space in the log.
                    self.free_log_space(tried > 0).await?;
                    tried += 1;
                }
                Err(StoreError::Full) => return self.bypass_log().await,
                Err(error) => return Err(to_request_error(&error)),
            }
        }
    }

    /// Builds the records of a chunk of blocks from their present content, and registers that they are being appended.
    fn build_chunk_records(&self, state: &mut State, memory: &mut MemoryCache<S>, blocks: &[BlockNo]) -> ChunkPlan<S> {
        let uses_log = self.uses_log();
        let mut partial = Vec::new();
        for block in blocks {
            match memory.find(self.volume_number, *block).map(|id| memory.slot(id)) {
                None if state.zeroes.contains(*block) && !uses_log => return ChunkPlan::ThroughBacking,
                Some(slot) if !slot.is_clean() && !uses_log => return ChunkPlan::ThroughBacking,
                _ if self.is_partial(memory, *block) => partial.push(*block),
                _ => {}
            }
        }
        if !partial.is_empty() {
            return ChunkPlan::Fill(partial);
        }
        let mut records: Vec<Record<S>> = Vec::new();
        for block in blocks {
            let address = BlockAddress { volume_id: self.volume_id, block: *block };
            let epoch = state.epochs.current();
            let slot = memory.find(self.volume_number, *block).map(|id| memory.slot(id));
            if slot.is_none()
                && let Some((_, range)) = state.zeroes.find(*block)
            {
                state.log_tracker.begin_range_append();
                records.push(Record {
                    address,
                    epoch,
                    content: Content::Zero { blocks: 1, may_unmap: range.may_unmap },
                });
                continue;
            }
            let Some(slot) = slot.filter(|slot| !slot.is_clean()) else {
                // The newest content is durable on the backing: a tombstone replaces the record.
                if state.log_tracker.has_records() && !self.has_sabotage(Sabotage::NoTombstones) {
                    records.push(Record { address, epoch, content: Content::Tombstone { blocks: 1 } });
                }
                continue;
            };
            let stage = match (slot.dirty_epoch, slot.in_flight_epoch, slot.written) {
                (None, None, Some(written)) => WritebackStage::Written(written.completion),
                (None, Some(_), _) => WritebackStage::Sent,
                // A write in flight carries older content than this record, so it proves nothing about it.
                (Some(_), Some(_), _) if self.has_sabotage(Sabotage::TrustOldWrite) => WritebackStage::Sent,
                _ => WritebackStage::NotSent,
            };
            let data = slot.data.clone().expect("a slot in use has content");
            state.log_tracker.begin_append(*block, stage);
            records.push(Record { address, epoch, content: Content::Data(data) });
        }
        ChunkPlan::Records(records)
    }

    /// Makes tombstones of the ranges durable, if a recovery could find records of the volume. The content of the
    /// ranges must be durable on the backing or discarded.
    async fn append_tombstones(
        self: &ShardRef<S>,
        ranges: impl IntoIterator<Item = Range<BlockNo>>,
    ) -> Result<DurableScope, RequestError> {
        self.append_ranges(ranges.into_iter().map(|range| (range, RangeChange::Outdated))).await
    }

    /// Splits a changed range at the volume's end. The part past the end is outdated, because nothing was zeroed there.
    fn split_at_end(&self, range: Range<BlockNo>, change: RangeChange) -> Vec<(Range<BlockNo>, RangeChange)> {
        let end = BlockNo(self.block_count()).clamp(range.start, range.end);
        let parts = [(range.start..end, change), (end..range.end, RangeChange::Outdated)];
        parts.into_iter().filter(|(part, _)| !part.is_empty()).collect()
    }

    /// Makes records of changed ranges durable: of zeroes, or tombstones if a recovery could find records of the
    /// volume. The content of the ranges with tombstones must be durable on the backing or discarded.
    async fn append_ranges(
        self: &ShardRef<S>,
        ranges: impl IntoIterator<Item = (Range<BlockNo>, RangeChange)>,
    ) -> Result<DurableScope, RequestError> {
        let record_content = |change| match change {
            RangeChange::Zeroed { may_unmap } => RecordContent::Zeroes { may_unmap },
            RangeChange::Outdated => RecordContent::Tombstone,
        };
        let pieces: Vec<(Range<BlockNo>, RecordContent)> = ranges
            .into_iter()
            .flat_map(|(range, change)| pieces_of(range).map(move |piece| (piece, record_content(change))))
            .collect();
        let batch_max = self.store().map_or(1, |store| store.records_max());
        for pieces in pieces.chunks(batch_max) {
            if self.append_range_batch(pieces).await? == DurableScope::Volume {
                return Ok(DurableScope::Volume);
            }
        }
        Ok(DurableScope::Blocks)
    }

    /// Appends one batch of range records; tombstones only if a recovery could find records of the volume.
    async fn append_range_batch(
        self: &ShardRef<S>,
        pieces: &[(Range<BlockNo>, RecordContent)],
    ) -> Result<DurableScope, RequestError> {
        let had_records = self.state.borrow().log_tracker.has_records();
        let has_tombstones = had_records && !self.has_sabotage(Sabotage::NoTombstones);
        let is_needed = |content: &RecordContent| has_tombstones || *content != RecordContent::Tombstone;
        let pieces: Vec<_> = pieces.iter().filter(|(_, content)| is_needed(content)).cloned().collect();
        if pieces.is_empty() {
            return Ok(DurableScope::Blocks);
        }
        self.with_state(|state, _| state.log_tracker.begin_range_append());
        let mut tried = 0;
        loop {
            let Some(store) = self.store() else { return Err(RequestError::ShuttingDown) };
            let (positions, unrecorded) = match store.append(self.build_range_records(&pieces)).await {
                Ok(positions) => (positions, None),
                // The records are in the log, but must not be acknowledged (R10).
                Err(StoreError::Unrecorded { reason, positions }) => {
                    (positions, Some(StoreError::Unrecorded { reason, positions: Vec::new() }))
                }
                Err(StoreError::Full) if tried < APPEND_ATTEMPTS_MAX && !self.core.is_log_still_full() => {
                    self.free_log_space(tried > 0).await?;
                    tried += 1;
                    continue;
                }
                Err(StoreError::Full) => {
                    if !had_records {
                        self.with_state(|state, _| state.log_tracker.on_first_append_failed());
                    }
                    return self.bypass_log().await;
                }
                Err(error) => return Err(to_request_error(&error)),
            };
            self.with_state(|state, _| state.log_tracker.on_appends_durable(&pieces, &positions));
            return unrecorded.map_or(Ok(DurableScope::Blocks), |error| Err(to_request_error(&error)));
        }
    }

    /// Bypasses the log: destages the whole volume and appends its tombstones. Other volumes fill the log, perhaps for
    /// long, because their backing does not answer or because they are not attached. Until the log has more room, the
    /// next flushes do not wait for it either.
    async fn bypass_log(self: &ShardRef<S>) -> Result<DurableScope, RequestError> {
        self.core.record_full_log();
        self.flush_all().await?;
        self.append_all_tombstones().await?;
        Ok(DurableScope::Volume)
    }

    /// Like [`Shard::append_tombstones`] for the whole volume: a recovery then finds none of its records.
    async fn append_all_tombstones(self: &ShardRef<S>) -> Result<(), RequestError> {
        if !self.state.borrow().log_tracker.has_records() || self.has_sabotage(Sabotage::NoTombstones) {
            return Ok(());
        }
        let pieces = pieces_of(BlockNo::ZERO..VOLUME_BLOCKS_MAX).map(|piece| (piece, RecordContent::Tombstone));
        let pieces: Vec<_> = pieces.collect();
        let batch_max = self.store().map_or(1, |store| store.records_max());
        for pieces in pieces.chunks(batch_max) {
            let mut tries_left = TOMBSTONE_ATTEMPTS_MAX;
            loop {
                let Some(store) = self.store() else { return Err(RequestError::ShuttingDown) };
                match store.append_tombstones(self.build_range_records(pieces)).await {
                    Ok(_) => break,
                    // The space reserved for these tombstones is used up; a log of few segments reserves none.
                    Err(StoreError::Full) if tries_left > 0 => {
                        self.free_log_space(false).await?;
                        tries_left -= 1;
                    }
                    Err(error) => return Err(to_request_error(&error)),
                }
            }
        }
        self.with_state(|state, _| state.log_tracker.on_all_tombstones_durable());
        Ok(())
    }

    /// Builds records of ranges; none of them has data.
    fn build_range_records(&self, pieces: &[(Range<BlockNo>, RecordContent)]) -> Vec<Record<S>> {
        let epoch = self.state.borrow().epochs.current();
        let record = |(piece, content): &(Range<BlockNo>, RecordContent)| {
            let address = BlockAddress { volume_id: self.volume_id, block: piece.start };
            let blocks = BlockNo::count(piece) as u32;
            let content = match *content {
                RecordContent::Data => unreachable!("a range has no data"),
                RecordContent::Zeroes { may_unmap } => Content::Zero { blocks, may_unmap },
                RecordContent::Tombstone => Content::Tombstone { blocks },
            };
            Record { address, epoch, content }
        };
        pieces.iter().map(record).collect()
    }

    /// Frees space in a full log: starts destage of all volumes' oldest records, and waits for this volume's. With
    /// `is_retry`, an earlier attempt has failed, and the whole volume is destaged.
    async fn free_log_space(self: &ShardRef<S>, is_retry: bool) -> Result<(), RequestError> {
        self.core.destage_to_free_log();
        if is_retry {
            self.flush_all().await?;
        } else {
            self.destage_log_tail().await?;
        }
        // A clean block has its newest content durable on the backing. If a recovery restores its record before the
        // tail has passed it, that content still satisfies the last flush.
        self.with_state(|state, memory| {
            let is_clean = |block: BlockNo| match memory.find(self.volume_number, block) {
                Some(id) => memory.slot(id).is_clean(),
                None => !state.zeroes.contains(block),
            };
            state.log_tracker.retire_records_if(is_clean);
            state.retire_durable_zeroes(memory, self.volume_number);
        });
        self.retire_records();
        self.seam().sleep(FULL_LOG_PAUSE).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tombstones_of_a_whole_volume_are_few() {
        let pieces: Vec<_> = pieces_of(BlockNo(7)..VOLUME_BLOCKS_MAX).collect();
        assert_eq!(pieces.len(), 8);
        assert_eq!((pieces[0].start, pieces[7].end), (BlockNo(7), VOLUME_BLOCKS_MAX));
        assert!(pieces.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert!(pieces.iter().all(|piece| BlockNo::count(piece) <= RECORD_BLOCKS_MAX));
    }
}
