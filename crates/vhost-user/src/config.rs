//! What the driver is told of the device: features, and virtio-blk's configuration space.

use engine::Volume;
use seam::Seam;

/// Buffers of data that one request may have.
/// Queues have 128 entries by QEMU's default, of which head and status take two.
pub(crate) const SEGMENTS_MAX: u32 = 126;
/// Ranges that one discard or write of zeroes may name: what QEMU's own server says, and its test of servers expects.
pub(crate) const RANGES_MAX: u32 = 1;
/// Sectors of one such range: 2 GiB.
pub(crate) const RANGE_SECTORS_MAX: u32 = 1 << 22;
/// Queues that a driver may use.
pub(crate) const QUEUES_MAX: usize = 64;
/// Bytes of the configuration space that front ends may ask for.
pub(crate) const SPACE_BYTES: usize = 256;
/// Where the driver says whether it wants a write-back cache.
pub(crate) const WRITE_CACHE_AT: usize = 32;

const SECTOR_SHIFT: u32 = 9;
/// Sectors of a block.
const BLOCK_SECTORS: u32 = 8;
/// Sectors of a page: what a request should have.
const PAGE_SECTORS: u32 = 128;

/// Features of the device and of its transport, by their bits.
pub(crate) mod feature {
    pub(crate) const SEG_MAX: u64 = 1 << 2;
    pub(crate) const READ_ONLY: u64 = 1 << 5;
    pub(crate) const BLK_SIZE: u64 = 1 << 6;
    pub(crate) const FLUSH: u64 = 1 << 9;
    pub(crate) const TOPOLOGY: u64 = 1 << 10;
    pub(crate) const CONFIG_WCE: u64 = 1 << 11;
    pub(crate) const MQ: u64 = 1 << 12;
    pub(crate) const DISCARD: u64 = 1 << 13;
    pub(crate) const WRITE_ZEROES: u64 = 1 << 14;
    pub(crate) const LOG_ALL: u64 = 1 << 26;
    pub(crate) const INDIRECT: u64 = 1 << 28;
    pub(crate) const EVENT_IDX: u64 = 1 << 29;
    pub(crate) const PROTOCOL: u64 = 1 << 30;
    pub(crate) const VERSION_1: u64 = 1 << 32;
}

/// What is offered for a volume.
pub(crate) fn features(read_only: bool) -> u64 {
    use feature::*;
    let changes = if read_only { READ_ONLY } else { DISCARD | WRITE_ZEROES };
    let block = SEG_MAX | BLK_SIZE | FLUSH | TOPOLOGY | CONFIG_WCE | MQ | changes;
    block | LOG_ALL | INDIRECT | EVENT_IDX | PROTOCOL | VERSION_1
}

/// The configuration space of a volume.
pub(crate) fn space<S: Seam>(volume: &Volume<S>, write_back: bool) -> [u8; SPACE_BYTES] {
    let mut space = [0; SPACE_BYTES];
    let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
    let sector = 1_u32 << SECTOR_SHIFT;
    put(0, &(volume.size_bytes() >> SECTOR_SHIFT).to_le_bytes());
    put(12, &SEGMENTS_MAX.to_le_bytes());
    put(20, &sector.to_le_bytes());
    // Sectors of what is written whole, as a power of two; where blocks begin; the least and the best that a request has.
    put(24, &[BLOCK_SECTORS.trailing_zeros() as u8, 0]);
    put(26, &(BLOCK_SECTORS as u16).to_le_bytes());
    put(28, &PAGE_SECTORS.to_le_bytes());
    put(WRITE_CACHE_AT, &[u8::from(write_back)]);
    put(34, &(QUEUES_MAX as u16).to_le_bytes());
    put(36, &RANGE_SECTORS_MAX.to_le_bytes());
    put(40, &RANGES_MAX.to_le_bytes());
    put(44, &BLOCK_SECTORS.to_le_bytes());
    put(48, &RANGE_SECTORS_MAX.to_le_bytes());
    put(52, &RANGES_MAX.to_le_bytes());
    put(56, &[1]);
    space
}
