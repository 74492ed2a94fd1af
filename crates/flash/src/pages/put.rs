//! Writes of pages. A page gets a slot that no durable record lists, and enters the map when it is completely written.
//! Missing blocks are added in place, also over invalidated blocks.
//!
//! The map holds the number of writes of each block, and a block's checksum depends on that number. A write that is
//! lost, or that has no record, is therefore a miss.

use std::rc::Rc;

use seam::{BLOCK_BYTES, Block, BlockMut, Disk, Piece, SECTOR_BYTES, Seam};

use super::api::PutError;
use super::{evict, quota, read};
use crate::device::block_offset;
use crate::format::page::{
    CHECKSUM_COPIES, PagePlace, WriteCounts, checksums_offset, offset_in_slot, page_seed, slot_offset,
};
use crate::journal::schedule_commit;
use crate::number::{MemberNo, PAGE_BLOCKS, PageNo, VolumeId};
use crate::page_map::table::{ADDING, SEALED, SUSPECT, SlotId, SlotPhase, key_of, page_of};
use crate::page_map::{DropRecord, MapPhase, PageState};
use crate::sabotage::Sabotage;
use crate::slow_detection::QueuedRequest;
use crate::state::Inner;
use crate::state::latency::RequestWork;
use task_sync::Reply;

/// The blocks of a page.
pub(super) type Content<B> = [Option<B>; PAGE_BLOCKS as usize];

/// Contiguous pieces of a slot, and their byte offset in it.
type Run<B> = (u64, Vec<Piece<B>>);

/// A write of a page in progress.
pub(super) struct Put {
    pub(super) slot: SlotId,
    pub(super) place: PagePlace,
    /// Number of writes of each block of the slot, including this write.
    pub(super) write_counts: WriteCounts,
    /// Blocks to write.
    pub(super) blocks_to_write: u16,
    /// Valid blocks of the slot that are not rewritten.
    pub(super) unchanged_blocks: u16,
    /// The slot that held the page before, if the page moves to another slot.
    pub(super) old_slot: Option<OldSlot>,
}

/// The slot that a page leaves.
pub(super) struct OldSlot {
    pub(super) slot: SlotId,
    pub(super) place: PagePlace,
    /// Mask of the blocks that are copied to the new slot.
    pub(super) copied_blocks: u16,
}

/// Writes blocks of a page to flash.
pub async fn put<S: Seam>(
    inner: &Rc<Inner<S>>,
    volume_id: VolumeId,
    page: PageNo,
    blocks: Vec<(u32, S::Block)>,
) -> Result<u16, PutError> {
    let requested = blocks.iter().fold(0, |mask, (block, _)| mask | 1 << block);
    let mut content: Content<S::Block> = Default::default();
    blocks.into_iter().for_each(|(block, data)| content[block as usize] = Some(data));
    let result = {
        let mut state = inner.pages.borrow_mut();
        let result = begin_put(&mut state, inner, volume_id, page, requested);
        let is_entitled =
            matches!(result, Err(PutError::NoSlot)) && state.is_ready() && quota::is_entitled(&state, volume_id, page);
        if is_entitled && !evict::may_have_free_slot(&state) {
            quota::evict_for_entitled(&mut state);
        }
        result
    };
    evict::maintain_free_slots(inner);
    if matches!(result, Err(PutError::NoSlot)) && !evict::may_have_free_slot(&inner.pages.borrow()) {
        return Err(PutError::AllHot);
    }
    let Some(put) = result? else {
        let state = inner.pages.borrow();
        return Ok(state.find(volume_id, page).map_or(0, |slot| state.table.valid_mask(slot)) & requested);
    };
    for (block, data) in content.iter_mut().enumerate() {
        if put.blocks_to_write >> block & 1 == 0 {
            *data = None;
        }
    }
    // The write has its own task, so it completes even if the caller is dropped. Until then the slot is not reused.
    let (reply, task) = (Reply::default(), Rc::clone(inner));
    let task_reply = reply.clone();
    inner.pages.borrow_mut().begin_writing((put.place.member, put.place.segment));
    inner.seam.spawn(async move {
        let result = write_and_insert(&task, volume_id, page, &put, content).await;
        task_reply.send(result.map(|valid| valid & requested));
    });
    reply.wait().await
}

/// Writes the blocks of a registered page, and enters it into the map. Returns the valid blocks.
pub(super) async fn write_and_insert<S: Seam>(
    inner: &Rc<Inner<S>>,
    volume_id: VolumeId,
    page: PageNo,
    put: &Put,
    content: Content<S::Block>,
) -> Result<u16, PutError> {
    let result = write(inner, volume_id, page, put, content).await;
    inner.pages.borrow_mut().end_writing((put.place.member, put.place.segment));
    let valid = finish_put(inner, put, &result);
    schedule_commit(inner);
    evict::maintain_free_slots(inner);
    result.map(|_| valid)
}

/// Finds a slot, and registers the page. Returns `None` if all requested blocks are valid already.
fn begin_put<S: Seam>(
    state: &mut PageState<S>,
    inner: &Inner<S>,
    volume_id: VolumeId,
    page: PageNo,
    requested_blocks: u16,
) -> Result<Option<Put>, PutError> {
    match &state.phase {
        MapPhase::Ready => {}
        MapPhase::Unusable(reason) => return Err(PutError::DeviceFailed(reason.clone())),
        MapPhase::Unloaded | MapPhase::Loading => return Err(PutError::NoSlot),
    }
    let key = key_of(state.get_or_assign_number(volume_id).ok_or(PutError::NoSlot)?, page);
    if state.table.is_busy(key) {
        return Err(PutError::NoSlot);
    }
    let old = state.table.find(key);
    quota::refresh_limits(inner, state);
    if old.is_none() && !quota::make_room_within_quota(state, page_of(key).0) {
        return Err(PutError::QuotaUsed);
    }
    let valid = old.map_or(0, |slot| state.table.valid_mask(slot));
    let to_write = requested_blocks & !valid;
    if to_write == 0 {
        return Ok(None);
    }
    if let Some(slot) = old.filter(|slot| can_add_in_place(state, *slot, to_write)) {
        state.table.set_flag(slot, ADDING, true);
        state.table.add_writes(slot, to_write);
        state.pending_puts.insert(slot, to_write);
        let (place, write_counts) = (state.table.place(slot), state.table.write_counts(slot));
        return Ok(Some(Put {
            slot,
            place,
            write_counts,
            blocks_to_write: to_write,
            unchanged_blocks: valid,
            old_slot: None,
        }));
    }
    if inner.sabotage.is(Sabotage::ReuseSlotEarly) {
        let slot = state.slot_lists.dead.first().copied();
        slot.into_iter().for_each(|slot| state.sabotage_reuse(slot));
    }
    let Some(slot) = state.slot_lists.free.pop_front() else {
        return Err(PutError::NoSlot);
    };
    state.table.claim(slot, key);
    // Suspect blocks are not copied: they have not been compared with the backing.
    let old_slot = old.map(|slot| {
        let copied_blocks = if state.table.has_flag(slot, SUSPECT) { 0 } else { valid };
        OldSlot { slot, place: state.table.place(slot), copied_blocks }
    });
    let copied = old_slot.as_ref().map_or(0, |old| old.copied_blocks);
    state.table.add_writes(slot, to_write | copied);
    state.pending_puts.insert(slot, to_write | copied);
    let (place, write_counts) = (state.table.place(slot), state.table.write_counts(slot));
    Ok(Some(Put { slot, place, write_counts, blocks_to_write: to_write, unchanged_blocks: 0, old_slot }))
}

/// True if these blocks can be added to the page in its slot: the slot accepts blocks, none of them has used up its
/// writes, and the page is not about to leave the slot.
fn can_add_in_place<S: Seam>(state: &PageState<S>, slot: SlotId, blocks: u16) -> bool {
    let (table, place) = (&state.table, state.table.place(slot));
    blocks & table.write_counts(slot).exhausted() == 0
        && !table.has_flag(slot, SUSPECT)
        && !table.has_flag(slot, SEALED)
        && state.reclaim_target != Some(place.segment)
        && !state.closed_members.contains(&place.member)
}

/// Writes the blocks of a page. Returns the blocks that are now in the slot.
async fn write<S: Seam>(
    inner: &Rc<Inner<S>>,
    volume_id: VolumeId,
    page: PageNo,
    put: &Put,
    mut content: Content<S::Block>,
) -> Result<u16, PutError> {
    let failed = |reason: &str| PutError::DeviceFailed(reason.to_owned());
    if let Some(old) = &put.old_slot {
        for (block, data) in read::read_for_copy(inner, volume_id, page, old).await {
            content[block as usize].get_or_insert(data);
        }
    }
    let device = inner.in_service().into_iter().find(|device| device.member == put.place.member);
    let device = device.ok_or_else(|| failed("the device is out of service"))?;
    let base =
        block_offset(inner.state.borrow().superblock.segment_bytes, put.place.segment, 0) + slot_offset(put.place.slot);
    let mut checksum_buffer = inner.alloc().ok_or(PutError::NoSlot)?;
    for pair in 0..PAGE_BLOCKS / 2 {
        let pair_of = |mask: u16| mask >> (2 * pair) & 0b11;
        let mut pair_checksums = [0_u32; 2];
        if pair_of(put.unchanged_blocks) != 0 && pair_of(put.blocks_to_write) != 0 {
            // The sector also holds the checksum of the pair's other block.
            let sector = Piece::new(checksum_buffer, pair as usize * SECTOR_BYTES, SECTOR_BYTES);
            let _queued = QueuedRequest::new(inner, device.member, RequestWork::Read(1));
            let (result, mut pieces) = inner.read_from(&device, base + checksums_offset(pair), vec![sector]).await;
            let read = pieces.pop().expect("a read returns its pieces").block.freeze();
            pair_checksums = read::checksums::<S>(&read, pair);
            checksum_buffer = read.thaw().unwrap_or_else(|_| unreachable!("the block has one owner"));
            result.map_err(|error| PutError::DeviceFailed(error.to_string()))?;
        }
        for (index, checksum) in pair_checksums.iter_mut().enumerate() {
            let block = 2 * pair as usize + index;
            if let Some(data) = &content[block] {
                let number = page.block(block);
                *checksum =
                    data.checksum(page_seed(volume_id, number, put.place, put.write_counts.count_of(block as u32)));
            }
        }
        checksum_buffer.write_metadata(pair as usize * SECTOR_BYTES, &checksum_sector(pair_checksums));
    }
    let written =
        (0..PAGE_BLOCKS).filter(|block| content[*block as usize].is_some()).fold(0, |mask, block| mask | 1 << block);
    let whole_blocks = device.disk.geometry().logical_block as usize > SECTOR_BYTES;
    let runs = build_runs::<S>(&inner.seam, &content, checksum_buffer.freeze(), whole_blocks);
    for (at, pieces) in runs {
        let bytes: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        let _queued = QueuedRequest::new(inner, device.member, RequestWork::Program(pieces.len()));
        inner.write_to(&device, base + at, pieces).await.map_err(|error| PutError::DeviceFailed(error.to_string()))?;
        inner.pages.borrow_mut().counters.member_mut(device.member).promotion_bytes += bytes;
    }
    Ok(written)
}

/// The checksum sector of a pair: the two checksums, repeated to fill the sector. Simulated disks store a sector of
/// repeated bytes in little memory.
fn checksum_sector(pair_checksums: [u32; 2]) -> Vec<u8> {
    let pair = u64::from(pair_checksums[0]) | u64::from(pair_checksums[1]) << 32;
    pair.to_le_bytes().repeat(CHECKSUM_COPIES)
}

/// The contiguous runs of pieces with their offsets in the slot. With `needs_whole_blocks` the device writes only whole
/// blocks, so absent blocks are written as zeroes.
fn build_runs<S: Seam>(
    seam: &S,
    content: &Content<S::Block>,
    checksum_buffer: S::Block,
    needs_whole_blocks: bool,
) -> Vec<Run<S::Block>> {
    let (mut runs, mut end) = (Vec::<Run<S::Block>>::new(), 0);
    let mut add = |offset_bytes: u64, piece: Piece<S::Block>| {
        let bytes = piece.len() as u64;
        match runs.last_mut().filter(|_| end == offset_bytes) {
            Some((_, pieces)) => pieces.push(piece),
            None => runs.push((offset_bytes, vec![piece])),
        }
        end = offset_bytes + bytes;
    };
    for pair in 0..PAGE_BLOCKS / 2 {
        let pair_content = [&content[2 * pair as usize], &content[2 * pair as usize + 1]];
        if !needs_whole_blocks && pair_content.iter().all(|block| block.is_none()) {
            continue;
        }
        let data = |index: usize| match pair_content[index] {
            Some(data) => Some(Piece::whole(data.clone())),
            None => needs_whole_blocks.then(|| Piece::whole(seam.zero_block())),
        };
        data(0).into_iter().for_each(|piece| add(offset_in_slot(2 * pair), piece));
        add(checksums_offset(pair), Piece::new(checksum_buffer.clone(), pair as usize * SECTOR_BYTES, SECTOR_BYTES));
        data(1).into_iter().for_each(|piece| add(offset_in_slot(2 * pair + 1), piece));
    }
    runs
}

/// Enters the page into the map, with the blocks that were written and not invalidated meanwhile (R2, docs/rules.md).
/// Returns the valid blocks.
fn finish_put<S: Seam>(inner: &Inner<S>, put: &Put, written: &Result<u16, PutError>) -> u16 {
    let mut guard = inner.pages.borrow_mut();
    let state = &mut *guard;
    if !state.table.exists(put.slot) || state.table.place(put.slot) != put.place {
        // Its segment was reclaimed.
        return 0;
    }
    let still_valid = state.pending_puts.remove(&put.slot).unwrap_or(0);
    let written = written.as_ref().copied().unwrap_or(0);
    let still_valid = if inner.sabotage.is(Sabotage::PutOverInvalidate) { written } else { still_valid & written };
    if state.table.phase(put.slot) == SlotPhase::Live {
        state.table.set_flag(put.slot, ADDING, false);
        let valid = state.table.valid_mask(put.slot) | still_valid;
        state.table.set_valid_mask(put.slot, valid);
        if valid == 0 { state.drop_page(put.slot, DropRecord::Own) } else { state.queue_record(put.slot) }
    } else if still_valid == 0 {
        // No durable record lists the slot.
        state.release(put.slot);
        return 0;
    } else {
        state.table.set_phase(put.slot, SlotPhase::Live);
        state.table.set_valid_mask(put.slot, still_valid);
        state.table.set_flag(put.slot, SEALED, writes_whole_blocks(inner, put.place.member));
        state.queue_record(put.slot);
        if let Some(old) = &put.old_slot
            && state.table.exists(old.slot)
            && state.table.place(old.slot) == old.place
            && state.table.phase(old.slot) == SlotPhase::Live
        {
            state.drop_page(old.slot, DropRecord::Own);
        }
    }
    state.unflushed_members.insert(put.place.member);
    state.table.valid_mask(put.slot)
}

/// True when the device writes only whole blocks. A block then cannot be added in place, because its checksum sector
/// shares a device block with its neighbour.
fn writes_whole_blocks<S: Seam>(inner: &Inner<S>, member: MemberNo) -> bool {
    let device = inner.in_service().into_iter().find(|device| device.member == member);
    device.is_some_and(|device| device.disk.geometry().logical_block as usize > SECTOR_BYTES)
}

const _: () = assert!(PAGE_BLOCKS as usize / 2 * SECTOR_BYTES <= BLOCK_BYTES, "a page's checksums fit in one buffer");
