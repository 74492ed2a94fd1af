//! The records that are appended to the log and the records that recovery finds.

use std::collections::BTreeMap;
use std::ops::Range;

use seam::Seam;

use crate::number::{BlockNo, Epoch, SegmentNo, VolumeId};

/// The block that a record belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockAddress {
    /// The volume's identity.
    pub volume_id: VolumeId,
    /// The block's number in the volume.
    pub block: BlockNo,
}

/// The content of a record.
pub enum Content<S: Seam> {
    /// The block's data.
    Data(S::Block),
    /// A range of blocks that reads as zeroes.
    Zero {
        /// The length of the range, at least 1.
        blocks: u32,
        /// The backing may release the range's space.
        may_unmap: bool,
    },
    /// Older records of a range are dead (the durable tombstone of R8).
    Tombstone {
        /// The length of the range, at least 1.
        blocks: u32,
    },
}

/// One record to be appended.
pub struct Record<S: Seam> {
    /// The block, or the first of a range.
    pub address: BlockAddress,
    /// The volume's epoch.
    pub epoch: Epoch,
    /// The record's content.
    pub content: Content<S>,
}

/// The position of a record in the log, and its block's checksum. After the record is retired, its content can be read
/// until it expires ([`crate::Store::read_kept`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub(crate) segment: SegmentNo,
    /// The block's number within the segment: the data block itself, or the header.
    pub(crate) block_index: u32,
    pub(crate) checksum: u32,
    /// The segment's number of expiries when the record was written.
    pub(crate) expiries: u16,
    /// True for a record that keeps its segment alive until it is retired. Tombstones do not.
    pub(crate) is_live: bool,
}

/// Bits of the block's number in a packed position: a segment has at most 1 GiB.
const INDEX_BITS: u32 = 18;

impl Position {
    /// Packs a live record's position into three words, for compact indexes: segment, block of the segment and
    /// expiries (less than 2^31), checksum.
    ///
    /// # Panics
    /// If the position is a tombstone's.
    pub fn to_words(self) -> [u32; 3] {
        assert!(self.is_live && self.block_index < 1 << INDEX_BITS, "a live position in a segment of at most 1 GiB");
        [self.segment.0, self.block_index | u32::from(self.expiries) << INDEX_BITS, self.checksum]
    }

    /// The segment that the record keeps alive.
    pub fn segment(self) -> SegmentNo {
        self.segment
    }

    /// Unpacks the words of [`Position::to_words`].
    pub fn from_words([segment, packed, checksum]: [u32; 3]) -> Position {
        let (index, expiries) = (packed & ((1 << INDEX_BITS) - 1), (packed >> INDEX_BITS) as u16);
        Position { segment: SegmentNo(segment), block_index: index, checksum, expiries, is_live: true }
    }
}

/// Blocks without an intact copy that a read has found, until their records are retired.
#[derive(Default)]
pub(crate) struct LostBlocks(BTreeMap<(SegmentNo, u32), BlockAddress>);

/// Maximum number of listed blocks.
const LOST_BLOCKS_MAX: usize = 1024;

impl LostBlocks {
    /// Adds a block.
    pub fn add(&mut self, address: BlockAddress, position: Position) {
        if self.0.len() < LOST_BLOCKS_MAX {
            self.0.insert((position.segment, position.block_index), address);
        }
    }

    /// Removes a block: its record is retired, so its content is no longer needed.
    pub fn retire(&mut self, position: &Position) {
        self.0.remove(&(position.segment, position.block_index));
    }

    /// The listed blocks, in the order of their addresses.
    pub fn list(&self) -> Vec<BlockAddress> {
        let mut list: Vec<_> = self.0.values().copied().collect();
        list.sort_unstable();
        list
    }
}

/// The content of a live record that recovery found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveredContent {
    /// The block's content lies in the log.
    Data,
    /// A range of blocks that reads as zeroes.
    Zero {
        /// The length of the range.
        blocks: u32,
        /// The backing may release the range's space.
        may_unmap: bool,
    },
}

/// A live record that recovery found, the newest of its blocks. It is retired once, like an appended record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveredRecord {
    /// The block, or the first of a range.
    pub address: BlockAddress,
    /// The volume's epoch.
    pub epoch: Epoch,
    /// Its position in the log.
    pub position: Position,
    /// The record's content.
    pub content: RecoveredContent,
}

impl RecoveredRecord {
    /// The blocks that the record holds.
    pub fn blocks(&self) -> Range<BlockNo> {
        match self.content {
            RecoveredContent::Data => self.address.block.single(),
            RecoveredContent::Zero { blocks, .. } => self.address.block.range_of_len(u64::from(blocks)),
        }
    }
}
