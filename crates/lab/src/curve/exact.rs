//! An LRU's curve from one pass: a use hits in every cache that is larger than the number of other pages used since the page's last
//! use (Mattson and others, IBM Systems Journal 1970), counted in a Fenwick tree over time.

use crate::replay::Pages;

/// Uses by the number of other pages since the last use.
pub struct Exact {
    /// Hits of a cache of so many pages.
    hits: Vec<u64>,
    accesses: u64,
}

impl Exact {
    /// Counts a trace.
    pub fn of(pages: &Pages) -> Exact {
        let Pages { accesses, distinct } = pages;
        let mut hits = vec![0; *distinct as usize + 1];
        let mut last = vec![0; *distinct as usize];
        let mut tree = vec![0u32; accesses.len() + 1];
        let mut seen = 0;
        for (time, page) in (1..).zip(accesses) {
            let before = std::mem::replace(&mut last[*page as usize], time);
            if before > 0 {
                let others: u32 = seen - sum(&tree, before);
                hits[others as usize + 1] += 1;
                add(&mut tree, before, u32::MAX);
            } else {
                seen += 1;
            }
            add(&mut tree, time, 1);
        }
        for slots in 1..hits.len() {
            hits[slots] += hits[slots - 1];
        }
        Exact { hits, accesses: accesses.len() as u64 }
    }

    /// Misses an access of an LRU of `slots` pages.
    pub fn miss_ratio(&self, slots: usize) -> f64 {
        let hits = self.hits[slots.min(self.hits.len() - 1)];
        if self.accesses == 0 { 0.0 } else { (self.accesses - hits) as f64 / self.accesses as f64 }
    }
}

/// Adds to a place; to take one away is to add the greatest number, which wraps.
fn add(tree: &mut [u32], mut place: usize, amount: u32) {
    while let Some(node) = tree.get_mut(place) {
        *node = node.wrapping_add(amount);
        place += place & place.wrapping_neg();
    }
}

fn sum(tree: &[u32], mut place: usize) -> u32 {
    let mut sum = 0u32;
    while place > 0 {
        sum = sum.wrapping_add(tree[place]);
        place &= place - 1;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::replay::Replacement;

    #[test]
    fn it_is_what_playing_every_size_finds() {
        let mut random = Random::new(7, 0);
        let accesses: Vec<u32> = (0..3_000).map(|_| random.below(60).min(random.below(60)) as u32).collect();
        let pages = Pages { accesses, distinct: 60 };
        let exact = Exact::of(&pages);
        for slots in 1..=60 {
            assert_eq!(exact.miss_ratio(slots), Replacement::Lru.play(slots, &pages).miss_ratio(), "{slots} slots");
        }
        assert_eq!(exact.miss_ratio(1_000), exact.miss_ratio(60));
        assert_eq!(exact.miss_ratio(0), 1.0);
    }
}
