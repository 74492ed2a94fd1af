//! What a front end asks and what it gets back.

use seam::{BLOCK_BYTES, BlockMut, DiskError, Seam};

/// Why a request failed; a front end translates it to its protocol's code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Outside the volume, not aligned to 512 bytes, or empty.
    #[error("the request lies outside the volume or is not aligned to 512 bytes")]
    Invalid,
    /// A write to a read-only volume.
    #[error("the volume is read-only")]
    ReadOnly,
    /// Only for requests that demanded to be fast or nothing.
    #[error("cannot be done fast on this volume")]
    NotFast,
    /// The volume is being removed.
    #[error("the volume is shutting down")]
    ShuttingDown,
    /// Only for what would lose data that was not told to be lost.
    #[error("{0} bytes are not on the backing yet: flush the volume first, or say that they are to be discarded")]
    Dirty(u64),
    /// The backing could not do it.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// How a write is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteFlags {
    /// Acknowledge only when this write is durable.
    pub fua: bool,
    /// Its blocks leave memory when they are on the backing: nobody will ask for them soon.
    pub once: bool,
}

/// How a range is to be zeroed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZeroFlags {
    /// Acknowledge only when the zeroes are durable.
    pub fua: bool,
    /// Space may be released.
    pub may_unmap: bool,
    /// Fail with [`RequestError::NotFast`] where it would cost as much as writing.
    pub fast_only: bool,
}

/// Where the bytes of a write come from.
pub trait WriteSource<S: Seam> {
    /// Copies bytes `from..from + len` of the request to byte `at` of `block`. Offsets are multiples of 512.
    fn fill(&mut self, from: usize, block: &mut S::BlockMut, at: usize, len: usize);

    /// The block of bytes `from..from + 4096` of the request, where the source has it as a buffer of its own to give away; what was
    /// given is not asked for again.
    fn give(&mut self, _from: usize) -> Option<S::BlockMut> {
        None
    }
}

/// The content of a write whose blocks are all whole, in the engine's own buffers ([`crate::Volume::buffers`]), which are kept
/// instead of being copied.
pub struct GivenBlocks<S: Seam>(Vec<Option<S::BlockMut>>);

impl<S: Seam> GivenBlocks<S> {
    /// The content of a write at a multiple of 4096, block by block.
    pub fn new(blocks: impl IntoIterator<Item = S::BlockMut>) -> Self {
        GivenBlocks(blocks.into_iter().map(Some).collect())
    }
}

impl<S: Seam> WriteSource<S> for GivenBlocks<S> {
    fn fill(&mut self, _: usize, _: &mut S::BlockMut, _: usize, _: usize) {
        unreachable!("each part of the write is a whole block, which is given")
    }

    fn give(&mut self, from: usize) -> Option<S::BlockMut> {
        self.0[from / BLOCK_BYTES].take()
    }
}

impl<S: Seam> WriteSource<S> for &[u8] {
    fn fill(&mut self, from: usize, block: &mut S::BlockMut, at: usize, len: usize) {
        block.write_bytes(at, &self[from..from + len]);
    }
}
