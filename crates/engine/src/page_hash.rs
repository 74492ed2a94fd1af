//! Hash of a volume's page or block: its bucket in the memory cache's index, and its key in policies and miss-ratio
//! curves.

use flash::PageNo;

/// Hash of a page.
#[inline]
pub fn page_hash(volume: u32, page: PageNo) -> u64 {
    hash_key(volume, page.0)
}

/// Hash of a number within a volume. Multiplicative hashing with the high half folded in, so that adjacent numbers
/// spread over buckets and control bytes.
#[inline]
pub fn hash_key(volume: u32, number: u64) -> u64 {
    let mixed = (number ^ (u64::from(volume) << 44)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ (mixed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}
