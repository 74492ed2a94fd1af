//! Fields of a message: big-endian numbers and texts, read within the bounds of a byte slice.

/// A reader over received bytes.
#[derive(Clone, Copy)]
pub(crate) struct PayloadReader<'a>(pub(crate) &'a [u8]);

impl<'a> PayloadReader<'a> {
    fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.chunk().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.chunk().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.chunk().map(u64::from_be_bytes)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    /// Reads a text preceded by its length (32 bits).
    pub(crate) fn text(&mut self, len_max: usize) -> Option<&'a str> {
        let len = self.u32()? as usize;
        if len > len_max {
            return None;
        }
        std::str::from_utf8(self.bytes(len)?).ok()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Appends a text preceded by its length (32 bits).
pub(crate) fn push_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u32).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}
