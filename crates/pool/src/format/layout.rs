//! Places and sizes of the metadata on a group.

use super::block::PAYLOAD_BYTES;
use super::record::{DERIVED_RECORD_BYTES_MAX, MAP_RECORD_BYTES, VOLUME_RECORD_BYTES_MAX};
use super::superblock::Superblock;
use crate::number::{CheckpointNo, Sequence};

/// Byte offset of the metadata area: the journal's ring, then checkpoint area A, then B.
pub const METADATA_AT: u64 = 128 << 10;
/// Alignment of the first slot in bytes.
pub const DATA_ALIGNMENT: u64 = 1 << 20;
/// Smallest ring, in blocks.
pub const JOURNAL_BLOCKS_MIN: u32 = 8;
/// Maximum number of volumes of a pool without snapshots and clones.
pub const VOLUMES_MAX: usize = 1024;
/// Maximum number of volumes and snapshots of a pool with snapshots or clones: their records are longer.
pub const VOLUMES_AND_SNAPSHOTS_MAX: usize = volume_blocks() as usize * (PAYLOAD_BYTES / DERIVED_RECORD_BYTES_MAX);
/// Maximum number of snapshots of a volume.
pub const SNAPSHOTS_MAX: usize = 256;
/// Groups that have an area for a metadata copy: two copies, and a place for another one.
pub const AREAS_MAX: usize = 3;
/// Groups that carry the metadata.
pub const COPIES: usize = 2;
/// The room for growth: a new pool's metadata has room for this many times its slots.
pub const GROWTH: u32 = 3;

const BLOCK: u64 = seam::BLOCK_BYTES as u64;

/// Blocks of a checkpoint area for the records of volumes.
const fn volume_blocks() -> u64 {
    (VOLUMES_MAX as u64).div_ceil((PAYLOAD_BYTES / VOLUME_RECORD_BYTES_MAX) as u64)
}

/// Blocks of a checkpoint area with room for `slots_max` slots, each mapped by a record of its own.
pub fn area_blocks_for(slots_max: u32) -> u32 {
    let per_block = |record_bytes: usize| (PAYLOAD_BYTES / record_bytes) as u64;
    let maps = u64::from(slots_max).div_ceil(per_block(MAP_RECORD_BYTES));
    u32::try_from(2 + maps + volume_blocks()).expect("2^32 slots need fewer than 2^25 blocks")
}

/// The default length of the ring for this number of slots.
pub fn journal_blocks_for(slots: u32) -> u32 {
    (slots / 256).clamp(128, 16 << 10)
}

/// Byte offset of the first slot on a group.
pub fn data_at(journal_blocks: u32, area_blocks: u32, has_area: bool) -> u64 {
    let blocks = if has_area { u64::from(journal_blocks) + 2 * u64::from(area_blocks) } else { 0 };
    (METADATA_AT + blocks * BLOCK).next_multiple_of(DATA_ALIGNMENT)
}

impl Superblock {
    /// Map records for which a checkpoint area certainly has room.
    pub fn map_records_max(&self) -> u64 {
        let blocks = u64::from(self.area_blocks).saturating_sub(2 + volume_blocks());
        blocks * (PAYLOAD_BYTES / MAP_RECORD_BYTES) as u64
    }

    /// Byte offset of a journal block.
    pub fn journal_offset(&self, sequence: Sequence) -> u64 {
        METADATA_AT + sequence.0 % u64::from(self.journal_blocks) * BLOCK
    }

    /// Byte offset of a checkpoint's header; its content follows.
    pub fn checkpoint_offset(&self, number: CheckpointNo) -> u64 {
        METADATA_AT + (u64::from(self.journal_blocks) + number.0 % 2 * u64::from(self.area_blocks)) * BLOCK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_takes_at_most_a_ten_thousandth_at_4_mib_slices() {
        for tib in [1, 10, 100, 1000] {
            let slots = tib << 18;
            let (journal, area) = (journal_blocks_for(slots), area_blocks_for(slots * GROWTH));
            let bytes = AREAS_MAX as u64 * data_at(journal, area, true);
            let pool_bytes = u64::from(slots) * (4 << 20);
            assert!(bytes * 10_000 <= pool_bytes, "{tib} TiB: {bytes} bytes of metadata");
        }
    }
}
