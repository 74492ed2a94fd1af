//! Which bytes of a read have arrived. Chunks may come in any order, but each byte once: by their sum alone one that came twice
//! would stand for one that is missing, and the buffer there holds what somebody else left in it.

use std::ops::Range;

/// Most gaps that an answer in progress may have.
const RUNS_MAX: usize = 256;

/// Runs of bytes, in order, that neither touch nor overlap.
#[derive(Debug, Default)]
pub(super) struct Coverage(Vec<Range<usize>>);

impl Coverage {
    /// Notes that `bytes` have arrived; false when some of them had before, or the answer is scattered beyond all measure.
    pub(super) fn add(&mut self, bytes: Range<usize>) -> bool {
        let place = self.0.partition_point(|run| run.end < bytes.start);
        let touches_left = self.0.get(place).is_some_and(|run| run.end == bytes.start);
        let right = place + usize::from(touches_left);
        if self.0.get(right).is_some_and(|run| run.start < bytes.end) {
            return bytes.is_empty();
        }
        let touches_right = self.0.get(right).is_some_and(|run| run.start == bytes.end);
        match (touches_left, touches_right) {
            (true, true) => self.0[place].end = self.0.remove(right).end,
            (true, false) => self.0[place].end = bytes.end,
            (false, true) => self.0[right].start = bytes.start,
            (false, false) if self.0.len() >= RUNS_MAX => return false,
            (false, false) => self.0.insert(place, bytes),
        }
        true
    }

    /// True when all of the first `len` bytes have arrived and nothing else.
    pub(super) fn is_whole(&self, len: usize) -> bool {
        len == 0 || matches!(&self.0[..], [all] if *all == (0..len))
    }

    /// Nothing has arrived.
    pub(super) fn clear(&mut self) {
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
    fn an_answer_of_crumbs_ends() {
        let mut coverage = Coverage::default();
        assert!(!(0..1_000).all(|crumb| coverage.add(crumb * 2..crumb * 2 + 1)));
    }
}
