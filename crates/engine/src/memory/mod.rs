//! The memory cache of one core: slots, the index that finds them, and the replacement policy.
//!
//! All volumes of the core share it. It holds content and state; the shards decide when a state changes.

mod index;
pub mod outdated;
mod persist;
pub mod range_tags;
mod slot;
mod usage;
pub mod zeroes;

use seam::{Block, Seam};

pub use flash::{BlockNo, PageNo};
pub use slot::{BLOCKS_PER_PAGE, Sectors, Slot, SlotRef, UnflushedWrite};

use crate::page_hash::hash_key;
use crate::policy::{Clock2Q, InsertKind, Policy, PolicyPart};
use index::Index;
use persist::TagUpdates;
pub use usage::VolumeUsage;
use usage::VolumeUsageTable;

/// Upper bound of the index and policy bytes of one cached block, for a block that is alone in its page.
pub const BLOCK_OVERHEAD_BYTES: usize = std::mem::size_of::<Slot<usize>>()
    + 4
    + Index::page_cost_bytes()
    + Clock2Q::slot_cost_bytes()
    + SIBLING_DIRECTORY_BYTES;

/// Upper bound of the bytes of one block in the directory of siblings (`shard/siblings.rs`).
pub const SIBLING_DIRECTORY_BYTES: usize = 4;

/// Maximum number of blocks whose index entries one call prefetches into the processor's cache.
pub const PREFETCHED_ENTRIES_MAX: usize = 32;

/// Bytes of the seam's pool for the bookkeeping of one block.
const POOL_HEADER_BYTES: usize = 32;

/// Size of the buffer pool, in bytes, if `memory_bytes` hold the pool, the index and the policy.
pub const fn pool_bytes_for(memory_bytes: u64) -> u64 {
    let block = seam::BLOCK_BYTES as u64;
    memory_bytes / (block + (BLOCK_OVERHEAD_BYTES + POOL_HEADER_BYTES) as u64) * block
}

/// The key of a block in replacement policies.
pub fn block_key(volume_number: u32, block: BlockNo) -> u64 {
    hash_key(volume_number, block.0)
}

/// The memory cache of one core.
pub struct MemoryCache<S: Seam> {
    seam: S,
    slots: Vec<Slot<S::Block>>,
    free_slots: Vec<u32>,
    index: Index,
    policy: Box<dyn Policy>,
    /// Usage and quotas of the volumes.
    volume_usage: VolumeUsageTable,
    /// Pending updates of tags in persisted memory.
    tag_updates: TagUpdates<S::Block>,
}

impl<S: Seam> MemoryCache<S> {
    /// A cache that uses the whole pool of the seam.
    pub fn new(seam: S) -> Self {
        let blocks = seam.blocks_total();
        MemoryCache {
            slots: Vec::with_capacity(blocks),
            free_slots: Vec::with_capacity(blocks),
            index: Index::new(blocks),
            policy: Box::new(Clock2Q::new(blocks)),
            volume_usage: VolumeUsageTable::default(),
            tag_updates: TagUpdates::default(),
            seam,
        }
    }

    /// The slot of a block.
    pub fn find(&self, volume_number: u32, block: BlockNo) -> Option<u32> {
        self.index.find(volume_number, block)
    }

    /// Prefetches into the processor's cache the memory that look-ups of these blocks will touch. All slots are
    /// prefetched first, then the data that they point to, so that the memory latencies overlap.
    pub fn prefetch_index_entries(&self, volume_number: u32, blocks: &[BlockNo]) {
        let mut slots = [None; PREFETCHED_ENTRIES_MAX];
        for (block, slot) in blocks.iter().zip(&mut slots) {
            *slot = self.index.find(volume_number, *block);
            if let Some(id) = *slot {
                seam::hint::prefetch(&self.slots[id as usize]);
                self.policy.prefetch_entry(id);
            }
        }
        let data = || slots.iter().flatten().filter_map(|id| self.slots[*id as usize].data.as_ref());
        data().for_each(Block::prefetch);
        data().for_each(Block::prefetch_content);
    }

    /// Like [`MemoryCache::prefetch_index_entries`], for the first blocks of one request.
    pub fn prefetch_run_entries(&self, volume_number: u32, blocks: std::ops::Range<BlockNo>) {
        if BlockNo::count(&blocks) < 2 {
            return;
        }
        let mut run = [BlockNo(0); PREFETCHED_ENTRIES_MAX];
        let count = BlockNo::count(&blocks).min(PREFETCHED_ENTRIES_MAX as u64) as usize;
        run.iter_mut().zip(BlockNo::each(&blocks)).for_each(|(slot, block)| *slot = block);
        self.prefetch_index_entries(volume_number, &run[..count]);
    }

    /// The slots of a page's blocks; `None` if no block of the page is in memory.
    pub fn page_slots(&self, volume_number: u32, page: PageNo) -> Option<[Option<u32>; BLOCKS_PER_PAGE]> {
        self.index.page_slots(volume_number, page)
    }

    /// The content and state of a slot.
    pub fn slot(&self, slot: u32) -> &Slot<S::Block> {
        &self.slots[slot as usize]
    }

    /// Mutable access to a slot. After a change of state, [`MemoryCache::update_pin`] updates its pin.
    pub fn slot_mut(&mut self, slot: u32) -> &mut Slot<S::Block> {
        &mut self.slots[slot as usize]
    }

    /// A handle to the slot, which [`MemoryCache::resolve`] rejects once the slot is reused.
    pub fn reference(&self, slot: u32) -> SlotRef {
        SlotRef { id: slot, generation: self.slots[slot as usize].generation }
    }

    /// The slot, if it still holds the block of the handle.
    pub fn resolve(&self, slot: SlotRef) -> Option<u32> {
        let current = &self.slots[slot.id as usize];
        (current.generation == slot.generation && current.data.is_some()).then_some(slot.id)
    }

    /// The part of the policy that a slot in use is in.
    pub fn part(&self, slot: u32) -> PolicyPart {
        self.policy.part(slot)
    }

    /// Records a use.
    pub fn touch(&mut self, slot: u32) {
        self.policy.record_hit(slot);
        self.volume_usage.record_use(self.slots[slot as usize].volume_number);
    }

    /// Records that a client has read a block up to byte `end_byte`. Returns true if the block was read ahead and no
    /// client has read its last sector yet: all reads of a sequential pass over its sectors count as its first use.
    pub fn record_readahead_use(&mut self, slot: u32, end_byte: usize) -> bool {
        let slot = &mut self.slots[slot as usize];
        let was_read_ahead = slot.was_read_ahead;
        // A slot is written only if necessary: hits share its cache line.
        if was_read_ahead && end_byte == seam::BLOCK_BYTES {
            slot.was_read_ahead = false;
        }
        was_read_ahead
    }

    /// Allocates a buffer; at the pool's ceiling it evicts a clean block. Returns `None` if no block can be evicted
    /// now.
    pub fn alloc(&mut self) -> Option<S::BlockMut> {
        if let Some(block) = self.seam.alloc() {
            return Some(block);
        }
        // The victim's buffer may still be referenced by a reply. If a few more evictions free no buffer, none will.
        for _ in 0..8 {
            let victim = self.find_victim()?;
            self.free_slot(victim);
            if let Some(block) = self.seam.alloc() {
                return Some(block);
            }
        }
        None
    }

    /// Adds a block that has no slot, clean and unpinned. A volume at its maximum loses another block for it, unless
    /// all of its blocks are pinned.
    pub fn insert(
        &mut self,
        volume_number: u32,
        block: BlockNo,
        data: S::Block,
        present: Sectors,
        admit: InsertKind,
    ) -> u32 {
        self.evict_to_max(volume_number);
        let id = match self.free_slots.pop() {
            Some(id) => id,
            None => {
                self.slots.push(Slot::unused());
                (self.slots.len() - 1) as u32
            }
        };
        let slot = &mut self.slots[id as usize];
        assert!(slot.data.is_none() && slot.is_clean(), "a free slot is empty");
        (slot.data, slot.block, slot.volume_number, slot.present) = (Some(data), block, volume_number, present);
        (slot.is_transit, slot.holds_acknowledged_data, slot.was_read_ahead) = (false, false, false);
        self.index.insert(volume_number, block, id);
        self.policy.insert(volume_number, id, block_key(volume_number, block), admit);
        self.volume_usage.update(volume_number, |usage| usage.held_blocks += 1);
        id
    }

    /// Removes a clean block.
    pub fn remove(&mut self, slot: u32) {
        assert!(self.slots[slot as usize].is_clean(), "only a clean block is dropped");
        self.policy.remove(slot);
        self.free_slot(slot);
    }

    /// Updates the pin of a slot after a change of its state; `was_clean` is its state before the change.
    pub fn update_pin(&mut self, slot: u32, was_clean: bool) {
        match (was_clean, self.slots[slot as usize].is_clean()) {
            (true, false) => self.policy.pin(slot),
            (false, true) => {
                self.policy.unpin(slot);
                self.clear_tag(slot);
            }
            _ => {}
        }
    }

    /// Number of slots allocated so far; slot numbers are below it.
    pub fn slots_allocated(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Upper bound of the bytes of slots, index and policy.
    pub fn overhead_bytes(&self) -> u64 {
        (self.slots.len() * BLOCK_OVERHEAD_BYTES) as u64
    }

    /// Takes the content out for a change, if no other reference exists; otherwise the caller must copy it (R1,
    /// docs/rules.md).
    pub fn take_unique(&mut self, slot: u32) -> Option<S::BlockMut> {
        let held = &mut self.slots[slot as usize].data;
        if !held.as_ref().is_some_and(Block::is_unique) {
            return None;
        }
        let data = held.take().expect("the slot holds a block");
        Some(data.thaw().unwrap_or_else(|_| unreachable!("a unique block thaws")))
    }

    /// Removes the block of a slot that the policy no longer knows.
    fn free_slot(&mut self, id: u32) {
        let slot = &mut self.slots[id as usize];
        let (volume, block) = (slot.volume_number, slot.block);
        slot.data = None;
        slot.present = Sectors::NONE;
        slot.generation = slot.generation.wrapping_add(1);
        self.index.remove(volume, block);
        self.free_slots.push(id);
        self.volume_usage.update(volume, |usage| usage.held_blocks -= 1);
    }
}
