//! Buffers: 4 KiB blocks, writable while they have one owner, frozen once they are shared (R1).
//!
//! The engine never loops over bytes. What it needs done to content (copy, zero, compare, checksum) are methods here, so
//! that a simulated world may keep a tag a sector instead of the bytes.

/// Bytes in a block: the unit of valid, dirty and checksum.
pub const BLOCK_BYTES: usize = 4096;
/// Bytes in a sector: the finest unit that a client may address.
pub const SECTOR_BYTES: usize = 512;
/// Sectors in a block, and bits in a sector mask.
pub const SECTORS_PER_BLOCK: usize = BLOCK_BYTES / SECTOR_BYTES;

/// A frozen block. A clone is another holder of the same content, not a copy.
pub trait Block: Clone + 'static {
    /// The writable form.
    type Mut: BlockMut<Frozen = Self>;

    /// The writable form again, if this is the only holder; else `self` comes back.
    fn thaw(self) -> Result<Self::Mut, Self>;

    /// True when nobody else holds this content.
    fn is_unique(&self) -> bool;

    /// Copies `out.len()` bytes from byte `at` on.
    fn read_bytes(&self, at: usize, out: &mut [u8]);

    /// The bytes themselves, where the world keeps bytes (the real one does, a simulated one need not).
    fn as_bytes(&self) -> Option<&[u8]>;

    /// True when `len` bytes from byte `at` on are zeroes.
    fn is_zero(&self, at: usize, len: usize) -> bool;

    /// True when both hold the same content.
    fn same(&self, other: &Self) -> bool;

    /// CRC32C of the bytes, continued from `seed` (another checksum, or any number); a simulated world has one of its own that is as
    /// good at telling contents apart.
    fn checksum(&self, seed: u32) -> u32;

    /// Brings near what a clone of it will touch; changes nothing but time.
    fn hint(&self) {}

    /// Brings near where its content begins, for who will copy it; changes nothing but time.
    fn hint_content(&self) {}

    /// A writable alias of content that others may hold: breaks R1 on purpose, so that a test can show that its checker
    /// notices. Only the simulated world can do it; the real one has `unreachable!()` here.
    #[doc(hidden)]
    #[cfg(feature = "sabotage")]
    fn sabotage_thaw(self) -> Self::Mut;
}

/// A block with one owner.
pub trait BlockMut: 'static {
    /// The frozen form.
    type Frozen: Block<Mut = Self>;

    /// From now on the content does not change.
    fn freeze(self) -> Self::Frozen;

    /// Copies `len` bytes at `from_at` of `from` to `at`. Offsets are multiples of [`SECTOR_BYTES`].
    fn copy_from(&mut self, at: usize, from: &Self::Frozen, from_at: usize, len: usize);

    /// Zeroes `len` bytes from `at` on. Offsets are multiples of [`SECTOR_BYTES`].
    fn zero(&mut self, at: usize, len: usize);

    /// The bytes themselves, where the world keeps bytes.
    fn as_bytes_mut(&mut self) -> Option<&mut [u8]>;

    /// Copies `bytes` to `at`.
    fn write_bytes(&mut self, at: usize, bytes: &[u8]);

    /// Copies `bytes` to `at`: bytes of our own formats, not a client's. (A simulated world keeps a tag a sector and refuses a
    /// client's bytes that are none; these it keeps as they are.) Offset and length are multiples of [`SECTOR_BYTES`].
    fn write_metadata(&mut self, at: usize, bytes: &[u8]);
}

/// A byte range of a frozen block, on its way to a disk or a socket.
#[derive(Clone)]
pub struct Piece<B> {
    /// The content.
    pub block: B,
    /// First byte of it.
    pub start: u16,
    /// Bytes of it, at least 1.
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

/// A byte range of a writable block, to be filled by a disk or a socket. The same shape as [`Piece`], told apart by what it holds.
pub type PieceMut<M> = Piece<M>;

/// Bytes in all `pieces`.
pub fn pieces_len<B>(pieces: &[Piece<B>]) -> usize {
    pieces.iter().map(Piece::len).sum()
}
