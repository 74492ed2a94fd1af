//! Miss-ratio curve of an LRU cache from one pass over a trace. A use hits in every cache larger than the number of
//! distinct pages used since the page's last use (Mattson and others, IBM Systems Journal 1970). A Fenwick tree over
//! time counts those pages.

use crate::replay::PageTrace;

/// Reuse distances of a trace, accumulated to hits by cache size.
pub struct LruCurve {
    /// Index: cache size in pages; value: hits of a cache of that size.
    hits: Vec<u64>,
    accesses: u64,
}

impl LruCurve {
    /// Computes the curve of a trace.
    pub fn of(pages: &PageTrace) -> LruCurve {
        let PageTrace { accesses, distinct } = pages;
        let mut hits = vec![0; *distinct as usize + 1];
        let mut last_uses = vec![0; *distinct as usize];
        let mut tree = vec![0u32; accesses.len() + 1];
        let mut distinct_seen = 0;
        for (time, page) in (1..).zip(accesses) {
            let last_use = std::mem::replace(&mut last_uses[*page as usize], time);
            if last_use > 0 {
                let distance: u32 = distinct_seen - sum(&tree, last_use);
                hits[distance as usize + 1] += 1;
                add(&mut tree, last_use, u32::MAX);
            } else {
                distinct_seen += 1;
            }
            add(&mut tree, time, 1);
        }
        for slots in 1..hits.len() {
            hits[slots] += hits[slots - 1];
        }
        LruCurve { hits, accesses: accesses.len() as u64 }
    }

    /// Misses per access of an LRU cache of `slots` pages.
    pub fn miss_ratio(&self, slots: usize) -> f64 {
        let hits = self.hits[slots.min(self.hits.len() - 1)];
        if self.accesses == 0 { 0.0 } else { (self.accesses - hits) as f64 / self.accesses as f64 }
    }
}

/// Adds `amount` at `index`; adding the greatest number subtracts one by wrapping.
fn add(tree: &mut [u32], mut index: usize, amount: u32) {
    while let Some(node) = tree.get_mut(index) {
        *node = node.wrapping_add(amount);
        index += index & index.wrapping_neg();
    }
}

/// Sum of the values at indices up to `index`.
fn sum(tree: &[u32], mut index: usize) -> u32 {
    let mut sum = 0u32;
    while index > 0 {
        sum = sum.wrapping_add(tree[index]);
        index &= index - 1;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::replay::Replacement;

    #[test]
    fn exact_curve_equals_simulation_of_every_size() {
        let mut random = Random::new(7, 0);
        let accesses: Vec<u32> = (0..3_000).map(|_| random.below(60).min(random.below(60)) as u32).collect();
        let pages = PageTrace { accesses, distinct: 60 };
        let exact = LruCurve::of(&pages);
        for slots in 1..=60 {
            assert_eq!(exact.miss_ratio(slots), Replacement::Lru.run(slots, &pages).miss_ratio(), "{slots} slots");
        }
        assert_eq!(exact.miss_ratio(1_000), exact.miss_ratio(60));
        assert_eq!(exact.miss_ratio(0), 1.0);
    }
}
