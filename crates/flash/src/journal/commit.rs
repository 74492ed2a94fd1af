//! A commit: pending records become durable on every log member, after the page data that they refer to.

use std::rc::Rc;

use seam::{DiskResult, Seam};

use super::checkpoint::{self, Checkpoint};
use super::dirty_regions::{DIRTY_REGIONS_MANY, Region};
use super::{Head, SPARE_BLOCKS, write_soon};
use crate::device::{Device, block_of};
use crate::error::StoreError;
use crate::format::journal::{JournalHeader, RECORDS_MAX, Record};
use crate::membership::{Failure, failures_of, take_out};
use crate::number::CommitNo;
use crate::pages::state::{ALL_BLOCKS, PageState};
use crate::pages::table::{DIRTY, Phase, SUSPECT, SlotId, page_of};
use crate::store::{Inner, Sabotage};
use crate::wait::{Boxed, join};

/// The records of a commit, and the changes that follow when it is durable.
struct Batch {
    records: Vec<Record>,
    /// Slots that it declares free, with the generation of their segment.
    freed: Vec<(SlotId, u64)>,
    /// Regions that it marks dirty.
    marked: Vec<Region>,
    /// Members with page data that its records refer to; they are flushed first.
    flush: Vec<u32>,
    /// Its number among the commits of this opening.
    number: u64,
}

/// Commits until nothing is pending and no caller waits, and completes a checkpoint that has begun.
pub async fn run<S: Seam>(inner: Rc<Inner<S>>) {
    loop {
        inner.seam.yield_now().await;
        let go_on = {
            let mut state = inner.pages.borrow_mut();
            let wants = !state.journal.stopped
                && (state.journal.urgent
                    || state.clear_all_settled
                    || !state.journal.waiters.is_empty()
                    || state.journal.checkpoint.is_some()
                    || state.journal.renew);
            state.journal.running = wants;
            wants
        };
        if !go_on {
            // Records that arrived meanwhile are written lazily.
            write_soon(&inner);
            return;
        }
        if let Err(error) = turn(&inner).await {
            let journal_lost = !inner.log_devices().is_empty();
            if journal_lost {
                // The remaining log members do not have the whole map, and their superblocks show it (R9).
                let known = inner.state.borrow().superblock.journal;
                super::load::afresh(&inner, known);
                continue;
            }
            inner.pages.borrow_mut().void_map(error.to_string());
            return;
        }
    }
}

/// One commit, and one piece of a checkpoint.
async fn turn<S: Seam>(inner: &Rc<Inner<S>>) -> Result<(), StoreError> {
    begin_checkpoint(inner);
    while inner.pages.borrow().journal.checkpoint.as_ref().is_some_and(|checkpoint| !checkpoint.is_at_end()) {
        checkpoint::step(inner).await?;
        if has_room(inner) {
            break;
        }
    }
    let at_end = inner.pages.borrow().journal.checkpoint.as_ref().is_some_and(Checkpoint::is_at_end);
    let switch = at_end && checkpoint::settle(inner).await?;
    if !switch && !has_room(inner) {
        // The checkpoint has failed; another one begins.
        return Ok(());
    }
    let batch = gather(inner);
    let failures = flush_pages(inner, &batch.flush).await;
    take_out_all(inner, failures).await?;
    let last = inner.pages.borrow().journal.sequence;
    let sequence = last.next();
    if switch {
        let checkpoint = inner.pages.borrow_mut().journal.checkpoint.take().expect("one is at its end");
        let devices = checkpoint.devices(inner);
        let head = write(inner, &devices, checkpoint.head, sequence, &batch.records, true).await?;
        let journal = &mut inner.pages.borrow_mut().journal;
        journal.head = head;
        journal.mirrors = devices.iter().map(|device| device.member).collect();
    } else if batch.records.is_empty() {
        return committed(inner, batch, last);
    } else {
        let (mut devices, head) = (inner.log_devices(), inner.pages.borrow().journal.head);
        devices.retain(|device| inner.pages.borrow().journal.mirrors.contains(&device.member));
        let head = write(inner, &devices, head, sequence, &batch.records, true).await?;
        inner.pages.borrow_mut().journal.head = head;
        checkpoint::follow(inner, sequence, &batch.records).await?;
    }
    committed(inner, batch, sequence)
}

/// True when the pending records fit after the last commit, and after the part of a checkpoint that is written.
fn has_room<S: Seam>(inner: &Inner<S>) -> bool {
    let state = inner.pages.borrow();
    let journal = &state.journal;
    let needed = blocks_for(state.pending_max()) as u32;
    // Records that follow a checkpoint's pieces must leave room for the rest of it.
    let rest = blocks_for(state.table.slots() + state.table.slots() / 8) as u32;
    let behind = journal.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.head.index + rest);
    !journal.mirrors.is_empty() && needed <= journal.room() && behind + needed < journal.blocks
}

/// Begins a checkpoint if the half is nearly full, if a log member lacks it, or if one was requested.
fn begin_checkpoint<S: Seam>(inner: &Rc<Inner<S>>) {
    let log: Vec<_> = inner.log_devices();
    let mut state = inner.pages.borrow_mut();
    let needed = blocks_for(state.pending_max()) as u32;
    let journal = &mut state.journal;
    let behind = log.iter().any(|device| !journal.mirrors.contains(&device.member));
    let low = journal.room() < (journal.blocks / 8).max(2).max(needed);
    if journal.checkpoint.is_none() && (low || behind || std::mem::take(&mut journal.renew)) {
        journal.generation = journal.generation.next();
        journal.checkpoint = Some(Checkpoint::new(journal.head, journal.generation, &log));
    }
}

fn blocks_for(records: usize) -> usize {
    records.div_ceil(RECORDS_MAX).max(1)
}

/// Takes all pending records. Page writes that have ended by now are covered by the flush that follows.
fn gather<S: Seam>(inner: &Inner<S>) -> Batch {
    let early = inner.sabotage.is(Sabotage::UnmarkEarly);
    let mut guard = inner.pages.borrow_mut();
    let state = &mut *guard;
    state.journal.begun += 1;
    state.journal.urgent = false;
    relieve_scarce_marks(state);
    let mut records = std::mem::take(&mut state.journal.events);
    let marked = records.iter().filter_map(|record| match record {
        Record::DirtyRegion { volume, region, is_dirty: true } => Some((*volume, *region)),
        _ => None,
    });
    let marked = marked.collect();
    let mut freed = std::mem::take(&mut state.implied_dead);
    let unmark = to_unmark(state, early);
    if !early || unmark.is_empty() {
        for slot in std::mem::take(&mut state.dead) {
            records.push(free_record(state, slot));
            freed.push(slot);
        }
        for slot in std::mem::take(&mut state.dirty) {
            state.table.flag(slot, DIRTY, false);
            if state.table.phase(slot) == Phase::Live {
                records.push(slot_record(state, slot));
            }
        }
    }
    records.extend(state.recent_writes.take_unsaved());
    // Unmark after the invalidations: if a crash tears the commit before these records, the region stays marked.
    for region in unmark {
        records.push(state.dirty_regions.clear(region));
    }
    let freed = freed.into_iter().map(|slot| (slot, state.table.place(slot).segment_generation)).collect();
    let flush = std::mem::take(&mut state.unflushed).into_iter().collect();
    Batch { records, freed, marked, flush, number: state.journal.begun }
}

/// Regions whose mark can be removed: all settled ones when the store is idle, some of them when marks are scarce.
fn to_unmark<S: Seam>(state: &mut PageState<S>, early: bool) -> Vec<Region> {
    let idle = std::mem::take(&mut state.clear_all_settled) || early;
    if !idle && state.dirty_regions.len() < DIRTY_REGIONS_MANY {
        return Vec::new();
    }
    let settled: Vec<_> =
        state.dirty_regions.settled().into_iter().filter(|region| !state.has_suspects(*region)).collect();
    let count = if idle { settled.len() } else { settled.len().min(DIRTY_REGIONS_MANY / 3) };
    settled.into_iter().take(count).collect()
}

/// Drops unverified suspect pages of regions that a crash left marked, when marks are scarce: no client has used these
/// pages since.
fn relieve_scarce_marks<S: Seam>(state: &mut PageState<S>) {
    if state.dirty_regions.len() < DIRTY_REGIONS_MANY {
        return;
    }
    for region in state.dirty_regions.settled().into_iter().take(DIRTY_REGIONS_MANY / 6) {
        for slot in state.slots_of_region(region) {
            if state.table.has(slot, SUSPECT) {
                state.invalidate_blocks(slot, ALL_BLOCKS);
            }
        }
    }
}

pub(super) fn slot_record<S: Seam>(state: &PageState<S>, slot: SlotId) -> Record {
    let (volume, page) = page_of(state.table.key(slot));
    if state.table.valid(slot) == 0 {
        return free_record(state, slot);
    }
    Record::Slot {
        member: state.table.place(slot).member as u8,
        slot: state.table.number(slot),
        volume,
        page,
        valid: state.table.valid(slot),
        writes: state.table.writes(slot),
        generation: state.table.generation(slot),
    }
}

pub(super) fn free_record<S: Seam>(state: &PageState<S>, slot: SlotId) -> Record {
    Record::Free {
        member: state.table.place(slot).member as u8,
        slot: state.table.number(slot),
        generation: state.table.generation(slot),
    }
}

async fn flush_pages<S: Seam>(inner: &Inner<S>, members: &[u32]) -> Vec<Failure> {
    let mut devices = inner.in_service();
    devices.retain(|device| members.contains(&device.member));
    let flushes = devices.iter().map(|device| {
        let flush: Boxed<'_, DiskResult<()>> = Box::pin(inner.flush_of(device));
        flush
    });
    let results = join(flushes.collect()).await;
    failures_of(&devices, results)
}

/// Takes failed members out; their pages are lost.
pub async fn take_out_all<S: Seam>(inner: &Inner<S>, failures: Vec<Failure>) -> Result<(), StoreError> {
    if failures.is_empty() { Ok(()) } else { take_out(inner, failures).await }
}

/// Writes records at `head` on these devices. If `complete`, it also flushes. Members that fail are taken out. Returns
/// the position of the next block.
pub(super) async fn write<S: Seam>(
    inner: &Inner<S>,
    devices: &[Device<S>],
    mut head: Head,
    sequence: CommitNo,
    records: &[Record],
    complete: bool,
) -> Result<Head, StoreError> {
    let (store, boot, blocks) = {
        let state = inner.state.borrow();
        (state.superblock.store, state.superblock.boot, inner.pages.borrow().journal.blocks)
    };
    let count = blocks_for(records.len());
    if head.index as usize + count > blocks as usize {
        return Err(StoreError::Failed("the map journal is too small for its checkpoint".to_owned()));
    }
    let mut devices: Vec<Device<S>> = devices.to_vec();
    let mut left = count;
    let mut chunks = records.chunks(RECORDS_MAX);
    while left > 0 {
        let (first, mut written) = (head.index, Vec::new());
        for _ in 0..left.min(SPARE_BLOCKS) {
            left -= 1;
            let (generation, index, previous) = (head.generation, head.index, head.previous);
            let more = left > 0;
            let header = JournalHeader { store, boot, generation, sequence, index, previous, complete, more };
            let (raw, checksum) = header.encode(chunks.next().unwrap_or_default());
            let spare = inner.pages.borrow_mut().journal.spare.pop();
            let buffer = match spare {
                Some(buffer) => buffer,
                None => inner.buffer().await,
            };
            written.push(block_of::<S>(buffer, &raw));
            (head.index, head.previous) = (index + 1, checksum);
        }
        let at = inner.pages.borrow().journal.place(head.half, first);
        let writes = devices.iter().map(|device| {
            let write: Boxed<'_, DiskResult<()>> =
                Box::pin(inner.write_durably_to(device, at, written.clone(), complete));
            write
        });
        let failures = failures_of(&devices, join(writes.collect()).await);
        {
            let mut state = inner.pages.borrow_mut();
            for device in &devices {
                state.counts.of(device.member).journal_bytes += (written.len() * seam::BLOCK_BYTES) as u64;
            }
            for block in written {
                if let Ok(buffer) = seam::Block::thaw(block)
                    && state.journal.spare.len() < SPARE_BLOCKS
                {
                    state.journal.spare.push(buffer);
                }
            }
        }
        devices.retain(|device| !failures.iter().any(|(member, _)| *member == device.member));
        take_out_all(inner, failures).await?;
        if devices.is_empty() {
            return Err(StoreError::Failed("no device with the map journal is left in service".to_owned()));
        }
    }
    Ok(head)
}

/// Applies the consequences of a durable commit.
fn committed<S: Seam>(inner: &Rc<Inner<S>>, batch: Batch, sequence: CommitNo) -> Result<(), StoreError> {
    {
        // From now on every log batch and superblock contains this commit's number (R9).
        let known = &mut inner.state.borrow_mut().superblock.journal;
        *known = sequence.max(*known);
    }
    let mut state = inner.pages.borrow_mut();
    state.journal.sequence = sequence;
    for (slot, segment_generation) in batch.freed {
        // The segment may have been released or reused since.
        if state.table.is_in(slot, segment_generation) && state.table.phase(slot) == Phase::Dead {
            state.release(slot);
        }
    }
    batch.marked.into_iter().for_each(|region| state.dirty_regions.set_durable(region));
    state.journal.done = batch.number;
    state.journal.answer();
    Ok(())
}
