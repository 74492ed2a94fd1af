//! Content of writes in simulated worlds: every sector carries a tag with its volume, operation and sector number.

use std::fmt;

use seam::sim::SimBlock;
use seam::{Piece, SECTOR_BYTES};

/// Number of an operation in a [`crate::torture::model::Model`]'s history.
pub type OpId = u32;

const OP_BITS: u32 = 28;
const SECTOR_BITS: u32 = 24;

/// Content of a sector. Zero is a zeroed sector; any other value names volume, operation and sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(pub u64);

impl Tag {
    /// A sector of zeroes.
    pub const ZERO: Tag = Tag(0);

    /// The tag that operation `op` writes to `sector` of `volume` (at least 1).
    pub fn new(volume: u16, op: OpId, sector: u64) -> Tag {
        assert!((1..1 << 12).contains(&volume) && op < 1 << OP_BITS && sector < 1 << SECTOR_BITS, "tag out of range");
        Tag(u64::from(volume) << (OP_BITS + SECTOR_BITS) | u64::from(op) << SECTOR_BITS | sector)
    }

    /// The volume of the tag; 0 for zeroes.
    pub fn volume(self) -> u16 {
        (self.0 >> (OP_BITS + SECTOR_BITS)) as u16
    }

    /// The operation that wrote the tag.
    pub fn op(self) -> OpId {
        ((self.0 >> SECTOR_BITS) & ((1 << OP_BITS) - 1)) as OpId
    }

    /// The sector that the tag was written to.
    pub fn sector(self) -> u64 {
        self.0 & ((1 << SECTOR_BITS) - 1)
    }

    /// Fills one sector with the tag.
    pub fn fill(self, sector: &mut [u8]) {
        assert_eq!(sector.len(), SECTOR_BYTES, "a tag fills one sector");
        for word in sector.as_chunks_mut::<8>().0 {
            *word = self.0.to_le_bytes();
        }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.volume() {
            0 if self.0 == 0 => f.write_str("zeroes"),
            _ => write!(f, "volume {} op {} sector {}", self.volume(), self.op(), self.sector()),
        }
    }
}

/// The tags of pieces, one per sector.
pub fn tags(pieces: &[Piece<SimBlock>]) -> Vec<Tag> {
    let sectors = pieces.iter().flat_map(|piece| {
        let block_tags = piece.block.tags();
        let range = piece.start() / SECTOR_BYTES..(piece.start() + piece.len()) / SECTOR_BYTES;
        range.map(move |sector| Tag(block_tags[sector]))
    });
    sectors.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_names_volume_operation_and_sector() {
        let tag = Tag::new(7, 123_456, 8_191);
        assert_eq!((tag.volume(), tag.op(), tag.sector()), (7, 123_456, 8_191));
        assert_ne!(tag, Tag::ZERO);
        let mut bytes = [0; SECTOR_BYTES];
        tag.fill(&mut bytes);
        assert_eq!(bytes[504..], tag.0.to_le_bytes());
    }
}
