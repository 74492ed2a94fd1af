//! A cached block: its content and state.

use flash::{BlockNo, CompletionNo, Epoch, PAGE_BLOCKS};
use seam::{Nanos, SECTORS_PER_BLOCK};

/// Blocks in a page.
pub const BLOCKS_PER_PAGE: usize = PAGE_BLOCKS as usize;

/// A set of a block's eight sectors, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sectors(pub u8);

impl Sectors {
    /// All eight sectors.
    pub const ALL: Sectors = Sectors(0xFF);
    /// No sector.
    pub const NONE: Sectors = Sectors(0);

    /// The sectors of `len_bytes` bytes from byte `start` on; both are multiples of a sector.
    pub fn span(start: usize, len_bytes: usize) -> Sectors {
        let (first, count) = (start / seam::SECTOR_BYTES, len_bytes / seam::SECTOR_BYTES);
        assert!(count > 0 && first + count <= SECTORS_PER_BLOCK, "span outside its block");
        Sectors((((1u16 << count) - 1) << first) as u8)
    }

    /// True if every sector of `other` is in `self`.
    pub fn contains(self, other: Sectors) -> bool {
        self.0 & other.0 == other.0
    }

    /// The union of both sets.
    pub fn with(self, other: Sectors) -> Sectors {
        Sectors(self.0 | other.0)
    }

    /// Sectors of `self` that are not in `other`.
    pub fn without(self, other: Sectors) -> Sectors {
        Sectors(self.0 & !other.0)
    }

    /// True if the set is one run that begins with the block's first sector.
    pub fn is_prefix(self) -> bool {
        self != Sectors::NONE && self.0 & self.0.wrapping_add(1) == 0
    }

    /// True if the set is one run that ends with the block's last sector.
    pub fn is_suffix(self) -> bool {
        self != Sectors::NONE && !self.0 & (!self.0).wrapping_add(1) == 0
    }

    /// The runs of set sectors: (first byte, length in bytes).
    pub fn runs(self) -> impl Iterator<Item = (usize, usize)> {
        let mut sector = 0;
        std::iter::from_fn(move || {
            while sector < SECTORS_PER_BLOCK && self.0 & (1 << sector) == 0 {
                sector += 1;
            }
            let first = sector;
            while sector < SECTORS_PER_BLOCK && self.0 & (1 << sector) != 0 {
                sector += 1;
            }
            (sector > first).then_some((first * seam::SECTOR_BYTES, (sector - first) * seam::SECTOR_BYTES))
        })
    }
}

/// A handle to a slot that detects reuse of the slot for another block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRef {
    /// Number of the slot.
    pub id: u32,
    /// Generation of the slot when the handle was made.
    pub generation: u32,
}

/// Content on the backing that no flush has covered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnflushedWrite {
    /// Oldest epoch of the content.
    pub epoch: Epoch,
    /// Completion number of the write of its newest part.
    pub completion: CompletionNo,
}

/// A cached block.
///
/// Invariants: (1) Only a slot that is neither dirty nor in flight nor written may be evicted. (2) `present` never
/// shrinks while the slot is in use. (3) At most one write of a block is in flight to the backing at any time. (4) A
/// block with a slot is in no zero-range that is still dirty. (5) `data` is present exactly while the slot is in use.
///
/// The fields that a hit reads come first and share a cache line.
#[repr(C, align(64))]
pub struct Slot<B> {
    /// The content, frozen; sectors outside `present` are unspecified.
    pub data: Option<B>,
    /// The block.
    pub block: BlockNo,
    /// Number of its volume on this core.
    pub volume_number: u32,
    /// Number of blocks that have used this slot.
    pub generation: u32,
    /// Valid sectors of the content.
    pub present: Sectors,
    /// True if the content includes acknowledged data that the backing may lack: a failed write to the backing must not
    /// drop the block.
    pub holds_acknowledged_data: bool,
    /// True if the block is in memory only to be destaged: it leaves memory when it is clean, unless a refresh of its
    /// page is queued.
    pub is_transit: bool,
    /// True if the block was read from the backing ahead of clients, and no client has read it to its end since.
    pub was_read_ahead: bool,
    /// Time since which the block has been dirty without interruption.
    pub dirty_since: Nanos,
    /// `Some` if the newest content is not on the backing: the epoch of its oldest part.
    pub dirty_epoch: Option<Epoch>,
    /// Oldest epoch of the content that is in flight to the backing.
    pub in_flight_epoch: Option<Epoch>,
    /// Content that is on the backing, not flushed there.
    pub written: Option<UnflushedWrite>,
}

impl<B> Slot<B> {
    /// A slot that is not in use.
    pub fn unused() -> Self {
        Slot {
            data: None,
            block: BlockNo(0),
            volume_number: 0,
            generation: 0,
            present: Sectors::NONE,
            dirty_epoch: None,
            in_flight_epoch: None,
            written: None,
            holds_acknowledged_data: false,
            dirty_since: Nanos::ZERO,
            is_transit: false,
            was_read_ahead: false,
        }
    }

    /// True if the backing durably holds the same content.
    pub fn is_clean(&self) -> bool {
        self.dirty_epoch.is_none() && self.in_flight_epoch.is_none() && self.written.is_none()
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
