//! One bit for each slice of a volume.

use crate::number::SliceNo;

/// Words of a chunk of [`SliceBits`].
const WORDS: usize = 16;

/// One bit for each slice of a volume, in chunks that exist where a bit is set.
#[derive(Debug, Default)]
pub(crate) struct SliceBits(Vec<Option<Box<[u64; WORDS]>>>);

impl SliceBits {
    fn place(slice: SliceNo) -> (usize, usize, u64) {
        (slice.index() / (64 * WORDS), slice.index() / 64 % WORDS, 1 << (slice.index() % 64))
    }

    /// True if the bit of a slice is set.
    pub fn get(&self, slice: SliceNo) -> bool {
        let (chunk, word, bit) = Self::place(slice);
        matches!(self.0.get(chunk), Some(Some(words)) if words[word] & bit != 0)
    }

    /// Sets the bit of a slice.
    pub fn set(&mut self, slice: SliceNo) {
        let (chunk, word, bit) = Self::place(slice);
        if chunk >= self.0.len() {
            self.0.resize_with(chunk + 1, || None);
        }
        self.0[chunk].get_or_insert_default()[word] |= bit;
    }

    /// Clears the bit of a slice.
    pub fn clear(&mut self, slice: SliceNo) {
        let (chunk, word, bit) = Self::place(slice);
        if let Some(Some(words)) = self.0.get_mut(chunk) {
            words[word] &= !bit;
        }
    }

    /// Clears all bits.
    pub fn clear_all(&mut self) {
        self.0.clear();
    }
}
