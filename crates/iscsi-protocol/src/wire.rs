//! Big-endian fields of a header.

use crate::Header;

/// Access to big-endian header fields by their offsets, which are constants within the header.
pub(crate) trait HeaderFields {
    fn u16_at(&self, offset: usize) -> u16;
    fn u24_at(&self, offset: usize) -> u32;
    fn u32_at(&self, offset: usize) -> u32;
    fn bytes_at<const N: usize>(&self, offset: usize) -> [u8; N];
    fn put(&mut self, offset: usize, bytes: &[u8]);

    fn put_u16(&mut self, offset: usize, value: u16) {
        self.put(offset, &value.to_be_bytes());
    }

    fn put_u32(&mut self, offset: usize, value: u32) {
        self.put(offset, &value.to_be_bytes());
    }
}

impl HeaderFields for Header {
    fn u16_at(&self, offset: usize) -> u16 {
        u16::from_be_bytes(self.bytes_at(offset))
    }

    fn u24_at(&self, offset: usize) -> u32 {
        let [a, b, c] = self.bytes_at(offset);
        u32::from_be_bytes([0, a, b, c])
    }

    fn u32_at(&self, offset: usize) -> u32 {
        u32::from_be_bytes(self.bytes_at(offset))
    }

    fn bytes_at<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self[offset..offset + N]);
        bytes
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        self[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
}

/// Sets the data segment length.
pub(crate) fn put_data_len(header: &mut Header, len: usize) {
    assert!(len < 1 << 24, "a data segment's length has 24 bits");
    header.put(5, &(len as u32).to_be_bytes()[1..]);
}

/// The data segment length.
pub(crate) fn data_len(header: &Header) -> usize {
    header.u24_at(5) as usize
}
