//! The segment verifier: a pass over a segment's blocks in which each header determines what the data blocks after it
//! must be.

use std::collections::VecDeque;

use seam::{Block, Seam};

use crate::device::{Device, block_offset, raw};
use crate::format::Uuid;
use crate::format::batch::{BatchHeader, data_seed};
use crate::number::{SegmentNo, Sequence};
use crate::segments::Segment;
use crate::state::Inner;

/// Result of the check of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The block has the content that a header determines, or is the header.
    Intact,
    /// It has other content.
    Damaged,
    /// No header determines its content.
    Undetermined,
}

/// Verifies the blocks of one generation of a segment, in order.
pub struct SegmentVerifier {
    store: Uuid,
    number: SegmentNo,
    segment: Segment,
    /// Sequence number of the batch whose header is expected next, and the block where it is expected.
    sequence: Sequence,
    next_header_index: u32,
    /// Data blocks that the last header named: their index, seed and checksum.
    expected_data: VecDeque<(u32, u32, u32)>,
}

impl SegmentVerifier {
    /// Begins at the first block.
    pub fn new(store: Uuid, number: SegmentNo, segment: Segment) -> SegmentVerifier {
        SegmentVerifier {
            store,
            number,
            segment,
            sequence: segment.first_sequence,
            next_header_index: 0,
            expected_data: VecDeque::new(),
        }
    }

    /// Checks a block. After a damaged one, another copy of it can be checked.
    pub fn verify<B: Block>(&mut self, block_index: u32, block: &B) -> Verdict {
        if let Some((_, seed, checksum)) =
            self.expected_data.front().filter(|(data_index, _, _)| *data_index == block_index)
        {
            if block.checksum(*seed) != *checksum {
                return Verdict::Damaged;
            }
            self.expected_data.pop_front();
            return Verdict::Intact;
        }
        if block_index != self.next_header_index || self.sequence > self.segment.last_sequence {
            return Verdict::Undetermined;
        }
        let header = BatchHeader::decode(&raw(block)).map(|(header, _)| header).filter(|header| {
            header.store == self.store
                && (header.segment, header.offset_blocks) == (self.number, block_index)
                && (header.boot_epoch, header.first_sequence, header.sequence)
                    == (self.segment.boot_epoch, self.segment.first_sequence, self.sequence)
        });
        let Some(header) = header else { return Verdict::Damaged };
        let seed = |volume_id, block| data_seed(volume_id, block, header.boot_epoch, header.first_sequence);
        self.expected_data.extend(
            header.data_records().map(|(record, index, sum)| (index, seed(record.volume_id, record.block), sum)),
        );
        self.sequence = self.sequence.next();
        self.next_header_index = block_index + header.block_count();
        Verdict::Intact
    }

    /// Skips a block that has no good copy.
    pub fn skip(&mut self, block_index: u32) {
        if self.expected_data.front().is_some_and(|(data_index, _, _)| *data_index == block_index) {
            self.expected_data.pop_front();
        }
    }
}

/// One block from one device; `None` if it cannot be read.
pub async fn read_block<S: Seam>(
    inner: &Inner<S>,
    device: &Device<S>,
    segment: SegmentNo,
    block_index: u32,
) -> Option<S::Block> {
    let at = block_offset(inner.state.borrow().superblock.segment_bytes, segment, block_index);
    device.read_blocks(inner, at, 1).await.ok()?.pop()
}
