//! The layout of the groups, byte by byte (`docs/design/pool-format.md`). Each kind of metadata block is encoded and
//! decoded in one module.

pub mod block;
pub mod layout;
pub mod record;
pub mod superblock;

use metadata_block::{CHECKSUM_AT, seal, valid_checksum};

pub use metadata_block::{Raw, Uuid};

// Blocks of the seam and of the format have one size.
const _: () = assert!(metadata_block::BLOCK_BYTES == seam::BLOCK_BYTES);

/// The version of the format, for the superblock and all other metadata blocks. Devices with a later version are
/// refused.
pub const VERSION: u32 = 1;

/// An identity as hexadecimal digits.
pub fn uuid_text(uuid: &Uuid) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
}
