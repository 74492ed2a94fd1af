//! A timeline with one mark for each sampled page, at its last use. The number of marks after a mark is the number of
//! other pages used since. The timeline has one bit for each position, and counts of set bits for each word and each
//! group of words.

/// Positions in a word.
const WORD_POSITIONS: usize = u64::BITS as usize;
/// Words in a group, and groups.
const GROUP_WORDS: usize = 32;
const GROUPS: usize = 32;
const WORDS: usize = GROUP_WORDS * GROUPS;
/// Positions before the timeline has to be compacted.
pub const POSITIONS: usize = WORDS * WORD_POSITIONS;

/// The timeline. Invariant: `counts` holds the number of set bits of each word, `sums` that of each group; no bit is
/// set at or past `next`.
pub struct Timeline {
    words: Vec<u64>,
    counts: Vec<u8>,
    sums: [u16; GROUPS],
    next: usize,
}

impl Default for Timeline {
    fn default() -> Self {
        Timeline { words: vec![0; WORDS], counts: vec![0; WORDS], sums: [0; GROUPS], next: 0 }
    }
}

impl Timeline {
    /// Memory in bytes.
    pub const BYTES: usize = WORDS * (size_of::<u64>() + size_of::<u8>());

    /// The next position to be marked.
    pub fn now(&self) -> u32 {
        self.next as u32
    }

    /// True if no position is left.
    pub fn is_full(&self) -> bool {
        self.next == POSITIONS
    }

    /// Marks the next position and returns it.
    pub fn mark(&mut self) -> u32 {
        assert!(!self.is_full(), "a full timeline is compacted first");
        let (word, bit) = (self.next / WORD_POSITIONS, self.next % WORD_POSITIONS);
        self.words[word] |= 1 << bit;
        self.counts[word] += 1;
        self.sums[word / GROUP_WORDS] += 1;
        self.next += 1;
        self.next as u32 - 1
    }

    /// Removes a mark.
    pub fn clear(&mut self, position: u32) {
        let (word, bit) = (position as usize / WORD_POSITIONS, position as usize % WORD_POSITIONS);
        assert!(self.words[word] & 1 << bit != 0, "the position has a mark");
        self.words[word] &= !(1 << bit);
        self.counts[word] -= 1;
        self.sums[word / GROUP_WORDS] -= 1;
    }

    /// Number of marks after a position.
    pub fn marks_after(&self, position: u32) -> u64 {
        let (word, bit) = (position as usize / WORD_POSITIONS, position as usize % WORD_POSITIONS);
        // Two shifts, because a shift by all 64 bits overflows.
        let same_word = (self.words[word] >> bit >> 1).count_ones();
        let group = word / GROUP_WORDS;
        let words = &self.counts[word + 1..(group + 1) * GROUP_WORDS];
        let groups = &self.sums[group + 1..];
        let (words, groups) = (words.iter().copied().map(u32::from), groups.iter().copied().map(u32::from));
        u64::from(same_word + words.sum::<u32>() + groups.sum::<u32>())
    }

    /// Compacts the timeline: moves all marks to the beginning, in their order. Returns a function from an old
    /// position to its new one.
    pub fn compact(&mut self) -> impl Fn(u32) -> u32 + use<> {
        let (mut before, mut sum) = ([0_u32; WORDS], 0);
        for (before, count) in before.iter_mut().zip(&self.counts) {
            *before = sum;
            sum += u32::from(*count);
        }
        let old = std::mem::replace(&mut self.words, vec![0; WORDS]);
        self.counts.fill(0);
        self.sums = [0; GROUPS];
        self.next = 0;
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
        let mut timeline = Timeline::default();
        let positions: Vec<u32> = std::iter::from_fn(|| (!timeline.is_full()).then(|| timeline.mark())).collect();
        assert_eq!((positions.len(), timeline.marks_after(0)), (POSITIONS, POSITIONS as u64 - 1));
        let (kept, removed): (Vec<u32>, Vec<u32>) = positions.iter().partition(|position| *position % 97 == 13);
        removed.iter().for_each(|position| timeline.clear(*position));
        let marks_after = |timeline: &Timeline, positions: &[u32]| -> Vec<u64> {
            positions.iter().map(|position| timeline.marks_after(*position)).collect()
        };
        let before = marks_after(&timeline, &kept);
        assert_eq!(before, (0..kept.len() as u64).rev().collect::<Vec<_>>());
        let moved = timeline.compact();
        let now: Vec<u32> = kept.iter().map(|position| moved(*position)).collect();
        assert_eq!(now, (0..kept.len() as u32).collect::<Vec<_>>());
        assert_eq!(marks_after(&timeline, &now), before);
        assert_eq!((timeline.now(), moved(POSITIONS as u32)), (kept.len() as u32, kept.len() as u32));
    }
}
