//! Buffers: 4 KiB blocks, writable while they have one owner, frozen once they are shared (R1, docs/rules.md).
//!
//! The engine never loops over bytes. Every operation on content (copy, zero, compare, checksum) is a method here, so
//! that a simulated world can keep one tag per sector instead of the bytes.

/// Bytes in a block: the unit of valid, dirty and checksum.
pub const BLOCK_BYTES: usize = 4096;
/// Bytes in a sector: the finest unit that a client may address.
pub const SECTOR_BYTES: usize = 512;
/// Sectors in a block, and bits in a sector mask.
pub const SECTORS_PER_BLOCK: usize = BLOCK_BYTES / SECTOR_BYTES;

/// A frozen block. A clone shares the content and does not copy it.
pub trait Block: Clone + 'static {
    /// The writable form.
    type Mut: BlockMut<Frozen = Self>;

    /// Returns the writable form if this is the only holder, else `self`.
    fn thaw(self) -> Result<Self::Mut, Self>;

    /// True if this is the only holder of the content.
    fn is_unique(&self) -> bool;

    /// Copies `out.len()` bytes, starting at byte `at`.
    fn read_bytes(&self, at: usize, out: &mut [u8]);

    /// The content, in a world that keeps bytes: the real one does, a simulated one need not.
    fn as_bytes(&self) -> Option<&[u8]>;

    /// True if the `len` bytes from `at` on are zeroes.
    fn is_zero(&self, at: usize, len: usize) -> bool;

    /// True if both hold the same content.
    fn has_same_content(&self, other: &Self) -> bool;

    /// CRC32C of the bytes, continued from `seed` (another checksum, or any number). A simulated world uses a checksum
    /// of its own that distinguishes contents equally well.
    fn checksum(&self, seed: u32) -> u32;

    /// Prefetches the memory that a clone touches; changes nothing but time.
    fn prefetch(&self) {}

    /// Prefetches the start of the content ahead of a copy; changes nothing but time.
    fn prefetch_content(&self) {}

    /// A writable alias of content that other holders may share. It breaks R1 on purpose, so that a test can prove that
    /// its checker detects it. Only the simulated world supports it; the real one has `unreachable!()` here.
    #[doc(hidden)]
    #[cfg(feature = "sabotage")]
    fn sabotage_thaw(self) -> Self::Mut;
}

/// A block with one owner.
pub trait BlockMut: 'static {
    /// The frozen form.
    type Frozen: Block<Mut = Self>;

    /// Ends all changes to the content.
    fn freeze(self) -> Self::Frozen;

    /// Copies `len` bytes at `from_at` of `from` to `at`. Offsets are multiples of [`SECTOR_BYTES`].
    fn copy_from(&mut self, at: usize, from: &Self::Frozen, from_at: usize, len: usize);

    /// Zeroes `len` bytes from `at` on. Offsets are multiples of [`SECTOR_BYTES`].
    fn zero(&mut self, at: usize, len: usize);

    /// The content, in a world that keeps bytes.
    fn as_bytes_mut(&mut self) -> Option<&mut [u8]>;

    /// Copies `bytes` to `at`.
    fn write_bytes(&mut self, at: usize, bytes: &[u8]);

    /// Copies `bytes` of the project's own formats, never client data, to `at`. A simulated world keeps one tag per
    /// sector and refuses client data of another form; metadata it keeps byte by byte. Offset and length are multiples
    /// of [`SECTOR_BYTES`].
    fn write_metadata(&mut self, at: usize, bytes: &[u8]);
}

/// A byte range of a frozen block, on its way to a disk or a socket.
#[derive(Clone)]
pub struct Piece<B> {
    /// The content.
    pub block: B,
    /// First byte within the block.
    pub start: u16,
    /// Length in bytes, at least 1.
    pub len: u16,
}

impl<B> Piece<B> {
    /// `len` bytes of `block` from `start` on.
    pub fn new(block: B, start: usize, len: usize) -> Self {
        assert!(len > 0 && start + len <= BLOCK_BYTES, "piece outside its block: {start}+{len}");
        Piece { block, start: start as u16, len: len as u16 }
    }

    /// A whole block.
    pub fn whole(block: B) -> Self {
        Piece::new(block, 0, BLOCK_BYTES)
    }

    /// First byte of the block that belongs to the piece.
    pub fn start(&self) -> usize {
        usize::from(self.start)
    }

    /// Bytes in the piece.
    #[allow(clippy::len_without_is_empty, reason = "a piece is never empty")]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }
}

/// A byte range of a writable block, to be filled by a disk or a socket. It has the same shape as [`Piece`] and differs
/// in the block type.
pub type PieceMut<M> = Piece<M>;

/// Total length of `pieces` in bytes.
pub fn pieces_len<B>(pieces: &[Piece<B>]) -> usize {
    pieces.iter().map(Piece::len).sum()
}
