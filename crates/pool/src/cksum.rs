//! The checksum of the POSIX tool `cksum`, which every shell script can compute.

/// CRC-32 of the polynomial 0x04c11db7, the highest bit first, over the bytes and their number.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cksum {
    crc: u32,
    len: u64,
}

/// The remainder of each first byte.
const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = ((byte as u32) << 24, 0);
        while bit < 8 {
            crc = if crc & 1 << 31 != 0 { crc << 1 ^ 0x04c1_1db7 } else { crc << 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

impl Cksum {
    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.len += bytes.len() as u64;
        bytes.iter().for_each(|byte| self.step(*byte));
    }

    fn step(&mut self, byte: u8) {
        self.crc = self.crc << 8 ^ TABLE[usize::from((self.crc >> 24) as u8 ^ byte)];
    }

    /// The checksum of all bytes added.
    pub fn finish(mut self) -> u32 {
        let mut len = self.len;
        while len > 0 {
            self.step(len as u8);
            len >>= 8;
        }
        !self.crc
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_that_of_the_tool() {
        let of = |bytes: &[u8]| {
            let mut sum = Cksum::default();
            bytes.chunks(7).for_each(|part| sum.add(part));
            sum.finish()
        };
        assert_eq!(of(b""), 4_294_967_295);
        assert_eq!(of(b"123456789"), 930_766_865);
        assert_eq!(of(&[0; 4096]), 3_018_728_591);
    }
}
