//! What lies on the devices, byte by byte (`docs/design/format.md`): superblocks and batch headers, written and read in one place each.

pub mod batch;
mod bytes;
pub mod journal;
pub mod page;
pub mod superblock;

/// Bytes of a device before its first segment.
pub const FIRST_SEGMENT_BYTES: u64 = 1 << 20;
/// The format's version; a device with another one is refused.
pub const VERSION: u32 = 1;

/// Identity of a store or of a device in it.
pub type Uuid = [u8; 16];

/// The last four bytes of a metadata block: CRC32C of all before them.
const CHECKSUM_AT: usize = seam::BLOCK_BYTES - 4;

/// A metadata block as bytes.
pub type Raw = [u8; seam::BLOCK_BYTES];

fn seal(raw: &mut Raw) -> u32 {
    let checksum = crc32c::crc32c(&raw[..CHECKSUM_AT]);
    raw[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
    checksum
}

fn is_sealed(raw: &Raw) -> Option<u32> {
    let checksum = crc32c::crc32c(&raw[..CHECKSUM_AT]);
    (raw[CHECKSUM_AT..] == checksum.to_le_bytes()).then_some(checksum)
}
