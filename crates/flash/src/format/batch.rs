//! A batch: one header block, then the data blocks of its records. The header is the commit record. A batch is valid
//! when the checksums of its header and of all its data match.

use super::superblock::COUNTER_MAX;
use super::{Raw, Uuid, VERSION, seal, valid_checksum};
use crate::number::{BlockNo, BootEpoch, CommitNo, Epoch, SegmentNo, Sequence, VolumeId};
use metadata_block::{get, get_u32, get_u64, put};

/// Maximum number of records of a header.
pub const RECORDS_MAX: usize = 99;

/// The first bytes of a batch header.
pub(super) const MAGIC: [u8; 8] = *b"HOTSETLB";
/// Byte offset of the first record in a header.
const RECORDS_AT: usize = 128;
/// Bytes of a record in a header.
pub(super) const RECORD_BYTES: usize = 40;
/// Exclusive bound of block numbers: the byte offset of a higher one would overflow a file offset.
pub const BLOCKS_END: BlockNo = BlockNo(1 << 51);
/// The kind of a log segment; a page segment has kind 2.
const KIND_LOG: u32 = 1;
// Kinds of records, as stored.
const RECORD_DATA: u8 = 1;
const RECORD_ZERO: u8 = 2;
const RECORD_TOMBSTONE: u8 = 3;

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// One block's content.
    Data {
        /// The block's checksum under [`data_seed`].
        checksum: u32,
    },
    /// The blocks read as zeroes.
    Zero {
        /// The backing may release their space.
        may_unmap: bool,
    },
    /// Older records of the blocks are dead.
    Tombstone,
}

/// One record of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordEntry {
    /// The volume.
    pub volume_id: VolumeId,
    /// The first block.
    pub block: BlockNo,
    /// The volume's epoch.
    pub epoch: Epoch,
    /// The number of blocks, 1 for data.
    pub block_count: u32,
    /// The record's kind.
    pub kind: RecordKind,
}

/// The header of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Identity of the store.
    pub store: Uuid,
    /// The boot epoch in which it was written.
    pub boot_epoch: BootEpoch,
    /// +1 with every batch, over all boot epochs.
    pub sequence: Sequence,
    /// Batches with a lower sequence number are dead.
    pub tail: Sequence,
    /// The log segment that holds the batch.
    pub segment: SegmentNo,
    /// Blocks from the segment's start to the header.
    pub offset_blocks: u32,
    /// Sequence number of the segment's first batch, the segment's generation.
    pub first_sequence: Sequence,
    /// Checksum of the previous batch's header, 0 for the first batch of the log.
    pub previous_checksum: u32,
    /// The last commit of the map journal that was durable when this header was written (R9, docs/rules.md).
    pub journal_commit: CommitNo,
    /// The records of the batch.
    pub records: Vec<RecordEntry>,
}

impl BatchHeader {
    /// Blocks of the batch, header included.
    pub fn block_count(&self) -> u32 {
        1 + self.data_records().count() as u32
    }

    /// The records with data: record, block of the segment that holds the data, checksum.
    pub fn data_records(&self) -> impl Iterator<Item = (&RecordEntry, u32, u32)> {
        let data = self.records.iter().filter_map(|record| match record.kind {
            RecordKind::Data { checksum } => Some((record, checksum)),
            _ => None,
        });
        data.zip(self.offset_blocks + 1..).map(|((record, checksum), index)| (record, index, checksum))
    }

    /// Encodes the header. Returns its bytes, and their checksum for the chain to the next batch.
    pub fn encode(&self) -> (Box<Raw>, u32) {
        assert!((1..=RECORDS_MAX).contains(&self.records.len()), "{} records in a batch", self.records.len());
        let mut raw = Box::new([0; seam::BLOCK_BYTES]);
        let out = &mut *raw;
        put(out, 0, &MAGIC);
        put(out, 8, &VERSION.to_le_bytes());
        put(out, 12, &(self.records.len() as u32).to_le_bytes());
        put(out, 16, &self.store);
        put(out, 32, &self.boot_epoch.0.to_le_bytes());
        put(out, 40, &self.sequence.0.to_le_bytes());
        put(out, 48, &self.tail.0.to_le_bytes());
        put(out, 56, &self.segment.0.to_le_bytes());
        put(out, 60, &self.offset_blocks.to_le_bytes());
        put(out, 64, &self.first_sequence.0.to_le_bytes());
        put(out, 72, &self.previous_checksum.to_le_bytes());
        put(out, 76, &KIND_LOG.to_le_bytes());
        put(out, 80, &self.journal_commit.0.to_le_bytes());
        for (index, record) in self.records.iter().enumerate() {
            put(out, RECORDS_AT + index * RECORD_BYTES, &encode_record(record));
        }
        let checksum = seal(out);
        (raw, checksum)
    }

    /// Decodes the bytes of [`BatchHeader::encode`]. Returns the header and its checksum, or `None` for any other
    /// bytes.
    pub fn decode(raw: &Raw) -> Option<(BatchHeader, u32)> {
        if get::<8>(raw, 0) != MAGIC {
            return None;
        }
        let checksum = valid_checksum(raw)?;
        let count = get_u32(raw, 12) as usize;
        if get_u32(raw, 8) != VERSION || get_u32(raw, 76) != KIND_LOG || !(1..=RECORDS_MAX).contains(&count) {
            return None;
        }
        let header = BatchHeader {
            store: get(raw, 16),
            boot_epoch: BootEpoch(get_u64(raw, 32)),
            sequence: Sequence(get_u64(raw, 40)),
            tail: Sequence(get_u64(raw, 48)),
            segment: SegmentNo(get_u32(raw, 56)),
            offset_blocks: get_u32(raw, 60),
            first_sequence: Sequence(get_u64(raw, 64)),
            previous_checksum: get_u32(raw, 72),
            journal_commit: CommitNo(get_u64(raw, 80)),
            records: decode_records(&raw[RECORDS_AT..][..count * RECORD_BYTES])?,
        };
        let counters = [header.boot_epoch.0, header.sequence.0, header.journal_commit.0];
        let is_valid = header.first_sequence <= header.sequence
            && header.tail <= header.sequence
            && counters.iter().all(|counter| *counter < COUNTER_MAX);
        is_valid.then_some((header, checksum))
    }
}

/// The bytes of a record.
pub(super) fn encode_record(record: &RecordEntry) -> [u8; RECORD_BYTES] {
    let (kind, flags, checksum) = match record.kind {
        RecordKind::Data { checksum } => (RECORD_DATA, 0, checksum),
        RecordKind::Zero { may_unmap } => (RECORD_ZERO, u8::from(may_unmap), 0),
        RecordKind::Tombstone => (RECORD_TOMBSTONE, 0, 0),
    };
    let mut out = [0; RECORD_BYTES];
    out[..8].copy_from_slice(&record.volume_id.0.to_le_bytes());
    out[8..16].copy_from_slice(&record.block.0.to_le_bytes());
    out[16..24].copy_from_slice(&record.epoch.0.to_le_bytes());
    out[24..28].copy_from_slice(&record.block_count.to_le_bytes());
    out[28..32].copy_from_slice(&checksum.to_le_bytes());
    out[32..34].copy_from_slice(&[kind, flags]);
    out
}

/// Decodes records of [`encode_record`]. `None` if one has impossible values.
pub(super) fn decode_records(raw: &[u8]) -> Option<Vec<RecordEntry>> {
    // Collecting into an `Option` would not reserve the exact size.
    let mut records = Vec::with_capacity(raw.len() / RECORD_BYTES);
    for record in raw.chunks_exact(RECORD_BYTES) {
        records.push(decode_record(record)?);
    }
    Some(records)
}

/// Decodes the `RECORD_BYTES` bytes of [`encode_record`]. `None` for impossible values.
fn decode_record(raw: &[u8]) -> Option<RecordEntry> {
    let u32_at = |at: usize| u32::from_le_bytes(raw[at..at + 4].try_into().expect("four bytes"));
    let u64_at = |at: usize| u64::from_le_bytes(raw[at..at + 8].try_into().expect("eight bytes"));
    let (block, blocks) = (BlockNo(u64_at(8)), u32_at(24));
    let kind = match (raw[32], raw[33]) {
        (RECORD_DATA, _) if blocks == 1 => RecordKind::Data { checksum: u32_at(28) },
        (RECORD_ZERO, flags) => RecordKind::Zero { may_unmap: flags & 1 != 0 },
        (RECORD_TOMBSTONE, _) => RecordKind::Tombstone,
        _ => return None,
    };
    (block < BLOCKS_END && block.plus(u64::from(blocks)) <= BLOCKS_END).then_some(())?;
    (blocks > 0).then_some(())?;
    Some(RecordEntry { volume_id: VolumeId(u64_at(0)), block, epoch: Epoch(u64_at(16)), block_count: blocks, kind })
}

/// The seed of a data block's checksum: its address, and the segment's boot epoch and generation. A lost or misdirected
/// write therefore leaves a wrong checksum, too.
pub fn data_seed(volume_id: VolumeId, block: BlockNo, boot_epoch: BootEpoch, first_sequence: Sequence) -> u32 {
    let mut bytes = [0; 32];
    for (field, number) in bytes.chunks_exact_mut(8).zip([volume_id.0, block.0, boot_epoch.0, first_sequence.0]) {
        field.copy_from_slice(&number.to_le_bytes());
    }
    crc32c::crc32c(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(records: usize) -> BatchHeader {
        let kinds = [RecordKind::Data { checksum: 77 }, RecordKind::Zero { may_unmap: true }, RecordKind::Tombstone];
        let record = |index: usize| RecordEntry {
            volume_id: VolumeId(1 << 60),
            block: BlockNo(index as u64),
            epoch: Epoch(4),
            block_count: 1,
            kind: kinds[index % 3],
        };
        BatchHeader {
            store: [3; 16],
            boot_epoch: BootEpoch(2),
            sequence: Sequence(40),
            tail: Sequence(30),
            segment: SegmentNo(5),
            offset_blocks: 9,
            first_sequence: Sequence(38),
            previous_checksum: 0xdead_beef,
            journal_commit: CommitNo(1 << 40),
            records: (0..records).map(record).collect(),
        }
    }

    #[test]
    fn header_round_trips_with_few_and_with_many_records() {
        for records in [1, 7, RECORDS_MAX] {
            let (raw, checksum) = sample(records).encode();
            assert_eq!(BatchHeader::decode(&raw), Some((sample(records), checksum)));
        }
        let data_indexes: Vec<_> = sample(7).data_records().map(|(record, index, _)| (record.block.0, index)).collect();
        assert_eq!((data_indexes, sample(7).block_count()), (vec![(0, 10), (3, 11), (6, 12)], 4));
    }

    #[test]
    fn flipped_bit_is_rejected() {
        let (raw, _) = sample(RECORDS_MAX).encode();
        for bit in 0..raw.len() * 8 {
            let mut damaged = raw.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(BatchHeader::decode(&damaged), None, "bit {bit}");
        }
    }

    #[test]
    fn header_with_impossible_numbers_is_rejected() {
        let forged: [fn(&mut BatchHeader); 6] = [
            |header| header.sequence = Sequence(u64::MAX),
            |header| header.boot_epoch = BootEpoch(u64::MAX),
            |header| header.journal_commit = CommitNo(u64::MAX),
            |header| header.tail = header.sequence.next(),
            |header| header.records[0].block = BLOCKS_END,
            |header| {
                header.records[1] = RecordEntry { block: BLOCKS_END.previous(), block_count: 2, ..header.records[1] }
            },
        ];
        for (index, forge) in forged.into_iter().enumerate() {
            let mut header = sample(7);
            forge(&mut header);
            assert_eq!(BatchHeader::decode(&header.encode().0), None, "number {index}");
        }
    }

    #[test]
    fn header_torn_at_any_sector_is_rejected() {
        let (new, _) = sample(RECORDS_MAX).encode();
        let mut older = sample(RECORDS_MAX);
        older.sequence = Sequence(39);
        older.records.iter_mut().for_each(|record| record.epoch = Epoch(3));
        let (old, _) = older.encode();
        for cut in 1..8 {
            let mut torn = old.clone();
            torn[..cut * 512].copy_from_slice(&new[..cut * 512]);
            assert_eq!(BatchHeader::decode(&torn), None, "torn after sector {cut}");
        }
    }
}
