//! The states of a shard's blocks and ranges, and every transition between them.
//!
//! The only file that changes `dirty`, `in_flight` and `written` of a slot: each transition keeps the slot, the epochs'
//! counts, the address order and the policy's pins in step.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use flash::Position;
use seam::{Nanos, Seam};

use super::fill::Ticket;
use super::flush::Flushing;
use super::wait::{Waits, WriteWait};
use crate::destage::epochs::{Epochs, OLDEST};
use crate::destage::failures::Failures;
use crate::destage::order::DirtyOrder;
use crate::destage::zeroes::{ZeroRange, ZeroRanges, ZeroState};
use crate::log::Logging;
use crate::log::ledger::Ledger;
use crate::memory::{BlockNo, Memory, Sectors, Slot, SlotRef, Written};

/// A write or zero operation on its way to the backing.
pub struct Operation {
    /// Its number.
    pub id: u64,
    /// The blocks that it changes; no other operation may touch them meanwhile.
    pub blocks: Range<u64>,
}

/// Something on the backing that awaits a flush there.
enum WrittenUnit {
    Block(SlotRef),
    Zeroes(u64),
}

/// What is due of content that something newer takes the place of: the newer inherits it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Oldest epoch of what is not durable.
    pub epoch: Option<u64>,
    /// Something in it was acknowledged and is nowhere else for certain, or will be when what is on its way arrives.
    pub owed: bool,
}

impl Due {
    /// Both.
    pub fn and(self, other: Due) -> Due {
        Due { epoch: [self.epoch, other.epoch].into_iter().flatten().min(), owed: self.owed || other.owed }
    }

    /// The epoch of content of `epoch` that inherits this.
    pub fn oldest(self, epoch: u64) -> u64 {
        self.epoch.map_or(epoch, |older| older.min(epoch))
    }
}

/// A block that has been handed to the backing.
pub struct Sent {
    /// Its slot, which may be gone when the write completes.
    pub slot: SlotRef,
    /// Its number.
    pub block: BlockNo,
    /// Epoch whose content it carries.
    pub epoch: u64,
}

/// Blocks that have become durable on the backing, and are clean.
pub struct Destaged<B> {
    /// The last of many, with their content; `None`: zeroes.
    pub last: VecDeque<(u64, Option<B>)>,
    /// The first of many.
    pub blocks: Vec<u64>,
}

/// Blocks that are listed with their content.
const LAST_MAX: usize = 256;
/// Blocks that are listed without.
const BLOCKS_MAX: usize = 4_096;
/// Blocks that are listed of a zero-range, spread over it: it stands beside others that are to be listed as well.
const OF_RANGE_MAX: u64 = 8;

impl<B> Default for Destaged<B> {
    fn default() -> Self {
        Destaged { last: VecDeque::new(), blocks: Vec::new() }
    }
}

impl<B> Destaged<B> {
    fn add(&mut self, block: u64, content: B) {
        self.add_last(block, Some(content));
        if self.blocks.len() < BLOCKS_MAX {
            self.blocks.push(block);
        }
    }

    fn add_zeroes(&mut self, blocks: Range<u64>) {
        let count = blocks.end - blocks.start;
        let listed = count.min(OF_RANGE_MAX);
        (0..listed).for_each(|number| self.add_last(blocks.start + number * count / listed, None));
    }

    fn add_last(&mut self, block: u64, content: Option<B>) {
        if self.last.len() == LAST_MAX {
            self.last.pop_front();
        }
        self.last.push_back((block, content));
    }
}

/// States of a shard.
#[derive(Default)]
pub struct State {
    /// What flushes wait for.
    pub epochs: Epochs,
    /// Dirty blocks, in address order.
    pub order: DirtyOrder,
    /// Of them those of closed epochs.
    due: u64,
    /// Zero-ranges.
    pub zeroes: ZeroRanges,
    /// Operations on their way to the backing.
    pub operations: Vec<Operation>,
    /// Fills and queries under way (R2).
    pub tickets: Vec<Rc<Ticket>>,
    /// Requests that wait for the next write of a block (by block).
    pub waits: Waits,
    /// Blocks and ranges (by first block) whose last write failed.
    pub failed: Failures,
    /// What lies in the flash log.
    pub ledger: Ledger,
    /// Where flushes are that the log answers.
    pub logging: Logging,
    /// Where flushes are.
    pub flushing: Flushing,
    /// Blocks whose missing sectors are being read so that they can be destaged.
    pub filling: BTreeSet<u64>,
    /// The backing's incarnation that was seen last.
    pub incarnation: u64,
    /// How often what was written had to be called dirty again.
    pub losses: u64,
    /// Everything that completed on the backing below this number is flushed there.
    pub synced: u64,
    /// Number of the next completion on the backing.
    next_sequence: u64,
    next_operation: u64,
    written: VecDeque<(WrittenUnit, u64)>,
    written_blocks: u64,
    written_ranges: u64,
    ages: VecDeque<(BlockNo, Nanos)>,
    unclean: u64,
    /// Since when there have been blocks that rest.
    resting_since: Nanos,
    /// Blocks being recalled for destage.
    pub recalling: u64,
    /// What destage recalled last.
    pub recalled: Range<u64>,
}

impl State {
    /// Nothing known. The first flush always reaches the backing: an earlier life may have written.
    pub fn new(incarnation: u64) -> Self {
        State { incarnation, next_sequence: 1, ..State::default() }
    }

    /// Blocks that are not clean, and zero-ranges.
    pub fn unclean(&self) -> u64 {
        self.unclean + self.zeroes.len() as u64
    }

    /// True when time has to pass for something.
    pub fn is_restless(&self) -> bool {
        self.unclean() > 0 || self.ledger.resting() > 0
    }

    /// Completions on the backing that await its flush: of a block that is written again and again, all.
    pub fn unflushed(&self) -> u64 {
        self.written.len() as u64
    }

    /// Blocks on the backing that await its flush.
    pub fn written_blocks(&self) -> u64 {
        self.written_blocks
    }

    /// Zero-ranges on the backing that await its flush, those among them counted too that are no more.
    pub fn written_ranges(&self) -> u64 {
        self.written_ranges
    }

    /// Completions on the backing from here on are not covered by a flush that begins now.
    pub fn sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Numbers a completion that is none of a block's or range's.
    pub fn next_completion(&mut self) -> u64 {
        self.next_sequence += 1;
        self.next_sequence - 1
    }

    /// The slot's content is newer than the backing's, as of `epoch` (or an older one that it is dirty in already).
    pub fn dirty<S: Seam>(&mut self, memory: &mut Memory<S>, id: u32, epoch: u64, now: Nanos) {
        let slot = memory.slot_mut(id);
        let was_clean = slot.is_clean();
        match slot.dirty {
            Some(old) if old <= epoch => return,
            Some(old) => {
                self.epochs.remove(old);
                slot.dirty = Some(epoch);
                self.due += u64::from(self.epochs.is_closed(epoch) && !self.epochs.is_closed(old));
            }
            None => {
                slot.dirty = Some(epoch);
                slot.dirty_since = now;
                self.due += u64::from(self.epochs.is_closed(epoch));
                self.order.insert(slot.block);
                // What was recalled for destage is as old as anything.
                let recalled = slot.transit && self.ages.back().is_some_and(|(_, youngest)| now < *youngest);
                let age = (slot.block, now);
                if recalled { self.ages.push_front(age) } else { self.ages.push_back(age) }
            }
        }
        self.epochs.add(epoch);
        self.unclean += u64::from(was_clean);
        memory.settle(id, was_clean);
        if self.ages.len() as u64 > 2 * self.order.len() + 1024 {
            let order = &self.order;
            self.ages.retain(|(block, _)| order.contains(*block));
        }
    }

    /// Since when the oldest dirty block in memory has been dirty that is not on its way to the backing.
    pub fn oldest_in_memory<S: Seam>(&mut self, memory: &Memory<S>, volume: u32) -> Option<Nanos> {
        while let Some((block, since)) = self.ages.front() {
            let slot = memory.find(volume, *block).map(|id| memory.slot(id));
            if slot.is_some_and(|slot| slot.dirty.is_some() && slot.dirty_since == *since) {
                break;
            }
            self.ages.pop_front();
        }
        self.ages.front().map(|(_, since)| *since)
    }

    /// Since when the oldest dirty block or range has been dirty.
    pub fn oldest_dirty<S: Seam>(&mut self, memory: &Memory<S>, volume: u32) -> Option<Nanos> {
        let block = self.oldest_in_memory(memory, volume);
        let resting = (self.ledger.resting() > 0).then_some(self.resting_since);
        let dirty = self.zeroes.iter().filter(|(_, range)| range.state == ZeroState::Dirty);
        let range = dirty.map(|(_, range)| range.since).min();
        [block, range, resting].into_iter().flatten().min()
    }

    /// Ends the current epoch and returns its number.
    pub fn close_epoch(&mut self) -> u64 {
        self.due = self.order.len();
        self.epochs.close()
    }

    /// True when a dirty block in memory is of a closed epoch and not on its way.
    pub fn has_due(&self) -> bool {
        self.due > 0
    }

    /// Registers an operation over `blocks`; none may be under way there.
    pub fn begin_operation(&mut self, blocks: Range<u64>) -> u64 {
        assert!(!self.is_busy(&blocks), "two operations at once on the same blocks");
        let id = self.next_operation;
        self.next_operation += 1;
        self.operations.push(Operation { id, blocks });
        id
    }

    /// The operation is over.
    pub fn end_operation(&mut self, id: u64) {
        let at = self.operations.iter().position(|operation| operation.id == id);
        self.operations.swap_remove(at.expect("an operation ends once"));
    }

    /// True when an operation is under way that touches any of `blocks`.
    pub fn is_busy(&self, blocks: &Range<u64>) -> bool {
        self.operations.iter().any(|other| other.blocks.start < blocks.end && blocks.start < other.blocks.end)
    }

    /// A dirty block goes to the backing.
    pub fn send<S: Seam>(&mut self, memory: &mut Memory<S>, id: u32) -> Sent {
        let reference = memory.reference(id);
        let slot = memory.slot_mut(id);
        let epoch = slot.dirty.take().expect("only a dirty block is written");
        assert!(slot.in_flight.is_none(), "a block is written once at a time");
        slot.in_flight = Some(epoch);
        self.due -= u64::from(self.epochs.is_closed(epoch));
        self.order.remove(slot.block);
        self.ledger.sent(slot.block.0);
        Sent { slot: reference, block: slot.block, epoch }
    }

    /// A sent block is on the backing.
    pub fn sent_done<S: Seam>(&mut self, memory: &mut Memory<S>, sent: &Sent) {
        self.epochs.remove(sent.epoch);
        self.failed.remove(sent.block.0);
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let Some(id) = memory.resolve(sent.slot) else { return };
        let slot = memory.slot_mut(id);
        slot.in_flight = None;
        slot.owed &= slot.dirty.is_some();
        let epoch = slot.written.map_or(sent.epoch, |written| written.epoch.min(sent.epoch));
        self.written_blocks += u64::from(slot.written.is_none());
        slot.written = Some(Written { epoch, sequence });
        self.written.push_back((WrittenUnit::Block(sent.slot), sequence));
        self.ledger.sent_done(sent.block.0, sequence);
    }

    /// A sent block did not reach the backing: it is dirty again, in the older of its epochs.
    pub fn sent_failed<S: Seam>(&mut self, memory: &mut Memory<S>, sent: &Sent, now: Nanos) {
        let Some(id) = memory.resolve(sent.slot) else {
            // A zero-range has taken its place, in an epoch no later than this one.
            self.epochs.remove(sent.epoch);
            return;
        };
        self.failed.add(sent.block.0, now);
        self.ledger.sent_failed(sent.block.0);
        memory.slot_mut(id).in_flight = None;
        self.epochs.remove(sent.epoch);
        self.redirty(memory, id, sent.epoch, now);
    }

    /// True when nothing of a sent block's content was ever acknowledged and not written: then it may be forgotten.
    pub fn may_abandon<S: Seam>(&self, memory: &Memory<S>, sent: &Sent) -> bool {
        let slot = memory.resolve(sent.slot).map(|id| memory.slot(id));
        slot.is_none_or(|slot| !slot.owed && slot.written.is_none())
    }

    /// A sent block did not reach the backing and nobody was told that it would: forget its content, unless it was
    /// overwritten meanwhile.
    pub fn sent_abandoned<S: Seam>(&mut self, memory: &mut Memory<S>, sent: &Sent) {
        assert!(self.may_abandon(memory, sent), "what was acknowledged is kept until it is on the backing");
        self.epochs.remove(sent.epoch);
        let Some(id) = memory.resolve(sent.slot) else { return };
        let slot = memory.slot_mut(id);
        slot.in_flight = None;
        if slot.dirty.is_some() {
            return;
        }
        self.failed.remove(sent.block.0);
        self.unclean -= 1;
        memory.settle(id, false);
        memory.remove(id);
    }

    /// Forgets a block whose content no longer counts (a zero-range takes its place, or the volume ends before it). Returns
    /// what was due of it.
    pub fn supersede<S: Seam>(&mut self, memory: &mut Memory<S>, id: u32) -> Due {
        let slot = memory.slot_mut(id);
        let was_clean = slot.is_clean();
        let (dirty, in_flight, written) = (slot.dirty.take(), slot.in_flight.take(), slot.written.take());
        // What is in flight is acknowledged when it arrives, and the backing may forget it before its flush.
        let owed = slot.owed || written.is_some() || in_flight.is_some();
        if let Some(epoch) = dirty {
            self.epochs.remove(epoch);
            self.due -= u64::from(self.epochs.is_closed(epoch));
            self.order.remove(slot.block);
        }
        self.failed.remove(slot.block.0);
        self.written_blocks -= u64::from(written.is_some());
        self.unclean -= u64::from(!was_clean);
        memory.settle(id, was_clean);
        memory.remove(id);
        // What is in flight keeps its count until its operation ends.
        let epoch = [dirty, in_flight, written.map(|written| written.epoch)].into_iter().flatten().min();
        Due { epoch, owed }
    }

    /// Lets up to `count` dirty blocks leave memory whose newest content is durable in the flash log, those first that have been dirty
    /// longest. Returns how many did.
    pub fn rest_oldest<S: Seam>(&mut self, memory: &mut Memory<S>, volume: u32, count: u64, now: Nanos) -> u64 {
        let mut rested = 0;
        for (block, since) in std::mem::take(&mut self.ages) {
            let Some(id) = memory.find(volume, block) else { continue };
            let slot = memory.slot(id);
            if slot.dirty.is_none() || slot.dirty_since != since {
                continue;
            }
            if rested < count && self.may_rest(slot) {
                self.rest(memory, id, now);
                rested += 1;
            } else {
                self.ages.push_back((block, since));
            }
        }
        rested
    }

    /// Nothing is on its way or waited for of a dirty block, and a record is its content.
    fn may_rest<B>(&self, slot: &Slot<B>) -> bool {
        let block = slot.block.0;
        let quiet = slot.dirty.is_some() && slot.in_flight.is_none() && slot.written.is_none();
        // What was recalled for destage goes there, unless the backing refuses it.
        let stays = !slot.transit || self.failed.contains(block);
        quiet
            && stays
            && slot.present == Sectors::ALL
            && self.ledger.may_rest(block)
            && !self.waits.contains(block)
            && !self.filling.contains(&block)
            && !self.is_busy(&(block..block + 1))
    }

    fn rest<S: Seam>(&mut self, memory: &mut Memory<S>, id: u32, now: Nanos) {
        let slot = memory.slot_mut(id);
        let (block, epoch) = (slot.block, slot.dirty.take().expect("only a dirty block rests"));
        self.epochs.remove(epoch);
        self.epochs.add(OLDEST);
        self.due -= u64::from(self.epochs.is_closed(epoch));
        self.order.remove(block);
        // A backing that refuses everything must not keep everything in memory.
        self.failed.remove(block.0);
        self.unclean -= 1;
        memory.settle(id, false);
        memory.remove(id);
        if self.ledger.resting() == 0 {
            self.resting_since = now;
        }
        self.ledger.rest(block.0);
    }

    /// A recovery found these blocks in the flash log, in their order, before anybody asked for the volume: they rest there. One that does
    /// not count lies past an end that has moved since, or is out of date, and the next flush buries it.
    pub fn adopt(&mut self, records: impl Iterator<Item = (u64, Position)>, counts: impl Fn(u64) -> bool) {
        let mut past: Vec<Range<u64>> = Vec::new();
        self.ledger.adopt(records.map(|(block, position)| {
            let counts = counts(block);
            match past.last_mut() {
                _ if counts => {}
                Some(run) if run.end == block => run.end += 1,
                _ => past.push(block..block + 1),
            }
            (block, position, counts)
        }));
        for run in past {
            match run.end - run.start {
                1 => self.ledger.change(run.start),
                _ => self.ledger.change_range(run.clone()),
            }
            self.ledger.cleaned(run);
        }
        self.epochs.add_many(OLDEST, self.ledger.resting());
    }

    /// A resting block's content has just come into memory: dirty, as of `since`.
    pub fn wake<S: Seam>(&mut self, memory: &mut Memory<S>, id: u32, since: Nanos) {
        self.epochs.remove(OLDEST);
        memory.slot_mut(id).owed = true;
        self.ledger.wake(memory.slot(id).block.0);
        self.dirty(memory, id, OLDEST, since);
    }

    /// What rests of `blocks` is not their content any more. Returns what was due of it, if anything was.
    pub fn supersede_resting(&mut self, blocks: Range<u64>) -> Option<Due> {
        let count = self.ledger.supersede(blocks);
        (0..count).for_each(|_| self.epochs.remove(OLDEST));
        (count > 0).then_some(Due { epoch: Some(OLDEST), owed: true })
    }

    /// Adds a dirty zero-range over blocks without slots and without ranges, merged with its neighbours where nothing tells
    /// them apart. Returns the first block of what it has become.
    pub fn add_zeroes(&mut self, start: u64, range: ZeroRange) -> u64 {
        assert_eq!(range.state, ZeroState::Dirty, "a new range is dirty");
        self.epochs.add(range.epoch);
        self.zeroes.insert(start, range);
        let start = self.merge_with_left(start).unwrap_or(start);
        if let Some(next) = self.zeroes.next_of(start) {
            self.merge_with_left(next);
        }
        start
    }

    fn merge_with_left(&mut self, right: u64) -> Option<u64> {
        let left = self.zeroes.left_to_merge(right)?;
        let (_, range) = self.zeroes.find(BlockNo(right)).expect("a range that may be merged");
        self.zeroes.merge(left, right);
        self.epochs.remove(range.epoch);
        // All of it is tried again, and whoever waits for a part waits for the whole.
        self.failed.remove(left);
        self.failed.remove(right);
        let waits = self.waits.take(right..right + 1);
        self.waits.put(left, waits);
        Some(left)
    }

    /// Cuts `blocks` out of the zero-ranges. Returns what was due of what was cut, if anything was.
    pub fn cut_zeroes(&mut self, blocks: Range<u64>) -> Option<Due> {
        if self.zeroes.is_empty() {
            return None;
        }
        let newer = blocks.start;
        let cut = self.zeroes.cut(blocks);
        let counts = |range: &ZeroRange| !matches!(range.state, ZeroState::Written(_));
        for (start, range) in &cut.removed {
            if counts(range) {
                self.epochs.remove(range.epoch);
            }
            self.failed.remove(*start);
            // Whoever waits for the range waits for every part that is left of it, and for what takes the place of the rest.
            let waits = self.waits.at(*start).to_vec();
            let right = cut.left.iter().filter(|(left, part)| left > start && part.end == range.end);
            let parts = right.map(|(left, _)| *left).chain((newer > *start).then_some(newer));
            for part in parts {
                waits.iter().for_each(|wait| self.waits.add(part, wait));
            }
            // A range is waited for at its first block: inside another one what is cut out there later would be taken for all of it.
            if newer < *start {
                let moved = self.waits.take(*start..*start + 1);
                self.waits.put(newer, moved);
            }
        }
        for (start, range) in &cut.left {
            match range.state {
                // Found by its first block when its flush completes.
                ZeroState::Written(written) => {
                    self.written.push_back((WrittenUnit::Zeroes(*start), written.sequence));
                    self.written_ranges += 1;
                }
                ZeroState::Dirty | ZeroState::InFlight(_) => self.epochs.add(range.epoch),
            }
        }
        // As of a block: what is in flight or written may be forgotten by the backing after it was acknowledged.
        let due =
            |range: &ZeroRange| Due { epoch: Some(range.epoch), owed: range.owed || range.state != ZeroState::Dirty };
        cut.removed.iter().map(|(_, range)| due(range)).reduce(Due::and)
    }

    /// What is left of the ranges in `blocks` that operation `id` zeroed is on the backing.
    pub fn zeroes_done(&mut self, id: u64, blocks: Range<u64>) {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        for start in self.zeroes.in_flight(blocks, id) {
            let range = self.zeroes.get_mut(start).expect("just listed");
            range.state = ZeroState::Written(Written { epoch: range.epoch, sequence });
            range.owed = false;
            let epoch = range.epoch;
            self.epochs.remove(epoch);
            self.failed.remove(start);
            self.written.push_back((WrittenUnit::Zeroes(start), sequence));
            self.written_ranges += 1;
        }
    }

    /// What is left of the ranges in `blocks` of operation `id` will be sent again, and `waits` wait for all of it; where nothing
    /// is left, for what took the place of the first block. Where not all is left they are told.
    pub fn await_zeroes(&mut self, id: u64, blocks: Range<u64>, waits: &[Rc<WriteWait>]) {
        if waits.is_empty() {
            return;
        }
        let left = self.zeroes.in_flight(blocks.clone(), id);
        let end = |start: &u64| self.zeroes.find(BlockNo(*start)).map_or(*start, |(_, range)| range.end);
        if left.iter().map(|start| end(start) - start).sum::<u64>() < blocks.end - blocks.start {
            waits.iter().for_each(|wait| wait.replace());
        }
        let places = if left.is_empty() { vec![blocks.start] } else { left };
        // Each has been expected once.
        self.waits.put(places[0], waits.iter().cloned());
        for place in &places[1..] {
            waits.iter().for_each(|wait| self.waits.add(*place, wait));
        }
    }

    /// What is left of the ranges in `blocks` of operation `id` is dirty again.
    pub fn zeroes_failed(&mut self, id: u64, blocks: Range<u64>, now: Nanos) {
        for start in self.zeroes.in_flight(blocks, id) {
            self.zeroes.get_mut(start).expect("just listed").state = ZeroState::Dirty;
            self.failed.add(start, now);
        }
    }

    /// What is left of the ranges in `blocks` of operation `id` is forgotten where nothing of it was ever acknowledged, else dirty again.
    pub fn zeroes_abandoned(&mut self, id: u64, blocks: Range<u64>, now: Nanos) {
        for start in self.zeroes.in_flight(blocks, id) {
            let range = self.zeroes.get_mut(start).expect("just listed");
            if range.owed {
                range.state = ZeroState::Dirty;
                self.failed.add(start, now);
                continue;
            }
            let range = self.zeroes.remove(start).expect("just listed");
            self.failed.remove(start);
            self.epochs.remove(range.epoch);
        }
    }

    /// A flush of the backing succeeded that began when [`State::sequence`] was `covered`.
    pub fn clean_written<S: Seam>(&mut self, memory: &mut Memory<S>, covered: u64) -> Destaged<S::Block> {
        let mut destaged = Destaged::default();
        // Left-over ranges are listed again behind younger ones, so all that is listed is looked at.
        for _ in 0..self.written.len() {
            let (unit, sequence) = self.written.pop_front().expect("counted");
            if sequence >= covered {
                self.written.push_back((unit, sequence));
                continue;
            }
            match unit {
                WrittenUnit::Block(reference) => {
                    if let Some((block, content)) = self.clean_block(memory, reference, sequence) {
                        destaged.add(block, content);
                    }
                }
                WrittenUnit::Zeroes(start) => {
                    self.written_ranges -= 1;
                    let state = self.zeroes.get_mut(start).map(|range| range.state);
                    if matches!(state, Some(ZeroState::Written(written)) if written.sequence == sequence)
                        && let Some(range) = self.zeroes.remove(start)
                    {
                        self.ledger.cleaned(start..range.end);
                        destaged.add_zeroes(start..range.end);
                    }
                }
            }
        }
        self.ledger.flushed(covered);
        self.synced = self.synced.max(covered.min(self.next_sequence));
        destaged
    }

    /// Its content, if all of it is clean now.
    fn clean_block<S: Seam>(
        &mut self,
        memory: &mut Memory<S>,
        reference: SlotRef,
        sequence: u64,
    ) -> Option<(u64, S::Block)> {
        let id = memory.resolve(reference)?;
        let slot = memory.slot_mut(id);
        if slot.written.is_none_or(|written| written.sequence != sequence) {
            return None;
        }
        slot.written = None;
        self.written_blocks -= 1;
        if !slot.is_clean() {
            return None;
        }
        let (transit, block) = (slot.transit, slot.block.0);
        let content = slot.data.clone().filter(|_| slot.present == Sectors::ALL);
        self.unclean -= 1;
        self.ledger.cleaned(block..block + 1);
        memory.settle(id, false);
        if transit {
            memory.remove(id);
        }
        content.map(|content| (block, content))
    }

    /// What the backing had written and not flushed may be lost there: it is dirty again.
    pub fn redirty_written<S: Seam>(&mut self, memory: &mut Memory<S>, now: Nanos) {
        self.losses += 1;
        self.ledger.lost();
        self.written_ranges = 0;
        for (unit, _) in std::mem::take(&mut self.written) {
            match unit {
                WrittenUnit::Block(reference) => {
                    let Some(id) = memory.resolve(reference) else { continue };
                    let Some(written) = memory.slot_mut(id).written.take() else { continue };
                    memory.slot_mut(id).owed = true;
                    self.written_blocks -= 1;
                    self.redirty(memory, id, written.epoch, now);
                }
                WrittenUnit::Zeroes(start) => {
                    if let Some(range) = self.zeroes.get_mut(start)
                        && let ZeroState::Written(written) = range.state
                    {
                        (range.state, range.epoch, range.owed) = (ZeroState::Dirty, written.epoch, true);
                        self.epochs.add(written.epoch);
                    }
                }
            }
        }
    }

    /// A slot that is counted as unclean is dirty (again) in `epoch` or an older one.
    fn redirty<S: Seam>(&mut self, memory: &mut Memory<S>, id: u32, epoch: u64, now: Nanos) {
        // The slot may look clean for a moment: it was pinned all the while, and stays so.
        let slot = memory.slot_mut(id);
        match slot.dirty {
            Some(old) if old <= epoch => {}
            Some(old) => {
                self.epochs.remove(old);
                self.epochs.add(epoch);
                slot.dirty = Some(epoch);
                self.due += u64::from(self.epochs.is_closed(epoch) && !self.epochs.is_closed(old));
            }
            None => {
                slot.dirty = Some(epoch);
                slot.dirty_since = now;
                self.due += u64::from(self.epochs.is_closed(epoch));
                self.epochs.add(epoch);
                self.order.insert(slot.block);
                self.ages.push_back((slot.block, now));
            }
        }
    }
}
