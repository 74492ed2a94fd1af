//! A commit: pending records become durable on every log member, after the page data that they refer to.

use std::rc::Rc;

use seam::{DiskResult, Seam};

use super::{SPARE_BUFFERS, checkpoint, schedule_commit};
use crate::device::{Device, Durability, block_of};
use crate::error::StoreError;
use crate::format::journal::{JournalHeader, JournalRecord, RECORDS_MAX};
use crate::membership::{MemberFailure, failures_of, remove_members};
use crate::number::{CommitNo, MemberNo};
use crate::page_map::dirty_regions::{DIRTY_REGIONS_HIGH_WATERMARK, Region};
use crate::page_map::journal::{Checkpoint, JournalHead};
use crate::page_map::table::{SUSPECT, SlotId, SlotPhase, UNRECORDED, page_of};
use crate::page_map::{ALL_BLOCKS, PageState};
use crate::sabotage::Sabotage;
use crate::state::Inner;
use crate::state::retirements::release;
use task_sync::{BoxFuture, join};

/// A half of the journal is nearly full when less than this share of it is free: one in this many blocks.
const NEARLY_FULL_DIVISOR: u32 = 8;

/// The records of a commit, and the changes to apply when it is durable.
struct PendingCommit {
    records: Vec<JournalRecord>,
    /// Slots that the commit frees, with the generation of their segment.
    freed_slots: Vec<(SlotId, u64)>,
    /// Regions that the commit marks dirty.
    marked_regions: Vec<Region>,
    /// Members with page data that the records refer to; they are flushed first.
    members_to_flush: Vec<MemberNo>,
    /// Its ordinal among the commits since the opening, as counted in `Journal::commits_begun`.
    commit_ordinal: u64,
}

/// Commits until nothing is pending and no caller waits, and completes a checkpoint that has begun.
pub async fn run<S: Seam>(inner: Rc<Inner<S>>) {
    loop {
        inner.seam.yield_now().await;
        let has_work = {
            let mut state = inner.pages.borrow_mut();
            let has_work = !state.journal.is_stopped()
                && (state.journal.is_urgent
                    || state.should_clear_all_settled
                    || state.journal.has_waiters()
                    || state.journal.checkpoint.is_some()
                    || state.journal.is_checkpoint_requested);
            state.journal.is_running = has_work;
            has_work
        };
        if !has_work {
            // Records that arrived meanwhile are written lazily.
            schedule_commit(&inner);
            return;
        }
        if let Err(error) = commit_once(&inner).await {
            let journal_lost = !inner.log_devices().is_empty();
            if journal_lost {
                // The remaining log members do not have the whole map, and their superblocks show it (R9,
                // docs/rules.md).
                let known = inner.state.borrow().superblock.journal_commit;
                super::load::start_empty_map(&inner, known);
                continue;
            }
            inner.pages.borrow_mut().disable_map(error.to_string());
            return;
        }
    }
}

/// Writes one commit. Before it, writes one piece of a checkpoint in progress, or as many as make room for the commit.
async fn commit_once<S: Seam>(inner: &Rc<Inner<S>>) -> Result<(), StoreError> {
    begin_checkpoint(inner);
    while inner.pages.borrow().journal.checkpoint.as_ref().is_some_and(|checkpoint| !checkpoint.is_at_end) {
        checkpoint::write_piece(inner).await?;
        if has_room(inner) {
            break;
        }
    }
    let at_end = inner.pages.borrow().journal.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.is_at_end);
    let switches_half = at_end && checkpoint::flush(inner).await?;
    if !switches_half && !has_room(inner) {
        // The checkpoint has failed; another one begins.
        return Ok(());
    }
    let commit = take_pending_records(inner);
    let failures = flush_pages(inner, &commit.members_to_flush).await;
    remove_failed_members(inner, failures).await?;
    let last_commit_no = inner.pages.borrow().journal.last_durable_commit;
    let commit_no = last_commit_no.next();
    if switches_half {
        let checkpoint = inner.pages.borrow_mut().journal.checkpoint.take().expect("a finished checkpoint exists");
        let devices = checkpoint::devices_of(inner, &checkpoint);
        let head = write(inner, &devices, checkpoint.head, commit_no, &commit.records, true).await?;
        let journal = &mut inner.pages.borrow_mut().journal;
        journal.head = head;
        journal.journal_members = devices.iter().map(|device| device.member).collect();
    } else if commit.records.is_empty() {
        return apply_commit(inner, commit, last_commit_no);
    } else {
        let (mut devices, head) = (inner.log_devices(), inner.pages.borrow().journal.head);
        devices.retain(|device| inner.pages.borrow().journal.journal_members.contains(&device.member));
        let head = write(inner, &devices, head, commit_no, &commit.records, true).await?;
        inner.pages.borrow_mut().journal.head = head;
        checkpoint::append_commit(inner, commit_no, &commit.records).await?;
    }
    apply_commit(inner, commit, commit_no)
}

/// True when the pending records fit after the last commit, and after the part of a checkpoint that is written.
fn has_room<S: Seam>(inner: &Inner<S>) -> bool {
    let state = inner.pages.borrow();
    let journal = &state.journal;
    let needed = block_count_for(state.pending_records_max()) as u32;
    // Commits that follow the pieces of a checkpoint must leave room for its remaining pieces.
    let blocks_to_come = block_count_for(state.table.slot_count() + state.table.slot_count() / 8) as u32;
    let checkpoint_blocks =
        journal.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.head.block_index + blocks_to_come);
    !journal.journal_members.is_empty()
        && needed <= journal.free_blocks()
        && checkpoint_blocks + needed < journal.half_blocks
}

/// Begins a checkpoint if the half is nearly full, if a log member lacks a part of it, or if one was requested.
fn begin_checkpoint<S: Seam>(inner: &Rc<Inner<S>>) {
    let log: Vec<_> = inner.log_devices();
    let mut state = inner.pages.borrow_mut();
    let needed = block_count_for(state.pending_records_max()) as u32;
    let journal = &mut state.journal;
    let lacks_member = log.iter().any(|device| !journal.journal_members.contains(&device.member));
    let is_nearly_full = journal.free_blocks() < (journal.half_blocks / NEARLY_FULL_DIVISOR).max(2).max(needed);
    if journal.checkpoint.is_none()
        && (is_nearly_full || lacks_member || std::mem::take(&mut journal.is_checkpoint_requested))
    {
        journal.generation = journal.generation.next();
        journal.checkpoint = Some(Checkpoint::new(journal.head, journal.generation, &log));
    }
}

/// The number of journal blocks that these records take.
fn block_count_for(records: usize) -> usize {
    records.div_ceil(RECORDS_MAX).max(1)
}

/// Takes all pending records. Page writes that have ended by now are covered by the flush that follows.
fn take_pending_records<S: Seam>(inner: &Inner<S>) -> PendingCommit {
    let clears_early = inner.sabotage.is(Sabotage::UnmarkEarly);
    let mut guard = inner.pages.borrow_mut();
    let state = &mut *guard;
    state.journal.commits_begun += 1;
    state.journal.is_urgent = false;
    drop_suspects_of_settled_regions(state);
    let mut records = std::mem::take(&mut state.journal.pending_records);
    let marked = records.iter().filter_map(|record| match record {
        JournalRecord::DirtyRegion { volume_number, region, is_dirty: true } => {
            Some(Region { volume_number: *volume_number, index: *region })
        }
        _ => None,
    });
    let marked = marked.collect();
    let mut freed = std::mem::take(&mut state.slot_lists.implied_dead);
    let to_clear = regions_to_clear(state, clears_early);
    if !clears_early || to_clear.is_empty() {
        for slot in std::mem::take(&mut state.slot_lists.dead) {
            records.push(build_free_record(state, slot));
            freed.push(slot);
        }
        for slot in std::mem::take(&mut state.slot_lists.unrecorded) {
            state.table.set_flag(slot, UNRECORDED, false);
            if state.table.phase(slot) == SlotPhase::Live {
                records.push(build_slot_record(state, slot));
            }
        }
    }
    records.extend(state.recent_writes.take_pending());
    // Clear regions after the invalidations: if a crash tears the commit before these records, the region stays dirty.
    for region in to_clear {
        records.push(state.dirty_regions.clear(region));
    }
    let freed = freed.into_iter().map(|slot| (slot, state.table.place(slot).segment_generation)).collect();
    let members_to_flush = std::mem::take(&mut state.unflushed_members).into_iter().collect();
    PendingCommit {
        records,
        freed_slots: freed,
        marked_regions: marked,
        members_to_flush,
        commit_ordinal: state.journal.commits_begun,
    }
}

/// The regions to clear: all settled ones when the store is idle, some of them when the write-intent log is nearly
/// full.
fn regions_to_clear<S: Seam>(state: &mut PageState<S>, clears_early: bool) -> Vec<Region> {
    let idle = std::mem::take(&mut state.should_clear_all_settled) || clears_early;
    if !idle && state.dirty_regions.len() < DIRTY_REGIONS_HIGH_WATERMARK {
        return Vec::new();
    }
    // Once a region is clear, the next opening would trust its unproven recent writes.
    let may_clear = |region: &Region| {
        !state.has_suspects(*region) && !state.recent_writes.has_unproven(region.volume_number, &region.blocks())
    };
    let settled: Vec<_> = state.dirty_regions.settled().into_iter().filter(may_clear).collect();
    let count = if idle { settled.len() } else { settled.len().min(DIRTY_REGIONS_HIGH_WATERMARK / 3) };
    settled.into_iter().take(count).collect()
}

/// Drops suspect pages and unproven recent writes of some settled regions if the write-intent log is nearly full, so
/// that these regions can be cleared. They have been dirty since a crash, and no client has used the pages since.
fn drop_suspects_of_settled_regions<S: Seam>(state: &mut PageState<S>) {
    if state.dirty_regions.len() < DIRTY_REGIONS_HIGH_WATERMARK {
        return;
    }
    for region in state.dirty_regions.settled().into_iter().take(DIRTY_REGIONS_HIGH_WATERMARK / 6) {
        let removed = state.recent_writes.drop_unproven(region.volume_number, &region.blocks());
        state.journal.pending_records.extend(removed);
        for slot in state.slots_of_region(region) {
            if state.table.has_flag(slot, SUSPECT) {
                state.invalidate_blocks(slot, ALL_BLOCKS);
            }
        }
    }
}

/// The record of a live slot's present state.
pub(super) fn build_slot_record<S: Seam>(state: &PageState<S>, slot: SlotId) -> JournalRecord {
    let (volume, page) = page_of(state.table.key(slot));
    if state.table.valid_mask(slot) == 0 {
        return build_free_record(state, slot);
    }
    JournalRecord::Slot {
        member: state.table.place(slot).member,
        slot: state.table.number(slot),
        volume_number: volume,
        page,
        valid_mask: state.table.valid_mask(slot),
        write_counts: state.table.write_counts(slot),
        generation: state.table.generation(slot),
    }
}

/// The record that a slot is free.
pub(super) fn build_free_record<S: Seam>(state: &PageState<S>, slot: SlotId) -> JournalRecord {
    JournalRecord::Free {
        member: state.table.place(slot).member,
        slot: state.table.number(slot),
        generation: state.table.generation(slot),
    }
}

/// Flushes these members. Returns the failed ones.
async fn flush_pages<S: Seam>(inner: &Inner<S>, members: &[MemberNo]) -> Vec<MemberFailure> {
    let mut devices = inner.in_service();
    devices.retain(|device| members.contains(&device.member));
    let flushes = devices.iter().map(|device| {
        let flush: BoxFuture<'_, DiskResult<()>> = Box::pin(inner.flush_member(device));
        flush
    });
    let results = join(flushes.collect()).await;
    failures_of(&devices, results)
}

/// Removes failed members from service; their pages are lost.
pub async fn remove_failed_members<S: Seam>(inner: &Inner<S>, failures: Vec<MemberFailure>) -> Result<(), StoreError> {
    if failures.is_empty() { Ok(()) } else { remove_members(inner, failures).await }
}

/// Writes records at `head` on these devices. `is_complete` marks the blocks as following a whole checkpoint; then each
/// write ends with a flush. Members that fail are removed. Returns the position of the next block.
pub(super) async fn write<S: Seam>(
    inner: &Inner<S>,
    devices: &[Device<S>],
    mut head: JournalHead,
    commit_no: CommitNo,
    records: &[JournalRecord],
    is_complete: bool,
) -> Result<JournalHead, StoreError> {
    let (store, boot_epoch, half_blocks) = {
        let state = inner.state.borrow();
        (state.superblock.store, state.superblock.boot_epoch, inner.pages.borrow().journal.half_blocks)
    };
    let count = block_count_for(records.len());
    if head.block_index as usize + count > half_blocks as usize {
        return Err(StoreError::JournalTooSmall);
    }
    let mut devices: Vec<Device<S>> = devices.to_vec();
    let mut remaining = count;
    let mut chunks = records.chunks(RECORDS_MAX);
    while remaining > 0 {
        let (first, mut blocks) = (head.block_index, Vec::new());
        for _ in 0..remaining.min(SPARE_BUFFERS) {
            remaining -= 1;
            let (generation, index, previous) = (head.generation, head.block_index, head.previous_checksum);
            let has_more = remaining > 0;
            let header = JournalHeader {
                store,
                boot_epoch,
                generation,
                commit_no,
                block_index: index,
                previous_checksum: previous,
                is_complete,
                has_more,
            };
            let (raw, checksum) = header.encode(chunks.next().unwrap_or_default());
            let spare = inner.pages.borrow_mut().journal.spare_buffers.pop();
            let buffer = match spare {
                Some(buffer) => buffer,
                None => inner.alloc_buffer().await,
            };
            blocks.push(block_of::<S>(buffer, &raw));
            (head.block_index, head.previous_checksum) = (index + 1, checksum);
        }
        let at = inner.pages.borrow().journal.block_offset(head.half, first);
        let writes = devices.iter().map(|device| {
            let write: BoxFuture<'_, DiskResult<()>> =
                Box::pin(inner.write_with_retry_to(device, at, blocks.clone(), Durability::flushed_if(is_complete)));
            write
        });
        let failures = failures_of(&devices, join(writes.collect()).await);
        {
            let mut state = inner.pages.borrow_mut();
            for device in &devices {
                state.counters.member_mut(device.member).journal_bytes += (blocks.len() * seam::BLOCK_BYTES) as u64;
            }
            return_spare_buffers(&mut state, blocks);
        }
        devices.retain(|device| !failures.iter().any(|(member, _)| *member == device.member));
        remove_failed_members(inner, failures).await?;
        if devices.is_empty() {
            return Err(StoreError::JournalLost);
        }
    }
    Ok(head)
}

/// Returns the buffers of written blocks to the spare buffers of the journal.
fn return_spare_buffers<S: Seam>(state: &mut PageState<S>, blocks: Vec<S::Block>) {
    for block in blocks {
        if let Ok(buffer) = seam::Block::thaw(block)
            && state.journal.spare_buffers.len() < SPARE_BUFFERS
        {
            state.journal.spare_buffers.push(buffer);
        }
    }
}

/// Applies the consequences of a durable commit.
fn apply_commit<S: Seam>(inner: &Rc<Inner<S>>, commit: PendingCommit, commit_no: CommitNo) -> Result<(), StoreError> {
    {
        // From now on every log batch and superblock contains this commit's number (R9).
        let known = &mut inner.state.borrow_mut().superblock.journal_commit;
        *known = commit_no.max(*known);
    }
    let mut state = inner.pages.borrow_mut();
    state.journal.last_durable_commit = commit_no;
    for (slot, segment_generation) in commit.freed_slots {
        // The segment may have been released or reused since.
        if state.table.is_in(slot, segment_generation) && state.table.phase(slot) == SlotPhase::Dead {
            state.release(slot);
        }
    }
    commit.marked_regions.into_iter().for_each(|region| state.dirty_regions.set_durable(region));
    state.journal.commits_done = commit.commit_ordinal;
    state.journal.notify_waiters();
    drop(state);
    release(inner);
    Ok(())
}
