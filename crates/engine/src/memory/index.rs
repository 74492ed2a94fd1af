//! The index of cached blocks: pages of sixteen slots, found by (volume, page number).
//!
//! All tables are allocated once for the maximum number of pages. Look-up, insertion and removal never allocate and
//! never move entries.

use std::cell::Cell;

use hashbrown::HashTable;

use flash::{BlockNo, PageNo};

use super::slot::BLOCKS_PER_PAGE;
use crate::page_hash::page_hash;

/// Slot of a block that is not in memory.
const NO_SLOT: u32 = u32::MAX;

/// A page with at least one block in memory.
struct Page {
    number: PageNo,
    volume_number: u32,
    /// Number of blocks with a slot.
    used_slots: u32,
    /// The slot of each block, or [`NO_SLOT`].
    slots: [u32; BLOCKS_PER_PAGE],
}

impl Page {
    fn matches(&self, volume_number: u32, number: PageNo) -> bool {
        self.number == number && self.volume_number == volume_number
    }
}

/// Maps (volume, block) to a slot.
pub struct Index {
    /// Indexes into `pages`, by hash of volume and page number.
    table: HashTable<u32>,
    pages: Vec<Page>,
    /// Indexes of unused entries of `pages`.
    free_pages: Vec<u32>,
    /// Index of the page found last: the blocks of one request share few pages.
    last_found_page: Cell<u32>,
}

impl Index {
    /// An index with room for `pages_max` pages.
    pub fn new(pages_max: usize) -> Self {
        Index {
            table: HashTable::with_capacity(pages_max),
            pages: Vec::with_capacity(pages_max),
            free_pages: Vec::with_capacity(pages_max),
            last_found_page: Cell::new(0),
        }
    }

    /// Upper bound of the bytes that one page takes, table included.
    pub const fn page_cost_bytes() -> usize {
        // The table holds 4 bytes and a control byte a bucket and is at worst 7/16 full; the free list takes 4 bytes.
        std::mem::size_of::<Page>() + 5 * 16 / 7 + 4
    }

    /// The slot of a block.
    pub fn find(&self, volume_number: u32, block: BlockNo) -> Option<u32> {
        let (number, slot_index) = block.page();
        let page_index = self.find_page(volume_number, number)?;
        Some(self.pages[page_index as usize].slots[slot_index]).filter(|slot| *slot != NO_SLOT)
    }

    /// The slots of a page's blocks; `None` if no block of the page is in memory.
    pub fn page_slots(&self, volume_number: u32, number: PageNo) -> Option<[Option<u32>; BLOCKS_PER_PAGE]> {
        let page_index = self.find_page(volume_number, number)?;
        Some(self.pages[page_index as usize].slots.map(|slot| (slot != NO_SLOT).then_some(slot)))
    }

    /// Records that a block that had no slot is in `slot`.
    pub fn insert(&mut self, volume_number: u32, block: BlockNo, slot: u32) {
        let (number, slot_index) = block.page();
        let page_index = match self.find_page(volume_number, number) {
            Some(page_index) => page_index,
            None => self.add_page(volume_number, number),
        };
        let page = &mut self.pages[page_index as usize];
        assert_eq!(page.slots[slot_index], NO_SLOT, "a block has one slot");
        page.slots[slot_index] = slot;
        page.used_slots += 1;
    }

    /// Removes a block that has a slot.
    pub fn remove(&mut self, volume_number: u32, block: BlockNo) {
        let (number, slot_index) = block.page();
        let page_index = self.find_page(volume_number, number).expect("the block to remove is indexed");
        let page = &mut self.pages[page_index as usize];
        assert_ne!(page.slots[slot_index], NO_SLOT, "the block to remove has a slot");
        page.slots[slot_index] = NO_SLOT;
        page.used_slots -= 1;
        if page.used_slots == 0 {
            let hash = page_hash(volume_number, number);
            let entry =
                self.table.find_entry(hash, |other| *other == page_index).expect("a page in use is in the table");
            entry.remove();
            self.free_pages.push(page_index);
        }
    }

    /// Index of a page in `pages`.
    #[inline]
    fn find_page(&self, volume_number: u32, number: PageNo) -> Option<u32> {
        let last = self.last_found_page.get();
        if self.pages.get(last as usize).is_some_and(|page| page.used_slots > 0 && page.matches(volume_number, number))
        {
            return Some(last);
        }
        let page_index = *self.table.find(page_hash(volume_number, number), |index| {
            self.pages[*index as usize].matches(volume_number, number)
        })?;
        self.last_found_page.set(page_index);
        Some(page_index)
    }

    /// Adds a page without blocks. Returns its index.
    fn add_page(&mut self, volume_number: u32, number: PageNo) -> u32 {
        let page = Page { number, volume_number, used_slots: 0, slots: [NO_SLOT; BLOCKS_PER_PAGE] };
        let page_index = match self.free_pages.pop() {
            Some(page_index) => {
                self.pages[page_index as usize] = page;
                page_index
            }
            None => {
                self.pages.push(page);
                (self.pages.len() - 1) as u32
            }
        };
        let pages = &self.pages;
        self.table.insert_unique(page_hash(volume_number, number), page_index, |other| {
            let page = &pages[*other as usize];
            page_hash(page.volume_number, page.number)
        });
        page_index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_entry_is_freed_and_reused_after_its_last_block() {
        let mut index = Index::new(4);
        for round in 0..100u64 {
            index.insert(1, BlockNo(round * 16), 7);
            index.insert(1, BlockNo(round * 16 + 15), 8);
            index.insert(2, BlockNo(round * 16), 9);
            assert_eq!(index.find(1, BlockNo(round * 16)), Some(7));
            assert_eq!(index.find(1, BlockNo(round * 16 + 15)), Some(8));
            assert_eq!(index.find(2, BlockNo(round * 16)), Some(9));
            assert_eq!(index.find(2, BlockNo(round * 16 + 15)), None);
            let page = index.page_slots(1, PageNo(round)).expect("two blocks of the page are indexed");
            assert_eq!((page[0], page[1], page[15]), (Some(7), None, Some(8)));
            index.remove(1, BlockNo(round * 16));
            index.remove(1, BlockNo(round * 16 + 15));
            index.remove(2, BlockNo(round * 16));
            assert_eq!(index.find(1, BlockNo(round * 16)), None);
        }
        assert!(index.pages.len() <= 2, "page entries are reused");
    }
}
