//! The layout of the devices, byte by byte (`docs/design/format.md`). Each kind of metadata block is encoded and
//! decoded in one module.

pub mod batch;
mod bytes;
pub mod journal;
pub mod page;
pub mod summary;
pub mod superblock;

use format_version::NewerFormat;

use bytes::{get, get_u32};

/// Bytes of a device before its first segment.
pub const FIRST_SEGMENT_BYTES: u64 = 1 << 20;
/// The version of the format, for the superblock and all other metadata blocks. Devices with a later version are
/// refused.
pub const VERSION: u32 = 1;

/// Identity of a store or of a device in it.
pub type Uuid = [u8; 16];

/// Offset of a metadata block's checksum: CRC32C of the preceding bytes.
const CHECKSUM_AT: usize = seam::BLOCK_BYTES - 4;

/// A metadata block as bytes.
pub type Raw = [u8; seam::BLOCK_BYTES];

/// The magic numbers of all metadata blocks other than superblocks.
const MAGICS: [[u8; 8]; 3] = [batch::MAGIC, page::MAGIC, journal::MAGIC];

/// Recognises an intact metadata block of `store` in a later format. In every format a metadata block begins with its
/// magic number, the version and, at byte 16, the store; it ends with its checksum.
pub fn newer_metadata(raw: &Raw, store: Uuid) -> Option<NewerFormat> {
    let version = get_u32(raw, 8);
    let is_newer = version > VERSION && MAGICS.contains(&get(raw, 0)) && get::<16>(raw, 16) == store;
    (is_newer && valid_checksum(raw).is_some()).then(|| NewerFormat::of_format(version, VERSION, None))
}

/// Writes the checksum of a metadata block and returns it.
fn seal(raw: &mut Raw) -> u32 {
    let checksum = crc32c::crc32c(&raw[..CHECKSUM_AT]);
    raw[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
    checksum
}

/// The checksum of a metadata block, if it is valid.
fn valid_checksum(raw: &Raw) -> Option<u32> {
    let checksum = crc32c::crc32c(&raw[..CHECKSUM_AT]);
    (raw[CHECKSUM_AT..] == checksum.to_le_bytes()).then_some(checksum)
}
