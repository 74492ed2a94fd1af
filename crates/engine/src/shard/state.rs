//! States of a shard's blocks and ranges, and all their transitions.
//!
//! Only this file changes `dirty_epoch`, `in_flight_epoch` and `written` of a slot. Each transition keeps the slot, the
//! epochs' counts, the dirty blocks and the policy's pins consistent.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use flash::{CompletionNo, Epoch, Position};
use seam::{Nanos, Seam};

use super::changed_blocks::ChangedBlocks;
use super::dirty_blocks::DirtyBlocks;
use super::epochs::Epochs;
use super::failures::Failures;
use super::fill_guard::FillGuard;
use super::flush_progress::{BackingFlushProgress, LogFlushProgress};
use super::write_wait::{WriteWait, WriteWaits};
use crate::flash_tier::destaged::DestagedBlocks;
use crate::log_tracker::{LogTracker, RangeChange};
use crate::memory::zeroes::{RANGES_MAX, ZeroRange, ZeroRanges, ZeroState};
use crate::memory::{BlockNo, MemoryCache, Sectors, Slot, SlotRef, UnflushedWrite};

/// A write or zero operation in flight to the backing.
pub struct Operation {
    /// Number of the operation.
    pub id: u64,
    /// The changed blocks; no other operation may touch them meanwhile.
    pub blocks: Range<BlockNo>,
}

/// Data on the backing that awaits a flush there.
enum WrittenUnit {
    Block(SlotRef),
    /// The zero-range that begins at this block.
    Zeroes(BlockNo),
}

/// Flush obligation of replaced content; the newer content inherits it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushObligation {
    /// Oldest epoch of content that is not durable.
    pub epoch: Option<Epoch>,
    /// The content includes acknowledged data that has no other durable copy, or will include it when the write in
    /// flight completes.
    pub holds_acknowledged_data: bool,
}

impl FlushObligation {
    /// Combines two obligations.
    pub fn merge(self, other: FlushObligation) -> FlushObligation {
        FlushObligation {
            epoch: [self.epoch, other.epoch].into_iter().flatten().min(),
            holds_acknowledged_data: self.holds_acknowledged_data || other.holds_acknowledged_data,
        }
    }

    /// The oldest epoch among the obligation and `epoch`.
    pub fn oldest_epoch(self, epoch: Epoch) -> Epoch {
        self.epoch.map_or(epoch, |older| older.min(epoch))
    }
}

/// A block in flight to the backing.
pub struct InFlightBlock {
    /// Its slot, which may be gone when the write completes.
    pub slot: SlotRef,
    /// Number of the block.
    pub block: BlockNo,
    /// Epoch of the content in flight.
    pub epoch: Epoch,
}

fn are_overlapping(left: &Range<BlockNo>, right: &Range<BlockNo>) -> bool {
    left.start < right.end && right.start < left.end
}

/// Block and range states of a shard.
#[derive(Default)]
pub struct State {
    /// Epochs, by which flushes wait.
    pub epochs: Epochs,
    /// Dirty blocks, in address order.
    pub dirty_blocks: DirtyBlocks,
    /// Number of dirty blocks of closed epochs.
    closed_dirty_blocks: u64,
    /// Zero-ranges.
    pub zeroes: ZeroRanges,
    /// Operations in flight to the backing.
    pub operations: Vec<Operation>,
    /// Fills and queries in flight (R2, docs/rules.md).
    pub fill_guards: Vec<Rc<FillGuard>>,
    /// Blocks changed since the attach, while blocks of the volume's former owner can be admitted.
    pub changed_blocks: Option<ChangedBlocks>,
    /// Requests that wait for the next write of a block, by block.
    pub write_waits: WriteWaits,
    /// Blocks and ranges (by first block) whose last write failed.
    pub failures: Failures,
    /// The shard's records in the flash log.
    pub log_tracker: LogTracker,
    /// Progress of flushes that the log answers.
    pub log_flush: LogFlushProgress,
    /// Progress of flushes to the backing.
    pub backing_flush: BackingFlushProgress,
    /// Blocks whose missing sectors are being read for destage.
    pub filling_blocks: BTreeSet<BlockNo>,
    /// The last seen connection epoch of the backing.
    pub connection_epoch: u64,
    /// Number of events by which the backing may have lost written data: failed flushes and reconnects.
    pub backing_losses: u64,
    /// All completions below this number are flushed on the backing.
    pub flushed_below: CompletionNo,
    /// Number of the next completion on the backing.
    next_completion: CompletionNo,
    /// Number of the next operation.
    next_operation_id: u64,
    /// Data on the backing that awaits a flush there, with the completion number of its write.
    written: VecDeque<(WrittenUnit, CompletionNo)>,
    /// Number of slots with written content.
    written_blocks: u64,
    /// Number of zero-ranges in `written`.
    written_ranges: u64,
    /// Dirty blocks in memory with the time since which they have been dirty, the longest dirty first. Entries may be
    /// out of date.
    dirty_since_queue: VecDeque<(BlockNo, Nanos)>,
    /// Blocks in memory that are not clean.
    not_clean_blocks: u64,
    /// Lower bound of the times at which the spilled blocks became dirty or were logged; recovered ones count from the
    /// start on.
    spilled_since: Nanos,
    /// Number of blocks being reloaded for destage.
    pub reloading_blocks: u64,
    /// Blocks that destage reloaded last.
    pub last_reload: Range<BlockNo>,
}

impl State {
    /// The initial state. The first flush always reaches the backing, because an earlier run may have written.
    pub fn new(connection_epoch: u64) -> Self {
        State { connection_epoch, next_completion: CompletionNo(1), ..State::default() }
    }

    /// Number of zero-ranges and of blocks that are not clean.
    pub fn not_clean_units(&self) -> u64 {
        self.not_clean_blocks + self.zeroes.len() as u64
    }

    /// True if there is work that depends on time.
    pub fn needs_tick(&self) -> bool {
        self.not_clean_units() > 0 || self.log_tracker.spilled_count() > 0
    }

    /// Completions on the backing that await its flush; a block written several times counts each time.
    pub fn unflushed_completions(&self) -> u64 {
        self.written.len() as u64
    }

    /// Blocks on the backing that await its flush.
    pub fn written_blocks(&self) -> u64 {
        self.written_blocks
    }

    /// Zero-ranges on the backing that await its flush, including ranges that no longer exist.
    pub fn written_ranges(&self) -> u64 {
        self.written_ranges
    }

    /// Number of the next completion: a flush that begins now covers the completions below it.
    pub fn next_completion(&self) -> CompletionNo {
        self.next_completion
    }

    /// Numbers a completion that belongs to no block or range.
    pub fn number_completion(&mut self) -> CompletionNo {
        let completion = self.next_completion;
        self.next_completion = completion.next();
        completion
    }

    /// Marks the slot dirty: its content is newer than the backing's, as of `epoch` or the older epoch in which it is
    /// already dirty.
    pub fn mark_dirty<S: Seam>(&mut self, memory: &mut MemoryCache<S>, id: u32, epoch: Epoch, now: Nanos) {
        let slot = memory.slot_mut(id);
        let was_clean = slot.is_clean();
        match slot.dirty_epoch {
            Some(old) if old <= epoch => return,
            Some(old) => {
                self.epochs.remove(old);
                slot.dirty_epoch = Some(epoch);
                self.closed_dirty_blocks += u64::from(self.epochs.is_closed(epoch) && !self.epochs.is_closed(old));
            }
            None => {
                slot.dirty_epoch = Some(epoch);
                slot.dirty_since = now;
                self.closed_dirty_blocks += u64::from(self.epochs.is_closed(epoch));
                self.dirty_blocks.insert(slot.block);
                // A block reloaded for destage is older than the others.
                let is_reloaded =
                    slot.is_transit && self.dirty_since_queue.back().is_some_and(|(_, youngest)| now < *youngest);
                let age = (slot.block, now);
                if is_reloaded { self.dirty_since_queue.push_front(age) } else { self.dirty_since_queue.push_back(age) }
            }
        }
        self.epochs.add(epoch);
        self.not_clean_blocks += u64::from(was_clean);
        memory.update_pin(id, was_clean);
        if self.dirty_since_queue.len() as u64 > 2 * self.dirty_blocks.len() + 1024 {
            let dirty_blocks = &self.dirty_blocks;
            self.dirty_since_queue.retain(|(block, _)| dirty_blocks.contains(*block));
        }
    }

    /// Time since which the oldest dirty block in memory has been dirty; blocks in flight do not count.
    pub fn oldest_dirty_in_memory<S: Seam>(&mut self, memory: &MemoryCache<S>, volume_number: u32) -> Option<Nanos> {
        while let Some((block, since)) = self.dirty_since_queue.front() {
            let slot = memory.find(volume_number, *block).map(|id| memory.slot(id));
            if slot.is_some_and(|slot| slot.dirty_epoch.is_some() && slot.dirty_since == *since) {
                break;
            }
            self.dirty_since_queue.pop_front();
        }
        self.dirty_since_queue.front().map(|(_, since)| *since)
    }

    /// Raises the lower bound for spilled blocks to `since`: all of them were logged at that time or later.
    pub fn raise_spilled_since(&mut self, since: Nanos) {
        self.spilled_since = self.spilled_since.max(since);
    }

    /// Time since which the oldest dirty block or range has been dirty. Blocks in flight do not count, and spilled
    /// blocks count by their lower bound.
    pub fn oldest_dirty<S: Seam>(&mut self, memory: &MemoryCache<S>, volume_number: u32) -> Option<Nanos> {
        let block = self.oldest_dirty_in_memory(memory, volume_number);
        let spilled = (self.log_tracker.spilled_count() > 0).then_some(self.spilled_since);
        // A recovery may find more ranges than requests can add; all of them are destaged at once then.
        let dirty = self.zeroes.iter().take(RANGES_MAX).filter(|(_, range)| range.state == ZeroState::Dirty);
        let range = dirty.map(|(_, range)| range.dirty_since).min();
        [block, range, spilled].into_iter().flatten().min()
    }

    /// Closes the current epoch and returns its number.
    pub fn close_epoch(&mut self) -> Epoch {
        self.closed_dirty_blocks = self.dirty_blocks.len();
        self.epochs.close()
    }

    /// True if a dirty block in memory belongs to a closed epoch and is not in flight.
    pub fn has_closed_dirty_blocks(&self) -> bool {
        self.closed_dirty_blocks > 0
    }

    /// Registers an operation over `blocks`; no other one may touch them.
    pub fn begin_operation(&mut self, blocks: Range<BlockNo>) -> u64 {
        assert!(!self.is_busy(&blocks), "two operations at once on the same blocks");
        let id = self.next_operation_id;
        self.next_operation_id += 1;
        self.operations.push(Operation { id, blocks });
        id
    }

    /// Removes an operation that has ended.
    pub fn end_operation(&mut self, id: u64) {
        let index = self.operations.iter().position(|operation| operation.id == id);
        self.operations.swap_remove(index.expect("an operation ends once"));
    }

    /// Number of the next operation.
    pub fn next_operation_id(&self) -> u64 {
        self.next_operation_id
    }

    /// True if an operation with a lower number is in flight.
    pub fn has_operation_before(&self, id: u64) -> bool {
        self.operations.iter().any(|operation| operation.id < id)
    }

    /// True if an operation in flight touches any of `blocks`.
    pub fn is_busy(&self, blocks: &Range<BlockNo>) -> bool {
        self.operations.iter().any(|other| are_overlapping(&other.blocks, blocks))
    }

    /// Marks a dirty block as in flight.
    pub fn mark_sent<S: Seam>(&mut self, memory: &mut MemoryCache<S>, id: u32) -> InFlightBlock {
        let reference = memory.reference(id);
        let slot = memory.slot_mut(id);
        let epoch = slot.dirty_epoch.take().expect("only a dirty block is written");
        assert!(slot.in_flight_epoch.is_none(), "a block is written once at a time");
        slot.in_flight_epoch = Some(epoch);
        self.closed_dirty_blocks -= u64::from(self.epochs.is_closed(epoch));
        self.dirty_blocks.remove(slot.block);
        self.log_tracker.record_send(slot.block);
        InFlightBlock { slot: reference, block: slot.block, epoch }
    }

    /// Marks a block in flight as written: its write completed.
    pub fn complete_write<S: Seam>(&mut self, memory: &mut MemoryCache<S>, sent: &InFlightBlock) {
        self.epochs.remove(sent.epoch);
        self.failures.remove(sent.block);
        let completion = self.number_completion();
        let Some(id) = memory.resolve(sent.slot) else { return };
        let slot = memory.slot_mut(id);
        slot.in_flight_epoch = None;
        slot.holds_acknowledged_data &= slot.dirty_epoch.is_some();
        let epoch = slot.written.map_or(sent.epoch, |written| written.epoch.min(sent.epoch));
        self.written_blocks += u64::from(slot.written.is_none());
        slot.written = Some(UnflushedWrite { epoch, completion });
        self.written.push_back((WrittenUnit::Block(sent.slot), completion));
        self.log_tracker.record_write(sent.block, completion);
    }

    /// Makes a block in flight dirty again, in the older of its epochs: its write failed.
    pub fn fail_write<S: Seam>(&mut self, memory: &mut MemoryCache<S>, sent: &InFlightBlock, now: Nanos) {
        let Some(id) = memory.resolve(sent.slot) else {
            // A zero-range has replaced the block, in an epoch no later than this one.
            self.epochs.remove(sent.epoch);
            return;
        };
        self.failures.add(sent.block, now);
        self.log_tracker.record_failed_write(sent.block);
        memory.slot_mut(id).in_flight_epoch = None;
        self.epochs.remove(sent.epoch);
        self.redirty(memory, id, sent.epoch, now);
    }

    /// True if no content of a block in flight was ever acknowledged or written, so that the block may be dropped.
    pub fn may_abandon<S: Seam>(&self, memory: &MemoryCache<S>, sent: &InFlightBlock) -> bool {
        let slot = memory.resolve(sent.slot).map(|id| memory.slot(id));
        slot.is_none_or(|slot| !slot.holds_acknowledged_data && slot.written.is_none())
    }

    /// Drops a block in flight whose write failed and was never acknowledged, unless it was overwritten meanwhile.
    pub fn abandon_write<S: Seam>(&mut self, memory: &mut MemoryCache<S>, sent: &InFlightBlock) {
        assert!(self.may_abandon(memory, sent), "acknowledged data is dropped only when it is on the backing");
        self.epochs.remove(sent.epoch);
        let Some(id) = memory.resolve(sent.slot) else { return };
        let slot = memory.slot_mut(id);
        slot.in_flight_epoch = None;
        if slot.dirty_epoch.is_some() {
            return;
        }
        self.failures.remove(sent.block);
        self.not_clean_blocks -= 1;
        memory.update_pin(id, false);
        memory.remove(id);
    }

    /// Drops a block whose content no longer counts: a zero-range replaces it, or the volume ends before it. Returns
    /// its flush obligation.
    pub fn supersede<S: Seam>(&mut self, memory: &mut MemoryCache<S>, id: u32) -> FlushObligation {
        let slot = memory.slot_mut(id);
        let was_clean = slot.is_clean();
        let (dirty, in_flight, written) = (slot.dirty_epoch.take(), slot.in_flight_epoch.take(), slot.written.take());
        // Content in flight is acknowledged when its write completes, and the backing may lose it before its flush.
        let holds_acknowledged_data = slot.holds_acknowledged_data || written.is_some() || in_flight.is_some();
        if let Some(epoch) = dirty {
            self.epochs.remove(epoch);
            self.closed_dirty_blocks -= u64::from(self.epochs.is_closed(epoch));
            self.dirty_blocks.remove(slot.block);
        }
        self.failures.remove(slot.block);
        self.written_blocks -= u64::from(written.is_some());
        self.not_clean_blocks -= u64::from(!was_clean);
        memory.update_pin(id, was_clean);
        memory.remove(id);
        // A write in flight keeps its count until its operation ends.
        let epoch = [dirty, in_flight, written.map(|written| written.epoch)].into_iter().flatten().min();
        FlushObligation { epoch, holds_acknowledged_data }
    }

    /// Spills up to `count` dirty blocks whose newest content is durable in the flash log, the longest dirty first.
    /// Returns the number of spilled blocks.
    pub fn spill_oldest<S: Seam>(&mut self, memory: &mut MemoryCache<S>, volume_number: u32, count: u64) -> u64 {
        let mut spilled = 0;
        for (block, since) in std::mem::take(&mut self.dirty_since_queue) {
            let Some(id) = memory.find(volume_number, block) else { continue };
            let slot = memory.slot(id);
            if slot.dirty_epoch.is_none() || slot.dirty_since != since {
                continue;
            }
            if spilled < count && self.can_spill(slot) {
                self.spill(memory, id);
                spilled += 1;
            } else {
                self.dirty_since_queue.push_back((block, since));
            }
        }
        spilled
    }

    /// True if a dirty block is idle (no write in flight, no waiting request) and its content is a log record.
    fn can_spill<B>(&self, slot: &Slot<B>) -> bool {
        let block = slot.block;
        let is_idle = slot.dirty_epoch.is_some() && slot.in_flight_epoch.is_none() && slot.written.is_none();
        // A block reloaded for destage is destaged, unless the backing refuses it.
        let is_awaiting_destage = slot.is_transit && !self.failures.contains(block);
        is_idle
            && !is_awaiting_destage
            && slot.present == Sectors::ALL
            && self.log_tracker.can_spill(block)
            && !self.write_waits.contains(block)
            && !self.filling_blocks.contains(&block)
            && !self.is_busy(&block.single())
    }

    /// Drops a dirty block from memory; its log record holds its content from here on.
    fn spill<S: Seam>(&mut self, memory: &mut MemoryCache<S>, id: u32) {
        let slot = memory.slot_mut(id);
        let (block, since) = (slot.block, slot.dirty_since);
        let epoch = slot.dirty_epoch.take().expect("only a dirty block is spilled");
        self.epochs.remove(epoch);
        self.epochs.add(Epoch::OLDEST);
        self.closed_dirty_blocks -= u64::from(self.epochs.is_closed(epoch));
        self.dirty_blocks.remove(block);
        // A backing that refuses all writes must not keep all blocks in memory.
        self.failures.remove(block);
        self.not_clean_blocks -= 1;
        memory.update_pin(id, false);
        memory.remove(id);
        let is_first = self.log_tracker.spilled_count() == 0;
        self.spilled_since = if is_first { since } else { self.spilled_since.min(since) };
        self.log_tracker.spill(block);
    }

    /// Installs the log records of a recovery, in their order, before the volume is served: they become spilled blocks.
    /// An invalid record lies past a moved end or is outdated; the next flush appends a tombstone for it.
    pub fn install_records(
        &mut self,
        records: impl Iterator<Item = (BlockNo, Position)>,
        is_valid: impl Fn(BlockNo) -> bool,
    ) {
        let mut invalid: Vec<Range<BlockNo>> = Vec::new();
        self.log_tracker.install_records(records.map(|(block, position)| {
            let is_valid = is_valid(block);
            match invalid.last_mut() {
                _ if is_valid => {}
                Some(run) if run.end == block => run.end = block.next(),
                _ => invalid.push(block.single()),
            }
            (block, position, is_valid)
        }));
        invalid.into_iter().for_each(|run| self.mark_outdated(run));
        self.epochs.add_many(Epoch::OLDEST, self.log_tracker.spilled_count());
    }

    /// Marks the log's records of these blocks as outdated: the next flush appends tombstones.
    pub fn mark_outdated(&mut self, blocks: Range<BlockNo>) {
        match BlockNo::count(&blocks) {
            1 => self.log_tracker.record_change(blocks.start),
            _ => self.log_tracker.record_range_change(blocks.clone(), RangeChange::Outdated),
        }
        self.log_tracker.record_clean(blocks);
    }

    /// Installs zeroes from the log records of a recovery.
    pub fn install_zeroes(&mut self, blocks: Range<BlockNo>, may_unmap: bool, now: Nanos) {
        self.add_zeroes(
            blocks.start,
            ZeroRange {
                end: blocks.end,
                epoch: Epoch::OLDEST,
                state: ZeroState::Dirty,
                dirty_since: now,
                may_unmap,
                holds_acknowledged_data: true,
            },
        );
    }

    /// Retires records of zero-ranges whose blocks are durable on the backing or in a newer record. Examines at most
    /// `examined_records_max` of them.
    pub fn retire_zeroes(&mut self, examined_records_max: usize) {
        let zeroes = &self.zeroes;
        self.log_tracker.retire_zeroes(examined_records_max, |blocks| zeroes.overlaps(blocks));
    }

    /// Like [`State::retire_zeroes`] for all records, and in spite of changes that a flush has yet to record, if they
    /// are durable on the backing.
    pub fn retire_durable_zeroes<S: Seam>(&mut self, memory: &MemoryCache<S>, volume_number: u32) {
        let (zeroes, dirty_blocks, operations) = (&self.zeroes, &self.dirty_blocks, &self.operations);
        let is_unclean = |block| memory.find(volume_number, block).is_some_and(|id| !memory.slot(id).is_clean());
        let has_written = self.written_blocks > 0;
        // While any block awaits a flush of the backing, every range may hold such blocks.
        let may_be_unclean = |blocks: &Range<BlockNo>| {
            let is_sent = operations.iter().any(|operation| are_overlapping(&operation.blocks, blocks));
            let is_dirty = dirty_blocks.iter_from(blocks.start).next().is_some_and(|block| block < blocks.end);
            has_written || is_sent || is_dirty
        };
        self.log_tracker.retire_durable_zeroes(is_unclean, may_be_unclean, |blocks| zeroes.overlaps(blocks));
    }

    /// Makes a reloaded block dirty as of `since`: its content has just come into memory.
    pub fn mark_reloaded<S: Seam>(&mut self, memory: &mut MemoryCache<S>, id: u32, since: Nanos) {
        self.epochs.remove(Epoch::OLDEST);
        memory.slot_mut(id).holds_acknowledged_data = true;
        self.log_tracker.record_reload(memory.slot(id).block);
        self.mark_dirty(memory, id, Epoch::OLDEST, since);
    }

    /// Drops spilled blocks in `blocks`, whose content is superseded. Returns their flush obligation, if there were
    /// any.
    pub fn supersede_spilled(&mut self, blocks: Range<BlockNo>) -> Option<FlushObligation> {
        let count = self.log_tracker.supersede(blocks);
        (0..count).for_each(|_| self.epochs.remove(Epoch::OLDEST));
        (count > 0).then_some(FlushObligation { epoch: Some(Epoch::OLDEST), holds_acknowledged_data: true })
    }

    /// Adds a dirty zero-range over blocks without slots and ranges, and merges it with equal neighbours. Returns the
    /// first block of the merged range.
    pub fn add_zeroes(&mut self, start: BlockNo, range: ZeroRange) -> BlockNo {
        assert_eq!(range.state, ZeroState::Dirty, "a new range is dirty");
        self.epochs.add(range.epoch);
        self.zeroes.insert(start, range);
        let start = self.merge_with_left(start).unwrap_or(start);
        if let Some(next) = self.zeroes.adjacent_successor(start) {
            self.merge_with_left(next);
        }
        start
    }

    /// Merges the range that starts at `right` into the one before it, if they may be merged. Returns the first block
    /// of the merged range.
    fn merge_with_left(&mut self, right: BlockNo) -> Option<BlockNo> {
        let left = self.zeroes.mergeable_predecessor(right)?;
        let (_, range) = self.zeroes.find(right).expect("a range that may be merged");
        self.zeroes.merge(left, right);
        self.epochs.remove(range.epoch);
        // All of the merged range is tried again, and requests that wait for a part wait for the whole.
        self.failures.remove(left);
        self.failures.remove(right);
        let waits = self.write_waits.take_waits(right.single());
        self.write_waits.reassign(left, waits);
        Some(left)
    }

    /// Cuts `blocks` out of the zero-ranges. Returns the flush obligation of the removed parts, if any.
    pub fn cut_zeroes(&mut self, blocks: Range<BlockNo>) -> Option<FlushObligation> {
        if self.zeroes.is_empty() {
            return None;
        }
        let cut_start = blocks.start;
        let cut = self.zeroes.cut(blocks);
        let is_unwritten = |range: &ZeroRange| !matches!(range.state, ZeroState::Written(_));
        for (start, range) in &cut.removed {
            if is_unwritten(range) {
                self.epochs.remove(range.epoch);
            }
            self.failures.remove(*start);
            // Requests that wait for the range wait for every remaining part, and for the content that replaces the
            // rest.
            let waits = self.write_waits.waits_of(*start).to_vec();
            let right = cut.remainders.iter().filter(|(left, part)| left > start && part.end == range.end);
            let replacements = right.map(|(left, _)| *left).chain((cut_start > *start).then_some(cut_start));
            for replacement in replacements {
                waits.iter().for_each(|wait| self.write_waits.add(replacement, wait));
            }
            // Waits are registered at the first block of the range that they wait for. The new content begins at
            // `cut_start`: a wait left inside it would be taken for one of a whole range by a later cut there.
            if cut_start < *start {
                let moved = self.write_waits.take_waits(start.single());
                self.write_waits.reassign(cut_start, moved);
            }
        }
        for (start, range) in &cut.remainders {
            match range.state {
                // Found by its first block when its flush completes.
                ZeroState::Written(written) => {
                    self.written.push_back((WrittenUnit::Zeroes(*start), written.completion));
                    self.written_ranges += 1;
                }
                ZeroState::Dirty | ZeroState::InFlight(_) => self.epochs.add(range.epoch),
            }
        }
        // As for a block: the backing may lose zeroes in flight or written after they were acknowledged.
        let obligation = |range: &ZeroRange| FlushObligation {
            epoch: Some(range.epoch),
            holds_acknowledged_data: range.holds_acknowledged_data || range.state != ZeroState::Dirty,
        };
        cut.removed.iter().map(|(_, range)| obligation(range)).reduce(FlushObligation::merge)
    }

    /// True if all of `blocks` are still in zero-ranges that operation `id` writes.
    pub fn is_zeroed_by(&self, id: u64, blocks: &Range<BlockNo>) -> bool {
        // The range of a long job begins before its later steps.
        let first = self.zeroes.find(blocks.start).map(|(start, _)| start);
        let starts = self.zeroes.in_flight(first.unwrap_or(blocks.start)..blocks.end, id);
        let count = |start: BlockNo| {
            let (_, range) = self.zeroes.find(start)?;
            Some(BlockNo::count(&(start.max(blocks.start)..range.end.min(blocks.end))))
        };
        starts.into_iter().filter_map(count).sum::<u64>() == BlockNo::count(blocks)
    }

    /// Marks as written the remaining ranges in `blocks` that operation `id` zeroed.
    pub fn complete_zeroes(&mut self, id: u64, blocks: Range<BlockNo>) {
        let completion = self.number_completion();
        for start in self.zeroes.in_flight(blocks, id) {
            let range = self.zeroes.get_mut(start).expect("a listed range exists");
            range.state = ZeroState::Written(UnflushedWrite { epoch: range.epoch, completion });
            range.holds_acknowledged_data = false;
            let epoch = range.epoch;
            self.epochs.remove(epoch);
            self.failures.remove(start);
            self.written.push_back((WrittenUnit::Zeroes(start), completion));
            self.written_ranges += 1;
        }
    }

    /// Makes `waits` wait for the remaining ranges in `blocks` of operation `id`, which will be sent again. If no range
    /// remains, they wait for the content that replaced the first block. Waits whose ranges are partly replaced are
    /// marked as replaced.
    pub fn reassign_zero_waits(&mut self, id: u64, blocks: Range<BlockNo>, waits: &[Rc<WriteWait>]) {
        if waits.is_empty() {
            return;
        }
        let remaining = self.zeroes.in_flight(blocks.clone(), id);
        let end = |start: &BlockNo| self.zeroes.find(*start).map_or(*start, |(_, range)| range.end);
        if remaining.iter().map(|start| end(start).distance_from(*start)).sum::<u64>() < BlockNo::count(&blocks) {
            waits.iter().for_each(|wait| wait.mark_replaced());
        }
        let starts = if remaining.is_empty() { vec![blocks.start] } else { remaining };
        // Each wait already expects one completion.
        self.write_waits.reassign(starts[0], waits.iter().cloned());
        for start in &starts[1..] {
            waits.iter().for_each(|wait| self.write_waits.add(*start, wait));
        }
    }

    /// Makes the remaining ranges in `blocks` of operation `id` dirty again.
    pub fn fail_zeroes(&mut self, id: u64, blocks: Range<BlockNo>, now: Nanos) {
        for start in self.zeroes.in_flight(blocks, id) {
            self.zeroes.get_mut(start).expect("a listed range exists").state = ZeroState::Dirty;
            self.failures.add(start, now);
        }
    }

    /// Drops the remaining ranges in `blocks` of operation `id` that were never acknowledged; the others become dirty
    /// again.
    pub fn abandon_zeroes(&mut self, id: u64, blocks: Range<BlockNo>, now: Nanos) {
        for start in self.zeroes.in_flight(blocks, id) {
            let range = self.zeroes.get_mut(start).expect("a listed range exists");
            if range.holds_acknowledged_data {
                range.state = ZeroState::Dirty;
                self.failures.add(start, now);
                continue;
            }
            let range = self.zeroes.remove(start).expect("a listed range exists");
            self.failures.remove(start);
            self.epochs.remove(range.epoch);
        }
    }

    /// Cleans written data after a successful flush of the backing that began when [`State::next_completion`] was
    /// `covered`.
    pub fn clean_written<S: Seam>(
        &mut self,
        memory: &mut MemoryCache<S>,
        covered: CompletionNo,
    ) -> DestagedBlocks<S::Block> {
        let mut destaged = DestagedBlocks::default();
        // Remaining parts of ranges are listed behind younger entries, so the whole list is scanned.
        for _ in 0..self.written.len() {
            let (unit, completion) = self.written.pop_front().expect("the queue has as many entries as counted");
            if completion >= covered {
                self.written.push_back((unit, completion));
                continue;
            }
            match unit {
                WrittenUnit::Block(reference) => self.clean_block(memory, reference, completion, &mut destaged),
                WrittenUnit::Zeroes(start) => {
                    self.written_ranges -= 1;
                    let state = self.zeroes.get_mut(start).map(|range| range.state);
                    if matches!(state, Some(ZeroState::Written(written)) if written.completion == completion)
                        && let Some(range) = self.zeroes.remove(start)
                    {
                        self.log_tracker.record_clean(start..range.end);
                        destaged.add_zeroes(start..range.end);
                    }
                }
            }
        }
        self.log_tracker.record_backing_flush(covered);
        self.flushed_below = self.flushed_below.max(covered.min(self.next_completion));
        destaged
    }

    /// Marks a block's write as flushed. Adds the block to `destaged` if it is clean now.
    fn clean_block<S: Seam>(
        &mut self,
        memory: &mut MemoryCache<S>,
        reference: SlotRef,
        completion: CompletionNo,
        destaged: &mut DestagedBlocks<S::Block>,
    ) {
        let Some(id) = memory.resolve(reference) else { return };
        let slot = memory.slot_mut(id);
        if slot.written.is_none_or(|written| written.completion != completion) {
            return;
        }
        slot.written = None;
        self.written_blocks -= 1;
        if !slot.is_clean() {
            return;
        }
        let (transit, block) = (slot.is_transit, slot.block);
        match slot.data.clone().filter(|_| slot.present == Sectors::ALL) {
            Some(content) => destaged.add(block, content),
            None => destaged.add_partial(block),
        }
        destaged.transit_blocks.extend(transit.then_some(block));
        self.not_clean_blocks -= 1;
        self.log_tracker.record_clean(block.single());
        memory.update_pin(id, false);
    }

    /// Makes written data dirty again, because the backing may have lost it.
    pub fn redirty_written<S: Seam>(&mut self, memory: &mut MemoryCache<S>, now: Nanos) {
        self.backing_losses += 1;
        self.log_tracker.record_backing_loss();
        self.written_ranges = 0;
        for (unit, _) in std::mem::take(&mut self.written) {
            match unit {
                WrittenUnit::Block(reference) => {
                    let Some(id) = memory.resolve(reference) else { continue };
                    let Some(written) = memory.slot_mut(id).written.take() else { continue };
                    memory.slot_mut(id).holds_acknowledged_data = true;
                    self.written_blocks -= 1;
                    self.redirty(memory, id, written.epoch, now);
                }
                WrittenUnit::Zeroes(start) => {
                    if let Some(range) = self.zeroes.get_mut(start)
                        && let ZeroState::Written(written) = range.state
                    {
                        (range.state, range.epoch, range.holds_acknowledged_data) =
                            (ZeroState::Dirty, written.epoch, true);
                        self.epochs.add(written.epoch);
                    }
                }
            }
        }
    }

    /// Makes a slot that counts as not clean dirty (again) in `epoch` or an older one.
    fn redirty<S: Seam>(&mut self, memory: &mut MemoryCache<S>, id: u32, epoch: Epoch, now: Nanos) {
        // The slot may look clean for a moment, but it stays pinned all the while.
        let slot = memory.slot_mut(id);
        match slot.dirty_epoch {
            Some(old) if old <= epoch => {}
            Some(old) => {
                self.epochs.remove(old);
                self.epochs.add(epoch);
                slot.dirty_epoch = Some(epoch);
                self.closed_dirty_blocks += u64::from(self.epochs.is_closed(epoch) && !self.epochs.is_closed(old));
            }
            None => {
                slot.dirty_epoch = Some(epoch);
                slot.dirty_since = now;
                self.closed_dirty_blocks += u64::from(self.epochs.is_closed(epoch));
                self.epochs.add(epoch);
                self.dirty_blocks.insert(slot.block);
                self.dirty_since_queue.push_back((slot.block, now));
            }
        }
    }
}
