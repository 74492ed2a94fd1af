//! Persistence tags of simulated buffers, and the memory image of a killed process.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use super::block::{SimBlock, Tagged};
use crate::kept::{Left, sort_out};
use crate::{BlockNote, RangeKind, RangeNote, SECTORS_PER_BLOCK};

/// Most zero-range notes: few, so that tests reach the limit.
const ZEROES_MAX: u32 = 64;
/// Places for notes on runs of blocks, zero-ranges included.
const RANGES_MAX: u32 = 4096;

/// The persistence tags of a pool's buffers.
#[derive(Default)]
pub(super) struct Notes {
    last: Cell<u64>,
    blocks: RefCell<BTreeMap<u64, Weak<Tagged>>>,
    ranges: RefCell<BTreeMap<u32, (u64, RangeNote)>>,
    refused: Cell<bool>,
    dropped: RefCell<Vec<BlockNote>>,
}

impl std::fmt::Debug for Notes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notes").field("last", &self.last.get()).finish_non_exhaustive()
    }
}

impl Notes {
    fn next(&self) -> u64 {
        self.last.set(self.last.get() + 1);
        self.last.get()
    }

    pub(super) fn note(&self, block: &SimBlock, note: BlockNote) -> u64 {
        let SimBlock::Tagged(block) = block else { return 0 };
        let number = match block.note.get() {
            Some((number, known)) if (known.owner, known.block) == (note.owner, note.block) => number,
            Some((_, known)) => unreachable!("a buffer with a note is given another one: {known:?}, {note:?}"),
            None => self.next(),
        };
        block.note.set(Some((number, note)));
        self.blocks.borrow_mut().insert(number, Rc::downgrade(block));
        number
    }

    pub(super) fn forget(&self, block: &SimBlock, number: u64) {
        if let SimBlock::Tagged(block) = block
            && block.note.get().is_some_and(|(noted, _)| noted == number)
        {
            block.note.set(None);
            self.blocks.borrow_mut().remove(&number);
        }
    }

    pub(super) fn note_range(&self, note: RangeNote) -> Option<u32> {
        let places = match note.kind {
            RangeKind::Zeroes { .. } => 0..ZEROES_MAX,
            RangeKind::Outdated => ZEROES_MAX..RANGES_MAX,
        };
        let mut ranges = self.ranges.borrow_mut();
        let place = places.into_iter().find(|place| !ranges.contains_key(place));
        match place {
            Some(place) => drop(ranges.insert(place, (self.next(), note))),
            None => self.refused.set(true),
        }
        place
    }

    pub(super) fn forget_range(&self, place: u32) {
        self.ranges.borrow_mut().remove(&place);
    }

    /// Records that a buffer was dropped with a note on it: the note would wrongly apply to the buffer's next content.
    pub(super) fn dropped(&self, note: BlockNote) {
        self.dropped.borrow_mut().push(note);
    }

    pub(super) fn violations(&self) -> Vec<String> {
        let dropped = self.dropped.borrow();
        dropped.iter().map(|note| format!("a buffer was given back with a note on it: {note:?}")).collect()
    }

    pub(super) fn left_behind(&self) -> LeftBehind {
        let blocks = self.blocks.borrow();
        let blocks = blocks.values().filter_map(Weak::upgrade);
        let noted = blocks.filter_map(|block| Some((block.note.get()?, block.tags.get()))).collect();
        let ranges = self.ranges.borrow().values().copied().collect();
        LeftBehind { blocks: noted, ranges, is_whole: !self.refused.get() }
    }
}

/// The memory image of a killed process: tagged buffers and range notes.
#[derive(Clone, Debug, Default)]
pub struct LeftBehind {
    blocks: Vec<((u64, BlockNote), [u64; SECTORS_PER_BLOCK])>,
    ranges: Vec<(u64, RangeNote)>,
    is_whole: bool,
}

impl LeftBehind {
    /// False if a note found no free place.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// The valid notes by owner.
    pub fn sorted(&self) -> BTreeMap<u64, Left> {
        let blocks: Vec<_> = self.blocks.iter().map(|(note, _)| *note).collect();
        sort_out(&blocks, &self.ranges)
    }

    /// Content of the block at index `place`, one tag per sector.
    pub fn tags(&self, place: usize) -> [u64; SECTORS_PER_BLOCK] {
        self.blocks[place].1
    }
}
