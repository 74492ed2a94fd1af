//! Requests of front ends: their flags, data sources and errors.

use seam::{BLOCK_BYTES, BlockMut, DiskError, Seam};

/// Why a request failed; a front end translates it to its protocol's code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The request's range is not inside the volume, not aligned to 512 bytes, or empty. Calls by name also return it
    /// if there is no such volume.
    #[error("the request lies outside the volume or is not aligned to 512 bytes")]
    Invalid,
    /// A write to a read-only volume.
    #[error("the volume is read-only")]
    ReadOnly,
    /// The volume cannot do it faster than by writing, and the request has the flag `fast_only`.
    #[error("cannot be done fast on this volume")]
    NotFast,
    /// The volume is shutting down: it is being stopped, or removed from this host.
    #[error("the volume is shutting down")]
    ShuttingDown,
    /// A client that changed the volume while this host owned it changes it again, after another host has taken over.
    /// The client has to connect again: another client may use the volume now.
    #[error("another host has taken over the volume: connect again to change it here")]
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
    /// Copies `len_bytes` bytes from byte `request_offset` of the request to byte `block_offset` of `block`. All three
    /// are multiples of 512.
    fn fill(&mut self, request_offset: usize, block: &mut S::BlockMut, block_offset: usize, len_bytes: usize);

    /// Moves out the buffer with the 4096 bytes from byte `request_offset` of the request on, if the source owns such a
    /// buffer. The source is then not read at these bytes.
    fn take_block(&mut self, _request_offset: usize) -> Option<S::BlockMut> {
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

    fn take_block(&mut self, request_offset: usize) -> Option<S::BlockMut> {
        self.0[request_offset / BLOCK_BYTES].take()
    }
}

impl<S: Seam> WriteSource<S> for &[u8] {
    fn fill(&mut self, request_offset: usize, block: &mut S::BlockMut, block_offset: usize, len_bytes: usize) {
        block.write_bytes(block_offset, &self[request_offset..request_offset + len_bytes]);
    }
}
