//! The default policy: a probation FIFO with a correlation window, a short ghost list, and a clock.
//!
//! New blocks enter a FIFO of a twentieth of the cache. A hit there counts only when half of that FIFO has passed since
//! the block came in, so that the touches of one burst are one use. A block that leaves it unused is recorded, by
//! address alone, in a ghost list as long as the cache. A late hit moves a block to the main part, a clock with three
//! bits. A return from the ghost list does so too, if the filter admits it (`return_filter.rs`). Scans and one-hit
//! wonders pass through probation and displace nothing in the main part. Structure and constants gave the best results
//! on block traces (Clock2Q+, with a ghost list that adapts its useful length).
//!
//! Each volume has its own queues, so that blocks of chosen volumes can be evicted. Blocks carry the order of their
//! insertion, so that the queues of several volumes act as one. Windows, ghost list and measured values are common to
//! all volumes.

use super::history::History;
use super::list::{LinkedList, Links};
use super::return_filter::{Origin, ReturnFilter};
use super::{InsertKind, Policy, PolicyPart};

/// Target length of probation in percent of the capacity.
const PROBATION_PERCENT: usize = 5;
/// Greatest count of hits in the main part: three bits.
const HIT_COUNT_MAX: u8 = 7;
/// A hit in the main part counts only if at least capacity / `MAIN_WINDOW_DIVISOR` accesses have passed since the last
/// counted hit.
const MAIN_WINDOW_DIVISOR: u32 = 4;

/// Queue of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    /// Blocks of sequential streams, evicted first.
    Stream,
    /// New blocks, first in, first out.
    Probation,
    /// The main part: a clock.
    Main,
}

/// The queues of one volume, each with its oldest block at the tail.
#[derive(Clone, Copy)]
struct Queues {
    stream: LinkedList,
    probation: LinkedList,
    main: LinkedList,
}

impl Queues {
    const EMPTY: Queues = Queues { stream: LinkedList::EMPTY, probation: LinkedList::EMPTY, main: LinkedList::EMPTY };

    fn list(&mut self, queue: Queue) -> &mut LinkedList {
        match queue {
            Queue::Stream => &mut self.stream,
            Queue::Probation => &mut self.probation,
            Queue::Main => &mut self.main,
        }
    }
}

/// State of a slot in use.
#[derive(Clone, Copy)]
struct Entry {
    /// Hash of the block's address.
    key: u64,
    /// Number of the block's volume.
    volume: u32,
    /// Value of `links_made` when the block was linked; the smaller value is the older block.
    link_order: u32,
    /// Start of the correlation window, within which hits do not count. Probation: `insertions` when the block came in.
    /// Main part: `accesses` at its last counted hit.
    window_start: u32,
    /// Main part: `accesses` when the block came in.
    entered_at_access: u32,
    queue: Queue,
    /// Main part: counted hits, less one for each visit of the clock hand; at most [`HIT_COUNT_MAX`].
    hit_count: u8,
    /// Main part: how the block came in, until the clock hand first reaches it.
    origin: Option<Origin>,
}

impl Entry {
    fn new(volume: u32, key: u64, queue: Queue, window_start: u32) -> Self {
        Entry {
            key,
            volume,
            link_order: 0,
            window_start,
            entered_at_access: window_start,
            queue,
            hit_count: 0,
            origin: None,
        }
    }
}

/// The Clock2Q+ policy.
pub struct Clock2Q {
    capacity_blocks: usize,
    links: Links,
    entries: Vec<Entry>,
    /// By volume.
    queues: Vec<Queues>,
    /// Blocks in all queues.
    linked_blocks: usize,
    /// Count of all links ever made; it wraps.
    links_made: u32,
    /// Blocks that left probation unused, with the value of `insertions` at that time.
    ghost_list: History,
    /// Blocks that left the main part, with the value of `accesses` at that time.
    main_evictions: History,
    return_filter: ReturnFilter,
    /// Number of blocks that have entered probation; it wraps.
    insertions: u32,
    /// Number of insertions and hits; it wraps.
    accesses: u32,
}

impl Clock2Q {
    /// A policy for slots below `capacity`.
    pub fn new(capacity: usize) -> Self {
        Clock2Q {
            capacity_blocks: capacity,
            links: Links::new(capacity),
            entries: Vec::with_capacity(capacity),
            queues: Vec::new(),
            linked_blocks: 0,
            links_made: 0,
            ghost_list: History::new(capacity as u64),
            main_evictions: History::new(capacity as u64),
            return_filter: ReturnFilter::new(capacity),
            insertions: 0,
            accesses: 0,
        }
    }

    /// Upper bound of the memory of a slot in bytes, its entries in both histories included.
    pub const fn slot_cost_bytes() -> usize {
        // Two links, the entry here, and an entry in each of the two histories.
        8 + std::mem::size_of::<Entry>() + 2 * History::page_cost_bytes()
    }

    /// Length of probation that evictions aim at.
    fn probation_target_blocks(&self) -> usize {
        (self.capacity_blocks * PROBATION_PERCENT / 100).max(1)
    }

    /// Puts a slot at the young end of its queue.
    fn link(&mut self, slot: u32) {
        self.links_made = self.links_made.wrapping_add(1);
        let entry = &mut self.entries[slot as usize];
        entry.link_order = self.links_made;
        self.links.push_head(self.queues[entry.volume as usize].list(entry.queue), slot);
        self.linked_blocks += 1;
    }

    /// Takes a slot out of its queue.
    fn unlink(&mut self, slot: u32) {
        let entry = &self.entries[slot as usize];
        self.links.unlink(self.queues[entry.volume as usize].list(entry.queue), slot);
        self.linked_blocks -= 1;
    }

    /// The oldest block in one queue of any of `volumes`.
    fn oldest(&self, volumes: &[u32], list: impl Fn(&Queues) -> &LinkedList) -> Option<u32> {
        let tails = volumes.iter().filter_map(|volume| list(self.queues.get(*volume as usize)?).tail());
        tails.max_by_key(|slot| self.links_made.wrapping_sub(self.entries[*slot as usize].link_order))
    }

    /// True if the next victim is in probation: the probation part of `volumes` exceeds its target, scaled to their
    /// part of all blocks.
    fn is_probation_long(&self, volumes: &[u32]) -> bool {
        let (mut probation, mut main) = (0, 0);
        for queues in volumes.iter().filter_map(|volume| self.queues.get(*volume as usize)) {
            probation += queues.probation.len();
            main += queues.main.len();
        }
        let part = self.probation_target_blocks() as u64 * (probation + main) as u64 / self.linked_blocks.max(1) as u64;
        main == 0 || probation as u64 > part.max(1)
    }

    /// Returns the origin of an absent block that enters the main part; `None` if it enters probation. Removes the
    /// block's entry from `main_evictions`, or, if it has none there, from `ghost_list`.
    fn origin_of_return(&mut self, key: u64) -> Option<Origin> {
        if let Some(entry) = self.main_evictions.find(key) {
            self.return_filter.record_reuse(self.accesses.wrapping_sub(entry.stamp));
            entry.clear();
            return None;
        }
        let entry = self.ghost_list.find(key)?;
        let age = self.insertions.wrapping_sub(entry.stamp);
        entry.clear();
        let horizon = self.capacity_blocks as u32;
        if age < horizon { self.return_filter.admit(age, horizon) } else { None }
    }

    /// Moves a block from probation or the stream queue to the main part.
    fn move_to_main(&mut self, slot: u32) {
        let linked = self.links.is_linked(slot);
        if linked {
            self.unlink(slot);
        }
        let Entry { key, volume, .. } = self.entries[slot as usize];
        let origin = Some(Origin::PROBATION);
        self.entries[slot as usize] = Entry { origin, ..Entry::new(volume, key, Queue::Main, self.accesses) };
        if linked {
            self.link(slot);
        }
    }
}

impl Policy for Clock2Q {
    fn insert(&mut self, volume: u32, slot: u32, key: u64, admit: InsertKind) {
        if self.queues.len() <= volume as usize {
            self.queues.resize(volume as usize + 1, Queues::EMPTY);
        }
        self.accesses = self.accesses.wrapping_add(1);
        self.links.ensure_slot(slot);
        if self.entries.len() <= slot as usize {
            self.entries.resize(slot as usize + 1, Entry::new(0, 0, Queue::Probation, 0));
        }
        let origin = if admit == InsertKind::Normal { self.origin_of_return(key) } else { None };
        let (queue, window_start) = match admit {
            InsertKind::Normal if origin.is_some() => (Queue::Main, self.accesses),
            InsertKind::Reused => (Queue::Main, self.accesses),
            InsertKind::Normal => {
                self.insertions = self.insertions.wrapping_add(1);
                (Queue::Probation, self.insertions)
            }
            InsertKind::Stream => (Queue::Stream, self.insertions),
        };
        self.entries[slot as usize] = Entry { origin, ..Entry::new(volume, key, queue, window_start) };
        self.link(slot);
    }

    fn part(&self, slot: u32) -> PolicyPart {
        match self.entries[slot as usize].queue {
            Queue::Main => PolicyPart::Main,
            Queue::Probation | Queue::Stream => PolicyPart::Probation,
        }
    }

    fn record_hit(&mut self, slot: u32) {
        self.accesses = self.accesses.wrapping_add(1);
        let window = (self.probation_target_blocks() / 2) as u32;
        let main_window = self.capacity_blocks as u32 / MAIN_WINDOW_DIVISOR;
        let entry = &mut self.entries[slot as usize];
        match entry.queue {
            Queue::Main => {
                if self.accesses.wrapping_sub(entry.window_start) >= main_window {
                    entry.hit_count = (entry.hit_count + 1).min(HIT_COUNT_MAX);
                    entry.window_start = self.accesses;
                }
            }
            Queue::Probation | Queue::Stream => {
                if self.insertions.wrapping_sub(entry.window_start) >= window.max(1) {
                    self.move_to_main(slot);
                }
            }
        }
    }

    fn prefetch_entry(&self, slot: u32) {
        seam::hint::prefetch(&self.entries[slot as usize]);
    }

    fn pin(&mut self, slot: u32) {
        self.unlink(slot);
    }

    fn unpin(&mut self, slot: u32) {
        self.link(slot);
    }

    fn remove(&mut self, slot: u32) {
        self.unlink(slot);
    }

    fn choose_victim(&mut self, volumes: &[u32]) -> Option<u32> {
        if let Some(slot) = self.oldest(volumes, |queues| &queues.stream) {
            self.unlink(slot);
            return Some(slot);
        }
        if self.is_probation_long(volumes) {
            let slot = self.oldest(volumes, |queues| &queues.probation)?;
            self.unlink(slot);
            let now = self.insertions;
            self.ghost_list.record(self.entries[slot as usize].key, now, |stamp| now.wrapping_sub(stamp));
            return Some(slot);
        }
        // Each round of the clock lowers a count, so the loop ends after at most `HIT_COUNT_MAX` rounds.
        loop {
            let slot = self.oldest(volumes, |queues| &queues.main)?;
            self.unlink(slot);
            let now = self.accesses;
            let entry = &mut self.entries[slot as usize];
            if let Some(origin) = entry.origin.take() {
                self.return_filter.record_first_visit(
                    origin,
                    entry.hit_count > 0,
                    now.wrapping_sub(entry.entered_at_access),
                );
            }
            if entry.hit_count == 0 {
                self.return_filter.record_eviction();
                self.main_evictions.record(entry.key, now, |stamp| now.wrapping_sub(stamp));
                return Some(slot);
            }
            entry.hit_count -= 1;
            self.link(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A cache of `capacity` blocks that counts misses.
    struct TestCache {
        policy: Box<dyn Policy>,
        slots: BTreeMap<u64, u32>,
        block_of_slot: Vec<u64>,
        capacity: usize,
    }

    impl TestCache {
        fn new(policy: Box<dyn Policy>, capacity: usize) -> Self {
            TestCache { policy, slots: BTreeMap::new(), block_of_slot: Vec::new(), capacity }
        }

        fn access(&mut self, block: u64) -> bool {
            if let Some(slot) = self.slots.get(&block) {
                self.policy.record_hit(*slot);
                return true;
            }
            let slot = if self.block_of_slot.len() < self.capacity {
                self.block_of_slot.push(block);
                (self.block_of_slot.len() - 1) as u32
            } else {
                let slot = self.policy.choose_victim(&[0]).expect("nothing is pinned");
                self.slots.remove(&self.block_of_slot[slot as usize]);
                self.block_of_slot[slot as usize] = block;
                slot
            };
            self.slots.insert(block, slot);
            self.policy.insert(
                0,
                slot,
                super::super::super::memory::block_key(0, crate::memory::BlockNo(block)),
                InsertKind::Normal,
            );
            false
        }
    }

    fn hot_hits_after_a_scan(policy: Box<dyn Policy>) -> usize {
        let mut cache = TestCache::new(policy, 1000);
        for _ in 0..8 {
            for block in 0..600 {
                cache.access(block);
            }
            for block in 0..500 {
                cache.access(1_000_000 + block);
            }
        }
        for block in 0..10_000 {
            cache.access(2_000_000 + block);
        }
        (0..600).filter(|block| cache.access(*block)).count()
    }

    #[test]
    fn scan_of_ten_times_the_cache_leaves_hot_set_alone() {
        let clock2q = hot_hits_after_a_scan(Box::new(Clock2Q::new(1000)));
        let lru = hot_hits_after_a_scan(Box::new(super::super::Lru::new(1000)));
        assert!(clock2q >= 570, "{clock2q} of 600 hot blocks are left");
        assert_eq!(lru, 0, "the same scan empties an LRU, so the test can fail");
    }

    #[test]
    fn pinned_slot_is_never_a_victim() {
        let mut policy = Clock2Q::new(4);
        for slot in 0..4 {
            policy.insert(0, slot, u64::from(slot) << 32, InsertKind::Normal);
        }
        policy.pin(0);
        policy.pin(3);
        policy.record_hit(3);
        let mut victims = [policy.choose_victim(&[0]), policy.choose_victim(&[0]), policy.choose_victim(&[0])];
        victims.sort();
        assert_eq!(victims, [None, Some(1), Some(2)]);
        policy.unpin(3);
        assert_eq!((policy.choose_victim(&[0]), policy.choose_victim(&[1])), (Some(3), None));
    }
}
