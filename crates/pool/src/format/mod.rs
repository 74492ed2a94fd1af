//! The layout of the groups, byte by byte (`docs/design/pool-format.md`). Each kind of metadata block is encoded and
//! decoded in one module.

pub mod block;
mod bytes;
pub mod layout;
pub mod record;
pub mod superblock;

/// The version of the format, for the superblock and all other metadata blocks. Devices with a later version are
/// refused.
pub const VERSION: u32 = 1;

/// Identity of a pool or of a group in it.
pub type Uuid = [u8; 16];

/// Offset of a metadata block's checksum: CRC32C of the preceding bytes.
const CHECKSUM_AT: usize = seam::BLOCK_BYTES - 4;

/// A metadata block as bytes.
pub type Raw = [u8; seam::BLOCK_BYTES];

/// An identity as hexadecimal digits.
pub fn uuid_text(uuid: &Uuid) -> String {
    uuid.iter().map(|byte| format!("{byte:02x}")).collect()
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
