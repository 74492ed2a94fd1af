//! Which block leaves when room is needed, and which page has earned a place on flash. One file a policy; the cache knows the traits alone.

mod clock2q;
pub mod curve;
pub mod division;
mod history;
pub mod list;
mod lru;
pub mod promotion;
mod worth;

pub use clock2q::Clock2Q;
pub use lru::Lru;

/// How a block came into the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admit {
    /// Asked for by itself.
    Normal,
    /// Part of a sequential stream: leaves first, and its going leaves no trace.
    Stream,
}

/// A replacement policy over slot numbers below a fixed capacity. A slot is known from `insert` until `remove` or until it
/// is returned by `victim`; a pinned slot (dirty, on its way) is known and never a victim.
pub trait Policy {
    /// A block of `owner` (a small number) whose address hashes to `key` now uses `slot`.
    fn insert(&mut self, owner: u32, slot: u32, key: u64, how: Admit);

    /// The block was used.
    fn hit(&mut self, slot: u32);

    /// The block will be used in a moment: brings near what [`Policy::hit`] will touch.
    fn hint(&self, _slot: u32) {}

    /// The slot, which is not pinned, must not be chosen until it is unpinned.
    fn pin(&mut self, slot: u32);

    /// The slot, which is pinned, may be chosen again.
    fn unpin(&mut self, slot: u32);

    /// The block, which is not pinned, is gone for another reason than room.
    fn remove(&mut self, slot: u32);

    /// Chooses a block of any of `owners` to go and forgets it; `None` when all of theirs are pinned.
    fn victim(&mut self, owners: &[u32]) -> Option<u32>;
}
