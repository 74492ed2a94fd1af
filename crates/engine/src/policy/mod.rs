//! Replacement policies (which block leaves memory) and admission policies (which page is promoted to flash). Each
//! policy has its own file; the cache uses only the traits.

mod clock2q;
pub mod curve;
mod history;
pub mod list;
mod lru;
pub mod partition;
pub mod promotion;
mod return_filter;

pub use clock2q::Clock2Q;
pub use lru::Lru;

/// Kind of access by which a block is inserted into the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertKind {
    /// Requested by itself.
    Normal,
    /// Part of a sequential stream: evicted first, and not recorded in the ghost list.
    Stream,
    /// Used repeatedly where it was cached before.
    Reused,
}

/// Part of a policy that a block is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyPart {
    /// Blocks that were used repeatedly.
    Main,
    /// Blocks that have to prove themselves first, and those of streams.
    Probation,
}

/// A replacement policy over slot numbers below a fixed capacity. A slot is known from `insert` until `remove` or until
/// `choose_victim` returns it. A pinned slot (dirty or in flight) is known and never a victim.
pub trait Policy {
    /// A block of the volume with number `volume` now uses `slot`. Its address hashes to `key`.
    fn insert(&mut self, volume: u32, slot: u32, key: u64, admit: InsertKind);

    /// The part that the block in a slot is in.
    fn part(&self, _slot: u32) -> PolicyPart {
        PolicyPart::Main
    }

    /// The block was used.
    fn record_hit(&mut self, slot: u32);

    /// The block is about to be used: prefetches the memory that [`Policy::record_hit`] touches.
    fn prefetch_entry(&self, _slot: u32) {}

    /// Excludes an unpinned slot from eviction until it is unpinned.
    fn pin(&mut self, slot: u32);

    /// Allows eviction of a pinned slot again.
    fn unpin(&mut self, slot: u32);

    /// Removes an unpinned block that was dropped and not evicted.
    fn remove(&mut self, slot: u32);

    /// Chooses a block of any of `volumes` to evict, and removes it; `None` if all their blocks are pinned.
    fn choose_victim(&mut self, volumes: &[u32]) -> Option<u32>;
}
