//! Salvage of a log whose chain is broken: collects every batch header on any device. Only an administrator's rescue
//! uses it, never an opening.

use std::collections::BTreeMap;
use std::ops::Range;

use seam::{BLOCK_BYTES, Seam};

use super::chain::{LogChain, decode};
use crate::device::{Device, block_offset, raw};
use crate::format::batch::BatchHeader;
use crate::format::superblock::Superblock;
use crate::number::{BootEpoch, SegmentNo, Sequence};

/// Blocks per read.
const READ_BLOCKS: u32 = 32;

/// The readable batches of the log on `devices`, and the sequence numbers of the lost ones.
pub async fn salvage<S: Seam>(
    seam: &S,
    devices: &[Device<S>],
    superblock: &Superblock,
) -> (LogChain, Vec<Range<Sequence>>) {
    let blocks = (superblock.segment_bytes / BLOCK_BYTES as u64) as u32;
    let mut headers: BTreeMap<(Sequence, BootEpoch), (BatchHeader, u32)> = BTreeMap::new();
    for device in devices {
        for segment in SegmentNo::each(&(SegmentNo(0)..SegmentNo(superblock.log_segment_count))) {
            for offset in (0..blocks).step_by(READ_BLOCKS as usize) {
                let count = READ_BLOCKS.min(blocks - offset);
                for (block, offset) in read_run(seam, device, superblock, segment, offset, count).await {
                    if let Some((header, checksum)) = decode(superblock, &raw(&block), segment, offset) {
                        headers.insert((header.sequence, header.boot_epoch), (header, checksum));
                    }
                }
            }
        }
    }
    // The tail in a header is correct even if the batch is not valid.
    let tail = headers.values().map(|(header, _)| header.tail).fold(superblock.tail, Sequence::max);
    // From the first batch of a boot epoch on, batches of earlier epochs are not valid.
    let mut begins: BTreeMap<BootEpoch, Sequence> = BTreeMap::new();
    for (sequence, boot_epoch) in headers.keys() {
        begins.entry(*boot_epoch).or_insert(*sequence);
    }
    let is_valid = |sequence: Sequence, boot_epoch: BootEpoch| {
        sequence >= tail && begins.range(boot_epoch.next()..).all(|(_, begin)| sequence < *begin)
    };
    let (mut chain, mut lost) = (LogChain::new(tail, superblock.log_segment_count), Vec::new());
    for ((sequence, boot_epoch), (header, checksum)) in headers {
        if !is_valid(sequence, boot_epoch) {
            continue;
        }
        if sequence > chain.next_sequence {
            lost.push(chain.next_sequence..sequence);
        }
        chain.add(&header, checksum);
    }
    (chain, lost)
}

/// The readable blocks of a run: in one request if possible, otherwise one by one.
async fn read_run<S: Seam>(
    seam: &S,
    device: &Device<S>,
    superblock: &Superblock,
    segment: SegmentNo,
    offset_blocks: u32,
    count: u32,
) -> Vec<(S::Block, u32)> {
    let at = |offset| block_offset(superblock.segment_bytes, segment, offset);
    if let Ok(blocks) = device.read_blocks(seam, at(offset_blocks), count as usize).await {
        return blocks.into_iter().zip(offset_blocks..).collect();
    }
    let mut readable = Vec::new();
    for offset in offset_blocks..offset_blocks + count {
        let block = device.read_blocks(seam, at(offset), 1).await.ok().and_then(|mut blocks| blocks.pop());
        readable.extend(block.map(|block| (block, offset)));
    }
    readable
}
