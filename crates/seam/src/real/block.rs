//! Real blocks: eight-byte handles to 4 KiB of the pool. Reference counts are not atomic, so blocks stay on their core.

use std::ptr::NonNull;

use super::pool::Header;
use crate::{BLOCK_BYTES, Block, BlockMut};

/// Size of a cache line.
const LINE_BYTES: usize = 64;
/// Cache lines at a block's beginning that [`Block::prefetch_content`] prefetches. The processor's own prefetcher takes
/// over after the first miss. Four lines make a copy of an uncached block a quarter faster; sixteen lines give no more.
const LINES_PREFETCHED: usize = 4;

/// A frozen block of the real world.
pub struct RealBlock(pub(super) NonNull<Header>);

/// A block of the real world with one owner: the reference count is one, and no other handle exists.
pub struct RealBlockMut(pub(super) RealBlock);

impl RealBlock {
    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: the pool keeps headers mapped while one of its blocks is allocated.
        unsafe { self.0.as_ref() }
    }

    /// Start of the block's bytes; valid for [`BLOCK_BYTES`] while a handle exists.
    #[inline]
    pub(super) fn data(&self) -> *mut u8 {
        self.header().data()
    }

    /// The block's index in the pool.
    #[inline]
    pub(super) fn index(&self) -> usize {
        self.header().index()
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes are mapped and initialised (mappings start as zeroes), and a frozen block does not change.
        unsafe { std::slice::from_raw_parts(self.data(), BLOCK_BYTES) }
    }
}

impl RealBlockMut {
    /// Start of the block's bytes; valid for [`BLOCK_BYTES`] while the block exists.
    #[inline]
    pub(super) fn data(&self) -> *mut u8 {
        self.0.data()
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `RealBlock::bytes`, and this is the only handle.
        unsafe { std::slice::from_raw_parts_mut(self.data(), BLOCK_BYTES) }
    }
}

impl Clone for RealBlock {
    #[inline]
    fn clone(&self) -> Self {
        let refs = &self.header().refs;
        refs.set(refs.get().checked_add(1).expect("a block has fewer than 2^32 handles"));
        RealBlock(self.0)
    }
}

impl Drop for RealBlock {
    #[inline]
    fn drop(&mut self) {
        let header = self.header();
        let refs = header.refs.get();
        if refs > 1 {
            header.refs.set(refs - 1);
        } else {
            header.give_back();
        }
    }
}

impl Block for RealBlock {
    type Mut = RealBlockMut;

    #[inline]
    fn thaw(self) -> Result<RealBlockMut, RealBlock> {
        if self.is_unique() { Ok(RealBlockMut(self)) } else { Err(self) }
    }

    #[inline]
    fn is_unique(&self) -> bool {
        self.header().refs.get() == 1
    }

    #[inline]
    fn prefetch(&self) {
        crate::hint::prefetch(self.header());
    }

    #[inline]
    fn prefetch_content(&self) {
        let lines = self.bytes().chunks(LINE_BYTES).take(LINES_PREFETCHED);
        lines.for_each(|line| crate::hint::prefetch(&line[0]));
    }

    fn read_bytes(&self, at: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.bytes()[at..at + out.len()]);
    }

    #[inline]
    fn as_bytes(&self) -> Option<&[u8]> {
        Some(self.bytes())
    }

    fn is_zero(&self, at: usize, len: usize) -> bool {
        // In chunks, so that the compiler can vectorise the comparison and the loop can still stop early.
        self.bytes()[at..at + len].chunks(64).all(|chunk| chunk.iter().fold(0, |seen, byte| seen | byte) == 0)
    }

    fn has_same_content(&self, other: &Self) -> bool {
        self.0 == other.0 || self.bytes() == other.bytes()
    }

    fn checksum(&self, seed: u32) -> u32 {
        crc32c::crc32c_append(seed, self.bytes())
    }

    #[cfg(feature = "sabotage")]
    fn sabotage_thaw(self) -> RealBlockMut {
        unreachable!("only the simulated world breaks R1 on purpose")
    }
}

impl BlockMut for RealBlockMut {
    type Frozen = RealBlock;

    #[inline]
    fn freeze(self) -> RealBlock {
        self.0
    }

    fn copy_from(&mut self, at: usize, from: &RealBlock, from_at: usize, len: usize) {
        self.bytes_mut()[at..at + len].copy_from_slice(&from.bytes()[from_at..from_at + len]);
    }

    fn zero(&mut self, at: usize, len: usize) {
        self.bytes_mut()[at..at + len].fill(0);
    }

    #[inline]
    fn as_bytes_mut(&mut self) -> Option<&mut [u8]> {
        Some(self.bytes_mut())
    }

    fn write_bytes(&mut self, at: usize, bytes: &[u8]) {
        self.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn write_metadata(&mut self, at: usize, bytes: &[u8]) {
        self.write_bytes(at, bytes);
    }
}
