//! Sector contents that identify their sector and their write.

/// Bytes in a sector.
pub const SECTOR: usize = 512;

/// Content read from a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// All zeroes.
    Zero,
    /// Intact content of one write.
    Whole {
        /// Sector that the content was written to.
        sector: u64,
        /// Sequence number of the write.
        sequence: u64,
    },
    /// Torn or foreign content.
    Garbage,
}

/// Writes the content of `sector` by write `sequence` into `out`, which has [`SECTOR`] bytes.
pub fn fill(sector: u64, sequence: u64, out: &mut [u8]) {
    assert_eq!(out.len(), SECTOR);
    out[..8].copy_from_slice(&sector.to_le_bytes());
    out[8..16].copy_from_slice(&sequence.to_le_bytes());
    let mut state = sector.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ sequence.rotate_left(29) ^ 0x5851_f42d_4c95_7f2d;
    for word in out[16..].as_chunks_mut::<8>().0 {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        *word = (state ^ (state >> 31)).to_le_bytes();
    }
}

/// Recognises the content of a sector.
pub fn recognise(bytes: &[u8]) -> Content {
    if bytes.iter().all(|&byte| byte == 0) {
        return Content::Zero;
    }
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let (sector, sequence) = (number(0), number(8));
    let mut expected = [0; SECTOR];
    fill(sector, sequence, &mut expected);
    if bytes == expected { Content::Whole { sector, sequence } } else { Content::Garbage }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sector_is_recognised_and_a_flipped_bit_is_garbage() {
        let mut sector = [0; SECTOR];
        assert_eq!(recognise(&sector), Content::Zero);
        fill(7, 9, &mut sector);
        assert_eq!(recognise(&sector), Content::Whole { sector: 7, sequence: 9 });
        for byte in [0, 8, 16, 511] {
            sector[byte] ^= 1;
            assert_eq!(recognise(&sector), Content::Garbage);
            sector[byte] ^= 1;
        }
    }
}
