//! Bounded selection: the entries with the highest scores out of any number, in linear time and bounded memory.

use std::cmp::Reverse;

/// The `limit` entries with the highest scores; the lower index first among equal scores.
#[derive(Clone, Debug)]
pub(super) struct Top {
    limit: usize,
    entries: Vec<(i64, Reverse<u64>)>,
    /// Entries at or below this one cannot be among the highest.
    floor: Option<(i64, Reverse<u64>)>,
}

impl Top {
    pub(super) fn new(limit: usize) -> Top {
        Top { limit, entries: Vec::new(), floor: None }
    }

    /// Offers an entry.
    pub(super) fn push(&mut self, score: i64, index: u64) {
        let entry = (score, Reverse(index));
        if self.limit == 0 || self.floor.is_some_and(|floor| entry <= floor) {
            return;
        }
        self.entries.push(entry);
        if self.entries.len() >= 2 * self.limit {
            self.shrink();
        }
    }

    /// Indices by falling score.
    pub(super) fn into_sorted(mut self) -> Vec<u64> {
        self.shrink();
        self.entries.sort_unstable_by_key(|entry| Reverse(*entry));
        self.entries.into_iter().map(|(_, Reverse(index))| index).collect()
    }

    /// Drops the entries past the limit. Half of the entries go, so the mean cost of a push is constant.
    fn shrink(&mut self) {
        if self.entries.len() > self.limit {
            let (_, floor, _) = self.entries.select_nth_unstable_by_key(self.limit, |entry| Reverse(*entry));
            self.floor = Some(*floor);
            self.entries.truncate(self.limit);
        }
        assert!(self.entries.len() <= self.limit, "entries past the limit");
    }
}

#[cfg(test)]
mod tests {
    use seam::sim::Rng;

    use super::*;

    #[test]
    fn selection_equals_the_head_of_a_full_sort() {
        for seed in 0..200 {
            let rng = Rng::new(seed, 0);
            let (count, limit) = (rng.below(300), rng.below(40) as usize);
            let mut top = Top::new(limit);
            let mut all = Vec::new();
            for index in 0..count {
                let score = rng.below(50) as i64 - 25;
                top.push(score, index);
                all.push((Reverse(score), index));
                assert!(top.entries.len() < (2 * limit).max(1));
            }
            all.sort_unstable();
            let expected: Vec<u64> = all.into_iter().take(limit).map(|(_, index)| index).collect();
            assert_eq!(top.into_sorted(), expected, "seed {seed}");
        }
    }
}
