//! A cached block: its content and what is known of it.

use seam::{Nanos, SECTORS_PER_BLOCK};

/// Blocks in a page.
pub const BLOCKS_PER_PAGE: usize = 16;

/// Number of a block inside its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockNo(pub u64);

impl BlockNo {
    /// The 64 KiB page that it belongs to, and its place there.
    pub fn page(self) -> (PageNo, usize) {
        (PageNo(self.0 / BLOCKS_PER_PAGE as u64), (self.0 % BLOCKS_PER_PAGE as u64) as usize)
    }
}

/// Number of a 64 KiB page inside its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageNo(pub u64);

impl PageNo {
    /// One of its blocks.
    pub fn block(self, place: usize) -> BlockNo {
        assert!(place < BLOCKS_PER_PAGE, "a page has 16 blocks");
        BlockNo(self.0 * BLOCKS_PER_PAGE as u64 + place as u64)
    }
}

/// A set of a block's eight sectors, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sectors(pub u8);

impl Sectors {
    /// All eight.
    pub const ALL: Sectors = Sectors(0xFF);
    /// None.
    pub const NONE: Sectors = Sectors(0);

    /// The sectors under `len_bytes` from byte `start` on; both multiples of a sector.
    pub fn span(start: usize, len_bytes: usize) -> Sectors {
        let (first, count) = (start / seam::SECTOR_BYTES, len_bytes / seam::SECTOR_BYTES);
        assert!(count > 0 && first + count <= SECTORS_PER_BLOCK, "span outside its block");
        Sectors((((1u16 << count) - 1) << first) as u8)
    }

    /// True when every sector of `other` is in `self`.
    pub fn contains(self, other: Sectors) -> bool {
        self.0 & other.0 == other.0
    }

    /// Sectors of either.
    pub fn with(self, other: Sectors) -> Sectors {
        Sectors(self.0 | other.0)
    }

    /// Sectors of `self` that are not in `other`.
    pub fn without(self, other: Sectors) -> Sectors {
        Sectors(self.0 & !other.0)
    }

    /// The runs of set sectors: (first byte, bytes).
    pub fn runs(self) -> impl Iterator<Item = (usize, usize)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            while at < SECTORS_PER_BLOCK && self.0 & (1 << at) == 0 {
                at += 1;
            }
            let first = at;
            while at < SECTORS_PER_BLOCK && self.0 & (1 << at) != 0 {
                at += 1;
            }
            (at > first).then_some((first * seam::SECTOR_BYTES, (at - first) * seam::SECTOR_BYTES))
        })
    }
}

/// A handle to a slot that notices when the slot was given to another block meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRef {
    /// Which slot.
    pub id: u32,
    /// Whose turn of it.
    pub generation: u32,
}

/// Content on the backing that no flush has covered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Oldest epoch whose content that is.
    pub epoch: u64,
    /// Number of the write that brought the newest of it.
    pub sequence: u64,
}

/// A cached block.
///
/// Invariants: `data` is there exactly while the slot is in use. (1) Only a slot that is neither dirty nor in flight nor
/// written may be evicted. (2) `present` never shrinks while the slot is in use. (3) At most one write of a block is on its way
/// to the backing at any time. (4) A block with a slot is in no zero-range that is still dirty.
///
/// What a hit looks at comes first and shares a cache line.
#[repr(C, align(64))]
pub struct Slot<B> {
    /// The content, frozen; sectors outside `present` are unspecified.
    pub data: Option<B>,
    /// Which block.
    pub block: BlockNo,
    /// Of which volume (its number on this core).
    pub volume: u32,
    /// Counts the blocks that have used this slot.
    pub generation: u32,
    /// Sectors whose content is here.
    pub present: Sectors,
    /// Something in it was acknowledged and only this slot still has it: a write that fails must not take it along.
    pub owed: bool,
    /// Dropped from the cache as soon as it is clean.
    pub transit: bool,
    /// Since when it has been dirty without a break.
    pub dirty_since: Nanos,
    /// The newest content is not on the backing; the epoch of its oldest part.
    pub dirty: Option<u64>,
    /// Content of that epoch (or newer) is on its way to the backing.
    pub in_flight: Option<u64>,
    /// Content is on the backing, not flushed there.
    pub written: Option<Written>,
}

impl<B> Slot<B> {
    /// A slot that nobody uses.
    pub fn unused() -> Self {
        Slot {
            data: None,
            block: BlockNo(0),
            volume: 0,
            generation: 0,
            present: Sectors::NONE,
            dirty: None,
            in_flight: None,
            written: None,
            owed: false,
            dirty_since: Nanos::ZERO,
            transit: false,
        }
    }

    /// True when the backing durably holds the same content.
    pub fn is_clean(&self) -> bool {
        self.dirty.is_none() && self.in_flight.is_none() && self.written.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sector_sets_are_cut_into_runs() {
        assert_eq!(Sectors(0b1110_0101).runs().collect::<Vec<_>>(), [(0, 512), (1024, 512), (2560, 1536)]);
        assert_eq!(Sectors::ALL.runs().collect::<Vec<_>>(), [(0, 4096)]);
        assert_eq!(Sectors::NONE.runs().count(), 0);
        assert_eq!(Sectors::span(512, 1024), Sectors(0b110));
    }
}
