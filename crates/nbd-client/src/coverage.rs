//! The byte ranges of a read that have arrived. Chunks may come in any order, but each byte only once. A sum of lengths
//! would not suffice: a repeated chunk could hide a missing one, whose buffer still holds old data.

use std::ops::Range;

/// Maximum number of gaps in a reply in progress.
const RUNS_MAX: usize = 256;

/// Ranges of bytes, in order, that neither touch nor overlap.
#[derive(Debug, Default)]
pub struct Coverage(Vec<Range<usize>>);

impl Coverage {
    /// Records the arrival of `bytes`. Returns false if some of them had arrived before, or if the answer has too many
    /// gaps.
    pub fn add(&mut self, bytes: Range<usize>) -> bool {
        let left = self.0.partition_point(|run| run.end < bytes.start);
        let touches_left = self.0.get(left).is_some_and(|run| run.end == bytes.start);
        let right = left + usize::from(touches_left);
        if self.0.get(right).is_some_and(|run| run.start < bytes.end) {
            return bytes.is_empty();
        }
        let touches_right = self.0.get(right).is_some_and(|run| run.start == bytes.end);
        match (touches_left, touches_right) {
            (true, true) => self.0[left].end = self.0.remove(right).end,
            (true, false) => self.0[left].end = bytes.end,
            (false, true) => self.0[right].start = bytes.start,
            (false, false) if self.0.len() >= RUNS_MAX => return false,
            (false, false) => self.0.insert(left, bytes),
        }
        true
    }

    /// True if exactly the first `len` bytes have arrived.
    pub fn is_whole(&self, len: usize) -> bool {
        len == 0 || matches!(&self.0[..], [all] if *all == (0..len))
    }

    /// Discards all ranges.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_count_in_any_order_and_none_twice() {
        let mut coverage = Coverage::default();
        assert!([4..6, 0..2, 8..10, 2..4, 6..8].into_iter().all(|bytes| coverage.add(bytes)));
        assert!(coverage.is_whole(10) && !coverage.is_whole(12));
        for twice in [0..1, 9..12, 4..5] {
            assert!(!coverage.add(twice));
        }
        coverage.clear();
        assert!(coverage.add(2..4) && !coverage.add(0..3) && !coverage.add(3..5) && !coverage.add(0..9));
        assert!(!coverage.is_whole(4));
    }

    #[test]
    fn answer_with_too_many_gaps_is_rejected() {
        let mut coverage = Coverage::default();
        assert!(!(0..1_000).all(|byte| coverage.add(byte * 2..byte * 2 + 1)));
    }
}
