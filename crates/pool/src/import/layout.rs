//! The parts of an imported disk: slots in the middle, and at both ends ranges that lie in no slot.

use std::ops::Range;

use seam::{BLOCK_BYTES, Block, BlockMut, Disk, DiskResult, Piece, PieceMut, Seam};

use crate::create::failed;
use crate::error::PoolError;
use crate::format::layout::DATA_ALIGNMENT;
use crate::format::superblock::SUPERBLOCK_OFFSETS;
use crate::io::{read, write};
use crate::number::VolumeId;
use crate::state::Inner;

/// Byte offset of the superblock that is written first.
const FIRST_WRITTEN: u64 = SUPERBLOCK_OFFSETS[1];
/// Blocks of one copy.
const COPY_BLOCKS: usize = 32;

/// The division of a disk of this size. Slot 0 begins at a whole slice, so that slice `n` of the volume is slot
/// `n - first_slice` of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ImportLayout {
    /// Bytes of the disk and of its volume.
    pub size_bytes: u64,
    /// Bytes of a slice.
    pub slice_bytes: u64,
    /// Byte offset of slot 0.
    pub data_at: u64,
    /// Whole slices from there on.
    pub slots: u32,
}

impl ImportLayout {
    /// Divides a disk; `None` if it has no whole slice behind the place of the superblocks.
    pub fn of(size_bytes: u64, slice_bytes: u64) -> Option<ImportLayout> {
        let data_at = DATA_ALIGNMENT.max(slice_bytes);
        let slots = u32::try_from(size_bytes.checked_sub(data_at)? / slice_bytes).ok()?;
        (slots > 0).then_some(ImportLayout { size_bytes, slice_bytes, data_at, slots })
    }

    /// The slice of the volume that lies in slot 0.
    pub fn first_slice(self) -> u32 {
        (self.data_at / self.slice_bytes) as u32
    }

    /// The ranges in no slot: the place of the superblocks, and a last partial slice.
    pub fn unmapped_ranges(self) -> [Range<u64>; 2] {
        let end = self.data_at + u64::from(self.slots) * self.slice_bytes;
        [0..self.data_at, end..self.size_bytes]
    }

    /// Number of slices that the ranges in no slot take elsewhere.
    pub fn copied_slices(self) -> u64 {
        self.unmapped_ranges().iter().map(|range| (range.end - range.start).div_ceil(self.slice_bytes)).sum()
    }
}

/// Writes the ranges in no slot to the volume, which takes slots on other groups for them.
pub(super) async fn copy_unmapped<S: Seam, D: Disk<S>>(
    inner: &std::rc::Rc<Inner<S, D>>,
    volume: VolumeId,
    disk: &D,
    layout: ImportLayout,
) -> Result<(), PoolError> {
    for range in layout.unmapped_ranges() {
        let mut at = range.start;
        while at < range.end {
            let pieces = buffers(inner, range.end - at).await;
            let (result, pieces) = disk.read(at, pieces).await;
            result.map_err(|error| failed(disk, error))?;
            let pieces: Vec<_> = pieces.into_iter().map(freeze_padded).collect();
            let len: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
            let result = write::write(inner, volume, at, pieces.clone()).await;
            pieces.into_iter().for_each(|piece| inner.buffers.put_frozen(piece.block));
            result.map_err(|error| match error {
                seam::DiskError::NoSpace => PoolError::Full,
                error => PoolError::Disk { device: format!("volume {volume}"), error },
            })?;
            at += len;
        }
    }
    Ok(())
}

/// True if the disk has the size of the layout, and the ranges in no slot have the content of the volume. The block of
/// the superblock that is written first is left out: an interrupted write may have damaged it. A disk on which the
/// other one was begun has a valid superblock, and needs no comparison.
pub(super) async fn matches_copies<S: Seam, D: Disk<S>>(
    inner: &std::rc::Rc<Inner<S, D>>,
    volume: VolumeId,
    disk: &D,
    layout: ImportLayout,
) -> DiskResult<bool> {
    if disk.geometry().size_bytes != layout.size_bytes {
        return Ok(false);
    }
    for range in layout.unmapped_ranges() {
        let mut at = range.start;
        while at < range.end {
            let pieces = buffers(inner, range.end - at).await;
            let (read_disk, of_disk) = disk.read(at, pieces).await;
            let pieces = buffers(inner, of_disk.iter().map(|piece| piece.len() as u64).sum()).await;
            let (read_volume, of_volume) = read::read(inner, volume, at, pieces).await;
            read_disk.and(read_volume)?;
            let mut is_same = true;
            let mut compared = 0;
            let blocks = |pieces: Vec<PieceMut<S::BlockMut>>| pieces.into_iter().map(freeze_padded).collect::<Vec<_>>();
            let (of_disk, of_volume) = (blocks(of_disk), blocks(of_volume));
            for (one, other) in of_disk.iter().zip(&of_volume) {
                let is_superblock = at + compared == FIRST_WRITTEN;
                is_same &= is_superblock || one.block.has_same_content(&other.block);
                compared += one.len() as u64;
            }
            of_disk.into_iter().chain(of_volume).for_each(|piece| inner.buffers.put_frozen(piece.block));
            if !is_same {
                return Ok(false);
            }
            at += compared;
        }
    }
    Ok(true)
}

/// Buffers for up to `len` bytes, at most [`COPY_BLOCKS`].
async fn buffers<S: Seam, D: Disk<S>>(inner: &Inner<S, D>, len: u64) -> Vec<PieceMut<S::BlockMut>> {
    let block = BLOCK_BYTES as u64;
    let count = len.div_ceil(block).min(COPY_BLOCKS as u64) as usize;
    let buffers = inner.buffers.get_up_to(count).await.into_iter();
    let lengths = (0..).map(|index| (len - index * block).min(block) as usize);
    buffers.zip(lengths).map(|(buffer, len)| Piece::new(buffer, 0, len)).collect()
}

/// Freezes a piece, and zeroes the rest of its block.
fn freeze_padded<M: BlockMut>(mut piece: PieceMut<M>) -> Piece<M::Frozen> {
    let len = piece.len();
    if len < BLOCK_BYTES {
        piece.block.zero(len, BLOCK_BYTES - len);
    }
    Piece::new(piece.block.freeze(), 0, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn slots_begin_at_a_whole_slice_behind_the_superblocks() {
        let layout = ImportLayout::of(100 * MIB + 512, 4 * MIB).expect("room for slots");
        assert_eq!((layout.data_at, layout.slots, layout.first_slice()), (4 * MIB, 24, 1));
        assert_eq!(layout.unmapped_ranges(), [0..4 * MIB, 100 * MIB..100 * MIB + 512]);
        assert_eq!(layout.copied_slices(), 2);
        let small = ImportLayout::of(3 * MIB, MIB / 4).expect("room for slots");
        assert_eq!((small.data_at, small.slots, small.first_slice()), (MIB, 8, 4));
        assert_eq!(small.copied_slices(), 4);
    }

    #[test]
    fn disk_without_a_whole_slice_is_too_small() {
        assert_eq!(ImportLayout::of(8 * MIB - 512, 4 * MIB), None);
        assert!(ImportLayout::of(8 * MIB, 4 * MIB).is_some());
    }
}
