//! Device features and the configuration space of virtio-blk.

use engine::Volume;
use seam::Seam;

/// Maximum data segments of a request. QEMU's default queue has 128 entries, of which header and status take two.
pub(crate) const SEGMENTS_MAX: u32 = 126;
/// Maximum ranges of a discard or write-zeroes request: the value of QEMU's own back end, which QEMU's test expects.
pub(crate) const RANGES_MAX: u32 = 1;
/// Maximum sectors of such a range: 2 GiB.
pub(crate) const RANGE_SECTORS_MAX: u32 = 1 << 22;
/// Maximum queues of a driver.
pub(crate) const QUEUES_MAX: usize = 64;
/// Size of the configuration space, in bytes.
pub(crate) const SPACE_BYTES: usize = 256;

/// Offsets of fields in the configuration space (virtio 1.2, section 5.2.4).
pub(crate) mod field {
    pub(super) const CAPACITY: usize = 0;
    pub(super) const SEG_MAX: usize = 12;
    pub(super) const BLK_SIZE: usize = 20;
    /// Exponent of the physical block's logical blocks, then the offset of the first aligned one.
    pub(super) const PHYSICAL_BLOCK_EXP: usize = 24;
    pub(super) const MIN_IO_SIZE: usize = 26;
    pub(super) const OPT_IO_SIZE: usize = 28;
    /// Write-back or write-through; the only field that the driver may set.
    pub(crate) const WRITEBACK: usize = 32;
    pub(super) const NUM_QUEUES: usize = 34;
    pub(super) const MAX_DISCARD_SECTORS: usize = 36;
    pub(super) const MAX_DISCARD_SEG: usize = 40;
    pub(super) const DISCARD_SECTOR_ALIGNMENT: usize = 44;
    pub(super) const MAX_WRITE_ZEROES_SECTORS: usize = 48;
    pub(super) const MAX_WRITE_ZEROES_SEG: usize = 52;
    pub(super) const WRITE_ZEROES_MAY_UNMAP: usize = 56;
}

const SECTOR_SHIFT: u32 = 9;
/// Sectors of a block of the engine.
const BLOCK_SECTORS: u32 = 8;
/// Optimal request size, in sectors.
const PAGE_SECTORS: u32 = 128;

/// Feature bits of the device and of its transport.
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
    pub(crate) const INDIRECT_DESC: u64 = 1 << 28;
    pub(crate) const EVENT_IDX: u64 = 1 << 29;
    pub(crate) const PROTOCOL_FEATURES: u64 = 1 << 30;
    pub(crate) const VERSION_1: u64 = 1 << 32;
}

/// Features offered for a volume.
pub(crate) fn offered_features(read_only: bool) -> u64 {
    use feature::*;
    let write_features = if read_only { READ_ONLY } else { DISCARD | WRITE_ZEROES };
    let block = SEG_MAX | BLK_SIZE | FLUSH | TOPOLOGY | CONFIG_WCE | MQ | write_features;
    block | LOG_ALL | INDIRECT_DESC | EVENT_IDX | PROTOCOL_FEATURES | VERSION_1
}

/// Configuration space of a volume.
pub(crate) fn config_space<S: Seam>(volume: &Volume<S>, write_back: bool) -> [u8; SPACE_BYTES] {
    let mut space = [0; SPACE_BYTES];
    let mut put = |offset: usize, bytes: &[u8]| space[offset..offset + bytes.len()].copy_from_slice(bytes);
    let sector = 1_u32 << SECTOR_SHIFT;
    put(field::CAPACITY, &(volume.size_bytes() >> SECTOR_SHIFT).to_le_bytes());
    put(field::SEG_MAX, &SEGMENTS_MAX.to_le_bytes());
    put(field::BLK_SIZE, &sector.to_le_bytes());
    put(field::PHYSICAL_BLOCK_EXP, &[BLOCK_SECTORS.trailing_zeros() as u8, 0]);
    put(field::MIN_IO_SIZE, &(BLOCK_SECTORS as u16).to_le_bytes());
    put(field::OPT_IO_SIZE, &PAGE_SECTORS.to_le_bytes());
    put(field::WRITEBACK, &[u8::from(write_back)]);
    put(field::NUM_QUEUES, &(QUEUES_MAX as u16).to_le_bytes());
    put(field::MAX_DISCARD_SECTORS, &RANGE_SECTORS_MAX.to_le_bytes());
    put(field::MAX_DISCARD_SEG, &RANGES_MAX.to_le_bytes());
    put(field::DISCARD_SECTOR_ALIGNMENT, &BLOCK_SECTORS.to_le_bytes());
    put(field::MAX_WRITE_ZEROES_SECTORS, &RANGE_SECTORS_MAX.to_le_bytes());
    put(field::MAX_WRITE_ZEROES_SEG, &RANGES_MAX.to_le_bytes());
    put(field::WRITE_ZEROES_MAY_UNMAP, &[1]);
    space
}
