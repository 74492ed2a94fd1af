//! Little-endian numbers at fixed offsets of a metadata block.

use super::Raw;

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
