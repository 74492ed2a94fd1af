//! Siblings of a volume: volumes of the core whose backings store the same bytes at the same offset, such as a master
//! and its linked clones. A block that one of them has in its cache serves the misses of all, so that the cache holds
//! it once.
//!
//! The directory says which volumes may hold content of a page. It is only a hint. Two proofs are made at the moment of
//! each look-up:
//! 1. The backings of both volumes have the same content key there (`seam::ContentKey`).
//! 2. The sibling's copy is its backing's content: it is clean, and nothing newer is in memory, in a zero-range, in the
//!    flash log or on its way to the backing.

use std::rc::Rc;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use seam::{BLOCK_BYTES, ContentKey, Disk, Seam};

use super::fill_guard::FillGuard;
use super::{Shard, ShardRef};
use crate::memory::{BLOCKS_PER_PAGE, BlockNo, MemoryCache, PageNo, Sectors};
use crate::page_hash::hash_key;
use crate::spec::Sabotage;
use crate::{ByteOffset, CacheMode, WritePolicy};

/// Volumes that an entry of the directory lists.
const LISTED_VOLUMES_MAX: usize = 4;
/// Place in an entry without a volume.
const NO_VOLUME: u32 = u32::MAX;
/// Least number of entries of each generation of the directory. Both together have one for each page of memory.
const ENTRIES_MIN: usize = 256;
/// Fills of siblings that one request waits for.
const JOINED_FILLS_MAX: u32 = 4;

/// Numbers of volumes, the newest first.
type ListedVolumes = [u32; LISTED_VOLUMES_MAX];

/// Volumes that may hold content of a page or of a shared place, by hash. Two generations bound its size: when the
/// recent one is full, it becomes the former one, and entries that are used again return.
pub struct SiblingDirectory {
    recent: HashTable<(u64, ListedVolumes)>,
    former: HashTable<(u64, ListedVolumes)>,
    entries_max: usize,
    /// Number of attaches and detaches so far.
    volume_list_changes: u64,
}

impl SiblingDirectory {
    /// The directory of a core with this number of buffers.
    pub fn new(blocks: usize) -> Self {
        let entries_max = (blocks / BLOCKS_PER_PAGE / 2).max(ENTRIES_MIN);
        SiblingDirectory { recent: HashTable::new(), former: HashTable::new(), entries_max, volume_list_changes: 0 }
    }

    /// Records that the list of volumes has changed: the holders of shared places are determined anew.
    pub fn record_change_of_volumes(&mut self) {
        self.volume_list_changes += 1;
    }

    /// Hash of a page of shared content.
    fn page_hash(key: ContentKey, page: PageNo) -> u64 {
        hash_key(1, place_hash(key).wrapping_add(page.0))
    }

    /// Hash of a shared place, for the present list of volumes.
    fn holders_hash(&self, key: ContentKey) -> u64 {
        hash_key(2, place_hash(key).wrapping_add(self.volume_list_changes))
    }

    /// The entry of a hash, which counts as used.
    fn get(&mut self, hash: u64) -> Option<ListedVolumes> {
        if let Some((_, listed)) = self.recent.find(hash, |entry| entry.0 == hash) {
            return Some(*listed);
        }
        let Ok(found) = self.former.find_entry(hash, |entry| entry.0 == hash) else { return None };
        let ((_, listed), _) = found.remove();
        self.set(hash, listed);
        Some(listed)
    }

    /// Sets the entry of a hash.
    fn set(&mut self, hash: u64, listed: ListedVolumes) {
        if self.recent.len() >= self.entries_max {
            self.former = std::mem::take(&mut self.recent);
        }
        match self.recent.entry(hash, |entry| entry.0 == hash, |entry| entry.0) {
            Entry::Occupied(mut entry) => entry.get_mut().1 = listed,
            Entry::Vacant(entry) => drop(entry.insert((hash, listed))),
        }
    }

    /// Lists a volume first in the entry of a hash.
    fn add(&mut self, hash: u64, volume_number: u32) {
        let mut listed = self.get(hash).unwrap_or([NO_VOLUME; LISTED_VOLUMES_MAX]);
        if !listed.contains(&volume_number) {
            listed.rotate_right(1);
            listed[0] = volume_number;
            self.set(hash, listed);
        }
    }
}

/// Hash of a shared place: a store and a place in it.
fn place_hash(key: ContentKey) -> u64 {
    hash_key((key.store ^ key.store >> 32) as u32, key.place)
}

/// A sibling's copy of a block.
pub enum SiblingCopy<S: Seam> {
    /// The content, from the sibling's memory.
    Memory(ShardRef<S>, S::Block),
    /// On the sibling's flash.
    Flash(ShardRef<S>),
    /// The sibling is reading the block.
    Fill(ShardRef<S>, Rc<FillGuard>),
}

/// Search for blocks of one request in the caches of siblings. It keeps the siblings of the last page, so it must not
/// outlive the step in which it was made.
pub struct SiblingSearch<S: Seam> {
    /// The page of the siblings, and its hash in the directory if its content is shared.
    page: Option<(PageNo, Option<u64>)>,
    siblings: Vec<ShardRef<S>>,
}

impl<S: Seam> Default for SiblingSearch<S> {
    fn default() -> Self {
        SiblingSearch { page: None, siblings: Vec::new() }
    }
}

/// Copies of siblings that a request may still use.
#[derive(Clone, Copy)]
pub struct SiblingAllowance {
    /// Copies on flash: not after one could not be read.
    pub may_use_flash: bool,
    /// Number of fills that it may wait for.
    pub fills_left: u32,
}

impl Default for SiblingAllowance {
    fn default() -> Self {
        SiblingAllowance { may_use_flash: true, fills_left: JOINED_FILLS_MAX }
    }
}

impl<S: Seam> Shard<S> {
    /// A sibling's copy of a block that this volume has neither in memory nor in its log.
    pub fn find_sibling_copy(
        &self,
        memory: &mut MemoryCache<S>,
        search: &mut SiblingSearch<S>,
        allowed: SiblingAllowance,
        block: BlockNo,
    ) -> Option<SiblingCopy<S>> {
        let page = block.page().0;
        if search.page.is_none_or(|(last, _)| last != page) {
            self.find_siblings(memory, search, page);
        }
        if search.siblings.is_empty() || !self.has_whole_block(block) {
            return None;
        }
        let mut other = None;
        for sibling in &search.siblings {
            match sibling.copy_for_sibling(memory, block) {
                Some(SiblingCopy::Flash(_)) if !allowed.may_use_flash => {}
                Some(SiblingCopy::Fill(..)) if allowed.fills_left == 0 => {}
                Some(copy @ SiblingCopy::Memory(..)) => return Some(copy),
                copy => other = other.or(copy),
            }
        }
        other
    }

    /// Lists this volume as a holder of the page of the last search: it is about to read a block of it.
    pub fn register_as_sibling(&self, search: &SiblingSearch<S>) {
        if let Some((_, Some(hash))) = search.page {
            self.core.siblings.borrow_mut().add(hash, self.volume_number);
        }
    }

    /// True if both volumes would read the same stored bytes now. All blocks lie in one page.
    pub fn shares_content_with(&self, sibling: &Shard<S>, block: BlockNo) -> bool {
        let key = self.content_key(block.page().0);
        key.is_some() && sibling.has_content(key, block.page().0)
    }

    /// True if all of a block lies inside of the volume.
    fn has_whole_block(&self, block: BlockNo) -> bool {
        self.bytes_inside(block) == BLOCK_BYTES
    }

    /// The key of a page's content, if other volumes may share it and this one reads through the cache.
    fn content_key(&self, page: PageNo) -> Option<ContentKey> {
        if self.mode.get() == CacheMode::Paused || self.policy.get() == WritePolicy::None || self.is_stopping.get() {
            return None;
        }
        let at = ByteOffset::of(page.first_block()).0;
        let len = ((BLOCKS_PER_PAGE * BLOCK_BYTES) as u64).min(self.size_bytes.get().saturating_sub(at));
        if len == 0 { None } else { self.disk.shared_content(at, len) }
    }

    /// True if this volume has the content with this key at a page.
    fn has_content(&self, key: Option<ContentKey>, page: PageNo) -> bool {
        let own_key = self.content_key(page);
        own_key == key || own_key.is_some() && self.has_sabotage(Sabotage::ShareOtherContent)
    }

    /// Looks up the siblings of a page, with their content keys.
    fn find_siblings(&self, memory: &MemoryCache<S>, search: &mut SiblingSearch<S>, page: PageNo) {
        search.siblings.clear();
        let Some(key) = self.content_key(page) else {
            search.page = Some((page, None));
            return;
        };
        let hash = SiblingDirectory::page_hash(key, page);
        search.page = Some((page, Some(hash)));
        let (recent, holders_hash, holders) = {
            let mut directory = self.core.siblings.borrow_mut();
            let holders_hash = directory.holders_hash(key);
            (directory.get(hash), holders_hash, directory.get(holders_hash))
        };
        let holders = holders.unwrap_or_else(|| {
            let holders = self.find_holders(memory, key, page);
            self.core.siblings.borrow_mut().set(holders_hash, holders);
            holders
        });
        let recent = recent.unwrap_or([NO_VOLUME; LISTED_VOLUMES_MAX]);
        let listed = recent.iter().chain(holders.iter().filter(|number| !recent.contains(number)));
        let others = listed.filter(|number| **number != NO_VOLUME && **number != self.volume_number);
        let shards = others.filter_map(|number| self.core.weak_shard(*number)?.upgrade());
        search.siblings.extend(shards.filter(|sibling| sibling.has_content(Some(key), page)));
    }

    /// The volumes with this content that hold most in the cache. Content that a volume has cached before it was shared
    /// is found by this alone.
    fn find_holders(&self, memory: &MemoryCache<S>, key: ContentKey, page: PageNo) -> ListedVolumes {
        let cached_blocks = |shard: &ShardRef<S>| {
            let on_flash = shard.flash_tier.pages.as_ref().map_or(0, |pages| pages.usage().valid_blocks);
            memory.usage(shard.volume_number).held_blocks + on_flash + shard.kept_records.borrow().len() as u64
        };
        let shards = self.core.shards().into_iter().filter(|shard| shard.has_content(Some(key), page));
        let counted = shards.map(|shard| (cached_blocks(&shard), shard.volume_number));
        let mut counted: Vec<(u64, u32)> = counted.filter(|(blocks, _)| *blocks > 0).collect();
        counted.sort_unstable_by_key(|(blocks, number)| (std::cmp::Reverse(*blocks), *number));
        let mut listed = [NO_VOLUME; LISTED_VOLUMES_MAX];
        listed.iter_mut().zip(counted).for_each(|(place, (_, number))| *place = number);
        listed
    }

    /// This volume's copy of a block for a sibling, if it is its backing's content.
    fn copy_for_sibling(self: &ShardRef<S>, memory: &mut MemoryCache<S>, block: BlockNo) -> Option<SiblingCopy<S>> {
        let state = self.state.borrow();
        let serves_dirty = self.has_sabotage(Sabotage::ShareDirtyBlock);
        let has_newer = state.zeroes.contains(block) || state.log_tracker.is_spilled(block);
        let is_in_flight = state.is_busy(&block.single()) && !serves_dirty;
        if has_newer || is_in_flight || !self.has_whole_block(block) {
            return None;
        }
        if let Some(id) = memory.find(self.volume_number, block) {
            let slot = memory.slot(id);
            let is_whole = slot.present == Sectors::ALL && (slot.is_clean() || serves_dirty);
            let content = slot.data.clone().filter(|_| is_whole)?;
            memory.touch(id);
            return Some(SiblingCopy::Memory(Rc::clone(self), content));
        }
        if let Some(guard) = state.fill_guard_for(block, Sectors::ALL) {
            return Some(SiblingCopy::Fill(Rc::clone(self), Rc::clone(guard)));
        }
        self.is_on_flash(block).then(|| SiblingCopy::Flash(Rc::clone(self)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SIBLING_DIRECTORY_BYTES;

    #[test]
    fn directory_keeps_used_entries_within_its_bound() {
        let mut directory = SiblingDirectory::new(0);
        let hash = |page| SiblingDirectory::page_hash(ContentKey { store: 7, place: 3 }, PageNo(page));
        directory.add(hash(0), 5);
        for page in 1..10_000 {
            directory.add(hash(page), 9);
            assert_eq!(directory.get(hash(0)), Some([5, NO_VOLUME, NO_VOLUME, NO_VOLUME]));
        }
        assert!(directory.recent.len() + directory.former.len() <= 2 * ENTRIES_MIN);
        assert_eq!(directory.get(hash(1)), None, "an entry that is not used is dropped");
    }

    #[test]
    fn directory_takes_the_memory_that_is_set_aside_for_it() {
        for blocks in [60_000, 1 << 16, 100_000] {
            let mut directory = SiblingDirectory::new(blocks);
            (0..blocks as u64).for_each(|number| directory.add(hash_key(9, number), 1));
            let bytes = directory.recent.allocation_size() + directory.former.allocation_size();
            assert!(bytes <= blocks * SIBLING_DIRECTORY_BYTES, "{bytes} bytes for {blocks} blocks");
        }
    }

    #[test]
    fn entry_lists_the_newest_volumes_once() {
        let mut directory = SiblingDirectory::new(0);
        [1, 2, 2, 3, 4, 5, 1].into_iter().for_each(|volume| directory.add(77, volume));
        assert_eq!(directory.get(77), Some([1, 5, 4, 3]));
    }

    #[test]
    fn holders_are_determined_anew_after_a_change_of_volumes() {
        let (mut directory, key) = (SiblingDirectory::new(0), ContentKey { store: 7, place: 3 });
        let before = directory.holders_hash(key);
        assert_eq!(directory.holders_hash(key), before);
        directory.record_change_of_volumes();
        assert_ne!(directory.holders_hash(key), before);
    }
}
