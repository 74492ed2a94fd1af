//! A page segment: a header block, then slots of 17 blocks that hold one page each. A pair of blocks has its checksums between them, so
//! that one block and its checksum are one read of 4.5 KiB.

use std::ops::Range;

use super::bytes::{get, get_u32, get_u64, put};
use super::{Raw, Uuid, VERSION, is_sealed, seal};
use seam::{BLOCK_BYTES, SECTOR_BYTES};

/// Blocks of a page.
pub const PAGE_BLOCKS: u32 = 16;
/// Blocks of a slot: a page and its checksums.
pub const SLOT_BLOCKS: u32 = 17;
/// Bytes of two blocks and the sector between them.
pub const PAIR_BYTES: u64 = (2 * BLOCK_BYTES + SECTOR_BYTES) as u64;
/// Times that a pair's checksums stand in their sector.
pub const CHECKSUM_COPIES: usize = SECTOR_BYTES / 8;

pub(super) const MAGIC: [u8; 8] = *b"HOTSETPG";
/// Beside 1, the log's.
const KIND_PAGES: u32 = 2;

/// Slots of a segment of so many blocks.
pub fn slots_of(segment_blocks: u32) -> u32 {
    (segment_blocks - 1) / SLOT_BLOCKS
}

/// First byte of a slot, counted from its segment's.
pub fn slot_at(slot: u32) -> u64 {
    u64::from(1 + slot * SLOT_BLOCKS) * BLOCK_BYTES as u64
}

/// First byte of a block in its slot.
pub fn block_at(block: u32) -> u64 {
    let second = u64::from(block % 2) * (BLOCK_BYTES + SECTOR_BYTES) as u64;
    u64::from(block / 2) * PAIR_BYTES + second
}

/// First byte of the checksums of a pair in its slot.
pub fn checksums_at(pair: u32) -> u64 {
    u64::from(pair) * PAIR_BYTES + BLOCK_BYTES as u64
}

/// The bytes of a slot that hold a run of blocks with their checksums.
pub fn run_at(blocks: &Range<u32>) -> Range<u64> {
    let (first, last) = (blocks.start, blocks.end - 1);
    let start = if first.is_multiple_of(2) { block_at(first) } else { checksums_at(first / 2) };
    let end = if last.is_multiple_of(2) {
        checksums_at(last / 2) + SECTOR_BYTES as u64
    } else {
        block_at(last) + BLOCK_BYTES as u64
    };
    start..end
}

/// What a segment's first block says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageHeader {
    /// Identity of the store.
    pub store: Uuid,
    /// The member.
    pub member: u32,
    /// The segment.
    pub segment: u32,
    /// Differs for each time that the segment came to hold pages.
    pub life: u64,
}

impl PageHeader {
    /// The bytes on the device.
    pub fn encode(&self) -> Box<Raw> {
        let mut raw = Box::new([0; BLOCK_BYTES]);
        put(&mut raw, 0, &MAGIC);
        put(&mut raw, 8, &VERSION.to_le_bytes());
        put(&mut raw, 12, &self.member.to_le_bytes());
        put(&mut raw, 16, &self.store);
        put(&mut raw, 32, &self.life.to_le_bytes());
        put(&mut raw, 56, &self.segment.to_le_bytes());
        put(&mut raw, 76, &KIND_PAGES.to_le_bytes());
        seal(&mut raw);
        raw
    }

    /// Reads what [`PageHeader::encode`] wrote; `None` for anything else.
    pub fn decode(raw: &Raw) -> Option<PageHeader> {
        if get::<8>(raw, 0) != MAGIC || get_u32(raw, 8) != VERSION || get_u32(raw, 76) != KIND_PAGES {
            return None;
        }
        is_sealed(raw)?;
        Some(PageHeader {
            store: get(raw, 16),
            member: get_u32(raw, 12),
            segment: get_u32(raw, 56),
            life: get_u64(raw, 32),
        })
    }
}

/// Where a block of a page lies, as far as its checksum goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The member.
    pub member: u32,
    /// The segment.
    pub segment: u32,
    /// The segment's life.
    pub life: u64,
    /// The slot in it.
    pub slot: u32,
    /// How often the slot was given away in that life.
    pub generation: u16,
}

/// How often each block of a slot was written in the slot's generation, up to 7 times: three bits a block, each a mask of the page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writes(pub [u16; 3]);

impl Writes {
    /// Blocks that were written at all.
    pub fn ever(self) -> u16 {
        self.0[0] | self.0[1] | self.0[2]
    }

    /// Blocks that cannot be written again in this generation.
    pub fn worn(self) -> u16 {
        self.0[0] & self.0[1] & self.0[2]
    }

    /// These blocks are written once more.
    ///
    /// # Panics
    /// When one is worn.
    pub fn add(&mut self, blocks: u16) {
        assert!(self.worn() & blocks == 0, "blocks {blocks:#x} of {self:?} were written 7 times");
        let mut carry = blocks;
        for bits in &mut self.0 {
            let next = *bits & carry;
            *bits ^= carry;
            carry = next;
        }
    }

    /// How often a block was written.
    pub fn of(self, block: u32) -> u32 {
        (0..).zip(self.0).map(|(bit, mask)| u32::from(mask >> block & 1) << bit).sum()
    }

    /// Blocks that were written as often in both.
    pub fn same(self, other: Writes) -> u16 {
        let differ = |bit: usize| self.0[bit] ^ other.0[bit];
        !(differ(0) | differ(1) | differ(2))
    }
}

/// What a page's block's checksum starts from: whose block it is, which use of which slot it was written for, and which of its `writes`
/// in that use this is. What was lost, went astray or belongs to an earlier use is as bad as what is torn.
pub fn page_seed(incarnation: u64, block: u64, place: Place, writes: u32) -> u32 {
    let before = u64::from(writes.saturating_sub(1));
    let slot = u64::from(place.slot) << 32 | before << 24 | u64::from(place.generation) << 8 | u64::from(place.member);
    let mut bytes = [0; 40];
    for (to, number) in bytes.chunks_exact_mut(8).zip([incarnation, block, place.life, u64::from(place.segment), slot])
    {
        to.copy_from_slice(&number.to_le_bytes());
    }
    crc32c::crc32c(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_holds_a_page_and_a_hit_reads_four_and_a_half_kib() {
        assert_eq!(block_at(15) + BLOCK_BYTES as u64, u64::from(SLOT_BLOCKS) * BLOCK_BYTES as u64);
        for block in 0..PAGE_BLOCKS {
            let run = run_at(&(block..block + 1));
            assert_eq!(run.end - run.start, 4608);
            assert!(run.contains(&block_at(block)) && run.contains(&checksums_at(block / 2)));
        }
        assert_eq!(run_at(&(0..16)), 0..69_632);
        assert_eq!((slots_of(256), slots_of(16_384)), (15, 963));
    }

    #[test]
    fn a_block_is_written_seven_times_in_a_generation_and_each_has_a_checksum_of_its_own() {
        let place = Place { member: 1, segment: 2, life: 3, slot: 4, generation: u16::MAX };
        let (mut writes, mut seeds) = (Writes::default(), std::collections::BTreeSet::new());
        for count in 1..=7 {
            assert_eq!(writes.worn(), 0);
            let before = writes;
            writes.add(0b1001);
            assert_eq!((writes.of(0), writes.of(1), writes.of(3), writes.ever()), (count, 0, count, 0b1001));
            assert_eq!(before.same(writes), !0b1001);
            seeds.insert(page_seed(9, 64, place, writes.of(0)));
        }
        assert_eq!((writes.worn(), seeds.len()), (0b1001, 7));
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_noticed() {
        let header = PageHeader { store: [4; 16], member: 1, segment: 77, life: 1 << 41 };
        let raw = header.encode();
        assert_eq!(PageHeader::decode(&raw), Some(header));
        for bit in 0..raw.len() * 8 {
            let mut damaged = raw.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(PageHeader::decode(&damaged), None, "bit {bit}");
        }
    }
}
