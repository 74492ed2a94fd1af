//! A page segment: a header block, then slots of 17 blocks that hold one page each. The checksums of two blocks lie
//! between them, so a block with its checksum is one read of 4.5 KiB.

use std::ops::Range;

use super::{Raw, Uuid, VERSION, seal, valid_checksum};
use crate::number::{BlockNo, MemberNo, SegmentNo, VolumeId};
use metadata_block::{get, get_u32, get_u64, put};
use seam::{BLOCK_BYTES, SECTOR_BYTES};

/// Blocks of a slot: a page and its checksums.
pub const SLOT_BLOCKS: u32 = 17;
/// Bytes of a pair: two blocks, and the sector with their checksums between them.
pub const PAIR_BYTES: u64 = (2 * BLOCK_BYTES + SECTOR_BYTES) as u64;
/// Number of copies of a pair's checksums in their sector.
pub const CHECKSUM_COPIES: usize = SECTOR_BYTES / 8;

/// The first bytes of a page segment.
pub(super) const MAGIC: [u8; 8] = *b"HOTSETPG";
/// The kind of a page segment; a log segment has kind 1.
const KIND_PAGES: u32 = 2;

/// The number of slots of a segment with this many blocks.
pub fn slots_of(segment_blocks: u32) -> u32 {
    (segment_blocks - 1) / SLOT_BLOCKS
}

/// The byte offset of a slot in its segment.
pub fn slot_offset(slot: u32) -> u64 {
    u64::from(1 + slot * SLOT_BLOCKS) * BLOCK_BYTES as u64
}

/// The byte offset of a block in its slot.
pub fn offset_in_slot(block: u32) -> u64 {
    let second = u64::from(block % 2) * (BLOCK_BYTES + SECTOR_BYTES) as u64;
    u64::from(block / 2) * PAIR_BYTES + second
}

/// The byte offset of a pair's checksums in its slot.
pub fn checksums_offset(pair: u32) -> u64 {
    u64::from(pair) * PAIR_BYTES + BLOCK_BYTES as u64
}

/// The byte range in a slot that holds a run of blocks and their checksums.
pub fn run_byte_range(blocks: &Range<u32>) -> Range<u64> {
    let (first, last) = (blocks.start, blocks.end - 1);
    let start = if first.is_multiple_of(2) { offset_in_slot(first) } else { checksums_offset(first / 2) };
    let end = if last.is_multiple_of(2) {
        checksums_offset(last / 2) + SECTOR_BYTES as u64
    } else {
        offset_in_slot(last) + BLOCK_BYTES as u64
    };
    start..end
}

/// The content of a page segment's header block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSegmentHeader {
    /// Identity of the store.
    pub store: Uuid,
    /// The member.
    pub member: MemberNo,
    /// The segment.
    pub segment: SegmentNo,
    /// The segment's generation: it differs each time that the segment begins to hold pages.
    pub segment_generation: u64,
}

impl PageSegmentHeader {
    /// Encodes the header block.
    pub fn encode(&self) -> Box<Raw> {
        let mut raw = Box::new([0; BLOCK_BYTES]);
        put(&mut raw, 0, &MAGIC);
        put(&mut raw, 8, &VERSION.to_le_bytes());
        put(&mut raw, 12, &self.member.0.to_le_bytes());
        put(&mut raw, 16, &self.store);
        put(&mut raw, 32, &self.segment_generation.to_le_bytes());
        put(&mut raw, 56, &self.segment.0.to_le_bytes());
        put(&mut raw, 76, &KIND_PAGES.to_le_bytes());
        seal(&mut raw);
        raw
    }

    /// Decodes the bytes of [`PageSegmentHeader::encode`]; `None` for any other bytes.
    pub fn decode(raw: &Raw) -> Option<PageSegmentHeader> {
        if get::<8>(raw, 0) != MAGIC || get_u32(raw, 8) != VERSION || get_u32(raw, 76) != KIND_PAGES {
            return None;
        }
        valid_checksum(raw)?;
        Some(PageSegmentHeader {
            store: get(raw, 16),
            member: MemberNo(get_u32(raw, 12)),
            segment: SegmentNo(get_u32(raw, 56)),
            segment_generation: get_u64(raw, 32),
        })
    }
}

/// The position of a page on flash, which seeds the checksums of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePlace {
    /// The member.
    pub member: MemberNo,
    /// The segment.
    pub segment: SegmentNo,
    /// The segment's generation as a page segment.
    pub segment_generation: u64,
    /// The slot in it.
    pub slot: u32,
    /// Number of times that the slot was allocated in that generation of the segment.
    pub generation: u16,
}

/// Number of writes of each block in the slot's generation, up to 7. Each of the three masks holds one bit of every
/// block's number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteCounts(pub [u16; 3]);

impl WriteCounts {
    /// Mask of the blocks that were written at least once.
    pub fn written(self) -> u16 {
        self.0[0] | self.0[1] | self.0[2]
    }

    /// Mask of the blocks that cannot be written again in this generation: their counter is at its maximum.
    pub fn exhausted(self) -> u16 {
        self.0[0] & self.0[1] & self.0[2]
    }

    /// Counts one more write of these blocks.
    ///
    /// # Panics
    /// If one of them is exhausted.
    pub fn add(&mut self, blocks: u16) {
        assert!(self.exhausted() & blocks == 0, "blocks {blocks:#x} of {self:?} were written 7 times");
        let mut carry = blocks;
        for bits in &mut self.0 {
            let next = *bits & carry;
            *bits ^= carry;
            carry = next;
        }
    }

    /// The number of writes of a block.
    pub fn count_of(self, block: u32) -> u32 {
        (0..).zip(self.0).map(|(bit, mask)| u32::from(mask >> block & 1) << bit).sum()
    }

    /// Mask of the blocks with the same number of writes in both.
    pub fn blocks_with_equal_counts(self, other: WriteCounts) -> u16 {
        let differ = |bit: usize| self.0[bit] ^ other.0[bit];
        !(differ(0) | differ(1) | differ(2))
    }
}

/// The seed of a page block's checksum: its address, its slot's generation, and the number of its write in that
/// generation. A lost or misdirected write, or a block of an earlier generation, therefore fails its check, like a torn
/// one.
pub fn page_seed(volume_id: VolumeId, block: BlockNo, place: PagePlace, writes: u32) -> u32 {
    let before = u64::from(writes.saturating_sub(1));
    let slot =
        u64::from(place.slot) << 32 | before << 24 | u64::from(place.generation) << 8 | u64::from(place.member.0);
    let mut bytes = [0; 40];
    for (field, number) in bytes.chunks_exact_mut(8).zip([
        volume_id.0,
        block.0,
        place.segment_generation,
        u64::from(place.segment.0),
        slot,
    ]) {
        field.copy_from_slice(&number.to_le_bytes());
    }
    crc32c::crc32c(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::PAGE_BLOCKS;

    #[test]
    fn slot_holds_a_page_and_one_block_reads_4608_bytes() {
        assert_eq!(offset_in_slot(15) + BLOCK_BYTES as u64, u64::from(SLOT_BLOCKS) * BLOCK_BYTES as u64);
        for block in 0..PAGE_BLOCKS {
            let run = run_byte_range(&(block..block + 1));
            assert_eq!(run.end - run.start, 4608);
            assert!(run.contains(&offset_in_slot(block)) && run.contains(&checksums_offset(block / 2)));
        }
        assert_eq!(run_byte_range(&(0..16)), 0..69_632);
        assert_eq!((slots_of(256), slots_of(16_384)), (15, 963));
    }

    #[test]
    fn seven_writes_of_a_block_have_seven_checksum_seeds() {
        let place = PagePlace {
            member: MemberNo(1),
            segment: SegmentNo(2),
            segment_generation: 3,
            slot: 4,
            generation: u16::MAX,
        };
        let (mut writes, mut seeds) = (WriteCounts::default(), std::collections::BTreeSet::new());
        for count in 1..=7 {
            assert_eq!(writes.exhausted(), 0);
            let before = writes;
            writes.add(0b1001);
            assert_eq!(
                (writes.count_of(0), writes.count_of(1), writes.count_of(3), writes.written()),
                (count, 0, count, 0b1001)
            );
            assert_eq!(before.blocks_with_equal_counts(writes), !0b1001);
            seeds.insert(page_seed(VolumeId(9), BlockNo(64), place, writes.count_of(0)));
        }
        assert_eq!((writes.exhausted(), seeds.len()), (0b1001, 7));
    }

    #[test]
    fn flipped_bit_of_a_header_is_rejected() {
        let header = PageSegmentHeader {
            store: [4; 16],
            member: MemberNo(1),
            segment: SegmentNo(77),
            segment_generation: 1 << 41,
        };
        let raw = header.encode();
        assert_eq!(PageSegmentHeader::decode(&raw), Some(header));
        for bit in 0..raw.len() * 8 {
            let mut damaged = raw.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(PageSegmentHeader::decode(&damaged), None, "bit {bit}");
        }
    }
}
