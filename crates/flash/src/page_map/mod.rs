//! The map of the clean pages in memory: slots, dirty regions, recent writes, quotas, and the pending records of the
//! map journal. Functions over it are in `journal/`, which makes it durable, and in `pages/`.

pub mod dirty_regions;
pub mod journal;
pub mod quota;
pub mod recent_writes;
pub mod table;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use seam::{BLOCK_BYTES, Seam};

use crate::format::journal::JournalRecord;
use crate::format::page::{PagePlace, WriteCounts, slots_of};
use crate::format::superblock::Superblock;
use crate::number::{BlockNo, MemberNo, MemberSegment, PAGE_BLOCKS, PageNo, SegmentNo, VolumeId};
use dirty_regions::{DirtyRegions, REGION_BLOCKS, Region};
use journal::Journal;
use quota::{PageLimits, PageQuota};
use recent_writes::RecentWrites;
use table::{ADDING, SUSPECT, SlotId, SlotPhase, SlotTable, UNRECORDED, key_of, page_of};
use task_sync::Reply;

/// Maximum number of pages with invalidations before the map is loaded. Above it, whole volumes are invalidated.
const EARLY_PAGES_MAX: usize = 1 << 16;
/// Memory of a recent write, for [`PageState::memory_bytes`].
const RECENT_WRITE_BYTES: usize = 16;
/// Memory of a pending record, for [`PageState::memory_bytes`].
const PENDING_RECORD_BYTES: usize = 32;
/// Mask of all blocks of a page.
pub const ALL_BLOCKS: u16 = u16::MAX;

/// The state of the map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapPhase {
    /// The map is not loaded.
    Unloaded,
    /// The map is being read.
    Loading,
    /// The map is loaded and in use.
    Ready,
    /// The map is permanently unusable, for this reason.
    Unusable(String),
}

/// Whether the content of a page is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageTrust {
    /// It equals the backing's.
    Trusted,
    /// Its region was dirty at a crash: it may differ from the backing.
    Suspect,
}

/// The record that makes the drop of a page durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropRecord {
    /// A record of the slot's own.
    Own,
    /// Another pending record implies the drop.
    Implied,
}

/// Invalidations that arrived before the map was loaded.
#[derive(Default)]
pub struct EarlyInvalidations {
    /// Blocks by volume and page.
    pub pages: BTreeMap<(VolumeId, PageNo), u16>,
    /// Whole volumes.
    pub volumes: BTreeSet<VolumeId>,
}

/// Bytes written to a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberWrites {
    /// The member.
    pub member: MemberNo,
    /// Bytes of pages.
    pub promotion_bytes: u64,
    /// Bytes of the map journal.
    pub journal_bytes: u64,
    /// Bytes of the log's batches, their headers included.
    pub log_bytes: u64,
}

/// Counters since the opening.
#[derive(Clone, Debug, Default)]
pub struct PageCounters {
    /// Pages that were evicted.
    pub evictions: u64,
    /// Bytes written, by member.
    pub written: BTreeMap<MemberNo, MemberWrites>,
}

impl PageCounters {
    /// The counters of a member.
    pub fn member_mut(&mut self, member: MemberNo) -> &mut MemberWrites {
        self.written.entry(member).or_insert(MemberWrites { member, ..MemberWrites::default() })
    }
}

/// Slots without a page, or with a change to be recorded.
#[derive(Default)]
pub struct SlotLists {
    /// Slots that no durable record lists and no read holds.
    pub free: VecDeque<SlotId>,
    /// Slots whose change has a pending record.
    pub unrecorded: Vec<SlotId>,
    /// Slots whose release has a pending record.
    pub dead: Vec<SlotId>,
    /// Dead slots whose release is implied by another pending record.
    pub implied_dead: Vec<SlotId>,
}

/// Generations of page segments.
pub struct SegmentGenerations {
    /// Number of generations issued since the opening.
    pub issued_count: u64,
    /// Generations that the opening found in the header blocks of page segments, by member and segment.
    pub found: BTreeMap<MemberSegment, u64>,
}

/// All state of the pages.
pub struct PageState<S: Seam> {
    /// The state of the map.
    pub phase: MapPhase,
    /// The slots.
    pub table: SlotTable,
    /// The number of each volume in the map and its journal.
    pub volume_numbers: BTreeMap<VolumeId, u16>,
    /// The volume of each number.
    pub volumes: BTreeMap<u16, VolumeId>,
    /// Slots whose page is being written, with the new blocks that have not been invalidated since (R2, docs/rules.md).
    pub pending_puts: BTreeMap<SlotId, u16>,
    /// Number of reads in flight, by slot and its segment's generation. They keep the slot from reuse.
    pub read_holds: BTreeMap<(SlotId, u64), u32>,
    /// Slots without a page, or with a change to be recorded.
    pub slot_lists: SlotLists,
    /// Members with page data that is not flushed.
    pub unflushed_members: BTreeSet<MemberNo>,
    /// Dirty regions.
    pub dirty_regions: DirtyRegions,
    /// Recent writes.
    pub recent_writes: RecentWrites,
    /// The map journal.
    pub journal: Journal<S>,
    /// Invalidations that arrived before the map was loaded.
    pub early_invalidations: EarlyInvalidations,
    /// Counters.
    pub counters: PageCounters,
    /// The hand of the CLOCK replacement.
    pub clock_hand: SlotId,
    /// A buffer for checksums, kept from read to read.
    pub spare_checksum_buffer: Option<S::BlockMut>,
    /// A task is adding a segment.
    pub is_growing: bool,
    /// A task is reclaiming a segment for the log.
    pub is_reclaiming: bool,
    /// The segment that is being reclaimed for the log.
    pub reclaim_target: Option<SegmentNo>,
    /// Number of writes in flight per member and segment, also after a segment has left the map. The log gets a segment
    /// only after these writes have ended.
    pub writes_in_flight: BTreeMap<MemberSegment, u32>,
    /// Members that accept no new pages: a segment's header could not be written, or the member will carry the log.
    pub closed_members: BTreeSet<MemberNo>,
    /// Number of the commit after which the durable map lists no slot that was removed from this state: slots of
    /// dropped frames and of removed volumes.
    pub removed_until_commit: u64,
    /// The member whose pages are being moved to others. Its free slots are not reused.
    pub vacated_member: Option<MemberNo>,
    /// The next commit clears all settled dirty regions, however few there are.
    pub should_clear_all_settled: bool,
    /// A task waits for idleness, to clear settled regions.
    pub is_idle_timer_set: bool,
    /// The owner has durably recorded that the map is abandoned.
    pub is_abandonment_recorded: bool,
    /// The map on the devices is ignored.
    pub is_persisted_map_ignored: bool,
    /// Tasks that wait until the map is loaded or abandoned.
    pub waiters: Vec<Reply<()>>,
    /// Number of further attempts to free slots that do not try to add a segment.
    pub growth_skips: u32,
    /// The quota of each volume, by volume ID.
    pub quotas: BTreeMap<VolumeId, PageQuota>,
    /// The quotas in pages, by volume number.
    pub limits: BTreeMap<u16, PageLimits>,
    /// The numbers of slots and volumes from which `limits` was computed; `None` requests an update.
    pub limits_valid_for: Option<(u64, usize)>,
    /// Generations of page segments.
    pub segment_generations: SegmentGenerations,
}

impl<S: Seam> PageState<S> {
    /// The state before the map is loaded.
    pub fn new(superblock: &Superblock, generations_found: BTreeMap<MemberSegment, u64>) -> Self {
        let per_frame = slots_of((superblock.segment_bytes / BLOCK_BYTES as u64) as u32);
        PageState {
            phase: MapPhase::Unloaded,
            table: SlotTable::new(per_frame, 0),
            volume_numbers: BTreeMap::new(),
            volumes: BTreeMap::new(),
            pending_puts: BTreeMap::new(),
            read_holds: BTreeMap::new(),
            slot_lists: SlotLists::default(),
            unflushed_members: BTreeSet::new(),
            dirty_regions: DirtyRegions::default(),
            recent_writes: RecentWrites::default(),
            journal: Journal::new(superblock),
            early_invalidations: EarlyInvalidations::default(),
            counters: PageCounters::default(),
            clock_hand: 0,
            spare_checksum_buffer: None,
            is_growing: false,
            is_reclaiming: false,
            reclaim_target: None,
            writes_in_flight: BTreeMap::new(),
            closed_members: BTreeSet::new(),
            removed_until_commit: 0,
            vacated_member: None,
            should_clear_all_settled: false,
            is_idle_timer_set: false,
            is_abandonment_recorded: false,
            is_persisted_map_ignored: false,
            waiters: Vec::new(),
            growth_skips: 0,
            quotas: BTreeMap::new(),
            limits: BTreeMap::new(),
            limits_valid_for: None,
            segment_generations: SegmentGenerations { issued_count: 0, found: generations_found },
        }
    }

    /// True when the map is loaded and usable. A map that is not loaded yet cannot be written.
    pub fn is_ready(&self) -> bool {
        self.phase == MapPhase::Ready
    }

    /// Whether the content of a slot is trusted.
    pub fn trust_of(&self, slot: SlotId) -> PageTrust {
        if self.table.has_flag(slot, SUSPECT) { PageTrust::Suspect } else { PageTrust::Trusted }
    }

    /// Makes the next use of the limits compute them anew.
    pub fn request_limits_update(&mut self) {
        self.limits_valid_for = None;
    }

    /// The number of a volume, which is assigned on first use; `None` when all numbers are in use.
    pub fn get_or_assign_number(&mut self, volume_id: VolumeId) -> Option<u16> {
        if let Some(number) = self.volume_numbers.get(&volume_id) {
            return Some(*number);
        }
        let number = (0..u16::MAX).find(|number| !self.volumes.contains_key(number))?;
        self.volume_numbers.insert(volume_id, number);
        self.volumes.insert(number, volume_id);
        self.journal.pending_records.push(JournalRecord::Volume { number, volume_id });
        Some(number)
    }

    /// The slot of a volume's page; `None` if it is absent or the map is not ready.
    pub fn find(&self, volume_id: VolumeId, page: PageNo) -> Option<SlotId> {
        if !self.is_ready() {
            return None;
        }
        self.table.find(key_of(*self.volume_numbers.get(&volume_id)?, page))
    }

    /// The valid blocks of a slot that were not written since it had this place and these counts of writes.
    pub fn unchanged_blocks(&self, slot: SlotId, place: PagePlace, write_counts: WriteCounts) -> u16 {
        let is_same =
            self.table.exists(slot) && self.table.place(slot) == place && self.table.phase(slot) == SlotPhase::Live;
        if !is_same {
            return 0;
        }
        self.table.valid_mask(slot) & self.table.write_counts(slot).blocks_with_equal_counts(write_counts)
    }

    /// Queues a record of the slot.
    pub fn queue_record(&mut self, slot: SlotId) {
        if self.table.set_flag(slot, UNRECORDED, true) {
            self.slot_lists.unrecorded.push(slot);
        }
    }

    /// Drops a slot's page.
    pub fn drop_page(&mut self, slot: SlotId, record: DropRecord) {
        assert!(
            self.table.phase(slot) == SlotPhase::Live && !self.table.has_flag(slot, ADDING),
            "only a live slot without an addition in progress is dropped"
        );
        self.table.set_phase(slot, SlotPhase::Dead);
        self.table.set_valid_mask(slot, 0);
        self.table.set_flag(slot, SUSPECT, false);
        match record {
            DropRecord::Own => self.slot_lists.dead.push(slot),
            DropRecord::Implied => self.slot_lists.implied_dead.push(slot),
        }
    }

    /// Invalidates blocks of a slot.
    pub fn invalidate_blocks(&mut self, slot: SlotId, mask: u16) {
        if let Some(new_blocks) = self.pending_puts.get_mut(&slot) {
            *new_blocks &= !mask;
        }
        let valid = self.table.valid_mask(slot);
        if self.table.phase(slot) != SlotPhase::Live || valid & mask == 0 {
            return;
        }
        self.table.set_valid_mask(slot, valid & !mask);
        if valid & !mask == 0 && !self.table.has_flag(slot, ADDING) {
            self.drop_page(slot, DropRecord::Own);
        } else {
            self.queue_record(slot);
        }
    }

    /// Invalidates blocks of a volume (R2).
    pub fn invalidate(&mut self, volume_id: VolumeId, blocks: Range<BlockNo>) {
        if blocks.is_empty() {
            return;
        }
        match self.phase {
            MapPhase::Unusable(_) => return,
            MapPhase::Unloaded | MapPhase::Loading => return self.invalidate_early(volume_id, blocks),
            MapPhase::Ready => {}
        }
        let Some(number) = self.volume_numbers.get(&volume_id).copied() else { return };
        for slot in self.table.slots_of_volume(number, PageNo::covering(&blocks)) {
            let mask = mask_of(page_of(self.table.key(slot)).1, &blocks);
            self.invalidate_blocks(slot, mask);
        }
    }

    /// Notes an invalidation that arrives before the map is loaded; loading applies it.
    fn invalidate_early(&mut self, volume_id: VolumeId, blocks: Range<BlockNo>) {
        let pages = PageNo::covering(&blocks);
        if self.early_invalidations.pages.len() as u64 + PageNo::count(&pages) > EARLY_PAGES_MAX as u64 {
            self.early_invalidations.volumes.insert(volume_id);
            self.early_invalidations.pages.retain(|(volume, _), _| *volume != volume_id);
            return;
        }
        for page in PageNo::each(&pages) {
            *self.early_invalidations.pages.entry((volume_id, page)).or_default() |= mask_of(page, &blocks);
        }
    }

    /// Records that slots were removed in memory; only the next commit makes that durable.
    pub fn record_removed_slots(&mut self) {
        self.removed_until_commit = self.journal.commits_begun + 1;
    }

    /// True when the durable map may list slots that were removed from this state.
    pub fn has_removed_slots(&self) -> bool {
        self.journal.commits_done < self.removed_until_commit
    }

    /// True when a durable record may refer to one of these blocks, as valid or as a recent write.
    pub fn may_be_durable(&self, volume_number: u16, blocks: &Range<BlockNo>) -> bool {
        let slots = self.table.slots_of_volume(volume_number, PageNo::covering(blocks));
        let is_listed = |slot: &SlotId| {
            let mask = mask_of(page_of(self.table.key(*slot)).1, blocks);
            self.table.phase(*slot) != SlotPhase::Writing && self.table.write_counts(*slot).written() & mask != 0
        };
        slots.iter().any(is_listed) || self.recent_writes.may_be_durable(volume_number, blocks)
    }

    /// Violates R9, for tests of the checker: reuses a slot whose release is not durable.
    pub fn sabotage_reuse(&mut self, slot: SlotId) {
        self.slot_lists.dead.retain(|dead| *dead != slot);
        self.release(slot);
        if let Some(last) = self.slot_lists.free.pop_back() {
            self.slot_lists.free.push_front(last);
        }
    }

    /// Frees a slot, or leaves that to the last read that holds it.
    pub fn release(&mut self, slot: SlotId) {
        self.table.release(slot);
        if !self.read_holds.contains_key(&(slot, self.table.place(slot).segment_generation)) {
            self.add_free_slot(slot);
        }
    }

    /// Makes a slot available that no durable record lists and no read holds.
    fn add_free_slot(&mut self, slot: SlotId) {
        if self.vacated_member != Some(self.table.place(slot).member) {
            self.slot_lists.free.push_back(slot);
        }
    }

    /// Begins a read of a slot in this generation of its segment. Until [`PageState::end_hold`] the slot is not reused.
    pub fn hold(&mut self, slot: SlotId, segment_generation: u64) {
        assert!(self.table.phase(slot) == SlotPhase::Live, "only a live slot is read");
        *self.read_holds.entry((slot, segment_generation)).or_default() += 1;
    }

    /// Ends a read.
    pub fn end_hold(&mut self, slot: SlotId, segment_generation: u64) {
        let holds = self.read_holds.get_mut(&(slot, segment_generation)).expect("a read ends once");
        *holds -= 1;
        if *holds == 0 {
            self.read_holds.remove(&(slot, segment_generation));
            if self.table.is_in(slot, segment_generation) && self.table.phase(slot) == SlotPhase::Free {
                self.add_free_slot(slot);
            }
        }
    }

    /// Begins a write to a member's segment.
    pub fn begin_writing(&mut self, segment: MemberSegment) {
        *self.writes_in_flight.entry(segment).or_default() += 1;
    }

    /// Ends a write to a member's segment.
    pub fn end_writing(&mut self, segment: MemberSegment) {
        let writes = self.writes_in_flight.get_mut(&segment).expect("a write ends once");
        *writes -= 1;
        if *writes == 0 {
            self.writes_in_flight.remove(&segment);
        }
    }

    /// Drops the pages of a member that is out of service.
    pub fn drop_member_pages(&mut self, member: MemberNo) {
        let frames: Vec<_> =
            self.table.frames().filter(|(_, frame)| frame.member == member).map(|(number, _)| number).collect();
        self.unflushed_members.remove(&member);
        self.journal.recorded_members.remove(&member);
        if frames.is_empty() || !self.is_ready() {
            return;
        }
        frames.into_iter().for_each(|frame| self.drop_frame(frame));
        self.journal.pending_records.push(JournalRecord::MemberRemoved { member });
    }

    /// Removes a member's slots from the free list.
    pub fn remove_free_slots(&mut self, member: MemberNo) {
        let table = &self.table;
        self.slot_lists.free.retain(|slot| table.place(*slot).member != member);
    }

    /// Returns the slots of a member that is no longer being vacated to the free list.
    pub fn return_free_slots(&mut self, member: MemberNo) {
        let frames = self.table.frames().filter(|(_, frame)| frame.member == member);
        let is_held =
            |slot: &SlotId| self.read_holds.contains_key(&(*slot, self.table.place(*slot).segment_generation));
        let is_free = |slot: &SlotId| self.table.phase(*slot) == SlotPhase::Free && !is_held(slot);
        let slots = frames.flat_map(|(number, _)| self.table.slots_of(number));
        let returned: Vec<SlotId> = slots.filter(is_free).collect();
        self.remove_free_slots(member);
        self.slot_lists.free.extend(returned);
    }

    /// Drops a frame with its pages; the caller adds the journal record. The results of reads and writes in flight are
    /// ignored.
    pub fn drop_frame(&mut self, frame: u32) {
        let slots = self.table.slots_of(frame);
        let is_inside = |slot: &SlotId| slots.contains(slot);
        self.slot_lists.free.retain(|slot| !is_inside(slot));
        self.slot_lists.unrecorded.retain(|slot| !is_inside(slot));
        self.slot_lists.dead.retain(|slot| !is_inside(slot));
        self.slot_lists.implied_dead.retain(|slot| !is_inside(slot));
        self.pending_puts.retain(|slot, _| !is_inside(slot));
        self.table.remove_frame(frame);
        self.record_removed_slots();
    }

    /// Drops all pages, dirty regions and recent writes in memory.
    pub fn clear_map(&mut self) {
        let frames: Vec<_> = self.table.frames().map(|(number, _)| number).collect();
        frames.into_iter().for_each(|frame| self.drop_frame(frame));
        self.dirty_regions.clear_all();
        self.recent_writes = RecentWrites::default();
        self.journal.pending_records.clear();
        (self.volume_numbers, self.volumes) = (BTreeMap::new(), BTreeMap::new());
    }

    /// Empties the map and makes it permanently unusable.
    pub fn disable_map(&mut self, reason: String) {
        self.clear_map();
        self.journal.stop();
        self.phase = MapPhase::Unusable(reason);
        self.wake_waiters();
    }

    /// Wakes the tasks that wait for another state of the map.
    pub fn wake_waiters(&mut self) {
        self.waiters.drain(..).for_each(|reply| reply.send(()));
    }

    /// Slots that may hold pages of a region.
    pub fn slots_of_region(&self, region: Region) -> Vec<SlotId> {
        let pages = REGION_BLOCKS / u64::from(PAGE_BLOCKS);
        self.table
            .slots_of_volume(region.volume_number, PageNo(region.index * pages)..PageNo((region.index + 1) * pages))
    }

    /// True when the region has suspect pages.
    pub fn has_suspects(&self, region: Region) -> bool {
        let is_suspect =
            |slot: &SlotId| self.table.phase(*slot) == SlotPhase::Live && self.table.has_flag(*slot, SUSPECT);
        self.table.counts().suspect_pages > 0 && self.slots_of_region(region).iter().any(is_suspect)
    }

    /// Drops unproven recent writes, and suspect pages of regions with recent writes. These regions would otherwise
    /// stay dirty, and the next opening would not trust their recent writes.
    pub fn drop_suspects_near_recent_writes(&mut self) {
        for region in self.dirty_regions.settled() {
            let blocks = region.blocks();
            let removed = self.recent_writes.drop_unproven(region.volume_number, &blocks);
            self.journal.pending_records.extend(removed);
            if !self.recent_writes.may_be_durable(region.volume_number, &blocks) {
                continue;
            }
            for slot in self.slots_of_region(region) {
                if self.table.has_flag(slot, SUSPECT) {
                    self.invalidate_blocks(slot, ALL_BLOCKS);
                }
            }
        }
    }

    /// True when records are pending.
    pub fn has_pending(&self) -> bool {
        let slots = !self.slot_lists.unrecorded.is_empty()
            || !self.slot_lists.dead.is_empty()
            || !self.slot_lists.implied_dead.is_empty();
        slots || !self.journal.pending_records.is_empty() || self.recent_writes.pending_count() > 0
    }

    /// Upper bound of the number of records in the next commit.
    pub fn pending_records_max(&self) -> usize {
        self.slot_lists.unrecorded.len()
            + self.slot_lists.dead.len()
            + self.journal.pending_records.len()
            + self.recent_writes.pending_count()
            + self.dirty_regions.len()
    }

    /// Memory of the map and its pending changes, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let lists =
            (self.slot_lists.free.capacity() + self.slot_lists.unrecorded.capacity() + self.slot_lists.dead.capacity())
                * size_of::<SlotId>();
        (self.table.memory_bytes()
            + lists
            + self.recent_writes.len() * RECENT_WRITE_BYTES
            + self.journal.pending_records.capacity() * PENDING_RECORD_BYTES) as u64
    }
}

/// Mask of a page's blocks that are among `blocks`.
pub fn mask_of(page: PageNo, blocks: &Range<BlockNo>) -> u16 {
    let first = page.first_block();
    let is_inside = |block: &u32| blocks.contains(&first.plus(u64::from(*block)));
    (0..PAGE_BLOCKS).filter(is_inside).fold(0, |mask, block| mask | 1 << block)
}
