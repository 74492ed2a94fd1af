//! Metadata blocks of the formats on disks: little-endian numbers at fixed offsets, and a checksum at the end.

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 4096;
/// Offset of the checksum: CRC32C of the preceding bytes.
pub const CHECKSUM_AT: usize = BLOCK_BYTES - 4;

/// A metadata block as bytes.
pub type Raw = [u8; BLOCK_BYTES];
/// Identity of a store or pool, or of a device in it.
pub type Uuid = [u8; 16];

/// Copies `N` bytes from offset `at`.
pub fn get<const N: usize>(raw: &Raw, at: usize) -> [u8; N] {
    raw[at..at + N].try_into().expect("a slice of N bytes is an array of N")
}

/// The 32-bit number at offset `at`.
pub fn get_u32(raw: &Raw, at: usize) -> u32 {
    u32::from_le_bytes(get(raw, at))
}

/// The 64-bit number at offset `at`.
pub fn get_u64(raw: &Raw, at: usize) -> u64 {
    u64::from_le_bytes(get(raw, at))
}

/// Writes `bytes` at offset `at`.
pub fn put(raw: &mut Raw, at: usize, bytes: &[u8]) {
    raw[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Writes the checksum of a metadata block and returns it.
pub fn seal(raw: &mut Raw) -> u32 {
    let checksum = crc32c::crc32c(&raw[..CHECKSUM_AT]);
    raw[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
    checksum
}

/// The checksum of a metadata block, if it is valid.
pub fn valid_checksum(raw: &Raw) -> Option<u32> {
    let checksum = crc32c::crc32c(&raw[..CHECKSUM_AT]);
    (raw[CHECKSUM_AT..] == checksum.to_le_bytes()).then_some(checksum)
}
