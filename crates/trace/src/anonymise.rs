//! Anonymisation of addresses: extents of 1 MiB are permuted, so that locality within an extent is preserved.
//!
//! The permutation is keyed and differs by disk: a Feistel network of eight rounds (Luby and Rackoff 1988) with
//! SipHash-2-4 as round function (Aumasson and Bernstein 2012), iterated until it falls into the range (Black and
//! Rogaway 2002).

use crate::request::{Op, Request};

/// Bytes of an extent.
pub const EXTENT_BYTES: u64 = 1 << 20;
const ROUNDS: u64 = 8;

/// A keyed permutation of a disk's extents. Without the key the original position of an extent cannot be found.
#[derive(Clone, Copy, Debug)]
pub struct Anonymiser {
    key: [u64; 2],
    extents: u64,
    /// Bits of each half of the network's input.
    half_bits: u32,
}

impl Anonymiser {
    /// A permutation for disks of at most `size_bytes`.
    pub fn new(key: [u64; 2], size_bytes: u64) -> Self {
        let extents = size_bytes.div_ceil(EXTENT_BYTES).max(1);
        let bits = u64::BITS - (extents - 1).leading_zeros();
        Anonymiser { key, extents, half_bits: bits.div_ceil(2).max(1) }
    }

    /// Moves a request, split into parts at extent boundaries. Bytes beyond the given size move to the disk's last
    /// extent.
    pub fn apply(self, request: Request) -> impl Iterator<Item = Request> {
        let end = request.at + request.len;
        let mut from = request.at;
        let mut flush = (request.op == Op::Flush).then_some(request);
        std::iter::from_fn(move || {
            if let Some(flush) = flush.take() {
                return Some(flush);
            }
            if from >= end {
                return None;
            }
            let extent = from / EXTENT_BYTES;
            let to = end.min((extent + 1).saturating_mul(EXTENT_BYTES));
            let at = self.permute(extent.min(self.extents - 1), request.device) * EXTENT_BYTES + from % EXTENT_BYTES;
            let part = Request { at, len: to - from, ..request };
            from = to;
            Some(part)
        })
    }

    fn permute(self, extent: u64, device: u32) -> u64 {
        debug_assert!(extent < self.extents);
        let mask = (1u64 << self.half_bits) - 1;
        let mut value = extent;
        // The network permutes fewer than four times as many values, so the loop ends after few iterations on average.
        loop {
            let (mut left, mut right) = (value >> self.half_bits, value & mask);
            for round in 0..ROUNDS {
                let hash = siphash(self.key, [right, u64::from(device) << 8 | round]);
                (left, right) = (right, left ^ (hash & mask));
            }
            value = left << self.half_bits | right;
            if value < self.extents {
                return value;
            }
        }
    }
}

/// SipHash-2-4 of two words.
fn siphash(key: [u64; 2], words: [u64; 2]) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    // The last block is the length, 16 bytes, in its highest byte.
    for word in [words[0], words[1], 16 << 56] {
        v[3] ^= word;
        (0..2).for_each(|_| sip_round(&mut v));
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    (0..4).for_each(|_| sip_round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn sip_round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[2] = v[2].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[1]);
    v[0] = v[0].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::request;

    #[test]
    fn siphash_matches_the_published_test_vector() {
        // The paper's key 00 01 … 0f, and the reference implementation's result for the message 00 01 … 0f.
        let word = |from: u8| u64::from_le_bytes(std::array::from_fn(|at| from + at as u8));
        assert_eq!(siphash([word(0), word(8)], [word(0), word(8)]), 0x3f2a_cc7f_57c2_9bdb);
    }

    #[test]
    fn extents_are_permuted_without_collision() {
        for extents in [1, 2, 3, 17, 1_000, 4_096] {
            let anonymiser = Anonymiser::new([3, 4], extents * EXTENT_BYTES);
            let mut permuted: Vec<u64> = (0..extents).map(|extent| anonymiser.permute(extent, 7)).collect();
            let stayed = permuted.iter().enumerate().filter(|(from, to)| *from as u64 == **to).count();
            assert!(extents < 17 || stayed < 8, "{stayed} of {extents} stayed");
            permuted.sort_unstable();
            assert!(permuted.into_iter().eq(0..extents));
        }
    }

    #[test]
    fn requests_keep_offsets_in_extents_and_split_between_them() {
        let anonymiser = Anonymiser::new([1, 2], 100 * EXTENT_BYTES);
        let moved = |at, len| anonymiser.apply(request(Some(5), Op::Write, at, len, 0)).collect::<Vec<_>>();
        let (near, far) = (moved(4_096, 4_096), moved(65_536, 8_192));
        assert_eq!((near.len(), far.len()), (1, 1));
        assert_eq!(far[0].at - near[0].at, 65_536 - 4_096);
        let parts = moved(EXTENT_BYTES - 512, 2 * EXTENT_BYTES);
        assert_eq!(parts.iter().map(|part| part.len).collect::<Vec<_>>(), [512, EXTENT_BYTES, EXTENT_BYTES - 512]);
        assert_eq!(parts[0].at % EXTENT_BYTES, EXTENT_BYTES - 512);
        assert!(parts[1..].iter().all(|part| part.at % EXTENT_BYTES == 0 && part.time_ns == Some(5)));
        let flush = request(None, Op::Flush, 0, 0, 3);
        assert_eq!(anonymiser.apply(flush).collect::<Vec<_>>(), [flush]);
    }

    #[test]
    fn other_key_or_other_disk_gives_another_permutation() {
        let order = |key, device| {
            let anonymiser = Anonymiser::new(key, 64 * EXTENT_BYTES);
            (0..64).map(|extent| anonymiser.permute(extent, device)).collect::<Vec<_>>()
        };
        assert_ne!(order([1, 2], 0), order([1, 3], 0));
        assert_ne!(order([1, 2], 0), order([1, 2], 1));
        assert_eq!(order([1, 2], 0), order([1, 2], 0));
    }
}
