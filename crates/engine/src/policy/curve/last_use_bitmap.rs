//! A bitmap over time: each sampled page has one mark (a set bit) at the position of its last use. The number of marks
//! after a mark is the number of other pages used since, the reuse distance (Bennett and Kruskal, 1975). Counts of the
//! set bits of each word, and of each group of words, make that number cheap to determine.

/// Positions in a word.
const WORD_POSITIONS: usize = u64::BITS as usize;
/// Words in a group.
const GROUP_WORDS: usize = 32;
/// Number of groups.
const GROUPS: usize = 32;
/// Number of words.
const WORDS: usize = GROUP_WORDS * GROUPS;
/// Number of positions: when all have been used, the bitmap has to be compacted.
pub const POSITIONS: usize = WORDS * WORD_POSITIONS;

/// The bitmap. Invariant: `word_counts` holds the number of set bits of each word, `group_counts` that of each group.
/// No bit is set at or past `next_position`.
pub struct LastUseBitmap {
    words: Vec<u64>,
    word_counts: Vec<u8>,
    group_counts: [u16; GROUPS],
    next_position: usize,
}

impl Default for LastUseBitmap {
    fn default() -> Self {
        LastUseBitmap {
            words: vec![0; WORDS],
            word_counts: vec![0; WORDS],
            group_counts: [0; GROUPS],
            next_position: 0,
        }
    }
}

impl LastUseBitmap {
    /// Memory in bytes.
    pub const BYTES: usize = WORDS * (size_of::<u64>() + size_of::<u8>());

    /// The next position to be marked.
    pub fn next_position(&self) -> u32 {
        self.next_position as u32
    }

    /// True if no position is left.
    pub fn is_full(&self) -> bool {
        self.next_position == POSITIONS
    }

    /// Marks the next position and returns it.
    pub fn mark(&mut self) -> u32 {
        assert!(!self.is_full(), "a full bitmap is compacted first");
        let (word, bit) = (self.next_position / WORD_POSITIONS, self.next_position % WORD_POSITIONS);
        self.words[word] |= 1 << bit;
        self.word_counts[word] += 1;
        self.group_counts[word / GROUP_WORDS] += 1;
        self.next_position += 1;
        self.next_position as u32 - 1
    }

    /// Removes a mark.
    pub fn clear(&mut self, position: u32) {
        let (word, bit) = (position as usize / WORD_POSITIONS, position as usize % WORD_POSITIONS);
        assert!(self.words[word] & 1 << bit != 0, "the position has a mark");
        self.words[word] &= !(1 << bit);
        self.word_counts[word] -= 1;
        self.group_counts[word / GROUP_WORDS] -= 1;
    }

    /// Number of marks after a position.
    pub fn marks_after(&self, position: u32) -> u64 {
        let (word, bit) = (position as usize / WORD_POSITIONS, position as usize % WORD_POSITIONS);
        // Two shifts, because a shift by all 64 bits overflows.
        let same_word = (self.words[word] >> bit >> 1).count_ones();
        let group = word / GROUP_WORDS;
        let words = &self.word_counts[word + 1..(group + 1) * GROUP_WORDS];
        let groups = &self.group_counts[group + 1..];
        let (words, groups) = (words.iter().copied().map(u32::from), groups.iter().copied().map(u32::from));
        u64::from(same_word + words.sum::<u32>() + groups.sum::<u32>())
    }

    /// Compacts the bitmap: moves all marks to the beginning, in their order. Returns a function from an old position
    /// to its new one.
    pub fn compact(&mut self) -> impl Fn(u32) -> u32 + use<> {
        let (mut before, mut sum) = ([0_u32; WORDS], 0);
        for (before, count) in before.iter_mut().zip(&self.word_counts) {
            *before = sum;
            sum += u32::from(*count);
        }
        let old = std::mem::replace(&mut self.words, vec![0; WORDS]);
        self.word_counts.fill(0);
        self.group_counts = [0; GROUPS];
        self.next_position = 0;
        for _ in 0..sum {
            self.mark();
        }
        move |position| match old.get(position as usize / WORD_POSITIONS) {
            Some(word) => {
                let below = (1_u64 << (position as usize % WORD_POSITIONS)) - 1;
                before[position as usize / WORD_POSITIONS] + (word & below).count_ones()
            }
            None => sum,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_keep_count_and_order_after_compaction() {
        let mut bitmap = LastUseBitmap::default();
        let positions: Vec<u32> = std::iter::from_fn(|| (!bitmap.is_full()).then(|| bitmap.mark())).collect();
        assert_eq!((positions.len(), bitmap.marks_after(0)), (POSITIONS, POSITIONS as u64 - 1));
        let (kept, removed): (Vec<u32>, Vec<u32>) = positions.iter().partition(|position| *position % 97 == 13);
        removed.iter().for_each(|position| bitmap.clear(*position));
        let marks_after = |bitmap: &LastUseBitmap, positions: &[u32]| -> Vec<u64> {
            positions.iter().map(|position| bitmap.marks_after(*position)).collect()
        };
        let before = marks_after(&bitmap, &kept);
        assert_eq!(before, (0..kept.len() as u64).rev().collect::<Vec<_>>());
        let moved = bitmap.compact();
        let now: Vec<u32> = kept.iter().map(|position| moved(*position)).collect();
        assert_eq!(now, (0..kept.len() as u32).collect::<Vec<_>>());
        assert_eq!(marks_after(&bitmap, &now), before);
        assert_eq!((bitmap.next_position(), moved(POSITIONS as u32)), (kept.len() as u32, kept.len() as u32));
    }
}
