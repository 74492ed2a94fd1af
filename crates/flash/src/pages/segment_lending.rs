//! Segment lending between the log and the pages. The log keeps a reserve. When the reserve is used up, the log
//! reclaims the segment whose pages are used least, once the removal of these pages is durable.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use seam::{DiskResult, Nanos, Seam};

use super::quota::{self, Evictability};
use super::slot_room::log_reserve_segments;
use crate::device::{Device, Durability, block_of, block_offset};
use crate::format::journal::JournalRecord;
use crate::format::page::PageSegmentHeader;
use crate::format::superblock::Role;
use crate::journal::wait_durable;
use crate::membership::failures_of;
use crate::number::{MemberNo, MemberSegment, SegmentNo};
use crate::page_map::PageState;
use crate::page_map::table::{Frame, SlotId, SlotPhase};
use crate::state::{Inner, State};
use task_sync::{BoxFuture, join};

/// Maximum number of segments that are compared when one is reclaimed.
const COMPARED_SEGMENTS_MAX: usize = 64;
/// The cost of dropping a page without a recent use, on the scale of [`drop_cost`]. Each recent use adds 1.
const UNUSED_PAGE_COST: usize = 2;
/// The cost of dropping a protected page.
const PROTECTED_PAGE_COST: usize = 50;
/// The cost of a slot that is being written: the reclaim would have to wait for the write.
const WRITING_PAGE_COST: usize = 1_000;
/// Number of low bits of a segment generation that count the segments of one opening of the store.
const GENERATION_COUNT_BITS: u32 = 40;
/// Pause between two checks while another reclaim, or a write to the segment, is in progress. These waits are rare and
/// last about as long as a write to a device, so they poll: a signal would cost every write more than it saves.
pub(super) const CHECK_INTERVAL: Nanos = Nanos::from_micros(100);

/// Up to `count` segments that can hold pages now. On log members these are lent segments and segments past the end of
/// the log, on other members all segments.
fn available_segments<S: Seam>(store_state: &State<S>, state: &PageState<S>, count: usize) -> Vec<MemberSegment> {
    let in_use: BTreeSet<MemberSegment> =
        state.table.frames().map(|(_, frame)| (frame.member, frame.segment)).collect();
    let superblock = &store_state.superblock;
    let log_segments = superblock.log_segments();
    let mut available = Vec::new();
    for (member, entry) in superblock.numbered_members().filter(|(member, _)| superblock.serves(*member)) {
        if state.closed_members.contains(&member) {
            continue;
        }
        let is_log = entry.role == Role::Log;
        // A segment that was lent before a smaller device joined the log is past the end of the log now.
        let is_lent = |segment: &SegmentNo| *segment < log_segments.end && state.reclaim_target != Some(*segment);
        let lent = store_state.segments.lent_segments().iter().copied().filter(|segment| is_log && is_lent(segment));
        let end = SegmentNo(entry.segment_count);
        let page_only_segments =
            if is_log { log_segments.end..end.max(log_segments.end) } else { log_segments.start..end };
        let segments = lent.chain(SegmentNo::each(&page_only_segments));
        let unused = segments.map(|segment| (member, segment)).filter(|segment| !in_use.contains(segment));
        available.extend(unused.take(count));
    }
    available.truncate(count);
    available
}

/// True when another segment can hold pages.
pub fn can_grow<S: Seam>(inner: &Inner<S>, state: &PageState<S>) -> bool {
    let store_state = inner.state.borrow();
    let fits = state.table.slot_count() + state.table.slots_per_frame() as usize <= state.journal.slots_max();
    fits && (store_state.segments.writable_count() > log_reserve_segments(&store_state)
        || !available_segments(&store_state, state, 1).is_empty())
}

/// Adds up to two of the segments that can hold pages now to the page cache, possibly on one member. If there are none,
/// the log lends a segment, which is added on every log member that has room for it.
pub async fn grow<S: Seam>(inner: &Rc<Inner<S>>) {
    let (segments, store, segment_bytes, boot_epoch) = {
        let mut store_state = inner.state.borrow_mut();
        let state = inner.pages.borrow();
        let mut segments = available_segments(&store_state, &state, 2);
        if segments.is_empty() {
            let keep = log_reserve_segments(&store_state);
            let Some(segment) = store_state.segments.lend(keep) else { return };
            let members = store_state.superblock.numbered_members();
            let log = members.filter(|(member, _)| store_state.superblock.carries_log(*member));
            let with_room = log.filter(|(_, entry)| segment < SegmentNo(entry.segment_count));
            segments.extend(with_room.map(|(member, _)| (member, segment)));
        }
        (
            segments,
            store_state.superblock.store,
            store_state.superblock.segment_bytes,
            store_state.superblock.boot_epoch,
        )
    };
    for (member, segment) in segments {
        let Some(device) = inner.in_service().into_iter().find(|device| device.member == member) else { continue };
        let segment_generation = {
            let store_state = inner.state.borrow();
            let mut state = inner.pages.borrow_mut();
            if !may_hold_pages(&store_state, &state, member, segment) {
                continue;
            }
            state.segment_generations.issued_count += 1;
            state.begin_writing((member, segment));
            // Unique over all openings: the boot epoch is in the upper bits.
            boot_epoch.0 << GENERATION_COUNT_BITS | state.segment_generations.issued_count
        };
        let header = PageSegmentHeader { store, member, segment, segment_generation };
        let written = write_header(inner, &device, &header, segment_bytes).await;
        inner.pages.borrow_mut().end_writing((member, segment));
        if written {
            add_frame(inner, member, segment, segment_generation);
        }
    }
}

/// Writes the header block of a page segment, so that its content is never mistaken for log content. Returns whether
/// that succeeded.
async fn write_header<S: Seam>(
    inner: &Inner<S>,
    device: &Device<S>,
    header: &PageSegmentHeader,
    segment_bytes: u64,
) -> bool {
    let Some(buffer) = inner.alloc() else { return false };
    let block = block_of::<S>(buffer, &header.encode());
    let at = block_offset(segment_bytes, header.segment, 0);
    let write: BoxFuture<'_, DiskResult<()>> =
        Box::pin(inner.write_with_retry_to(device, at, vec![block], Durability::Unflushed));
    let failures = failures_of(std::slice::from_ref(device), join(vec![write]).await);
    let is_written = failures.is_empty();
    if !is_written {
        inner.pages.borrow_mut().closed_members.insert(device.member);
    }
    is_written
}

/// True when a segment may hold pages: the log has not reclaimed it meanwhile.
fn may_hold_pages<S: Seam>(store_state: &State<S>, state: &PageState<S>, member: MemberNo, segment: SegmentNo) -> bool {
    let is_part_of_log =
        store_state.superblock.carries_log(member) && segment < store_state.superblock.log_segments().end;
    let is_lent = store_state.segments.lent_segments().contains(&segment) && state.reclaim_target != Some(segment);
    let is_open = state.is_ready() && store_state.superblock.serves(member) && state.vacated_member != Some(member);
    is_open && (is_lent || !is_part_of_log)
}

/// Adds the slots of a segment whose header is written, unless the log has reclaimed the segment meanwhile.
fn add_frame<S: Seam>(inner: &Inner<S>, member: MemberNo, segment: SegmentNo, segment_generation: u64) {
    let store_state = inner.state.borrow();
    let mut state = inner.pages.borrow_mut();
    if !may_hold_pages(&store_state, &state, member, segment) {
        return;
    }
    let entry = &store_state.superblock.members[member.index()];
    if state.journal.recorded_members.insert(member) {
        state.journal.pending_records.push(JournalRecord::Member { member, uuid: entry.uuid });
    }
    state.journal.pending_records.push(JournalRecord::Segment { member, segment, segment_generation });
    state.unflushed_members.insert(member);
    let frame = state.table.add_frame(member, segment, segment_generation);
    let slots = state.table.slots_of(frame);
    state.slot_lists.free.extend(slots);
}

/// Reclaims a lent segment for the log, or waits until another task has reclaimed one. Returns false if there is none
/// to reclaim.
pub async fn reclaim_for_log<S: Seam>(inner: &Rc<Inner<S>>) -> bool {
    while std::mem::replace(&mut inner.pages.borrow_mut().is_reclaiming, true) {
        inner.seam.sleep(CHECK_INTERVAL).await;
        let store_state = inner.state.borrow();
        if store_state.segments.has_more_free_than(store_state.segments.tombstone_reserve_segments()) {
            return true;
        }
    }
    let reclaimed = reclaim_segment(inner).await;
    if let Some(segment) = reclaimed {
        let segments = &mut inner.state.borrow_mut().segments;
        if segments.lent_segments().contains(&segment) {
            segments.return_lent(segment);
        }
    }
    let mut state = inner.pages.borrow_mut();
    (state.is_reclaiming, state.reclaim_target) = (false, None);
    reclaimed.is_some()
}

/// Drops the pages of the lent segment whose pages cost the least to drop, durably. Returns the segment.
async fn reclaim_segment<S: Seam>(inner: &Rc<Inner<S>>) -> Option<SegmentNo> {
    if !inner.pages.borrow().is_ready() {
        // Loading the map later finds that the segment was reclaimed.
        let segment = inner.state.borrow().segments.reclaimable_segments().next()?;
        inner.pages.borrow_mut().reclaim_target = Some(segment);
        wait_for_writes(inner, segment).await;
        return Some(segment);
    }
    let (segment, frames) = {
        let store_state = inner.state.borrow();
        let mut state = inner.pages.borrow_mut();
        let (segment, frame_nos) = choose_segment_to_reclaim(&store_state, &state)?;
        state.reclaim_target = Some(segment);
        let mut frames = Vec::new();
        for frame_no in frame_nos {
            let frame = state.table.frame(frame_no);
            let record = JournalRecord::FreeSegment { member: frame.member, segment: frame.segment };
            frames.push((frame_no, frame.segment_generation, record));
            let slots = state.table.slots_of(frame_no);
            state.slot_lists.free.retain(|slot| !slots.contains(slot));
        }
        (segment, frames)
    };
    // Since `reclaim_target` is set, no new write to the segment begins.
    wait_for_writes(inner, segment).await;
    {
        let mut state = inner.pages.borrow_mut();
        for (frame_no, segment_generation, record) in frames {
            // Another task may have dropped the frame meanwhile, and its number may have been reused.
            let is_same = |(other_no, other): (u32, &Frame)| {
                other_no == frame_no && other.segment_generation == segment_generation
            };
            if state.table.frames().any(is_same) {
                state.drop_frame(frame_no);
                state.journal.pending_records.push(record);
            }
        }
    }
    wait_durable(inner).await;
    Some(segment)
}

/// The lent segment whose pages cost the least to drop, with the numbers of its frames: one for each log member with
/// pages in it.
fn choose_segment_to_reclaim<S: Seam>(store_state: &State<S>, state: &PageState<S>) -> Option<(SegmentNo, Vec<u32>)> {
    let compared = store_state.segments.reclaimable_segments().take(COMPARED_SEGMENTS_MAX);
    let mut costs: BTreeMap<SegmentNo, (usize, Vec<u32>)> =
        compared.map(|segment| (segment, (0, Vec::new()))).collect();
    for (frame_no, frame) in state.table.frames().filter(|(_, frame)| store_state.superblock.carries_log(frame.member))
    {
        if let Some((cost, frame_nos)) = costs.get_mut(&frame.segment) {
            *cost += state.table.slots_of(frame_no).map(|slot| drop_cost(state, slot)).sum::<usize>();
            frame_nos.push(frame_no);
        }
    }
    let (segment, (_, frame_nos)) = costs.into_iter().min_by_key(|(segment, (cost, _))| (*cost, *segment))?;
    Some((segment, frame_nos))
}

/// Waits until no write to a reclaimed segment is in flight: a late write would overwrite a batch.
async fn wait_for_writes<S: Seam>(inner: &Rc<Inner<S>>, reclaimed: SegmentNo) {
    let carries_log = |member: MemberNo| inner.state.borrow().superblock.carries_log(member);
    let has_writes = |state: &PageState<S>| {
        state.writes_in_flight.keys().any(|(member, segment)| *segment == reclaimed && carries_log(*member))
    };
    while has_writes(&inner.pages.borrow()) {
        inner.seam.sleep(CHECK_INTERVAL).await;
    }
}

/// The cost of dropping a slot's page: the segment with the lowest sum is reclaimed.
fn drop_cost<S: Seam>(state: &PageState<S>, slot: SlotId) -> usize {
    match state.table.phase(slot) {
        SlotPhase::Free | SlotPhase::Dead => 0,
        SlotPhase::Live if quota::evictability(state, slot) == Evictability::Protected => PROTECTED_PAGE_COST,
        SlotPhase::Live => UNUSED_PAGE_COST + usize::from(state.table.uses(slot)),
        SlotPhase::Writing => WRITING_PAGE_COST,
    }
}
