//! The map journal: a chain of blocks with records. Each record states an absolute state, so replaying it twice is
//! harmless. Each block holds the checksum of the previous block.

use super::page::WriteCounts;
use super::superblock::COUNTER_MAX;
use super::{Raw, Uuid, VERSION, seal, valid_checksum};
use crate::number::{BlockNo, BootEpoch, CommitNo, HalfGeneration, MemberNo, PageNo, SegmentNo, VolumeId};
use metadata_block::{get, get_u32, get_u64, put};

/// Maximum number of records of a journal block.
pub const RECORDS_MAX: usize = 166;
/// The journal's byte offset on a device. It ends at the first segment that is not part of it.
pub const JOURNAL_AT: u64 = 128 << 10;

/// The first bytes of a journal block.
pub(super) const MAGIC: [u8; 8] = *b"HOTSETMJ";
/// Byte offset of the first record in a block.
const RECORDS_AT: usize = 96;
/// Bytes of a record.
const RECORD_BYTES: usize = 24;

// Kinds of records: the first byte of each.
const KIND_SLOT: u8 = 1;
const KIND_FREE: u8 = 2;
const KIND_SEGMENT: u8 = 3;
const KIND_FREE_SEGMENT: u8 = 4;
const KIND_VOLUME: u8 = 5;
const KIND_VOLUME_REMOVED: u8 = 6;
const KIND_MEMBER: u8 = 7;
const KIND_MEMBER_REMOVED: u8 = 8;
const KIND_DIRTY_REGION: u8 = 9;
const KIND_RECENT_WRITE: u8 = 10;
const KIND_RECENT_WRITE_REMOVED: u8 = 11;

/// One record of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalRecord {
    /// A slot holds a page. The slots of a member are numbered across all its segments.
    Slot {
        /// The member.
        member: MemberNo,
        /// The slot.
        slot: u32,
        /// The volume's number.
        volume_number: u16,
        /// The page.
        page: PageNo,
        /// Mask of the valid blocks.
        valid_mask: u16,
        /// Number of writes of each block in this generation.
        write_counts: WriteCounts,
        /// The slot's generation.
        generation: u16,
    },
    /// A slot is free.
    Free {
        /// The member.
        member: MemberNo,
        /// The slot.
        slot: u32,
        /// The slot's last generation.
        generation: u16,
    },
    /// A segment begins to hold pages; it is empty.
    Segment {
        /// The member.
        member: MemberNo,
        /// The segment.
        segment: SegmentNo,
        /// The segment's generation as a page segment.
        segment_generation: u64,
    },
    /// A segment no longer holds pages.
    FreeSegment {
        /// The member.
        member: MemberNo,
        /// The segment.
        segment: SegmentNo,
    },
    /// Assigns a number to a volume.
    Volume {
        /// The number.
        number: u16,
        /// The volume.
        volume_id: VolumeId,
    },
    /// A volume's number is free: the map no longer refers to it.
    VolumeRemoved {
        /// The number.
        number: u16,
    },
    /// A member has this identity; pages under another identity are dropped.
    Member {
        /// The member.
        member: MemberNo,
        /// Its identity.
        uuid: Uuid,
    },
    /// All pages of a member are dropped.
    MemberRemoved {
        /// The member.
        member: MemberNo,
    },
    /// A region of a volume becomes dirty or clean (R8, docs/rules.md).
    DirtyRegion {
        /// The volume's number.
        volume_number: u16,
        /// The region.
        region: u64,
        /// True when it becomes dirty.
        is_dirty: bool,
    },
    /// A block was destaged with this checksum.
    RecentWrite {
        /// The volume's number.
        volume_number: u16,
        /// The block.
        block: BlockNo,
        /// The block's checksum with seed 0.
        checksum: u32,
        /// The checksum comes from a read of the backing after a crash; the block was destaged earlier.
        was_reread: bool,
    },
    /// The block's [`JournalRecord::RecentWrite`] is no longer valid.
    RecentWriteRemoved {
        /// The volume's number.
        volume_number: u16,
        /// The block.
        block: BlockNo,
    },
}

impl JournalRecord {
    /// Encodes the record; unused bytes stay as they are.
    fn encode(&self, out: &mut [u8; RECORD_BYTES]) {
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        match *self {
            JournalRecord::Slot { member, slot, volume_number, page, valid_mask, write_counts, generation } => {
                put(0, &[KIND_SLOT, member.0 as u8]);
                put(2, &generation.to_le_bytes());
                put(4, &slot.to_le_bytes());
                put(8, &page.0.to_le_bytes()[..6]);
                put(14, &volume_number.to_le_bytes());
                put(16, &valid_mask.to_le_bytes());
                (0..3).for_each(|bit| put(18 + 2 * bit, &write_counts.0[bit].to_le_bytes()));
            }
            JournalRecord::Free { member, slot, generation } => {
                put(0, &[KIND_FREE, member.0 as u8]);
                put(2, &generation.to_le_bytes());
                put(4, &slot.to_le_bytes());
            }
            JournalRecord::Segment { member, segment, segment_generation } => {
                put(0, &[KIND_SEGMENT, member.0 as u8]);
                put(4, &segment.0.to_le_bytes());
                put(8, &segment_generation.to_le_bytes());
            }
            JournalRecord::FreeSegment { member, segment } => {
                put(0, &[KIND_FREE_SEGMENT, member.0 as u8]);
                put(4, &segment.0.to_le_bytes());
            }
            JournalRecord::Volume { number, volume_id } => {
                put(0, &[KIND_VOLUME, 0]);
                put(2, &number.to_le_bytes());
                put(8, &volume_id.0.to_le_bytes());
            }
            JournalRecord::VolumeRemoved { number } => {
                put(0, &[KIND_VOLUME_REMOVED, 0]);
                put(2, &number.to_le_bytes());
            }
            JournalRecord::Member { member, uuid } => {
                put(0, &[KIND_MEMBER, member.0 as u8]);
                put(8, &uuid);
            }
            JournalRecord::MemberRemoved { member } => put(0, &[KIND_MEMBER_REMOVED, member.0 as u8]),
            JournalRecord::DirtyRegion { volume_number: volume, region, is_dirty } => {
                put(0, &[KIND_DIRTY_REGION, u8::from(is_dirty)]);
                put(2, &volume.to_le_bytes());
                put(8, &region.to_le_bytes());
            }
            JournalRecord::RecentWrite { volume_number: volume, block, checksum, was_reread } => {
                put(0, &[KIND_RECENT_WRITE, u8::from(was_reread)]);
                put(2, &volume.to_le_bytes());
                put(4, &checksum.to_le_bytes());
                put(8, &block.0.to_le_bytes());
            }
            JournalRecord::RecentWriteRemoved { volume_number: volume, block } => {
                put(0, &[KIND_RECENT_WRITE_REMOVED, 0]);
                put(2, &volume.to_le_bytes());
                put(8, &block.0.to_le_bytes());
            }
        }
    }

    /// Decodes a record; `None` for a kind or a member that this version does not support.
    fn decode(raw: &[u8; RECORD_BYTES]) -> Option<JournalRecord> {
        let u16_at = |at: usize| u16::from_le_bytes([raw[at], raw[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let (kind, member) = (raw[0], MemberNo(u32::from(raw[1])));
        let has_no_member = matches!(
            kind,
            KIND_VOLUME | KIND_VOLUME_REMOVED | KIND_DIRTY_REGION | KIND_RECENT_WRITE | KIND_RECENT_WRITE_REMOVED
        );
        let is_valid = has_no_member || member.index() < super::superblock::MEMBERS_MAX;
        if !is_valid {
            return None;
        }
        Some(match kind {
            KIND_SLOT => JournalRecord::Slot {
                member,
                slot: u32_at(4),
                volume_number: u16_at(14),
                page: PageNo(u64_at(8) & ((1 << 48) - 1)),
                valid_mask: u16_at(16),
                write_counts: WriteCounts([u16_at(18), u16_at(20), u16_at(22)]),
                generation: u16_at(2),
            },
            KIND_FREE => JournalRecord::Free { member, slot: u32_at(4), generation: u16_at(2) },
            KIND_SEGMENT => {
                JournalRecord::Segment { member, segment: SegmentNo(u32_at(4)), segment_generation: u64_at(8) }
            }
            KIND_FREE_SEGMENT => JournalRecord::FreeSegment { member, segment: SegmentNo(u32_at(4)) },
            KIND_VOLUME => JournalRecord::Volume { number: u16_at(2), volume_id: VolumeId(u64_at(8)) },
            KIND_VOLUME_REMOVED => JournalRecord::VolumeRemoved { number: u16_at(2) },
            KIND_MEMBER => {
                let mut uuid = [0; 16];
                uuid.copy_from_slice(&raw[8..]);
                JournalRecord::Member { member, uuid }
            }
            KIND_MEMBER_REMOVED => JournalRecord::MemberRemoved { member },
            KIND_DIRTY_REGION => {
                JournalRecord::DirtyRegion { volume_number: u16_at(2), region: u64_at(8), is_dirty: raw[1] != 0 }
            }
            KIND_RECENT_WRITE => JournalRecord::RecentWrite {
                volume_number: u16_at(2),
                block: BlockNo(u64_at(8)),
                checksum: u32_at(4),
                was_reread: raw[1] != 0,
            },
            KIND_RECENT_WRITE_REMOVED => {
                JournalRecord::RecentWriteRemoved { volume_number: u16_at(2), block: BlockNo(u64_at(8)) }
            }
            _ => return None,
        })
    }
}

/// The header of a journal block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalHeader {
    /// Identity of the store.
    pub store: Uuid,
    /// The boot epoch in which it was written.
    pub boot_epoch: BootEpoch,
    /// +1 with every checkpoint: the generation of the half.
    pub generation: HalfGeneration,
    /// +1 with every commit, over all boot epochs: the last commit that this block and the blocks before it contain.
    pub commit_no: CommitNo,
    /// The block's index in its half.
    pub block_index: u32,
    /// Checksum of the previous block, 0 for the first block of a half.
    pub previous_checksum: u32,
    /// The half holds the whole map: this block ends a checkpoint, or follows one that has ended.
    pub is_complete: bool,
    /// More blocks of the same commit follow.
    pub has_more: bool,
}

impl JournalHeader {
    /// Encodes the block. Returns its bytes, and their checksum for the next block.
    pub fn encode(&self, records: &[JournalRecord]) -> (Box<Raw>, u32) {
        assert!(records.len() <= RECORDS_MAX, "{} records in a journal block", records.len());
        let mut raw = Box::new([0; seam::BLOCK_BYTES]);
        put(&mut raw, 0, &MAGIC);
        put(&mut raw, 8, &VERSION.to_le_bytes());
        put(&mut raw, 12, &(records.len() as u32).to_le_bytes());
        put(&mut raw, 16, &self.store);
        put(&mut raw, 32, &self.boot_epoch.0.to_le_bytes());
        put(&mut raw, 40, &self.generation.0.to_le_bytes());
        put(&mut raw, 48, &self.commit_no.0.to_le_bytes());
        put(&mut raw, 56, &self.block_index.to_le_bytes());
        put(&mut raw, 60, &self.previous_checksum.to_le_bytes());
        put(&mut raw, 64, &[u8::from(self.is_complete), u8::from(self.has_more)]);
        for (index, record) in records.iter().enumerate() {
            let at = RECORDS_AT + index * RECORD_BYTES;
            let out = raw[at..at + RECORD_BYTES].first_chunk_mut().expect("the slice has the length of the array");
            record.encode(out);
        }
        let checksum = seal(&mut raw);
        (raw, checksum)
    }

    /// Decodes the bytes of [`JournalHeader::encode`]. Returns the header and its checksum, or `None` for any other
    /// bytes.
    pub fn decode(raw: &Raw) -> Option<(JournalHeader, u32)> {
        if get::<8>(raw, 0) != MAGIC || get_u32(raw, 8) != VERSION || get_u32(raw, 12) as usize > RECORDS_MAX {
            return None;
        }
        let checksum = valid_checksum(raw)?;
        let header = JournalHeader {
            store: get(raw, 16),
            boot_epoch: BootEpoch(get_u64(raw, 32)),
            generation: HalfGeneration(get_u64(raw, 40)),
            commit_no: CommitNo(get_u64(raw, 48)),
            block_index: get_u32(raw, 56),
            previous_checksum: get_u32(raw, 60),
            is_complete: raw[64] != 0,
            has_more: raw[65] != 0,
        };
        let counters = [header.boot_epoch.0, header.generation.0, header.commit_no.0];
        counters.iter().all(|counter| *counter < COUNTER_MAX).then_some((header, checksum))
    }

    /// The records of a block that [`JournalHeader::decode`] has accepted; `None` for each record that this version
    /// does not support.
    pub fn records(raw: &Raw) -> impl Iterator<Item = Option<JournalRecord>> + '_ {
        let count = get_u32(raw, 12) as usize;
        let bytes = &raw[RECORDS_AT..RECORDS_AT + count * RECORD_BYTES];
        bytes.as_chunks::<RECORD_BYTES>().0.iter().map(JournalRecord::decode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<JournalRecord> {
        let slot = JournalRecord::Slot {
            member: MemberNo(7),
            slot: u32::MAX,
            volume_number: 9,
            page: PageNo((1 << 48) - 1),
            valid_mask: 0x8001,
            write_counts: WriteCounts([0xff01, 0x8000, 1]),
            generation: 65_535,
        };
        vec![
            slot,
            JournalRecord::Free { member: MemberNo(1), slot: 5, generation: 3 },
            JournalRecord::Segment { member: MemberNo(0), segment: SegmentNo(9), segment_generation: 1 << 50 },
            JournalRecord::FreeSegment { member: MemberNo(3), segment: SegmentNo(1) },
            JournalRecord::Volume { number: 65_535, volume_id: VolumeId(u64::MAX) },
            JournalRecord::VolumeRemoved { number: 4 },
            JournalRecord::Member { member: MemberNo(2), uuid: [0xab; 16] },
            JournalRecord::MemberRemoved { member: MemberNo(2) },
            JournalRecord::DirtyRegion { volume_number: 2, region: 1 << 40, is_dirty: true },
            JournalRecord::DirtyRegion { volume_number: 2, region: 3, is_dirty: false },
            JournalRecord::RecentWrite {
                volume_number: 8,
                block: BlockNo(1 << 60),
                checksum: 0xdead_beef,
                was_reread: false,
            },
            JournalRecord::RecentWrite { volume_number: 8, block: BlockNo(3), checksum: 7, was_reread: true },
            JournalRecord::RecentWriteRemoved { volume_number: 8, block: BlockNo(77) },
        ]
    }

    fn header() -> JournalHeader {
        JournalHeader {
            store: [3; 16],
            boot_epoch: BootEpoch(4),
            generation: HalfGeneration(9),
            commit_no: CommitNo(1 << 33),
            block_index: 12,
            previous_checksum: 0xfeed_f00d,
            is_complete: true,
            has_more: false,
        }
    }

    #[test]
    fn block_round_trips_empty_and_full() {
        for count in [0, 1, RECORDS_MAX] {
            let entries: Vec<_> = records().into_iter().cycle().take(count).collect();
            let (raw, checksum) = header().encode(&entries);
            assert_eq!(JournalHeader::decode(&raw), Some((header(), checksum)));
            assert_eq!(JournalHeader::records(&raw).collect::<Option<Vec<_>>>(), Some(entries));
        }
    }

    #[test]
    fn flipped_bit_is_rejected() {
        let (raw, _) = header().encode(&records());
        for bit in 0..raw.len() * 8 {
            let mut damaged = raw.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(JournalHeader::decode(&damaged), None, "bit {bit}");
        }
    }
}
