//! Reads of pages (R11, docs/rules.md). On flash each pair of blocks has a sector with both checksums between them:
//! block, sector, block. One request reads a run of blocks with these sectors. Each block is checked before it is
//! returned.

use std::ops::Range;
use std::rc::Rc;

use seam::{BLOCK_BYTES, Block, BlockMut, Disk, DiskResult, Piece, SECTOR_BYTES, Seam};

use super::api::PageReadError;
use super::put::OldSlot;
use crate::device::{Device, block_offset};
use crate::format::page::{PagePlace, WriteCounts, page_seed, run_byte_range, slot_offset};
use crate::journal::schedule_commit;
use crate::number::{BlockNo, PAGE_BLOCKS, PageNo, VolumeId};
use crate::page_map::PageTrust;
use crate::page_map::table::{SlotId, SlotPhase};
use crate::sabotage::Sabotage;
use crate::slow_detection::QueuedRequest;
use crate::state::Inner;
use crate::state::latency::RequestWork;

/// A block that passed its check, or the reason why not, with the unused buffer.
type Outcome<S> = Result<<S as Seam>::Block, PageReadError<<S as Seam>::BlockMut>>;

/// Reads a run of blocks of a page. Returns `Absent` for each if the page is missing, or if its trust differs.
pub async fn read<S: Seam>(
    inner: &Rc<Inner<S>>,
    volume_id: VolumeId,
    page: PageNo,
    blocks: Range<u32>,
    buffers: Vec<S::BlockMut>,
    trust: PageTrust,
) -> Vec<Outcome<S>> {
    assert!(blocks.end <= PAGE_BLOCKS && buffers.len() == blocks.len(), "{blocks:?} of a page");
    let find_slot = || {
        let state = inner.pages.borrow();
        let slot = state.find(volume_id, page);
        slot.filter(|slot| state.trust_of(*slot) == trust)
    };
    let Some(slot) = find_slot() else {
        return buffers.into_iter().map(|buffer| Err(PageReadError::Absent(buffer))).collect();
    };
    let outcomes = read_slot(inner, volume_id, page, slot, blocks.clone(), buffers).await;
    match find_slot() {
        // A `put` has moved the page to another slot meanwhile: results from the old slot are discarded, and the new
        // slot is read.
        Some(moved) if moved != slot => {
            let buffers = outcomes.into_iter().map(|outcome| match outcome {
                Ok(data) => thaw::<S>(data),
                Err(error) => error.into_buffer(),
            });
            read_slot(inner, volume_id, page, moved, blocks, buffers.collect()).await
        }
        _ => outcomes,
    }
}

/// Reads the blocks of a page's old slot that are copied to another slot. Unreadable blocks are skipped.
pub async fn read_for_copy<S: Seam>(
    inner: &Rc<Inner<S>>,
    volume_id: VolumeId,
    page: PageNo,
    old: &OldSlot,
) -> Vec<(u32, S::Block)> {
    let OldSlot { slot, place, copied_blocks } = *old;
    let mut read_blocks = Vec::new();
    let mut next = 0;
    while let Some(start) = (next..PAGE_BLOCKS).find(|block| copied_blocks >> block & 1 == 1) {
        next = (start..PAGE_BLOCKS).find(|block| copied_blocks >> block & 1 == 0).unwrap_or(PAGE_BLOCKS);
        let buffers: Option<Vec<_>> = (start..next).map(|_| inner.alloc()).collect();
        let Some(buffers) = buffers else { break };
        let is_live = {
            let table = &inner.pages.borrow().table;
            table.exists(slot) && table.place(slot) == place && table.phase(slot) == SlotPhase::Live
        };
        if !is_live {
            break;
        }
        let read = read_slot(inner, volume_id, page, slot, start..next, buffers).await;
        read_blocks.extend((start..).zip(read).filter_map(|(block, outcome)| Some((block, outcome.ok()?))));
    }
    read_blocks
}

/// Reads the valid blocks among `blocks` of a slot, run by run.
async fn read_slot<S: Seam>(
    inner: &Rc<Inner<S>>,
    volume_id: VolumeId,
    page: PageNo,
    slot: SlotId,
    blocks: Range<u32>,
    buffers: Vec<S::BlockMut>,
) -> Vec<Outcome<S>> {
    let (valid, place, write_counts) = {
        let mut state = inner.pages.borrow_mut();
        let place = state.table.place(slot);
        state.hold(slot, place.segment_generation);
        (state.table.valid_mask(slot), place, state.table.write_counts(slot))
    };
    let hold = SlotHold { inner, slot, segment_generation: place.segment_generation };
    let slot_page = SlotPage { volume_id, first_block: page.first_block(), slot, place, write_counts };
    let mut outcomes = Vec::with_capacity(buffers.len());
    let mut run: Vec<S::BlockMut> = Vec::new();
    let start = blocks.start;
    for (block, buffer) in blocks.clone().zip(buffers) {
        if valid >> block & 1 == 1 {
            run.push(buffer);
            continue;
        }
        let run_start = start + outcomes.len() as u32;
        read_run(inner, &slot_page, run_start, run, &mut outcomes).await;
        run = Vec::new();
        outcomes.push(Err(PageReadError::Absent(buffer)));
    }
    let run_start = start + outcomes.len() as u32;
    read_run(inner, &slot_page, run_start, run, &mut outcomes).await;
    drop(hold);
    assert!(outcomes.len() == blocks.len(), "one outcome per block");
    // Discard blocks that were invalidated since the read began, even if the slot has newer content of them (R2).
    let unchanged = match inner.sabotage.is(Sabotage::SkipReadRecheck) {
        true => u16::MAX,
        false => inner.pages.borrow().unchanged_blocks(slot, place, write_counts),
    };
    let keep = |(block, outcome): (u32, Outcome<S>)| match outcome {
        Ok(data) if unchanged >> block & 1 == 0 => Err(PageReadError::Absent(thaw::<S>(data))),
        other => other,
    };
    blocks.zip(outcomes).map(keep).collect()
}

/// Keeps a slot from reuse during a read.
struct SlotHold<'a, S: Seam> {
    inner: &'a Rc<Inner<S>>,
    slot: SlotId,
    segment_generation: u64,
}

impl<S: Seam> Drop for SlotHold<'_, S> {
    fn drop(&mut self) {
        self.inner.pages.borrow_mut().end_hold(self.slot, self.segment_generation);
    }
}

/// The page that a read finds in a slot, as it was when the read began.
struct SlotPage {
    volume_id: VolumeId,
    /// The first block of the page.
    first_block: BlockNo,
    slot: SlotId,
    place: PagePlace,
    write_counts: WriteCounts,
}

/// Reads a run of valid blocks, and appends their outcomes to `outcomes`. `start_index` is the index of the run's first
/// block within the page.
async fn read_run<S: Seam>(
    inner: &Rc<Inner<S>>,
    slot_page: &SlotPage,
    start_index: u32,
    buffers: Vec<S::BlockMut>,
    outcomes: &mut Vec<Outcome<S>>,
) {
    if buffers.is_empty() {
        return;
    }
    let SlotPage { volume_id, first_block, slot, place, write_counts } = *slot_page;
    let blocks = start_index..start_index + buffers.len() as u32;
    let device = inner.in_service().into_iter().find(|device| device.member == place.member);
    let spare_checksum_buffer = inner.pages.borrow_mut().spare_checksum_buffer.take();
    let (Some(device), Some(checksum_buffer)) = (device, spare_checksum_buffer.or_else(|| inner.alloc())) else {
        return outcomes.extend(buffers.into_iter().map(|buffer| Err(PageReadError::Absent(buffer))));
    };
    let (result, buffers, checksum_buffer) = fetch(inner, &device, place, &blocks, buffers, checksum_buffer).await;
    let Some(result) = result else {
        inner.pages.borrow_mut().spare_checksum_buffer = Some(checksum_buffer);
        return outcomes.extend(buffers.into_iter().map(|buffer| Err(PageReadError::Absent(buffer))));
    };
    let checksum_buffer = checksum_buffer.freeze();
    let unchanged = inner.pages.borrow().unchanged_blocks(slot, place, write_counts);
    let mut bad = 0_u16;
    let skips_check = inner.sabotage.is(Sabotage::SkipPageChecksum);
    for (block, buffer) in blocks.clone().zip(buffers) {
        let data = buffer.freeze();
        let seed = page_seed(volume_id, first_block.plus(u64::from(block)), place, write_counts.count_of(block));
        let good = result.is_ok()
            && (skips_check || checksums::<S>(&checksum_buffer, block / 2)[block as usize % 2] == data.checksum(seed));
        outcomes.push(if good {
            Ok(data)
        } else if unchanged >> block & 1 == 0 {
            // Written again during the read, which may have returned a part of each content.
            Err(PageReadError::Absent(thaw::<S>(data)))
        } else {
            bad |= 1 << block;
            Err(PageReadError::Bad(thaw::<S>(data)))
        });
    }
    let mut state = inner.pages.borrow_mut();
    state.spare_checksum_buffer = Some(thaw::<S>(checksum_buffer));
    if bad != 0 {
        state.invalidate_blocks(slot, bad);
        drop(state);
        schedule_commit(inner);
    }
}

/// Makes a block with one owner a buffer again.
fn thaw<S: Seam>(block: S::Block) -> S::BlockMut {
    block.thaw().unwrap_or_else(|_| unreachable!("the block has one owner"))
}

/// The two checksums of a pair, from its sector of `checksum_buffer`.
pub fn checksums<S: Seam>(checksum_buffer: &S::Block, pair: u32) -> [u32; 2] {
    let mut bytes = [0; 8];
    checksum_buffer.read_bytes(pair as usize * SECTOR_BYTES, &mut bytes);
    let both = u64::from_le_bytes(bytes);
    [both as u32, (both >> 32) as u32]
}

/// Reads blocks into their buffers, and their checksums into `checksum_buffer`, each pair's at its own sector. The
/// result is `None` if no buffer was free.
async fn fetch<S: Seam>(
    inner: &Inner<S>,
    device: &Device<S>,
    place: PagePlace,
    blocks: &Range<u32>,
    buffers: Vec<S::BlockMut>,
    checksum_buffer: S::BlockMut,
) -> (Option<DiskResult<()>>, Vec<S::BlockMut>, S::BlockMut) {
    let base = block_offset(inner.state.borrow().superblock.segment_bytes, place.segment, 0) + slot_offset(place.slot);
    let run = run_byte_range(blocks);
    if device.disk.geometry().logical_block as usize > SECTOR_BYTES {
        return fetch_aligned(inner, device, base, blocks, buffers, checksum_buffer).await;
    }
    if blocks.len() == 1 {
        let mut buffers = buffers;
        let (pair, odd) = (blocks.start / 2, blocks.start % 2 == 1);
        let data = Piece::whole(buffers.pop().expect("one buffer per block"));
        let sector = Piece::new(checksum_buffer, pair as usize * SECTOR_BYTES, SECTOR_BYTES);
        let pieces = if odd { vec![sector, data] } else { vec![data, sector] };
        let _queued = QueuedRequest::new(inner, device.member, RequestWork::Read(1));
        let (result, mut pieces) = inner.read_from(device, base + run.start, pieces).await;
        let (after, before) = (pieces.pop().expect("two pieces").block, pieces.pop().expect("two pieces").block);
        return if odd { (Some(result), vec![after], before) } else { (Some(result), vec![before], after) };
    }
    // A longer run may span several checksum sectors, and each piece owns its buffer: every sector would need one. Read
    // whole blocks instead, and copy the parts out of them.
    fetch_aligned(inner, device, base, blocks, buffers, checksum_buffer).await
}

/// Reads whole device blocks around the run, and copies the blocks and checksum sectors out of them.
async fn fetch_aligned<S: Seam>(
    inner: &Inner<S>,
    device: &Device<S>,
    base_bytes: u64,
    blocks: &Range<u32>,
    mut buffers: Vec<S::BlockMut>,
    mut checksum_buffer: S::BlockMut,
) -> (Option<DiskResult<()>>, Vec<S::BlockMut>, S::BlockMut) {
    let run = run_byte_range(blocks);
    let block_bytes = BLOCK_BYTES as u64;
    let (start, end) = (run.start / block_bytes * block_bytes, run.end.div_ceil(block_bytes) * block_bytes);
    let mut pieces = Vec::new();
    for _ in 0..(end - start) / block_bytes {
        match inner.alloc() {
            Some(buffer) => pieces.push(Piece::whole(buffer)),
            None => return (None, buffers, checksum_buffer),
        }
    }
    let queued = QueuedRequest::new(inner, device.member, RequestWork::Read(pieces.len()));
    let (result, pieces) = inner.read_from(device, base_bytes + start, pieces).await;
    drop(queued);
    let read: Vec<_> = pieces.into_iter().map(|piece| piece.block.freeze()).collect();
    let copy = |from: u64, to: &mut S::BlockMut, to_at: usize, len: usize| {
        let mut copied = 0;
        while copied < len {
            let at = (from - start) as usize + copied;
            let within = at % BLOCK_BYTES;
            let count = (BLOCK_BYTES - within).min(len - copied);
            to.copy_from(to_at + copied, &read[at / BLOCK_BYTES], within, count);
            copied += count;
        }
    };
    for (block, buffer) in blocks.clone().zip(&mut buffers) {
        copy(crate::format::page::offset_in_slot(block), buffer, 0, BLOCK_BYTES);
        let sector = crate::format::page::checksums_offset(block / 2);
        copy(sector, &mut checksum_buffer, block as usize / 2 * SECTOR_BYTES, SECTOR_BYTES);
    }
    (Some(result), buffers, checksum_buffer)
}
