//! Loads the map after an opening (R9, docs/rules.md). It uses the complete half with the highest generation, and reads
//! each block from any mirror that has it. A superblock and each log batch name a commit that was durable. If the map
//! ends before that commit, the whole map is dropped: the missing part may invalidate a page or mark a dirty region.

use std::collections::BTreeMap;
use std::rc::Rc;

use seam::{Block, BlockMut, Piece, Seam};

use super::map_replay::MapReplay;
use super::{SPARE_BUFFERS, start_commit, wait_durable};
use crate::device::{Device, block_offset, raw};
use crate::format::Raw;
use crate::format::journal::{JournalHeader, JournalRecord};
use crate::format::page::PageSegmentHeader;
use crate::number::{BlockNo, BootEpoch, CommitNo, HalfGeneration, MemberSegment, SegmentNo};
use crate::page_map::dirty_regions::Region;
use crate::page_map::journal::{Half, JournalHead};
use crate::page_map::table::{SEALED, SUSPECT, SlotPhase, SlotTable};
use crate::page_map::{DropRecord, MapPhase, PageState};
use crate::sabotage::Sabotage;
use crate::state::Inner;

/// Blocks per read.
const READ_BLOCKS: u32 = 64;
/// Above this number of free buffers in the pool, reads of the map may take buffers from it.
const FREE_BUFFERS_LOW_WATERMARK: usize = 1_024;
/// Maximum number of blocks past the end that are searched for later commits.
const SEARCH_BLOCKS: u32 = 1_024;

/// The outcome of loading the map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapLoadOutcome {
    /// The number of pages.
    pub pages: u64,
    /// The number of suspect pages among them.
    pub suspect_pages: u64,
    /// The reason why all pages were dropped, if they were.
    pub drop_reason: Option<String>,
}

/// A half of the journal as it was read from the devices.
struct LoadedHalf {
    /// The map that its records describe.
    replay: MapReplay,
    /// The position of its next block.
    head: JournalHead,
    /// The last complete commit.
    last_commit: CommitNo,
    /// It holds a whole checkpoint, so the map can be loaded from it.
    is_complete: bool,
    /// Every log member has every block.
    is_mirrored: bool,
}

/// Loads the map, or begins an empty one.
pub async fn load<S: Seam>(inner: &Rc<Inner<S>>) -> MapLoadOutcome {
    {
        let mut state = inner.pages.borrow_mut();
        assert!(state.phase == MapPhase::Unloaded, "the map is loaded once");
        state.phase = MapPhase::Loading;
    }
    let durable = inner.state.borrow().superblock.journal_commit;
    let (half, generation) = find_newest_half(inner).await;
    inner.pages.borrow_mut().journal.generation = generation;
    let is_short =
        |half: &LoadedHalf| half.last_commit < durable.max(CommitNo(1)) && !inner.sabotage.is(Sabotage::KeepShortMap);
    let persisted_map_ignored = inner.pages.borrow().is_persisted_map_ignored;
    let drop_reason = match &half {
        None if durable == CommitNo(0) => None,
        _ if persisted_map_ignored => {
            Some("every flash device with the map had failed while volumes were served".to_owned())
        }
        None => Some("the map journal cannot be read from any flash device".to_owned()),
        Some(half) if is_short(half) => {
            let last_commit = half.last_commit;
            Some(format!("the map journal ends at commit {last_commit}, and {durable} was durable"))
        }
        Some(_) => None,
    };
    match half.filter(|_| drop_reason.is_none()) {
        Some(half) => {
            let generations = read_segment_generations(inner, &half.replay).await;
            adopt_map(inner, half, &generations);
        }
        None => start_empty_map(inner, durable),
    }
    let loaded = apply_early_invalidations(inner, drop_reason);
    // Record the pages that were found dead, and start the checkpoint for a mirror that lacks blocks.
    start_commit(inner);
    inner.pages.borrow_mut().wake_waiters();
    if persisted_map_ignored {
        // On failure the map becomes unusable, and the owner records that again.
        wait_durable(inner).await;
    }
    loaded
}

/// The complete half with the highest generation, and the highest generation of any half.
async fn find_newest_half<S: Seam>(inner: &Inner<S>) -> (Option<LoadedHalf>, HalfGeneration) {
    let devices = inner.log_devices();
    let mut first_blocks: BTreeMap<(HalfGeneration, u32), Half> = BTreeMap::new();
    for half in Half::ALL {
        let at = inner.pages.borrow().journal.block_offset(half, 0);
        for device in &devices {
            // Skip a device that cannot be read.
            let Some(raw) = read_block(inner, device, at).await else { continue };
            if let Some((header, checksum)) = decode(inner, &raw).filter(|(header, _)| header.block_index == 0) {
                first_blocks.insert((header.generation, checksum), half);
            }
        }
    }
    let highest = first_blocks.keys().map(|(generation, _)| *generation).max().unwrap_or_default();
    for ((generation, checksum), half) in first_blocks.into_iter().rev() {
        let head = JournalHead { half, generation, block_index: 0, previous_checksum: checksum };
        let loaded = read_half(inner, &devices, head).await;
        if loaded.is_complete {
            return (Some(loaded), highest);
        }
    }
    (None, highest)
}

/// Decodes a journal block of this store.
fn decode<S: Seam>(inner: &Inner<S>, raw: &Raw) -> Option<(JournalHeader, u32)> {
    let store = inner.state.borrow().superblock.store;
    JournalHeader::decode(raw).filter(|(header, _)| header.store == store)
}

/// Reads a half to its end, from the first block, whose checksum is `first.previous_checksum`.
async fn read_half<S: Seam>(inner: &Inner<S>, devices: &[Device<S>], first: JournalHead) -> LoadedHalf {
    let segment_counts = inner.state.borrow().superblock.members.iter().map(|entry| entry.segment_count).collect();
    let (per_frame, blocks, recent_writes_max) = {
        let state = inner.pages.borrow();
        (state.table.slots_per_frame(), state.journal.half_blocks, state.journal.recent_writes_max())
    };
    let mut half = LoadedHalf {
        replay: MapReplay::new(per_frame, recent_writes_max, zero_checksum(inner), segment_counts),
        head: JournalHead { previous_checksum: 0, ..first },
        last_commit: CommitNo(0),
        is_complete: false,
        is_mirrored: true,
    };
    let mut boot_epoch = BootEpoch(0);
    'all: while half.head.block_index < blocks {
        let from = half.head.block_index;
        let count = READ_BLOCKS.min(blocks - from);
        let at = inner.pages.borrow().journal.block_offset(first.half, from);
        let mut copies = Vec::new();
        for device in devices {
            copies.push(read_each(inner, device, at, count).await);
        }
        for index in 0..count as usize {
            let is_next = |(header, checksum): &(JournalHeader, u32)| {
                let is_expected_block =
                    (header.generation, header.block_index) == (first.generation, from + index as u32);
                let is_of_this_half = header.block_index > 0 || *checksum == first.previous_checksum;
                is_expected_block
                    && is_of_this_half
                    && header.previous_checksum == half.head.previous_checksum
                    && header.boot_epoch >= boot_epoch
            };
            let take_valid = |copy: &mut Vec<Option<Box<Raw>>>| {
                let raw = copy[index].take()?;
                decode(inner, &raw).filter(is_next).map(|(header, checksum)| (header, checksum, raw))
            };
            let mut candidates: Vec<_> = copies.iter_mut().map(take_valid).collect();
            half.is_mirrored &= candidates.iter().all(Option::is_some) || candidates.iter().all(Option::is_none);
            let Some((header, checksum, raw)) = candidates.iter_mut().find_map(Option::take) else { break 'all };
            let Some(records) = JournalHeader::records(&raw).collect::<Option<Vec<_>>>() else { break 'all };
            records.into_iter().for_each(|record| half.replay.apply(record));
            boot_epoch = header.boot_epoch;
            (half.head.block_index, half.head.previous_checksum) = (header.block_index + 1, checksum);
            half.is_complete |= header.is_complete && !header.has_more;
            if !header.has_more {
                half.last_commit = header.commit_no;
            }
        }
    }
    if has_later_commit(inner, devices, &half, boot_epoch).await {
        half.last_commit = CommitNo(0);
    }
    half
}

/// True when blocks of a later commit follow the end: the missing commit was durable and is damaged.
async fn has_later_commit<S: Seam>(
    inner: &Inner<S>,
    devices: &[Device<S>],
    half: &LoadedHalf,
    boot_epoch: BootEpoch,
) -> bool {
    let blocks = inner.pages.borrow().journal.half_blocks;
    let mut from = half.head.block_index;
    let end = blocks.min(from + SEARCH_BLOCKS);
    while from < end {
        let count = READ_BLOCKS.min(end - from);
        let at = inner.pages.borrow().journal.block_offset(half.head.half, from);
        for device in devices {
            let is_later = |raw: &Raw| {
                decode(inner, raw).is_some_and(|(header, _)| {
                    header.generation == half.head.generation
                        && header.boot_epoch >= boot_epoch
                        && header.block_index >= from
                        && header.commit_no > half.last_commit.next()
                })
            };
            if read_each(inner, device, at, count).await.iter().flatten().any(|raw| is_later(raw)) {
                return true;
            }
        }
        from += count;
    }
    false
}

/// Reads blocks of a device; an unreadable block does not affect the others. It uses the journal's own buffers, and
/// further ones only if the pool has buffers to spare. A task that has filled the pool may wait for the map.
async fn read_each<S: Seam>(
    inner: &Inner<S>,
    device: &Device<S>,
    offset_bytes: u64,
    count: u32,
) -> Vec<Option<Box<Raw>>> {
    let mut raws = Vec::new();
    while raws.len() < count as usize {
        let mut buffers = std::mem::take(&mut inner.pages.borrow_mut().journal.spare_buffers);
        let excess = buffers.split_off(buffers.len().min(count as usize - raws.len()));
        inner.pages.borrow_mut().journal.spare_buffers = excess;
        while buffers.len() + raws.len() < count as usize && inner.seam.blocks_free() > FREE_BUFFERS_LOW_WATERMARK {
            buffers.extend(inner.alloc());
        }
        if buffers.is_empty() {
            buffers.push(inner.alloc_buffer().await);
        }
        let from = offset_bytes + (raws.len() * seam::BLOCK_BYTES) as u64;
        let requested = buffers.len();
        let (result, pieces) = inner.read_from(device, from, buffers.into_iter().map(Piece::whole).collect()).await;
        let blocks: Vec<S::Block> = pieces.into_iter().map(|piece| piece.block.freeze()).collect();
        match result {
            Ok(()) => raws.extend(blocks.iter().map(|block| Some(raw(block)))),
            Err(_) if requested == 1 => raws.push(None),
            Err(_) => {}
        }
        {
            let spare = &mut inner.pages.borrow_mut().journal.spare_buffers;
            spare.extend(blocks.into_iter().filter_map(|block| block.thaw().ok()));
            spare.truncate(SPARE_BUFFERS);
        }
        if result.is_err() && requested > 1 {
            // Repeat block by block.
            for index in 0..requested {
                let at = from + (index * seam::BLOCK_BYTES) as u64;
                raws.push(read_block(inner, device, at).await);
            }
        }
    }
    raws
}

/// Reads a block of a device; `None` if it is unreadable.
async fn read_block<S: Seam>(inner: &Inner<S>, device: &Device<S>, offset_bytes: u64) -> Option<Box<Raw>> {
    let spare = inner.pages.borrow_mut().journal.spare_buffers.pop();
    let buffer = match spare {
        Some(buffer) => buffer,
        None => inner.alloc_buffer().await,
    };
    let (result, mut pieces) = inner.read_from(device, offset_bytes, vec![Piece::whole(buffer)]).await;
    let block = pieces.pop().expect("a read returns its pieces").block.freeze();
    let raw_block = result.is_ok().then(|| raw(&block));
    if let Ok(buffer) = block.thaw() {
        inner.pages.borrow_mut().journal.spare_buffers.push(buffer);
    }
    raw_block
}

/// The generation of each page segment in the map, read from its header block. The log may have reused the segment
/// since.
async fn read_segment_generations<S: Seam>(inner: &Inner<S>, replay: &MapReplay) -> BTreeMap<MemberSegment, u64> {
    let mut generations = std::mem::take(&mut inner.pages.borrow_mut().segment_generations.found);
    let (store, segment_bytes) = {
        let state = inner.state.borrow();
        (state.superblock.store, state.superblock.segment_bytes)
    };
    for device in inner.in_service() {
        let segments = replay.frames.range((device.member, SegmentNo(0))..=(device.member, SegmentNo::MAX));
        for (key, _) in segments.filter(|(key, _)| !generations.contains_key(key)).collect::<Vec<_>>() {
            let at = block_offset(segment_bytes, key.1, 0);
            let Some(raw) = read_block(inner, &device, at).await else { continue };
            let header = PageSegmentHeader::decode(&raw).filter(|header| header.store == store);
            if let Some(header) = header.filter(|header| (header.member, header.segment) == *key) {
                generations.insert(*key, header.segment_generation);
            }
        }
    }
    generations
}

/// Makes the map that was read the store's map, without the parts that cannot be valid: pages of lost members, and
/// segments that the log has reused.
fn adopt_map<S: Seam>(inner: &Inner<S>, mut half: LoadedHalf, generations: &BTreeMap<MemberSegment, u64>) {
    let store_state = inner.state.borrow();
    let mut guard = inner.pages.borrow_mut();
    let state = &mut *guard;
    let replay = &mut half.replay;
    let lost_members: Vec<_> = replay
        .frames
        .keys()
        .map(|(member, _)| *member)
        .filter(|member| {
            let entry = store_state.superblock.members.get(member.index());
            let is_same_device = entry.is_some_and(|entry| replay.members.get(member) == Some(&entry.uuid));
            // The log is being copied to a closed member.
            !is_same_device || !store_state.superblock.serves(*member) || state.closed_members.contains(member)
        })
        .collect();
    for member in lost_members {
        replay.drop_member(member);
        state.journal.pending_records.push(JournalRecord::MemberRemoved { member });
    }
    state.journal.pending_records.dedup();
    let mut has_dropped = !state.journal.pending_records.is_empty();
    let log_segments = store_state.superblock.log_segments();
    for ((member, segment), frame) in replay.frames.clone() {
        let is_usable = !store_state.superblock.carries_log(member)
            || !log_segments.contains(&segment)
            || store_state.segments.lent_segments().contains(&segment);
        if !is_usable || generations.get(&(member, segment)) != Some(&replay.table.frame(frame).segment_generation) {
            replay.free_segment(member, segment);
            state.journal.pending_records.push(JournalRecord::FreeSegment { member, segment });
            has_dropped = true;
        }
    }
    if has_dropped {
        // The map on the devices lists these slots until the next commit.
        state.record_removed_slots();
    }
    drop(store_state);
    if state.phase != MapPhase::Loading {
        // The map was abandoned meanwhile.
        return;
    }
    state.table = std::mem::replace(&mut replay.table, SlotTable::new(0, 0));
    state.volumes = std::mem::take(&mut replay.volumes);
    state.volume_numbers = state.volumes.iter().map(|(number, volume_id)| (*volume_id, *number)).collect();
    state.table.drop_orphans(&state.volumes);
    state.table.build_index();
    state.recent_writes = std::mem::take(&mut replay.recent_writes);
    state.recent_writes.mark_all_recorded();
    let recent_writes_max = state.journal.recent_writes_max();
    state.recent_writes.set_limit(recent_writes_max, zero_checksum(inner));
    for region in std::mem::take(&mut replay.dirty_regions) {
        mark_suspect(state, region);
    }
    state.journal.head = half.head;
    state.journal.last_durable_commit = half.last_commit;
    let log = inner.log_devices();
    state.journal.journal_members =
        if half.is_mirrored { log.iter().map(|device| device.member).collect() } else { Vec::new() };
    // A mirror that lacks blocks gets the whole map by a checkpoint. Until then no commit is written to this half.
    state.journal.is_checkpoint_requested = !half.is_mirrored;
    let known = &mut inner.state.borrow_mut().superblock.journal_commit;
    *known = half.last_commit.max(*known);
    state.journal.last_durable_commit = *known;
    prepare_slots(state);
}

/// The checksum of a block of zeroes.
fn zero_checksum<S: Seam>(inner: &Inner<S>) -> u32 {
    inner.seam.zero_block().checksum(0)
}

/// Handles a region that was dirty at a crash: its pages become suspect, and its recent writes unproven.
fn mark_suspect<S: Seam>(state: &mut PageState<S>, region: Region) {
    state.dirty_regions.restore(region);
    for slot in state.slots_of_region(region) {
        state.table.set_flag(slot, SUSPECT, true);
    }
    state.recent_writes.mark_unproven(region.volume_number, &region.blocks());
}

/// Frees empty slots, drops slots without a valid block, and seals the others. A sealed slot accepts no blocks:
/// before the crash, blocks may have been written there without a record.
fn prepare_slots<S: Seam>(state: &mut PageState<S>) {
    for slot in state.table.slot_ranges().into_iter().flatten() {
        match state.table.phase(slot) {
            SlotPhase::Free => state.slot_lists.free.push_back(slot),
            SlotPhase::Live if state.table.valid_mask(slot) == 0 => state.drop_page(slot, DropRecord::Own),
            SlotPhase::Live => drop(state.table.set_flag(slot, SEALED, true)),
            SlotPhase::Writing | SlotPhase::Dead => {}
        }
    }
    state.phase = MapPhase::Ready;
}

/// Starts an empty map, whose commits follow `durable`, the last durable commit.
pub fn start_empty_map<S: Seam>(inner: &Inner<S>, durable: CommitNo) {
    let mut state = inner.pages.borrow_mut();
    if let MapPhase::Unusable(_) = state.phase {
        return;
    }
    state.clear_map();
    let journal = &mut state.journal;
    journal.journal_members.clear();
    journal.checkpoint = None;
    journal.last_durable_commit = journal.last_durable_commit.max(durable);
    journal.head.block_index = journal.half_blocks;
    journal.is_checkpoint_requested = true;
    let recent_writes_max = journal.recent_writes_max();
    state.recent_writes.set_limit(recent_writes_max, zero_checksum(inner));
    state.phase = MapPhase::Ready;
}

/// Applies the invalidations that arrived before the map was loaded. Returns the outcome of loading.
fn apply_early_invalidations<S: Seam>(inner: &Inner<S>, drop_reason: Option<String>) -> MapLoadOutcome {
    let mut state = inner.pages.borrow_mut();
    let early = std::mem::take(&mut state.early_invalidations);
    for volume_id in early.volumes {
        state.invalidate(volume_id, BlockNo::ALL);
    }
    for ((volume_id, page), mask) in early.pages {
        if let Some(slot) = state.find(volume_id, page) {
            state.invalidate_blocks(slot, mask);
        }
    }
    let counts = state.table.counts();
    MapLoadOutcome { pages: counts.pages, suspect_pages: counts.suspect_pages, drop_reason }
}
