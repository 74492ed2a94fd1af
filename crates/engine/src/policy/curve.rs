//! The miss-ratio curve of an LRU, estimated while it happens, in bounded memory (fixed-size SHARDS: Waldspurger, Park, Garthwaite,
//! Ahmad, FAST 2015, with its adjustment of the first bucket).
//!
//! Pages whose hash lies below a threshold are followed, all others cost a compare. When too many are followed the one with the
//! greatest hash is let go and the threshold sinks to it. A distance between two uses among the followed stands for as much longer a
//! distance, and for as many more uses, as the threshold leaves out.

use std::collections::BTreeMap;

/// Pages that are followed, at most.
const FOLLOWED: usize = 8_192;
/// Positions on the time line before it is closed up.
const POSITIONS: usize = 2 * FOLLOWED;
/// At most one page in so many is followed, so that a small working set costs little, too.
const RATE_MAX_PART: u64 = 4;
/// Buckets an octave of distances, and octaves.
const STEPS: usize = 16;
const OCTAVES: usize = 44;
/// Fraction bits of a weight.
const FRACTION: u32 = 16;

/// One curve, of uses of pages of one size.
pub struct Curve {
    /// Pages with a hash below it are followed.
    threshold: u64,
    /// Followed pages by hash, with the position of their last use.
    followed: BTreeMap<u64, u32>,
    /// Fenwick tree: how many last uses lie at a position or before, from position 1 on.
    tree: Vec<u32>,
    /// The last position in use.
    last: usize,
    /// Uses by distance, each with its weight.
    uses: Vec<u64>,
    /// Weight of first uses.
    first_uses: u64,
    /// All uses, followed or not.
    accesses: u64,
}

impl Default for Curve {
    fn default() -> Self {
        Curve {
            threshold: u64::MAX / RATE_MAX_PART,
            followed: BTreeMap::new(),
            tree: vec![0; POSITIONS + 1],
            last: 0,
            uses: vec![0; STEPS * OCTAVES],
            first_uses: 0,
            accesses: 0,
        }
    }
}

impl Curve {
    /// A page whose address hashes to `key` (all 64 bits well mixed) is used.
    pub fn used(&mut self, key: u64) {
        self.accesses += 1;
        if key < self.threshold {
            self.follow(key);
        }
    }

    /// Uses that were seen.
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    /// Misses a use of an LRU of `pages` pages; 1 before anything was used.
    pub fn miss_ratio(&self, pages: u64) -> f64 {
        let counted = self.uses.iter().sum::<u64>() + self.first_uses;
        let all = self.accesses << FRACTION;
        if all == 0 || counted == 0 {
            return 1.0;
        }
        let (bucket, inside) = bucket(pages.max(1) << FRACTION);
        let below: u64 = self.uses[..bucket].iter().sum();
        let hits = below as f64 + self.uses[bucket] as f64 * inside;
        // Pages that are used very often are rarely followed, or one that is weighs too much: what is missing of all uses, or is
        // too much, are uses at the shortest distance.
        let missing = all as f64 - counted as f64;
        (1.0 - (hits + missing) / all as f64).clamp(0.0, 1.0)
    }

    /// Bytes that it takes at most.
    pub const fn bytes_max() -> usize {
        // A leaf of the map holds eleven pages and is half full at worst; closing up holds all positions once more.
        FOLLOWED * 2 * 16 + FOLLOWED * 16 + (POSITIONS + 1) * 4 + STEPS * OCTAVES * 8
    }

    fn follow(&mut self, key: u64) {
        // Uses that one followed use stands for.
        let weight = ((1_u128 << (64 + FRACTION)) / u128::from(self.threshold)) as u64;
        match self.followed.get(&key).copied() {
            Some(position) => {
                let others = self.followed.len() as u64 - self.count_to(position as usize);
                // Between so many and one more followed pages there are on average half of what one stands for.
                let distance = others.saturating_mul(weight).saturating_add(weight / 2);
                self.uses[bucket(distance).0] += weight;
                self.mark(position as usize, false);
            }
            None => self.first_uses += weight,
        }
        if self.last == POSITIONS {
            self.close_up(key);
        }
        self.last += 1;
        self.followed.insert(key, self.last as u32);
        self.mark(self.last, true);
        if self.followed.len() > FOLLOWED
            && let Some((greatest, position)) = self.followed.pop_last()
        {
            self.mark(position as usize, false);
            self.threshold = greatest;
        }
    }

    /// Gives the last uses the first positions, in their order; the one of `moving` is not marked now.
    fn close_up(&mut self, moving: u64) {
        self.followed.remove(&moving);
        let mut order: Vec<(u32, u64)> = self.followed.iter().map(|(key, position)| (*position, *key)).collect();
        order.sort_unstable();
        self.tree.fill(0);
        self.last = 0;
        for (_, key) in order {
            self.last += 1;
            *self.followed.get_mut(&key).expect("it was listed a moment ago") = self.last as u32;
            self.mark(self.last, true);
        }
    }

    fn mark(&mut self, mut position: usize, used: bool) {
        while position <= POSITIONS {
            self.tree[position] = if used { self.tree[position] + 1 } else { self.tree[position] - 1 };
            position += position & position.wrapping_neg();
        }
    }

    fn count_to(&self, mut position: usize) -> u64 {
        let mut count = 0;
        while position > 0 {
            count += u64::from(self.tree[position]);
            position &= position - 1;
        }
        count
    }
}

/// The bucket of a distance (with its fraction bits), and how far inside it lies.
fn bucket(distance: u64) -> (usize, f64) {
    let scaled = distance >> (FRACTION - STEPS.ilog2());
    let octave = scaled.max(1).ilog2().saturating_sub(STEPS.ilog2());
    let step = scaled >> octave;
    let index = u64::from(octave) * STEPS as u64 + step;
    let low = step << octave;
    let inside = (scaled - low) as f64 / (1_u64 << octave) as f64;
    ((index as usize).min(STEPS * OCTAVES - 1), inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(page: u64) -> u64 {
        crate::memory::hash(0, crate::memory::PageNo(page))
    }

    #[test]
    fn a_loop_misses_until_it_fits() {
        for pages in [4_000_u64, 100_000] {
            let mut curve = Curve::default();
            for _ in 0..10 {
                (0..pages).for_each(|page| curve.used(key(page)));
            }
            assert!(curve.miss_ratio(pages * 9 / 10) > 0.97, "{pages}: {}", curve.miss_ratio(pages * 9 / 10));
            assert!((curve.miss_ratio(pages * 11 / 10) - 0.1).abs() < 0.03, "the first round of ten misses");
            assert_eq!(curve.accesses(), 10 * pages);
        }
    }

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        let mut before = (0, 0.0);
        for distance in (0_u64..2_000_000).map(|part| part << 10) {
            let (index, inside) = bucket(distance);
            assert!((0.0..1.0).contains(&inside), "{distance}");
            assert!(index == before.0 || index == before.0 + 1, "{distance}: {index} after {}", before.0);
            before = (index, inside);
        }
    }

    #[test]
    fn its_memory_is_bounded() {
        let mut curve = Curve::default();
        for page in 0..2_000_000 {
            curve.used(key(page));
        }
        assert!(curve.followed.len() <= FOLLOWED && curve.tree.len() == POSITIONS + 1);
        assert!(Curve::bytes_max() <= 512 << 10, "two of them stay below 1 MiB");
        assert!(curve.miss_ratio(1_000_000) > 0.99, "nothing ever came back");
    }
}
