//! Number types of the flash store: one type each, because these numbers are easily mixed up.
//!
//! The integer inside is public. Code reads it where a number leaves its type (in a disk format, as an index or a
//! count, or in text), and for the rare arithmetic that has no method. There is no implicit conversion from or to an
//! integer.

use std::fmt;
use std::ops::Range;

use seam::BLOCK_BYTES;

/// Blocks of a page.
pub const PAGE_BLOCKS: u32 = 16;

/// Defines a number that prints like its integer, which has 64 bits unless its type is given.
macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        number! { $(#[$doc])* $name: u64 }
    };
    ($(#[$doc:meta])* $name:ident: $integer:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $integer);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

/// Adds `next` to a number type.
macro_rules! successor {
    ($name:ident) => {
        impl $name {
            /// The number after this one.
            #[inline]
            #[must_use]
            pub fn next(self) -> Self {
                $name(self.0 + 1)
            }
        }
    };
}

number! {
    /// The persistent identity of a volume. Unlike a name, it is never reused.
    VolumeId
}

impl fmt::LowerHex for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

number! {
    /// The number of a member of the store: the index of its entry in the superblock.
    MemberNo: u32
}

impl MemberNo {
    /// The index of its entry in lists of all members.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

number! {
    /// The number of a segment on its device. A batch of the log has the same segment on every member that carries the
    /// log.
    SegmentNo: u32
}
successor!(SegmentNo);

impl SegmentNo {
    /// Greater than the number of any segment.
    pub const MAX: SegmentNo = SegmentNo(u32::MAX);

    /// Its index in lists of all segments of a device.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The number of segments from `first`, which is not after this one, to this one.
    #[inline]
    pub fn distance_from(self, first: SegmentNo) -> u32 {
        self.0 - first.0
    }

    /// The segments of a range, in order.
    #[inline]
    pub fn each(segments: &Range<SegmentNo>) -> impl DoubleEndedIterator<Item = SegmentNo> + use<> {
        (segments.start.0..segments.end.0).map(SegmentNo)
    }
}

/// A segment of one member.
pub type MemberSegment = (MemberNo, SegmentNo);

number! {
    /// Counts the openings of the store. It seeds the checksums of the log: a torn batch of an earlier opening never
    /// becomes valid.
    BootEpoch
}
successor!(BootEpoch);

number! {
    /// The sequence number of a log batch: +1 with every batch, over all openings.
    Sequence
}
successor!(Sequence);

number! {
    /// The sequence number of a map journal commit: +1 with every commit that is written, over all openings.
    CommitNo
}
successor!(CommitNo);

number! {
    /// The membership generation: counts the durable changes of the members.
    MembershipGeneration
}
successor!(MembershipGeneration);

impl MembershipGeneration {
    /// The low 32 bits, as stored in a member's entry of the superblock.
    #[inline]
    pub fn low_bits(self) -> u32 {
        self.0 as u32
    }
}

number! {
    /// The generation of a half of the map journal: each checkpoint starts the next one.
    HalfGeneration
}
successor!(HalfGeneration);

number! {
    /// The number of a block inside its volume.
    BlockNo
}
successor!(BlockNo);

impl BlockNo {
    /// The first block.
    pub const ZERO: BlockNo = BlockNo(0);
    /// Greater than the number of any block.
    pub const MAX: BlockNo = BlockNo(u64::MAX);
    /// All blocks that a volume may have.
    pub const ALL: Range<BlockNo> = BlockNo::ZERO..BlockNo::MAX;

    /// The block `blocks` later.
    #[inline]
    #[must_use]
    pub fn plus(self, blocks: u64) -> BlockNo {
        BlockNo(self.0 + blocks)
    }

    /// The block `blocks` later; `None` on overflow.
    #[inline]
    pub fn checked_plus(self, blocks: u64) -> Option<BlockNo> {
        self.0.checked_add(blocks).map(BlockNo)
    }

    /// The block `blocks` earlier, which must exist.
    #[inline]
    #[must_use]
    pub fn minus(self, blocks: u64) -> BlockNo {
        BlockNo(self.0 - blocks)
    }

    /// The offset of its first byte in the volume.
    #[inline]
    pub fn offset(self) -> u64 {
        self.0 * BLOCK_BYTES as u64
    }

    /// The block before this one, which is not the first.
    #[inline]
    #[must_use]
    pub fn previous(self) -> BlockNo {
        BlockNo(self.0 - 1)
    }

    /// The number of blocks from `first`, which is not after this one, to this one.
    #[inline]
    pub fn distance_from(self, first: BlockNo) -> u64 {
        self.0 - first.0
    }

    /// The block number rounded down to a multiple of `boundary`.
    #[inline]
    #[must_use]
    pub fn align_down(self, boundary: u64) -> BlockNo {
        BlockNo(self.0 / boundary * boundary)
    }

    /// The range of only this block.
    #[inline]
    pub fn single(self) -> Range<BlockNo> {
        self..self.next()
    }

    /// The range of `blocks` blocks from this one on.
    #[inline]
    pub fn range_of_len(self, blocks: u64) -> Range<BlockNo> {
        self..self.plus(blocks)
    }

    /// The blocks of a range, in order.
    #[inline]
    pub fn each(blocks: &Range<BlockNo>) -> impl DoubleEndedIterator<Item = BlockNo> + Clone + use<> {
        (blocks.start.0..blocks.end.0).map(BlockNo)
    }

    /// The blocks from this one on, in order.
    #[inline]
    pub fn onward(self) -> impl Iterator<Item = BlockNo> + Clone {
        (self.0..).map(BlockNo)
    }

    /// The number of blocks in a range, which does not end before it starts.
    #[inline]
    pub fn count(blocks: &Range<BlockNo>) -> u64 {
        blocks.end.distance_from(blocks.start)
    }

    /// The page of the block, and the block's index in it.
    #[inline]
    pub fn page(self) -> (PageNo, usize) {
        let blocks = u64::from(PAGE_BLOCKS);
        (PageNo(self.0 / blocks), (self.0 % blocks) as usize)
    }
}

number! {
    /// The number of a page inside its volume.
    PageNo
}
successor!(PageNo);

impl PageNo {
    /// All pages that a volume may have.
    pub const ALL: Range<PageNo> = PageNo(0)..PageNo(u64::MAX);

    /// The block at this index of the page.
    #[inline]
    pub fn block(self, index: usize) -> BlockNo {
        assert!(index < PAGE_BLOCKS as usize, "a page has 16 blocks");
        BlockNo(self.0 * u64::from(PAGE_BLOCKS) + index as u64)
    }

    /// The first block of the page.
    #[inline]
    pub fn first_block(self) -> BlockNo {
        BlockNo(self.0 * u64::from(PAGE_BLOCKS))
    }

    /// The pages that contain these blocks.
    #[inline]
    pub fn covering(blocks: &Range<BlockNo>) -> Range<PageNo> {
        let per_page = u64::from(PAGE_BLOCKS);
        PageNo(blocks.start.0 / per_page)..PageNo(blocks.end.0.div_ceil(per_page))
    }

    /// The pages of a range, in order.
    #[inline]
    pub fn each(pages: &Range<PageNo>) -> impl DoubleEndedIterator<Item = PageNo> + use<> {
        (pages.start.0..pages.end.0).map(PageNo)
    }

    /// The number of pages in a range.
    #[inline]
    pub fn count(pages: &Range<PageNo>) -> u64 {
        pages.end.0.saturating_sub(pages.start.0)
    }
}

number! {
    /// An epoch of a volume: the writes between two flushes.
    Epoch
}
successor!(Epoch);

impl Epoch {
    /// The epoch of spilled blocks, older than any epoch that a flush closed: they count as closed from the start.
    pub const OLDEST: Epoch = Epoch(0);
}

number! {
    /// Counts the completed writes of a volume to its backing. A flush of the backing covers all completions below a
    /// number.
    CompletionNo
}
successor!(CompletionNo);

impl CompletionNo {
    /// Greater than all completions.
    pub const MAX: CompletionNo = CompletionNo(u64::MAX);
}
