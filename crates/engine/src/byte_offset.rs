//! Byte offsets in a volume. A newtype, so that the compiler tells offsets from lengths, sizes and sector or block
//! numbers.
//!
//! The integer inside is public, like that of [`BlockNo`]. Code reads it where an offset leaves its type (at a disk, in
//! a protocol, or in a report), and for the rare arithmetic that has no method.

use std::fmt;
use std::ops::Range;

use flash::BlockNo;
use seam::BLOCK_BYTES;

/// Bytes of a block.
const BLOCK: u64 = BLOCK_BYTES as u64;

/// The offset of a byte in its volume.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct ByteOffset(pub u64);

impl fmt::Debug for ByteOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for ByteOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl ByteOffset {
    /// The first byte.
    pub const ZERO: ByteOffset = ByteOffset(0);

    /// The offset of a block's first byte.
    #[inline]
    pub fn of(block: BlockNo) -> ByteOffset {
        ByteOffset(block.offset())
    }

    /// The offset `bytes` later.
    #[inline]
    #[must_use]
    pub fn plus(self, bytes: u64) -> ByteOffset {
        ByteOffset(self.0 + bytes)
    }

    /// The offset `bytes` later; `None` on overflow.
    #[inline]
    pub fn checked_plus(self, bytes: u64) -> Option<ByteOffset> {
        self.0.checked_add(bytes).map(ByteOffset)
    }

    /// The number of bytes from `first`, which is not after this offset, to this offset.
    #[inline]
    pub fn distance_from(self, first: ByteOffset) -> u64 {
        self.0 - first.0
    }

    /// The range of `bytes` bytes from this offset on.
    #[inline]
    pub fn range_of_len(self, bytes: u64) -> Range<ByteOffset> {
        self..self.plus(bytes)
    }

    /// True if the offset is a multiple of `boundary` bytes.
    #[inline]
    pub fn is_aligned(self, boundary: u64) -> bool {
        self.0.is_multiple_of(boundary)
    }

    /// The offset rounded down to a multiple of `boundary` bytes.
    #[inline]
    #[must_use]
    pub fn align_down(self, boundary: u64) -> ByteOffset {
        ByteOffset(self.0 / boundary * boundary)
    }

    /// The offset rounded up to a multiple of `boundary` bytes.
    #[inline]
    #[must_use]
    pub fn align_up(self, boundary: u64) -> ByteOffset {
        ByteOffset(self.0.next_multiple_of(boundary))
    }

    /// The offset rounded up to a multiple of `boundary` bytes; `None` on overflow.
    #[inline]
    pub fn checked_align_up(self, boundary: u64) -> Option<ByteOffset> {
        self.0.checked_next_multiple_of(boundary).map(ByteOffset)
    }

    /// The block that contains the byte.
    #[inline]
    pub fn block(self) -> BlockNo {
        BlockNo(self.0 / BLOCK)
    }

    /// The first block that starts at the byte or after it.
    #[inline]
    pub fn block_at_or_after(self) -> BlockNo {
        BlockNo(self.0.div_ceil(BLOCK))
    }

    /// The index of the byte in its block.
    #[inline]
    pub fn offset_in_block(self) -> usize {
        (self.0 % BLOCK) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_inside_a_block_lies_between_two_blocks() {
        let at = ByteOffset::of(BlockNo(3)).plus(512);
        assert_eq!(
            (at.0, at.block(), at.block_at_or_after(), at.offset_in_block()),
            (12_800, BlockNo(3), BlockNo(4), 512)
        );
        let start = ByteOffset::of(BlockNo(3));
        assert_eq!((start.block(), start.block_at_or_after(), start.offset_in_block()), (BlockNo(3), BlockNo(3), 0));
    }

    #[test]
    fn rounding_reaches_the_boundary_or_reports_overflow() {
        let at = ByteOffset(1_000);
        assert_eq!((at.align_down(512), at.align_up(512)), (ByteOffset(512), ByteOffset(1_024)));
        assert!(at.align_up(512).is_aligned(512) && !at.is_aligned(512));
        assert_eq!(at.range_of_len(24), at..ByteOffset(1_024));
        assert_eq!(at.range_of_len(24).end.distance_from(at), 24);
        let last = ByteOffset(u64::MAX);
        assert_eq!((last.checked_plus(0), last.checked_plus(1), last.checked_align_up(2)), (Some(last), None, None));
    }
}
