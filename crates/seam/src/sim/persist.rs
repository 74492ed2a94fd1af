//! Persistence tags of simulated buffers, and the memory image of a killed process.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use super::block::{SimBlock, Tagged};
use crate::persist::{ShmImage, resolve_tags};
use crate::{BlockTag, RangeKind, RangeTag, SECTORS_PER_BLOCK};

/// Maximum number of zero-range tags: few, so that tests reach the limit.
const ZEROES_MAX: u32 = 64;
/// Size of the table of range tags, zero-ranges included.
const RANGES_MAX: u32 = 4096;

/// The persistence tags of a pool's buffers.
#[derive(Default)]
pub(super) struct PersistTags {
    last_number: Cell<u64>,
    blocks: RefCell<BTreeMap<u64, Weak<Tagged>>>,
    ranges: RefCell<BTreeMap<u32, (u64, RangeTag)>>,
    overflowed: Cell<bool>,
    dropped: RefCell<Vec<BlockTag>>,
}

impl std::fmt::Debug for PersistTags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PersistTags").field("last_number", &self.last_number.get()).finish_non_exhaustive()
    }
}

impl PersistTags {
    fn next_number(&self) -> u64 {
        self.last_number.set(self.last_number.get() + 1);
        self.last_number.get()
    }

    pub(super) fn tag(&self, block: &SimBlock, tag: BlockTag) -> u64 {
        let SimBlock::Tagged(block) = block else { return 0 };
        let number = match block.persist_tag.get() {
            Some((number, known)) if (known.volume_id, known.block) == (tag.volume_id, tag.block) => number,
            Some((_, known)) => unreachable!("a tagged buffer is tagged as another block: {known:?}, {tag:?}"),
            None => self.next_number(),
        };
        block.persist_tag.set(Some((number, tag)));
        self.blocks.borrow_mut().insert(number, Rc::downgrade(block));
        number
    }

    pub(super) fn untag(&self, block: &SimBlock, number: u64) {
        if let SimBlock::Tagged(block) = block
            && block.persist_tag.get().is_some_and(|(known, _)| known == number)
        {
            block.persist_tag.set(None);
            self.blocks.borrow_mut().remove(&number);
        }
    }

    pub(super) fn tag_range(&self, tag: RangeTag) -> Option<u32> {
        let indices = match tag.kind {
            RangeKind::Zeroes { .. } => 0..ZEROES_MAX,
            RangeKind::Outdated => ZEROES_MAX..RANGES_MAX,
        };
        let mut ranges = self.ranges.borrow_mut();
        let index = indices.into_iter().find(|index| !ranges.contains_key(index));
        match index {
            Some(index) => drop(ranges.insert(index, (self.next_number(), tag))),
            None => self.overflowed.set(true),
        }
        index
    }

    pub(super) fn untag_range(&self, index: u32) {
        self.ranges.borrow_mut().remove(&index);
    }

    /// Records that a tagged buffer was freed: its tag would wrongly apply to the next content of the buffer.
    pub(super) fn record_dropped(&self, tag: BlockTag) {
        self.dropped.borrow_mut().push(tag);
    }

    pub(super) fn violations(&self) -> Vec<String> {
        let dropped = self.dropped.borrow();
        dropped.iter().map(|tag| format!("a buffer was freed with its tag: {tag:?}")).collect()
    }

    pub(super) fn persisted_pool(&self) -> PersistedPool {
        let blocks = self.blocks.borrow();
        let blocks = blocks.values().filter_map(Weak::upgrade);
        let tagged = blocks.filter_map(|block| Some((block.persist_tag.get()?, block.tags.get()))).collect();
        let ranges = self.ranges.borrow().values().copied().collect();
        PersistedPool { blocks: tagged, ranges, is_complete: !self.overflowed.get() }
    }
}

/// The memory image of a killed process: tagged buffers and range tags.
#[derive(Clone, Debug, Default)]
pub struct PersistedPool {
    blocks: Vec<((u64, BlockTag), [u64; SECTORS_PER_BLOCK])>,
    ranges: Vec<(u64, RangeTag)>,
    is_complete: bool,
}

impl PersistedPool {
    /// False if a tag was rejected because the table was full.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The valid tags by volume.
    pub fn images_by_owner(&self) -> BTreeMap<u64, ShmImage> {
        let blocks: Vec<_> = self.blocks.iter().map(|(tag, _)| *tag).collect();
        resolve_tags(&blocks, &self.ranges)
    }

    /// Content of the block at this index, one content tag per sector.
    pub fn tags(&self, index: usize) -> [u64; SECTORS_PER_BLOCK] {
        self.blocks[index].1
    }
}
