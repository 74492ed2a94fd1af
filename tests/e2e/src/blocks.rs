//! Numbered blocks scattered over a volume `v`, whose content names the block and the version that was written.

use std::ops::Range;

use crate::client::Client;
use crate::fixture::Fixture;

/// Bytes per block.
pub const BLOCK_BYTES: u64 = 4096;
/// Number of written blocks.
pub const BLOCKS: u64 = 500;
/// Size of the volume in bytes.
pub const VOLUME_BYTES: u64 = 64 << 20;

/// Content of a block: its number, then its version.
pub fn block(number: u64, version: u8) -> Vec<u8> {
    let mut block = vec![version; BLOCK_BYTES as usize];
    block[..8].copy_from_slice(&number.to_le_bytes());
    block
}

/// Offset of a block in bytes.
pub fn offset_of(number: u64) -> u64 {
    number * 29 % (VOLUME_BYTES / BLOCK_BYTES) * BLOCK_BYTES
}

/// Writes all blocks and flushes.
pub fn write(fixture: &Fixture, version: u8) {
    write_some(fixture, 0..BLOCKS, version);
}

/// Writes these blocks and flushes.
pub fn write_some(fixture: &Fixture, numbers: Range<u64>, version: u8) {
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    for number in numbers {
        client.write(offset_of(number), &block(number, version)).expect("the write succeeds");
    }
    client.flush().expect("the flush succeeds");
}

/// Reads the volume through a client.
pub fn read(fixture: &Fixture) -> Vec<u8> {
    Client::connect(&fixture.endpoint(), "v").and_then(|mut client| client.read_all()).expect("the read succeeds")
}

/// Number of blocks in `image` that hold `version`.
pub fn count(image: &[u8], version: u8) -> u64 {
    count_some(image, 0..BLOCKS, version)
}

/// Like [`count`], for these blocks only.
pub fn count_some(image: &[u8], numbers: Range<u64>, version: u8) -> u64 {
    let holds = |number: &u64| {
        let offset = offset_of(*number) as usize;
        image.get(offset..offset + BLOCK_BYTES as usize) == Some(&block(*number, version))
    };
    numbers.filter(holds).count() as u64
}
