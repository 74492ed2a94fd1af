//! Salvage of a log that cannot be followed: every batch header on any device, whether the chain leads to it or not. It
//! is for a rescue by an administrator; an opening never does it.

use std::collections::BTreeMap;
use std::ops::Range;

use seam::{BLOCK_BYTES, Seam};

use super::chain::{Chain, Link, decode};
use crate::device::{Device, block_offset, raw};
use crate::format::batch::BatchHeader;
use crate::format::superblock::Superblock;
use crate::number::{BootEpoch, CommitNo, Sequence};

/// Blocks read at once.
const LOOK_BLOCKS: u32 = 32;

/// All that is left of the log on `devices`, and the sequence numbers of the lost batches.
pub async fn salvage<S: Seam>(
    seam: &S,
    devices: &[Device<S>],
    superblock: &Superblock,
) -> (Chain, Vec<Range<Sequence>>) {
    let blocks = (superblock.segment_bytes / BLOCK_BYTES as u64) as u32;
    let mut found: BTreeMap<(Sequence, BootEpoch), (BatchHeader, u32)> = BTreeMap::new();
    for device in devices {
        for segment in 0..superblock.segments {
            for offset in (0..blocks).step_by(LOOK_BLOCKS as usize) {
                let count = LOOK_BLOCKS.min(blocks - offset);
                for (block, offset) in read(seam, device, superblock, segment, offset, count).await {
                    if let Some((header, checksum)) = decode(superblock, &raw(&block), segment, offset) {
                        found.insert((header.sequence, header.boot), (header, checksum));
                    }
                }
            }
        }
    }
    // A header's tail was true when it was written.
    let tail = found.values().map(|(header, _)| header.tail).fold(superblock.tail, Sequence::max);
    // From the first batch of a boot epoch on, batches of earlier epochs do not count.
    let mut begins: BTreeMap<BootEpoch, Sequence> = BTreeMap::new();
    for (sequence, boot) in found.keys() {
        begins.entry(*boot).or_insert(*sequence);
    }
    let counts = |sequence: Sequence, boot: BootEpoch| {
        sequence >= tail && begins.range(boot.next()..).all(|(_, begin)| sequence < *begin)
    };
    let (mut links, mut missing, mut next) = (Vec::new(), Vec::new(), tail);
    for ((sequence, boot), (header, checksum)) in found {
        if !counts(sequence, boot) {
            continue;
        }
        if sequence > next {
            missing.push(next..sequence);
        }
        next = sequence.next();
        links.push(Link::new(header, checksum));
    }
    (
        Chain {
            links,
            tail,
            next,
            segments: superblock.segments,
            page_segment_generations: BTreeMap::new(),
            journal: CommitNo(0),
        },
        missing,
    )
}

/// The readable blocks of a run: in one request if possible, otherwise one by one.
async fn read<S: Seam>(
    seam: &S,
    device: &Device<S>,
    superblock: &Superblock,
    segment: u32,
    offset: u32,
    count: u32,
) -> Vec<(S::Block, u32)> {
    let at = |offset| block_offset(superblock.segment_bytes, segment, offset);
    if let Ok(blocks) = device.read_blocks(seam, at(offset), count as usize).await {
        return blocks.into_iter().zip(offset..).collect();
    }
    let mut given = Vec::new();
    for offset in offset..offset + count {
        let block = device.read_blocks(seam, at(offset), 1).await.ok().and_then(|mut blocks| blocks.pop());
        given.extend(block.map(|block| (block, offset)));
    }
    given
}
