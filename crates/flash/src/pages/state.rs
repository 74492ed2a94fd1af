//! What is known of all pages, in memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use seam::{BLOCK_BYTES, Seam};

use super::api::{PAGE_BLOCKS, PageMember, REGION_BLOCKS};
use super::quota::{Limits, PageShare};
use super::table::{ADDING, DIRTY, Phase, SUSPECT, SlotId, Table, key_of, page_of};
use crate::format::journal::Record;
use crate::format::page::slots_of;
use crate::format::superblock::Superblock;
use crate::journal::Journal;
use crate::journal::marks::{Marks, Region};
use crate::journal::ring::Rings;
use crate::wait::Answer;

/// Invalidations while the map is being read, by page; past these whole volumes are dropped.
const EARLY_MAX: usize = 1 << 16;

/// How far the map has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapPhase {
    /// It was not read.
    Unloaded,
    /// It is being read.
    Loading,
    /// It serves.
    Ready,
    /// It is void for good; says why.
    Void(String),
}

/// What was invalidated before the map was there.
#[derive(Default)]
pub struct Early {
    /// Blocks of pages, by volume.
    pub pages: BTreeMap<(u64, u64), u16>,
    /// Whole volumes.
    pub volumes: BTreeSet<u64>,
}

/// Counters since the opening.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Pages that had to go for others.
    pub evictions: u64,
    /// Bytes written, by member.
    pub written: BTreeMap<u32, PageMember>,
}

impl Counts {
    /// The counters of a member.
    pub fn of(&mut self, member: u32) -> &mut PageMember {
        self.written.entry(member).or_insert(PageMember { member, ..PageMember::default() })
    }
}

/// All of it.
pub struct PageState<S: Seam> {
    /// How far the map has come.
    pub phase: MapPhase,
    /// The slots.
    pub table: Table,
    /// Numbers of volumes, both ways.
    pub numbers: BTreeMap<u64, u16>,
    /// The volume of each number.
    pub volumes: BTreeMap<u16, u64>,
    /// Pages being written: the slot, and which of the new blocks have not been invalidated since (R2).
    pub putting: BTreeMap<SlotId, u16>,
    /// Reads under way, by slot and its segment's life.
    pub pins: BTreeMap<(SlotId, u64), u32>,
    /// Slots that nothing durable speaks of and nobody reads.
    pub free: VecDeque<SlotId>,
    /// Slots whose record is to be written.
    pub dirty: Vec<SlotId>,
    /// Slots whose end is to be written.
    pub dead: Vec<SlotId>,
    /// Slots whose end another record says that is to be written.
    pub gone: Vec<SlotId>,
    /// Members with page data that no flush has covered.
    pub unflushed: BTreeSet<u32>,
    /// Regions in flux.
    pub marks: Marks,
    /// What was destaged last.
    pub rings: Rings,
    /// The map journal.
    pub journal: Journal<S>,
    /// What was invalidated before the map was there.
    pub early: Early,
    /// Counters.
    pub counts: Counts,
    /// The clock's hand.
    pub hand: SlotId,
    /// A buffer for checksums that nobody uses at the moment.
    pub spare: Option<S::BlockMut>,
    /// A task is looking after the number of free slots.
    pub keeping: bool,
    /// A segment is being given back to the log.
    pub reclaiming: bool,
    /// Which one.
    pub giving: Option<u32>,
    /// Members' segments that something is being written to, whatever has become of it since: the log must not have them before that ends.
    pub writing: BTreeMap<(u32, u32), u32>,
    /// Members that did not take a segment's first block: they get no more pages.
    pub refused: BTreeSet<u32>,
    /// Regions that need no mark lose it with the next commit, however few they are.
    pub unmark_all: bool,
    /// A task waits for idleness.
    pub idling: bool,
    /// The owner has durably noted that the map is void.
    pub abandoned: bool,
    /// What a map on the devices says is not to be trusted.
    pub distrusted: bool,
    /// Who waits for the map to be read, or given up.
    pub waiting: Vec<Answer<()>>,
    /// So many times no segment is asked for.
    pub full: u32,
    /// What volumes may have, by their identity.
    pub shares: BTreeMap<u64, PageShare>,
    /// The same as pages, by their number.
    pub limits: BTreeMap<u16, Limits>,
    /// For so many slots and volumes; `None`: they are to be said anew.
    pub limits_of: Option<(u64, usize)>,
    /// Lives given to segments in this opening.
    pub lives: u64,
    /// What the first blocks of segments said at the opening.
    pub lives_found: BTreeMap<(u32, u32), u64>,
}

impl<S: Seam> PageState<S> {
    /// Nothing is known yet.
    pub fn new(superblock: &Superblock, lives_found: BTreeMap<(u32, u32), u64>) -> Self {
        let per_frame = slots_of((superblock.segment_bytes / BLOCK_BYTES as u64) as u32);
        PageState {
            phase: MapPhase::Unloaded,
            table: Table::new(per_frame, 0),
            numbers: BTreeMap::new(),
            volumes: BTreeMap::new(),
            putting: BTreeMap::new(),
            pins: BTreeMap::new(),
            free: VecDeque::new(),
            dirty: Vec::new(),
            dead: Vec::new(),
            gone: Vec::new(),
            unflushed: BTreeSet::new(),
            marks: Marks::default(),
            rings: Rings::default(),
            journal: Journal::new(superblock),
            early: Early::default(),
            counts: Counts::default(),
            hand: 0,
            spare: None,
            keeping: false,
            reclaiming: false,
            giving: None,
            writing: BTreeMap::new(),
            refused: BTreeSet::new(),
            unmark_all: false,
            idling: false,
            abandoned: false,
            distrusted: false,
            waiting: Vec::new(),
            full: 0,
            shares: BTreeMap::new(),
            limits: BTreeMap::new(),
            limits_of: None,
            lives: 0,
            lives_found,
        }
    }

    /// True when the map serves.
    pub fn is_ready(&self) -> bool {
        self.phase == MapPhase::Ready
    }

    /// The number of a volume, which gets one if it has none; `None` when all are taken.
    pub fn number_of(&mut self, incarnation: u64) -> Option<u16> {
        if let Some(number) = self.numbers.get(&incarnation) {
            return Some(*number);
        }
        let number = (0..u16::MAX).find(|number| !self.volumes.contains_key(number))?;
        self.numbers.insert(incarnation, number);
        self.volumes.insert(number, incarnation);
        self.journal.events.push(Record::Volume { number, incarnation });
        Some(number)
    }

    /// The slot of a volume's page, where the map serves and the page is there.
    pub fn find(&self, incarnation: u64, page: u64) -> Option<SlotId> {
        if !self.is_ready() {
            return None;
        }
        self.table.find(key_of(*self.numbers.get(&incarnation)?, page))
    }

    /// A record of the slot is to be written.
    pub fn set_dirty(&mut self, slot: SlotId) {
        if self.table.flag(slot, DIRTY, true) {
            self.dirty.push(slot);
        }
    }

    /// A slot's page is gone. `said`: a record that says so for more than this slot is to be written anyway.
    pub fn kill(&mut self, slot: SlotId, said: bool) {
        assert!(self.table.phase(slot) == Phase::Live && !self.table.has(slot, ADDING), "what lives can die, once");
        self.table.set_phase(slot, Phase::Dead);
        self.table.set_valid(slot, 0);
        self.table.flag(slot, SUSPECT, false);
        if said { self.gone.push(slot) } else { self.dead.push(slot) }
    }

    /// Blocks of a slot are not valid any more.
    pub fn clear(&mut self, slot: SlotId, mask: u16) {
        if let Some(putting) = self.putting.get_mut(&slot) {
            *putting &= !mask;
        }
        let valid = self.table.valid(slot);
        if self.table.phase(slot) != Phase::Live || valid & mask == 0 {
            return;
        }
        self.table.set_valid(slot, valid & !mask);
        if valid & !mask == 0 && !self.table.has(slot, ADDING) {
            self.kill(slot, false);
        } else {
            self.set_dirty(slot);
        }
    }

    /// Blocks of a volume are not valid any more (R2).
    pub fn invalidate(&mut self, incarnation: u64, blocks: Range<u64>) {
        if blocks.is_empty() {
            return;
        }
        match self.phase {
            MapPhase::Void(_) => return,
            MapPhase::Unloaded | MapPhase::Loading => return self.invalidate_early(incarnation, blocks),
            MapPhase::Ready => {}
        }
        let Some(number) = self.numbers.get(&incarnation).copied() else { return };
        for slot in self.table.of_volume(number, pages_of(&blocks)) {
            let mask = mask_of(page_of(self.table.key(slot)).1, &blocks);
            self.clear(slot, mask);
        }
    }

    fn invalidate_early(&mut self, incarnation: u64, blocks: Range<u64>) {
        let pages = pages_of(&blocks);
        if self.early.pages.len() as u64 + (pages.end - pages.start) > EARLY_MAX as u64 {
            self.early.volumes.insert(incarnation);
            self.early.pages.retain(|(volume, _), _| *volume != incarnation);
            return;
        }
        for page in pages {
            *self.early.pages.entry((incarnation, page)).or_default() |= mask_of(page, &blocks);
        }
    }

    /// True when something durable may say of these blocks that they are there, or were destaged with some content.
    pub fn may_be_durable(&self, number: u16, blocks: &Range<u64>) -> bool {
        let slots = self.table.of_volume(number, pages_of(blocks));
        let held = |slot: &SlotId| {
            let mask = mask_of(page_of(self.table.key(*slot)).1, blocks);
            self.table.phase(*slot) != Phase::Writing && self.table.writes(*slot).ever() & mask != 0
        };
        slots.iter().any(held) || self.rings.may_be_durable(number, blocks)
    }

    /// Breaks R9 on purpose: a slot whose end is not durable is given away.
    pub fn sabotage_reuse(&mut self, slot: SlotId) {
        self.dead.retain(|dead| *dead != slot);
        self.release(slot);
        if let Some(last) = self.free.pop_back() {
            self.free.push_front(last);
        }
    }

    /// Puts a slot among the free ones, if nobody reads it; else it comes when it is read no more.
    pub fn release(&mut self, slot: SlotId) {
        self.table.release(slot);
        if !self.pins.contains_key(&(slot, self.table.place(slot).life)) {
            self.free.push_back(slot);
        }
    }

    /// A read of a slot begins, in the segment's life.
    pub fn pin(&mut self, slot: SlotId, life: u64) {
        assert!(self.table.phase(slot) == Phase::Live, "what is read lives");
        *self.pins.entry((slot, life)).or_default() += 1;
    }

    /// A read has ended.
    pub fn unpin(&mut self, slot: SlotId, life: u64) {
        let pins = self.pins.get_mut(&(slot, life)).expect("a read ends once");
        *pins -= 1;
        if *pins == 0 {
            self.pins.remove(&(slot, life));
            if self.table.is_in(slot, life) && self.table.phase(slot) == Phase::Free {
                self.free.push_back(slot);
            }
        }
    }

    /// A write to a member's segment begins.
    pub fn begin_writing(&mut self, segment: (u32, u32)) {
        *self.writing.entry(segment).or_default() += 1;
    }

    /// A write to a member's segment has ended.
    pub fn end_writing(&mut self, segment: (u32, u32)) {
        let writes = self.writing.get_mut(&segment).expect("a write ends once");
        *writes -= 1;
        if *writes == 0 {
            self.writing.remove(&segment);
        }
    }

    /// A member is not in service any more: its pages are gone.
    pub fn lose_member(&mut self, member: u32) {
        let frames: Vec<_> =
            self.table.frames().filter(|(_, frame)| frame.member == member).map(|(number, _)| number).collect();
        self.unflushed.remove(&member);
        self.journal.told.remove(&member);
        if frames.is_empty() || !self.is_ready() {
            return;
        }
        frames.into_iter().for_each(|frame| self.drop_frame(frame));
        self.journal.events.push(Record::MemberGone { member: member as u8 });
    }

    /// No slot of a member is given away any more.
    pub fn leave_free(&mut self, member: u32) {
        let table = &self.table;
        self.free.retain(|slot| table.place(*slot).member != member);
    }

    /// Drops what a frame holds, and the frame; the caller says so in the journal. Writes and reads under way end in vain.
    pub fn drop_frame(&mut self, frame: u32) {
        let slots = self.table.slots_of(frame);
        let inside = |slot: &SlotId| slots.contains(slot);
        self.free.retain(|slot| !inside(slot));
        self.dirty.retain(|slot| !inside(slot));
        self.dead.retain(|slot| !inside(slot));
        self.gone.retain(|slot| !inside(slot));
        self.putting.retain(|slot, _| !inside(slot));
        self.table.remove_frame(frame);
    }

    /// Drops everything in memory.
    pub fn empty(&mut self) {
        let frames: Vec<_> = self.table.frames().map(|(number, _)| number).collect();
        frames.into_iter().for_each(|frame| self.drop_frame(frame));
        self.marks.clear();
        self.rings = Rings::default();
        self.journal.events.clear();
        (self.numbers, self.volumes) = (BTreeMap::new(), BTreeMap::new());
    }

    /// The map is void for good.
    pub fn void(&mut self, why: String) {
        self.empty();
        self.journal.stop();
        self.phase = MapPhase::Void(why);
        self.wake();
    }

    /// Wakes who waits for another phase.
    pub fn wake(&mut self) {
        self.waiting.drain(..).for_each(|answer| answer.give(()));
    }

    /// Slots that may hold pages of a region.
    pub fn slots_of_region(&self, region: Region) -> Vec<SlotId> {
        let pages = REGION_BLOCKS / u64::from(PAGE_BLOCKS);
        self.table.of_volume(region.0, region.1 * pages..(region.1 + 1) * pages)
    }

    /// True when pages of a region wait for being compared.
    pub fn has_suspects(&self, region: Region) -> bool {
        let suspect = |slot: &SlotId| self.table.phase(*slot) == Phase::Live && self.table.has(*slot, SUSPECT);
        self.table.counts().suspect > 0 && self.slots_of_region(region).iter().any(suspect)
    }

    /// Drops suspect pages of regions where blocks were destaged since the opening. A mark that stays for their sake
    /// would make the next opening forget what was destaged there.
    pub fn drop_suspects_beside_destaged(&mut self) {
        for region in self.marks.settled() {
            let blocks = region.1 * REGION_BLOCKS..(region.1 + 1) * REGION_BLOCKS;
            if !self.rings.may_be_durable(region.0, &blocks) {
                continue;
            }
            for slot in self.slots_of_region(region) {
                if self.table.has(slot, SUSPECT) {
                    self.clear(slot, u16::MAX);
                }
            }
        }
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> u64 {
        let lists = (self.free.capacity() + self.dirty.capacity() + self.dead.capacity()) * size_of::<SlotId>();
        (self.table.memory_bytes() + lists + self.rings.len() * 16 + self.journal.events.capacity() * 32) as u64
    }
}

/// The pages that blocks lie in.
pub fn pages_of(blocks: &Range<u64>) -> Range<u64> {
    let per_page = u64::from(PAGE_BLOCKS);
    blocks.start / per_page..blocks.end.div_ceil(per_page)
}

/// Which blocks of a page are among `blocks`.
pub fn mask_of(page: u64, blocks: &Range<u64>) -> u16 {
    let first = page * u64::from(PAGE_BLOCKS);
    let inside = |block: &u32| blocks.contains(&(first + u64::from(*block)));
    (0..PAGE_BLOCKS).filter(inside).fold(0, |mask, block| mask | 1 << block)
}
