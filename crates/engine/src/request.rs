//! Requests of front ends: their flags, data sources and errors.

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
    /// Only for requests with the flag `fast_only`.
    #[error("cannot be done fast on this volume")]
    NotFast,
    /// The volume is being removed.
    #[error("the volume is shutting down")]
    ShuttingDown,
    /// The volume has moved to a client of another host; only a client that connects now may change it here.
    #[error("the volume has moved to another host, where a client uses it")]
    MovedAway,
    /// Another host owns the volume, and it was not handed over in time.
    #[error("another host owns the volume, and has not handed it over")]
    NotOwner,
    /// Only for operations that would lose dirty data without an explicit discard.
    #[error("{0} bytes of dirty data are not on the backing: flush the volume first, or discard them explicitly")]
    Dirty(u64),
    /// The backing failed the request.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Options of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteFlags {
    /// Acknowledge only when this write is durable.
    pub fua: bool,
    /// The blocks leave memory once they are on the backing: they are not expected to be used soon.
    pub is_used_once: bool,
}

/// Options of a zero or discard request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZeroFlags {
    /// Acknowledge only when the zeroes are durable.
    pub fua: bool,
    /// The backing may release the space.
    pub may_unmap: bool,
    /// Fail with [`RequestError::NotFast`] if it would cost as much as writing.
    pub fast_only: bool,
}

/// Source of the bytes of a write.
pub trait WriteSource<S: Seam> {
    /// Copies bytes `from..from + len` of the request to byte `at` of `block`. Offsets are multiples of 512.
    fn fill(&mut self, from: usize, block: &mut S::BlockMut, at: usize, len: usize);

    /// Moves out the buffer with bytes `from..from + 4096` of the request, if the source owns such a buffer. The source
    /// is then not read at these bytes.
    fn take_block(&mut self, _from: usize) -> Option<S::BlockMut> {
        None
    }
}

/// The content of a write of whole blocks in the engine's own buffers ([`crate::Volume::try_alloc_buffers`]), which the
/// engine keeps instead of copying them.
pub struct OwnedBlocks<S: Seam>(Vec<Option<S::BlockMut>>);

impl<S: Seam> OwnedBlocks<S> {
    /// The content of a write at a multiple of 4096, block by block.
    pub fn new(blocks: impl IntoIterator<Item = S::BlockMut>) -> Self {
        OwnedBlocks(blocks.into_iter().map(Some).collect())
    }
}

impl<S: Seam> WriteSource<S> for OwnedBlocks<S> {
    fn fill(&mut self, _: usize, _: &mut S::BlockMut, _: usize, _: usize) {
        unreachable!("every block of the write is a whole buffer")
    }

    fn take_block(&mut self, from: usize) -> Option<S::BlockMut> {
        self.0[from / BLOCK_BYTES].take()
    }
}

impl<S: Seam> WriteSource<S> for &[u8] {
    fn fill(&mut self, from: usize, block: &mut S::BlockMut, at: usize, len: usize) {
        block.write_bytes(at, &self[from..from + len]);
    }
}
