//! The summary of a log segment: the content of all its batch headers, in the last blocks of the segment. Recovery
//! reads it instead of one header per batch. It is no commit record: without an intact summary of the segment's present
//! generation, recovery reads the headers.

use seam::BLOCK_BYTES;

use super::batch::{BatchHeader, RECORD_BYTES, RECORDS_MAX, decode_records, encode_record};
use super::superblock::COUNTER_MAX;
use super::{CHECKSUM_AT, Raw, Uuid, VERSION, seal, valid_checksum};
use crate::number::{BootEpoch, CommitNo, SegmentNo, Sequence};
use metadata_block::{get, get_u32, get_u64, put};

/// The first bytes of a summary.
const MAGIC: [u8; 8] = *b"HOTSETLS";
/// Offset of the payload in the first block; it ends there before the block's checksum and goes on in whole blocks.
const PAYLOAD_AT: usize = 128;
/// Bytes of the payload in the first block.
const FIRST_PAYLOAD_BYTES: usize = CHECKSUM_AT - PAYLOAD_AT;
/// Bytes of a batch in the payload, without its records.
const BATCH_BYTES: usize = 24;
/// Segments with fewer blocks have no summary: it would take too much of them.
const SEGMENT_BLOCKS_MIN: u32 = 16;
/// Upper bound of the payload's bytes for each block of a segment whose records are all data. Batches of 99 records
/// need the most: (24 + 99 × 40) / 100.
const PAYLOAD_BYTES_PER_BLOCK: usize = 40;
const _: () = assert!(BATCH_BYTES + RECORDS_MAX * RECORD_BYTES <= (RECORDS_MAX + 1) * PAYLOAD_BYTES_PER_BLOCK);

/// Number of blocks at the end of a segment that its summary takes; 0 for a segment without a summary.
pub fn summary_blocks(segment_blocks: u32) -> u32 {
    if segment_blocks < SEGMENT_BLOCKS_MIN {
        return 0;
    }
    let payload_bytes = segment_blocks as usize * PAYLOAD_BYTES_PER_BLOCK;
    1 + payload_bytes.saturating_sub(FIRST_PAYLOAD_BYTES).div_ceil(BLOCK_BYTES) as u32
}

/// Number of blocks of a segment that batches may use.
pub fn batch_blocks(segment_blocks: u32) -> u32 {
    segment_blocks - summary_blocks(segment_blocks)
}

/// The summary of a segment, while batches are added to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentSummary {
    store: Uuid,
    boot_epoch: BootEpoch,
    first_sequence: Sequence,
    /// The sequence number of the batch after the last one.
    next_sequence: Sequence,
    /// The segment.
    pub segment: SegmentNo,
    /// Checksum of the header before the first batch.
    previous_checksum: u32,
    batch_count: u32,
    payload: Vec<u8>,
    /// Size of the payload that fits the segment's end, in bytes.
    payload_bytes_max: usize,
}

impl SegmentSummary {
    /// The empty summary of the segment of `segment_blocks` blocks that this batch begins.
    pub fn new(first: &BatchHeader, segment_blocks: u32) -> SegmentSummary {
        let blocks = summary_blocks(segment_blocks) as usize;
        SegmentSummary {
            store: first.store,
            boot_epoch: first.boot_epoch,
            first_sequence: first.sequence,
            next_sequence: first.sequence,
            segment: first.segment,
            previous_checksum: first.previous_checksum,
            batch_count: 0,
            payload: Vec::new(),
            payload_bytes_max: blocks.saturating_sub(1) * BLOCK_BYTES
                + if blocks > 0 { FIRST_PAYLOAD_BYTES } else { 0 },
        }
    }

    /// The segment's generation: the sequence number of its first batch.
    pub fn generation(&self) -> Sequence {
        self.first_sequence
    }

    /// Adds the next batch of the segment, whose header has this checksum.
    pub fn add(&mut self, header: &BatchHeader, checksum: u32) {
        let next = (self.segment, self.first_sequence, self.next_sequence);
        assert!((header.segment, header.first_sequence, header.sequence) == next, "a batch follows the last one");
        self.next_sequence = header.sequence.next();
        self.batch_count += 1;
        if self.payload.len() > self.payload_bytes_max {
            return;
        }
        self.payload.extend(header.tail.0.to_le_bytes());
        self.payload.extend(header.journal_commit.0.to_le_bytes());
        self.payload.extend(checksum.to_le_bytes());
        self.payload.extend((header.records.len() as u32).to_le_bytes());
        header.records.iter().for_each(|record| self.payload.extend(encode_record(record)));
    }

    /// Encodes it as the last blocks of its segment. `None` if it does not fit there, because many batches have records
    /// without data.
    pub fn encode(&self) -> Option<Vec<Box<Raw>>> {
        if self.payload.is_empty() || self.payload.len() > self.payload_bytes_max {
            return None;
        }
        let (first_part, rest) = self.payload.split_at(self.payload.len().min(FIRST_PAYLOAD_BYTES));
        let mut first = Box::new([0; BLOCK_BYTES]);
        let out = &mut *first;
        put(out, 0, &MAGIC);
        put(out, 8, &VERSION.to_le_bytes());
        put(out, 12, &(self.payload.len() as u32).to_le_bytes());
        put(out, 16, &self.store);
        put(out, 32, &self.boot_epoch.0.to_le_bytes());
        put(out, 40, &self.first_sequence.0.to_le_bytes());
        put(out, 48, &self.batch_count.to_le_bytes());
        put(out, 52, &self.segment.0.to_le_bytes());
        put(out, 56, &crc32c::crc32c(&self.payload).to_le_bytes());
        put(out, 60, &self.previous_checksum.to_le_bytes());
        put(out, PAYLOAD_AT, first_part);
        seal(out);
        let rest = rest.chunks(BLOCK_BYTES).map(|part| {
            let mut block = Box::new([0; BLOCK_BYTES]);
            put(&mut block, 0, part);
            block
        });
        Some(std::iter::once(first).chain(rest).collect())
    }
}

/// The first block of a summary, decoded.
pub struct SummaryHead {
    store: Uuid,
    boot_epoch: BootEpoch,
    first_sequence: Sequence,
    segment: SegmentNo,
    previous_checksum: u32,
    batch_count: u32,
    payload_checksum: u32,
    payload_bytes: usize,
    /// The payload's part in the first block.
    first_part: Vec<u8>,
}

impl SummaryHead {
    /// Decodes the first block of a summary. `None` for anything else than a summary of this generation of the segment.
    pub fn decode(
        raw: &Raw,
        store: Uuid,
        segment: SegmentNo,
        boot_epoch: BootEpoch,
        first: Sequence,
    ) -> Option<SummaryHead> {
        if get::<8>(raw, 0) != MAGIC || get_u32(raw, 8) != VERSION {
            return None;
        }
        valid_checksum(raw)?;
        let payload_bytes = get_u32(raw, 12) as usize;
        let head = SummaryHead {
            store: get(raw, 16),
            boot_epoch: BootEpoch(get_u64(raw, 32)),
            first_sequence: Sequence(get_u64(raw, 40)),
            batch_count: get_u32(raw, 48),
            segment: SegmentNo(get_u32(raw, 52)),
            payload_checksum: get_u32(raw, 56),
            previous_checksum: get_u32(raw, 60),
            payload_bytes,
            first_part: raw[PAYLOAD_AT..CHECKSUM_AT][..payload_bytes.min(FIRST_PAYLOAD_BYTES)].to_vec(),
        };
        let is_wanted =
            (head.store, head.segment, head.boot_epoch, head.first_sequence) == (store, segment, boot_epoch, first);
        is_wanted.then_some(head)
    }

    /// Number of blocks after the first one.
    pub fn further_blocks(&self) -> usize {
        (self.payload_bytes - self.first_part.len()).div_ceil(BLOCK_BYTES)
    }

    /// The headers of the segment's batches with their checksums. `further` holds the blocks after the first one.
    /// `None` if the payload is damaged.
    pub fn batches(self, further: &[Box<Raw>]) -> Option<Vec<(BatchHeader, u32)>> {
        let mut payload = self.first_part;
        payload.reserve_exact(further.len() * BLOCK_BYTES);
        further.iter().for_each(|block| payload.extend_from_slice(&**block));
        payload.truncate(self.payload_bytes);
        if payload.len() < self.payload_bytes || crc32c::crc32c(&payload) != self.payload_checksum {
            return None;
        }
        let (mut rest, mut batches) = (&payload[..], Vec::new());
        let (mut sequence, mut offset, mut previous) = (self.first_sequence, 0, self.previous_checksum);
        for _ in 0..self.batch_count {
            let (batch, after) = rest.split_at_checked(BATCH_BYTES)?;
            let field = |at: usize| u64::from_le_bytes(batch[at..at + 8].try_into().expect("eight bytes"));
            let (checksum, count) = (field(16) as u32, (field(16) >> 32) as usize);
            let (records, after) = after.split_at_checked(count.checked_mul(RECORD_BYTES)?)?;
            let header = BatchHeader {
                store: self.store,
                boot_epoch: self.boot_epoch,
                sequence,
                tail: Sequence(field(0)),
                segment: self.segment,
                offset_blocks: offset,
                first_sequence: self.first_sequence,
                previous_checksum: previous,
                journal_commit: CommitNo(field(8)),
                records: decode_records(records)?,
            };
            let is_valid = (1..=RECORDS_MAX).contains(&count)
                && header.tail <= header.sequence
                && header.journal_commit.0 < COUNTER_MAX;
            if !is_valid {
                return None;
            }
            (rest, previous) = (after, checksum);
            sequence = sequence.next();
            offset += header.block_count();
            batches.push((header, checksum));
        }
        rest.is_empty().then_some(batches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::batch::{RecordEntry, RecordKind};
    use crate::number::{BlockNo, Epoch, VolumeId};

    /// Batches that fill a segment: each has `records` records of data, and every fifth one a record of zeroes as well.
    fn batches(segment_blocks: u32, records: usize) -> Vec<(BatchHeader, u32)> {
        let (mut batches, mut offset, mut previous) = (Vec::new(), 0, 77);
        for sequence in 900.. {
            let record = |index: usize, kind| RecordEntry {
                volume_id: VolumeId(1 << 60),
                block: BlockNo(u64::from(offset) + index as u64),
                epoch: Epoch(4),
                block_count: 1,
                kind,
            };
            let data = |index| record(index, RecordKind::Data { checksum: index as u32 });
            let zeroes = (sequence % 5 == 0).then(|| record(99, RecordKind::Zero { may_unmap: true }));
            let header = BatchHeader {
                store: [3; 16],
                boot_epoch: BootEpoch(2),
                sequence: Sequence(sequence),
                tail: Sequence(30),
                segment: SegmentNo(5),
                offset_blocks: offset,
                first_sequence: Sequence(900),
                previous_checksum: previous,
                journal_commit: CommitNo(sequence),
                records: (0..records).map(data).chain(zeroes).collect(),
            };
            if offset + header.block_count() > batch_blocks(segment_blocks) {
                break;
            }
            offset += header.block_count();
            previous = header.encode().1;
            batches.push((header, previous));
        }
        batches
    }

    fn summary(batches: &[(BatchHeader, u32)], segment_blocks: u32) -> SegmentSummary {
        let mut summary = SegmentSummary::new(&batches[0].0, segment_blocks);
        batches.iter().for_each(|(header, checksum)| summary.add(header, *checksum));
        summary
    }

    fn decode(blocks: &[Box<Raw>]) -> Option<Vec<(BatchHeader, u32)>> {
        let head = SummaryHead::decode(&blocks[0], [3; 16], SegmentNo(5), BootEpoch(2), Sequence(900))?;
        assert_eq!(head.further_blocks(), blocks.len() - 1);
        head.batches(&blocks[1..])
    }

    #[test]
    fn summary_round_trips_and_fits_for_batches_of_any_size() {
        for segment_blocks in [16, 64, 256, 16_384] {
            for records in [1, 2, 7, 98].into_iter().filter(|records| *records < segment_blocks as usize - 2) {
                let batches = batches(segment_blocks, records);
                let blocks = summary(&batches, segment_blocks).encode().expect("a summary of data records fits");
                assert!(blocks.len() <= summary_blocks(segment_blocks) as usize, "{segment_blocks} {records}");
                assert_eq!(decode(&blocks).as_ref(), Some(&batches), "{segment_blocks} {records}");
            }
        }
        assert_eq!([8, 16, 256, 16_384].map(summary_blocks), [0, 1, 3, 161]);
    }

    #[test]
    fn summary_of_another_generation_or_with_a_flipped_bit_is_rejected() {
        let blocks = summary(&batches(256, 1), 256).encode().expect("a summary of data records fits");
        let of = |store, segment, boot, first| {
            SummaryHead::decode(&blocks[0], store, SegmentNo(segment), BootEpoch(boot), Sequence(first)).is_some()
        };
        assert!(of([3; 16], 5, 2, 900));
        assert!(!of([4; 16], 5, 2, 900) && !of([3; 16], 6, 2, 900) && !of([3; 16], 5, 3, 900));
        assert!(!of([3; 16], 5, 2, 901));
        let payload_end = PAYLOAD_AT + blocks.len() * BLOCK_BYTES / 2;
        for bit in (0..payload_end * 8).step_by(7) {
            let mut damaged = blocks.clone();
            damaged[bit / 8 / BLOCK_BYTES][bit / 8 % BLOCK_BYTES] ^= 1 << (bit % 8);
            assert_eq!(decode(&damaged), None, "bit {bit}");
        }
    }

    #[test]
    fn summary_that_does_not_fit_is_not_written() {
        let (mut header, checksum) = batches(16, 1).remove(0);
        header.records = vec![RecordEntry { kind: RecordKind::Tombstone, ..header.records[0] }; RECORDS_MAX - 1];
        let mut summary = SegmentSummary::new(&header, 16);
        summary.add(&header, checksum);
        assert!(summary.encode().is_some(), "one batch of tombstones fits");
        for _ in 0..4 {
            (header.sequence, header.offset_blocks) = (header.sequence.next(), header.offset_blocks + 1);
            summary.add(&header, checksum);
        }
        assert_eq!(summary.encode(), None);
        assert!(summary.payload.len() < 3 * BLOCK_BYTES, "the payload is bounded");
    }
}
