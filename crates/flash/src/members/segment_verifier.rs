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

/// Verifies the blocks of one generation of a segment, in order.
pub struct SegmentVerifier {
    store: Uuid,
    number: SegmentNo,
    segment: Segment,
    /// Sequence number of the batch whose header is expected next, and the block where it is expected.
    sequence: Sequence,
    header_at: u32,
    /// Data blocks that the last header named: their index, seed and checksum.
    data: VecDeque<(u32, u32, u32)>,
}

impl SegmentVerifier {
    /// Begins at the first block.
    pub fn new(store: Uuid, number: SegmentNo, segment: Segment) -> SegmentVerifier {
        SegmentVerifier {
            store,
            number,
            segment,
            sequence: segment.first_sequence,
            header_at: 0,
            data: VecDeque::new(),
        }
    }

    /// Whether the block is intact; `None` if no header determines its content. After a bad block, another copy of it
    /// can be checked.
    pub fn is_good<B: Block>(&mut self, index: u32, block: &B) -> Option<bool> {
        if let Some((_, seed, checksum)) = self.data.front().filter(|(data_index, _, _)| *data_index == index) {
            let good = block.checksum(*seed) == *checksum;
            if good {
                self.data.pop_front();
            }
            return Some(good);
        }
        if index != self.header_at || self.sequence > self.segment.last_sequence {
            return None;
        }
        let header = BatchHeader::decode(&raw(block)).map(|(header, _)| header).filter(|header| {
            header.store == self.store
                && (header.segment, header.offset) == (self.number, index)
                && (header.boot, header.first_sequence, header.sequence)
                    == (self.segment.boot, self.segment.first_sequence, self.sequence)
        });
        let Some(header) = header else { return Some(false) };
        let seed = |volume_id, block| data_seed(volume_id, block, header.boot, header.first_sequence);
        self.data.extend(header.data().map(|(record, index, sum)| (index, seed(record.volume_id, record.block), sum)));
        self.sequence = self.sequence.next();
        self.header_at = index + header.blocks();
        Some(true)
    }

    /// Skips a block that has no good copy.
    pub fn skip(&mut self, index: u32) {
        if self.data.front().is_some_and(|(data_index, _, _)| *data_index == index) {
            self.data.pop_front();
        }
    }
}

/// One block from one device; `None` if it cannot be read.
pub async fn read_block<S: Seam>(
    inner: &Inner<S>,
    device: &Device<S>,
    segment: SegmentNo,
    index: u32,
) -> Option<S::Block> {
    let at = block_offset(inner.state.borrow().superblock.segment_bytes, segment, index);
    device.read_blocks(inner, at, 1).await.ok()?.pop()
}
