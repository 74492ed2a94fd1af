//! The map from pages to slots. It takes 19 bytes per slot in arrays by segment, and a hash table of 4-byte slot
//! numbers with a bounded load factor. A cached page costs about 25 bytes.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::format::page::{PagePlace, WriteCounts};
use crate::number::{MemberNo, PageNo, SegmentNo, VolumeId};

/// A page as one number: the volume's number in the high bits, the page in the low bits.
pub type PageKey = u64;
/// A slot: the frame's number in the high bits, the index in the frame in the low bits.
pub type SlotId = u32;

/// Bits of a key for the page number.
pub const PAGE_BITS: u32 = 48;
/// The key of a free slot.
const NO_KEY: PageKey = u64::MAX;

/// The key of a volume's page.
pub fn key_of(volume_number: u16, page: PageNo) -> PageKey {
    assert!(page.0 >> PAGE_BITS == 0, "page {page} of a volume");
    u64::from(volume_number) << PAGE_BITS | page.0
}

/// The volume's number and the page.
pub fn page_of(key: PageKey) -> (u16, PageNo) {
    ((key >> PAGE_BITS) as u16, PageNo(key & ((1 << PAGE_BITS) - 1)))
}

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotPhase {
    /// No durable record lists it.
    Free,
    /// A page is being written to it; no durable record lists it.
    Writing,
    /// It holds a page.
    Live,
    /// Its page was dropped, but a durable record may still list it.
    Dead,
}

/// The phases by their number in a slot's flags.
const PHASES: [SlotPhase; 4] = [SlotPhase::Free, SlotPhase::Writing, SlotPhase::Live, SlotPhase::Dead];
/// Mask of the number of counted uses in a slot's flags.
const USES_MASK: u8 = 0b11;
/// The position of the phase, two bits, in a slot's flags.
const PHASE_SHIFT: u8 = 2;
/// The slot has a pending record.
pub const UNRECORDED: u8 = 1 << 4;
/// The slot's page must be compared with the backing before it is used.
pub const SUSPECT: u8 = 1 << 5;
/// Blocks are being added to the slot's page.
pub const ADDING: u8 = 1 << 6;
/// The slot's page accepts no more blocks.
pub const SEALED: u8 = 1 << 7;

/// The slots of one page segment.
pub struct Frame {
    /// The member.
    pub member: MemberNo,
    /// The segment.
    pub segment: SegmentNo,
    /// The segment's generation as a page segment.
    pub segment_generation: u64,
    // One element per slot.
    keys: Box<[PageKey]>,
    /// Masks of the valid blocks.
    valid_masks: Box<[u16]>,
    write_counts: Box<[WriteCounts]>,
    /// Number of times that the slot was allocated.
    generations: Box<[u16]>,
    /// Number of uses (bits 0 and 1), phase (bits 2 and 3), and the flags [`UNRECORDED`] to [`SEALED`].
    flags: Box<[u8]>,
}

impl Frame {
    /// The contribution of one slot to the counts; zeroes without a live page.
    fn counts(&self, index: usize) -> SlotCounts {
        let flags = self.flags[index];
        if PHASES[usize::from(flags >> PHASE_SHIFT & 0b11)] != SlotPhase::Live {
            return SlotCounts::default();
        }
        let blocks = u64::from(self.valid_masks[index].count_ones());
        SlotCounts { pages: 1, valid_blocks: blocks, suspect_pages: u64::from(flags & SUSPECT != 0) }
    }
}

/// The slots of all frames.
pub struct SlotTable {
    /// Frames by their number; `None` for a free number.
    frames: Vec<Option<Frame>>,
    /// Free numbers of frames.
    free_frames: Vec<u32>,
    slots_per_frame: u32,
    /// Low bits of a slot number that hold the index in the frame.
    index_bits: u32,
    /// Hash table with linear probing: slot numbers + 1, 0 for an empty entry.
    hash_entries: Vec<u32>,
    /// Number of used entries of the hash table.
    used_hash_entries: usize,
    slot_count: usize,
    counts: SlotCounts,
    /// Counts by volume number.
    volume_counts: Vec<SlotCounts>,
    /// Pages by member.
    member_pages: BTreeMap<MemberNo, u64>,
}

/// Counts over all slots, or over one volume's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotCounts {
    /// The number of pages.
    pub pages: u64,
    /// The number of valid blocks.
    pub valid_blocks: u64,
    /// The number of suspect pages.
    pub suspect_pages: u64,
}

impl SlotCounts {
    /// Replaces the contribution of one slot to the counts.
    fn replace(&mut self, before: SlotCounts, after: SlotCounts) {
        self.pages = self.pages + after.pages - before.pages;
        self.valid_blocks = self.valid_blocks + after.valid_blocks - before.valid_blocks;
        self.suspect_pages = self.suspect_pages + after.suspect_pages - before.suspect_pages;
    }
}

impl SlotTable {
    /// A table without slots. Each frame will have `slots_per_frame` slots; `slots_expected` slots fit without growing
    /// the hash table.
    pub fn new(slots_per_frame: u32, slots_expected: usize) -> SlotTable {
        let index_bits = slots_per_frame.max(1).next_power_of_two().trailing_zeros();
        let hash = vec![0; hash_entries_for(slots_expected)];
        SlotTable {
            frames: Vec::new(),
            free_frames: Vec::new(),
            slots_per_frame,
            index_bits,
            hash_entries: hash,
            used_hash_entries: 0,
            slot_count: 0,
            counts: SlotCounts::default(),
            volume_counts: Vec::new(),
            member_pages: BTreeMap::new(),
        }
    }

    /// Adds a frame of free slots for a segment. Returns its number.
    pub fn add_frame(&mut self, member: MemberNo, segment: SegmentNo, segment_generation: u64) -> u32 {
        let count = self.slots_per_frame as usize;
        let frame = Frame {
            member,
            segment,
            segment_generation,
            keys: vec![NO_KEY; count].into(),
            valid_masks: vec![0; count].into(),
            write_counts: vec![WriteCounts::default(); count].into(),
            generations: vec![0; count].into(),
            flags: vec![0; count].into(),
        };
        self.slot_count += count;
        if hash_entries_for(self.slot_count) > self.hash_entries.len() {
            self.grow();
        }
        match self.free_frames.pop() {
            Some(number) => {
                self.frames[number as usize] = Some(frame);
                number
            }
            None => {
                self.frames.push(Some(frame));
                self.frames.len() as u32 - 1
            }
        }
    }

    /// Removes a frame with all its pages.
    pub fn remove_frame(&mut self, number: u32) {
        for slot in self.slots_of(number) {
            self.release(slot);
        }
        self.frames[number as usize] = None;
        self.free_frames.push(number);
        self.slot_count -= self.slots_per_frame as usize;
    }

    /// All frames with their numbers.
    pub fn frames(&self) -> impl Iterator<Item = (u32, &Frame)> {
        (0..).zip(&self.frames).filter_map(|(number, frame)| Some((number, frame.as_ref()?)))
    }

    /// The first frame with this number or a higher one.
    pub fn first_frame_from(&self, number: u32) -> Option<u32> {
        let frames = self.frames.get(number as usize..)?;
        Some(number + frames.iter().position(Option::is_some)? as u32)
    }

    /// A frame, which must exist.
    pub fn frame(&self, number: u32) -> &Frame {
        self.frames[number as usize].as_ref().expect("the frame exists while its slots are used")
    }

    /// The slots of a frame.
    pub fn slots_of(&self, frame: u32) -> Range<SlotId> {
        let first = frame << self.index_bits;
        first..first + self.slots_per_frame
    }

    /// The slots of each frame.
    pub fn slot_ranges(&self) -> Vec<Range<SlotId>> {
        self.frames().map(|(number, _)| self.slots_of(number)).collect()
    }

    /// The number of slots in a frame.
    pub fn slots_per_frame(&self) -> u32 {
        self.slots_per_frame
    }

    /// The number of slots in all frames.
    pub fn slot_count(&self) -> usize {
        self.slot_count
    }

    /// The slot after this one, over all frames, cyclically.
    pub fn next_slot(&self, slot: SlotId) -> SlotId {
        let (frame, index) = self.split(slot);
        if index + 1 < self.slots_per_frame as usize && self.frames.get(frame).is_some_and(Option::is_some) {
            return slot + 1;
        }
        let count = self.frames.len();
        let next = (1..=count).map(|step| (frame + step) % count).find(|frame| self.frames[*frame].is_some());
        (next.unwrap_or(0) as u32) << self.index_bits
    }

    /// True when the slot's frame exists.
    pub fn exists(&self, slot: SlotId) -> bool {
        let (frame, index) = self.split(slot);
        index < self.slots_per_frame as usize && self.frames.get(frame).is_some_and(Option::is_some)
    }

    /// The slot's frame, and its index there.
    fn split(&self, slot: SlotId) -> (usize, usize) {
        ((slot >> self.index_bits) as usize, (slot & ((1 << self.index_bits) - 1)) as usize)
    }

    /// The slot's frame, which must exist, and its index there.
    fn locate(&self, slot: SlotId) -> (&Frame, usize) {
        let (frame, index) = self.split(slot);
        (self.frame(frame as u32), index)
    }

    /// Like [`SlotTable::locate`], mutable.
    fn locate_mut(&mut self, slot: SlotId) -> (&mut Frame, usize) {
        let (frame, index) = self.split(slot);
        (self.frames[frame].as_mut().expect("the frame exists while its slots are used"), index)
    }

    /// The page that a slot holds, or that a durable record may still place there.
    pub fn key(&self, slot: SlotId) -> PageKey {
        let (frame, index) = self.locate(slot);
        frame.keys[index]
    }

    /// The state of a slot.
    pub fn phase(&self, slot: SlotId) -> SlotPhase {
        let (frame, index) = self.locate(slot);
        PHASES[usize::from(frame.flags[index] >> PHASE_SHIFT & 0b11)]
    }

    /// Sets the state of a slot.
    pub fn set_phase(&mut self, slot: SlotId, phase: SlotPhase) {
        self.change(slot, |frame, index| {
            frame.flags[index] = frame.flags[index] & !(0b11 << PHASE_SHIFT) | (phase as u8) << PHASE_SHIFT;
        });
    }

    /// Counts over all slots.
    pub fn counts(&self) -> SlotCounts {
        self.counts
    }

    /// Counts over the slots of one volume.
    pub fn counts_of(&self, volume_number: u16) -> SlotCounts {
        self.volume_counts.get(usize::from(volume_number)).copied().unwrap_or_default()
    }

    /// The number of a volume's pages.
    pub fn pages_of(&self, volume_number: u16) -> u64 {
        self.counts_of(volume_number).pages
    }

    /// The number of pages on a member.
    pub fn pages_on(&self, member: MemberNo) -> u64 {
        self.member_pages.get(&member).copied().unwrap_or(0)
    }

    /// Changes a slot, and updates the counts.
    fn change<T>(&mut self, slot: SlotId, change: impl FnOnce(&mut Frame, usize) -> T) -> T {
        let (frame, index) = self.locate_mut(slot);
        let (member, volume, before) = (frame.member, page_of(frame.keys[index]).0, frame.counts(index));
        let result = change(frame, index);
        let (new_volume, after) = (page_of(frame.keys[index]).0, frame.counts(index));
        if before == after && volume == new_volume {
            return result;
        }
        if before.pages != after.pages {
            let on_member = self.member_pages.entry(member).or_default();
            *on_member = *on_member + after.pages - before.pages;
        }
        self.counts.replace(before, after);
        // A slot with counts always has a volume; a slot without a volume has no counts.
        if before != SlotCounts::default() {
            self.volume_counts[usize::from(volume)].replace(before, SlotCounts::default());
        }
        if after != SlotCounts::default() {
            let number = usize::from(new_volume);
            if self.volume_counts.len() <= number {
                self.volume_counts.resize(number + 1, SlotCounts::default());
            }
            self.volume_counts[number].replace(SlotCounts::default(), after);
        }
        result
    }

    /// Mask of the slot's valid blocks.
    pub fn valid_mask(&self, slot: SlotId) -> u16 {
        let (frame, index) = self.locate(slot);
        frame.valid_masks[index]
    }

    /// Sets the mask of the slot's valid blocks.
    pub fn set_valid_mask(&mut self, slot: SlotId, valid_mask: u16) {
        self.change(slot, |frame, index| frame.valid_masks[index] = valid_mask);
    }

    /// Number of writes of each block in this generation.
    pub fn write_counts(&self, slot: SlotId) -> WriteCounts {
        let (frame, index) = self.locate(slot);
        frame.write_counts[index]
    }

    /// Counts one more write of these blocks.
    pub fn add_writes(&mut self, slot: SlotId, blocks: u16) {
        let (frame, index) = self.locate_mut(slot);
        frame.write_counts[index].add(blocks);
    }

    /// The slot's generation.
    pub fn generation(&self, slot: SlotId) -> u16 {
        let (frame, index) = self.locate(slot);
        frame.generations[index]
    }

    /// Sets the slot's generation.
    pub fn set_generation(&mut self, slot: SlotId, generation: u16) {
        let (frame, index) = self.locate_mut(slot);
        frame.generations[index] = generation;
    }

    /// True when the flag is set.
    pub fn has_flag(&self, slot: SlotId, flag: u8) -> bool {
        let (frame, index) = self.locate(slot);
        frame.flags[index] & flag != 0
    }

    /// Sets or clears a flag; returns true when that changed it.
    pub fn set_flag(&mut self, slot: SlotId, flag: u8, is_set: bool) -> bool {
        self.change(slot, |frame, index| {
            let before = frame.flags[index];
            frame.flags[index] = if is_set { before | flag } else { before & !flag };
            frame.flags[index] != before
        })
    }

    /// Counts a use, up to 3.
    pub fn touch(&mut self, slot: SlotId) {
        let (frame, index) = self.locate_mut(slot);
        if frame.flags[index] & USES_MASK != USES_MASK {
            frame.flags[index] += 1;
        }
    }

    /// The number of counted uses.
    pub fn uses(&self, slot: SlotId) -> u8 {
        let (frame, index) = self.locate(slot);
        frame.flags[index] & USES_MASK
    }

    /// Subtracts one use; returns false when there was none.
    pub fn decrement_uses(&mut self, slot: SlotId) -> bool {
        let (frame, index) = self.locate_mut(slot);
        let used = frame.flags[index] & USES_MASK != 0;
        frame.flags[index] -= u8::from(used);
        used
    }

    /// The slot's place, for its checksums.
    pub fn place(&self, slot: SlotId) -> PagePlace {
        let (frame, index) = self.locate(slot);
        PagePlace {
            member: frame.member,
            segment: frame.segment,
            segment_generation: frame.segment_generation,
            slot: index as u32,
            generation: frame.generations[index],
        }
    }

    /// True when the slot exists and its segment has this generation.
    pub fn is_in(&self, slot: SlotId, segment_generation: u64) -> bool {
        self.exists(slot) && self.place(slot).segment_generation == segment_generation
    }

    /// The slot's number among all slots of its member.
    pub fn number(&self, slot: SlotId) -> u32 {
        let (frame, index) = self.locate(slot);
        frame.segment.0 * self.slots_per_frame + index as u32
    }

    /// Assigns a free slot to a page, with a new generation, and indexes it.
    pub fn claim(&mut self, slot: SlotId, key: PageKey) {
        assert!(self.phase(slot) == SlotPhase::Free, "only a free slot is claimed");
        self.set_phase(slot, SlotPhase::Writing);
        self.set_generation(slot, self.generation(slot).wrapping_add(1));
        self.insert(slot, key);
    }

    /// Sets a slot from a record of the journal. It is not indexed before [`SlotTable::build_index`].
    pub fn restore(&mut self, slot: SlotId, page: Option<(PageKey, u16, WriteCounts)>, generation: u16) {
        let (key, valid, writes) = page.unwrap_or((NO_KEY, 0, WriteCounts::default()));
        self.change(slot, |frame, index| {
            (frame.keys[index], frame.valid_masks[index], frame.write_counts[index]) = (key, valid, writes);
            (frame.generations[index], frame.flags[index]) = (generation, 0);
        });
        if page.is_some() {
            self.set_phase(slot, SlotPhase::Live);
        }
    }

    /// Removes a frame whose slots are not indexed.
    pub fn discard_frame(&mut self, number: u32) {
        for slot in self.slots_of(number) {
            self.restore(slot, None, 0);
        }
        self.frames[number as usize] = None;
        self.free_frames.push(number);
        self.slot_count -= self.slots_per_frame as usize;
    }

    /// Indexes restored pages. If two slots hold the same page, which is impossible in an intact map, both lose their
    /// blocks.
    ///
    /// Slots are inserted in the order of the hash table. In any other order, each of millions of inserts would miss
    /// the processor's caches several times.
    pub fn build_index(&mut self) {
        self.hash_entries = vec![0; hash_entries_for(self.slot_count)];
        self.used_hash_entries = 0;
        let mut homes = Vec::with_capacity(self.slot_count);
        for (number, frame) in self.frames() {
            let first = self.slots_of(number).start;
            let pages = (first..).zip(&frame.keys).filter(|(_, key)| **key != NO_KEY);
            homes.extend(pages.map(|(slot, key)| (self.home_entry(*key) as u64) << 32 | u64::from(slot)));
        }
        homes.sort_unstable();
        self.used_hash_entries = homes.len();
        let (mut next, mut wrapped) = (0, Vec::new());
        for same_home in homes.chunk_by(|left, right| left >> 32 == right >> 32) {
            let home = (same_home[0] >> 32) as usize;
            for (number, slot) in same_home.iter().map(|entry| *entry as SlotId).enumerate() {
                let others = same_home[..number].iter().map(|entry| *entry as SlotId);
                for duplicate in others.filter(|other| self.key(*other) == self.key(slot)).collect::<Vec<_>>() {
                    self.set_valid_mask(duplicate, 0);
                    self.set_valid_mask(slot, 0);
                }
                let at = home.max(next);
                match self.hash_entries.get_mut(at) {
                    Some(entry) => *entry = slot + 1,
                    None => wrapped.push(slot),
                }
                next = at + 1;
            }
        }
        // Entries past the end of the table wrap around to its beginning.
        for slot in wrapped {
            let at = self.first_empty(self.home_entry(self.key(slot)));
            self.hash_entries[at] = slot + 1;
        }
    }

    /// The first empty entry from this one on.
    fn first_empty(&self, home: usize) -> usize {
        let mut at = home;
        while self.hash_entries[at] != 0 {
            at = (at + 1) % self.hash_entries.len();
        }
        at
    }

    /// Indexes a slot under a page.
    pub fn insert(&mut self, slot: SlotId, key: PageKey) {
        let (frame, index) = self.locate_mut(slot);
        assert!(frame.keys[index] == NO_KEY, "a slot holds one page");
        frame.keys[index] = key;
        self.used_hash_entries += 1;
        let at = self.first_empty(self.home_entry(key));
        self.hash_entries[at] = slot + 1;
    }

    /// Frees a slot: no durable record lists it. It keeps its generation.
    pub fn release(&mut self, slot: SlotId) {
        let key = self.key(slot);
        if key != NO_KEY {
            self.unhash(slot, key);
        }
        self.change(slot, |frame, index| {
            frame.keys[index] = NO_KEY;
            (frame.valid_masks[index], frame.write_counts[index], frame.flags[index]) = (0, WriteCounts::default(), 0);
        });
    }

    /// Removes a slot from the hash table.
    fn unhash(&mut self, slot: SlotId, key: PageKey) {
        let size = self.hash_entries.len();
        let mut hole = self.home_entry(key);
        while self.hash_entries[hole] != slot + 1 {
            assert!(self.hash_entries[hole] != 0, "an inserted slot is found");
            hole = (hole + 1) % size;
        }
        self.used_hash_entries -= 1;
        // Move later entries of the probe sequence up, unless one would come before its home.
        let mut at = hole;
        loop {
            at = (at + 1) % size;
            let Some(other) = self.hash_entries[at].checked_sub(1) else { break };
            let home = self.home_entry(self.key(other));
            if (at + size - home) % size >= (at + size - hole) % size {
                self.hash_entries[hole] = self.hash_entries[at];
                hole = at;
            }
        }
        self.hash_entries[hole] = 0;
    }

    /// The entry of the hash table at which the probe sequence of a key begins. Two rounds of xor-shift and multiply
    /// mix the key; the multiplication by the table's size replaces a slow remainder.
    fn home_entry(&self, key: PageKey) -> usize {
        let mixed = (key ^ key >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (((mixed >> 32) * self.hash_entries.len() as u64) >> 32) as usize
    }

    /// Moves the entries to a larger hash table.
    fn grow(&mut self) {
        let slots: Vec<_> = self.hash_entries.iter().filter_map(|slot| slot.checked_sub(1)).collect();
        self.hash_entries = vec![0; hash_entries_for(self.slot_count + self.slot_count / 8)];
        for slot in slots {
            let at = self.first_empty(self.home_entry(self.key(slot)));
            self.hash_entries[at] = slot + 1;
        }
    }

    /// Every slot that holds the page, or that a durable record may still list for it.
    pub fn slots_of_key(&self, key: PageKey) -> impl Iterator<Item = SlotId> {
        let mut at = self.home_entry(key);
        std::iter::from_fn(move || {
            loop {
                let slot = self.hash_entries[at].checked_sub(1)?;
                at = (at + 1) % self.hash_entries.len();
                if self.key(slot) == key {
                    return Some(slot);
                }
            }
        })
    }

    /// The slot that holds the page.
    pub fn find(&self, key: PageKey) -> Option<SlotId> {
        self.slots_of_key(key).find(|slot| self.phase(*slot) == SlotPhase::Live)
    }

    /// True when the page is being written.
    pub fn is_busy(&self, key: PageKey) -> bool {
        self.slots_of_key(key).any(|slot| self.phase(slot) == SlotPhase::Writing || self.has_flag(slot, ADDING))
    }

    /// True when the slot has a page's key: it holds the page, or a durable record may still list the page for it.
    pub fn has_key(&self, slot: SlotId) -> bool {
        self.key(slot) != NO_KEY
    }

    /// Drops restored pages whose volume has no number.
    pub fn drop_orphans(&mut self, volumes: &BTreeMap<u16, VolumeId>) {
        for slot in self.slot_ranges().into_iter().flatten() {
            if self.has_key(slot) && !volumes.contains_key(&page_of(self.key(slot)).0) {
                self.restore(slot, None, self.generation(slot));
            }
        }
    }

    /// The slots of a volume's pages, in arbitrary order.
    pub fn slots_of_volume(&self, volume_number: u16, pages: Range<PageNo>) -> Vec<SlotId> {
        if PageNo::count(&pages) <= self.used_hash_entries as u64 / 4 {
            return PageNo::each(&pages).flat_map(|page| self.slots_of_key(key_of(volume_number, page))).collect();
        }
        let of_volume = |slot: &SlotId| {
            let key = self.key(*slot);
            key != NO_KEY && page_of(key).0 == volume_number && pages.contains(&page_of(key).1)
        };
        self.frames().flat_map(|(number, _)| self.slots_of(number)).filter(of_volume).collect()
    }

    /// Memory of the table, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let slot = size_of::<PageKey>() + 2 * size_of::<u16>() + size_of::<WriteCounts>() + size_of::<u8>();
        let frames = self.frames.capacity() * size_of::<Option<Frame>>();
        let counts = self.volume_counts.capacity() * size_of::<SlotCounts>();
        self.hash_entries.capacity() * size_of::<u32>() + self.slot_count * slot + frames + counts
    }
}

/// Size of a hash table for this many slots: at most 3/4 of its entries are used.
fn hash_entries_for(slots: usize) -> usize {
    slots + slots / 3 + 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_finds_the_same_slots_as_a_btree_map() {
        let mut state = 7_u64;
        let mut below = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        let mut table = SlotTable::new(15, 0);
        let mut plain: BTreeMap<PageKey, SlotId> = BTreeMap::new();
        let mut free = Vec::new();
        for round in 0..4_000 {
            if round % 400 == 0 && round < 2_000 {
                let frame = table.add_frame(MemberNo(0), SegmentNo(round), 1);
                free.extend(table.slots_of(frame));
            }
            let key = key_of(below(3) as u16, PageNo(below(60)));
            match plain.remove(&key) {
                Some(slot) => {
                    table.release(slot);
                    free.push(slot);
                }
                None if !free.is_empty() => {
                    let slot = free.swap_remove(below(free.len() as u64) as usize);
                    table.claim(slot, key);
                    table.set_phase(slot, SlotPhase::Live);
                    plain.insert(key, slot);
                }
                None => {}
            }
            for volume in 0..3 {
                for page in 0..60 {
                    let key = key_of(volume, PageNo(page));
                    assert_eq!(table.find(key), plain.get(&key).copied(), "round {round}");
                }
            }
        }
        for volume in 0..3 {
            let expected = plain.keys().filter(|key| page_of(**key).0 == volume).count() as u64;
            assert_eq!(table.pages_of(volume), expected);
        }
        let mut of_volume = table.slots_of_volume(1, PageNo::ALL);
        let mut expected: Vec<_> =
            plain.iter().filter(|(key, _)| page_of(**key).0 == 1).map(|(_, slot)| *slot).collect();
        of_volume.sort_unstable();
        expected.sort_unstable();
        assert_eq!(of_volume, expected);
    }

    #[test]
    fn restored_pages_are_found_and_duplicates_lose_their_blocks() {
        for seed in 0..40_u64 {
            let mut table = SlotTable::new(15, 0);
            let mut plain: BTreeMap<PageKey, Vec<SlotId>> = BTreeMap::new();
            for segment in 0..4 {
                let frame = table.add_frame(MemberNo(0), SegmentNo(segment), 1);
                for slot in table.slots_of(frame) {
                    let draw = (u64::from(slot) + 1).wrapping_mul(6_364_136_223_846_793_005 + 2 * seed) >> 33;
                    if draw % 9 > 0 {
                        let key = key_of((draw % 2) as u16, PageNo(draw / 18 % 90));
                        table.restore(slot, Some((key, 3, WriteCounts([7, 0, 0]))), 1);
                        plain.entry(key).or_default().push(slot);
                    }
                }
            }
            table.build_index();
            let single = plain.values().filter(|slots| slots.len() == 1).count();
            assert_eq!(table.counts().valid_blocks, 2 * single as u64);
            for volume in 0..2 {
                for page in 0..90 {
                    let key = key_of(volume, PageNo(page));
                    let mut slots: Vec<_> = table.slots_of_key(key).collect();
                    slots.sort_unstable();
                    assert_eq!(slots, plain.get(&key).cloned().unwrap_or_default());
                }
            }
            // Restored pages are released like any others.
            for slots in plain.values() {
                slots.iter().for_each(|slot| table.release(*slot));
            }
            assert!(table.hash_entries.iter().all(|entry| *entry == 0));
        }
    }

    #[test]
    fn cached_page_costs_at_most_26_bytes() {
        for frames in [1, 1_000] {
            let mut table = SlotTable::new(963, 0);
            (0..frames).for_each(|segment| _ = table.add_frame(MemberNo(0), SegmentNo(segment), 1));
            let bytes = table.memory_bytes() as f64 / table.slot_count() as f64;
            println!("{frames} segments: {bytes:.1} bytes a page");
            assert!(bytes <= 26.0, "the rest is for marks, recent writes and pending records: {bytes}");
        }
    }
}
