//! The layout of the devices, byte by byte (`docs/design/format.md`). Each kind of metadata block is encoded and
//! decoded in one module.

pub mod batch;
pub mod journal;
pub mod page;
pub mod summary;
pub mod superblock;

use format_version::NewerFormat;
use metadata_block::{CHECKSUM_AT, get, get_u32, seal, valid_checksum};

pub use metadata_block::{Raw, Uuid};

// Blocks of the seam and of the format have one size.
const _: () = assert!(metadata_block::BLOCK_BYTES == seam::BLOCK_BYTES);

/// Bytes of a device before its first segment.
pub const FIRST_SEGMENT_BYTES: u64 = 1 << 20;
/// The version of the format, for the superblock and all other metadata blocks. Devices with a later version are
/// refused.
pub const VERSION: u32 = 1;

/// The magic numbers of all metadata blocks other than superblocks.
const MAGICS: [[u8; 8]; 3] = [batch::MAGIC, page::MAGIC, journal::MAGIC];

/// Recognises an intact metadata block of `store` in a later format. In every format a metadata block begins with its
/// magic number, the version and, at byte 16, the store; it ends with its checksum.
pub fn newer_metadata(raw: &Raw, store: Uuid) -> Option<NewerFormat> {
    let version = get_u32(raw, 8);
    let is_newer = version > VERSION && MAGICS.contains(&get(raw, 0)) && get::<16>(raw, 16) == store;
    (is_newer && valid_checksum(raw).is_some()).then(|| NewerFormat::of_format(version, VERSION, None))
}
