//! The stream by which the former owner of a volume passes the blocks that it has in memory on to the next owner.
//!
//! The sender writes batches, the blocks of the cache's main part first: a header, an entry for each block, then their
//! content. Numbers are little-endian.
//!
//! | bytes | content |
//! |---|---|
//! | 4 | number of blocks, at most 64; 0 ends the stream |
//! | 4 | part of the cache: 0 main, 1 probation |
//! | 12 for each block | number of the block (8), CRC32C of its content continued from that number (4) |
//! | 4096 for each block | content |
//!
//! The receiver determines the pace: it takes a batch, rests, and takes the next one. It closes the stream when it
//! needs no more.

mod receive;
mod send;

pub use receive::{ReceiveError, Received, receive};
pub use send::send;

use engine::BlockNo;
use engine::policy::PolicyPart;
use seam::Block;

/// Maximum number of blocks in a batch.
const BATCH_BLOCKS_MAX: usize = 64;
/// Bytes of the header of a batch.
const HEADER_BYTES: usize = 8;
/// Bytes of a block's entry.
const ENTRY_BYTES: usize = 12;

/// The checksum of a block's content at its place.
fn checksum(block: BlockNo, data: &impl Block) -> u32 {
    data.checksum((block.0 ^ block.0 >> 32) as u32)
}

/// The number of a part in the stream.
fn part_number(part: PolicyPart) -> u32 {
    match part {
        PolicyPart::Main => 0,
        PolicyPart::Probation => 1,
    }
}

/// The part with a number of the stream.
fn part_of(number: u32) -> Option<PolicyPart> {
    [PolicyPart::Main, PolicyPart::Probation].into_iter().find(|part| part_number(*part) == number)
}
