//! Random numbers of the simulated world: SplitMix64, one stream per purpose, all seeded by the world's seed.
//!
//! Streams are separate so that an additional draw for the disks does not change the order of the tasks.

use std::cell::Cell;

use crate::Nanos;

/// A stream of random numbers (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
#[derive(Clone, Debug)]
pub struct Rng(Cell<u64>);

impl Rng {
    /// Stream number `stream` of a seed.
    pub fn new(seed: u64, stream: u64) -> Rng {
        Rng(Cell::new(mix(seed ^ mix(stream.wrapping_add(0x9e37_79b9_7f4a_7c15)))))
    }

    /// A uniform 64-bit number.
    pub fn next(&self) -> u64 {
        let state = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(state);
        mix(state)
    }

    /// A number below `bound`, which must be above 0. The bias is negligible for bounds far below 2^64.
    pub fn below(&self, bound: u64) -> u64 {
        assert!(bound > 0, "the bound must be positive");
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// True with probability `per_million` / 1,000,000.
    pub fn chance(&self, per_million: u32) -> bool {
        per_million > 0 && self.below(1_000_000) < u64::from(per_million)
    }

    /// True with probability 1/2.
    pub fn coin(&self) -> bool {
        self.next() >> 63 == 1
    }

    /// A time from `low` to `high`, both included; equal bounds draw no number.
    pub fn between(&self, low: Nanos, high: Nanos) -> Nanos {
        assert!(low <= high, "a range of times that ends before it begins: {low} to {high}");
        if low == high { low } else { Nanos(low.0 + self.below(high.0 - low.0 + 1)) }
    }

    /// Shuffles `items`.
    pub fn shuffle<T>(&self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// Spreads a number over all 64 bits (the SplitMix64 finaliser).
pub(crate) fn mix(number: u64) -> u64 {
    let a = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let b = (a ^ (a >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    b ^ (b >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_one_seed_repeat_and_differ_from_each_other() {
        let draw = |seed, stream| {
            let rng = Rng::new(seed, stream);
            (0..8).map(|_| rng.next()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1, 1), draw(1, 1));
        assert_ne!(draw(1, 1), draw(1, 2));
        assert_ne!(draw(1, 1), draw(2, 1));
    }

    #[test]
    fn bounded_draws_cover_their_range_and_stay_inside() {
        let rng = Rng::new(7, 0);
        let mut seen = [0; 10];
        (0..10_000).for_each(|_| seen[rng.below(10) as usize] += 1);
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "uneven: {seen:?}");
        assert!((0..1000).all(|_| (5..=9).contains(&rng.between(Nanos(5), Nanos(9)).0)));
    }
}
