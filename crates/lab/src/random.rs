//! Random draws from a seed (`SplitMix64`: Steele, Lea, Flood, OOPSLA 2014), identical on every machine and in every
//! version.

/// A stream of draws. Streams of different seeds or stream numbers are independent.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of number `stream` of a run from `seed`.
    pub fn new(seed: u64, stream: u64) -> Random {
        let mut random = Random(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        Random(random.draw() ^ stream)
    }

    /// 64 random bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A uniform draw from `0..count`.
    pub fn below(&mut self, count: u64) -> u64 {
        assert!(count > 0, "a draw from an empty range");
        ((u128::from(self.draw()) * u128::from(count)) >> 64) as u64
    }

    /// A uniform draw from `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True in `percent` of 100 draws.
    pub fn percent(&mut self, percent: u32) -> bool {
        self.below(100) < u64::from(percent)
    }

    /// A uniform draw from `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// A uniform fraction in `0.0..1.0`.
    pub fn fraction(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seed_and_stream_draw_the_same_others_differ() {
        let draws = |seed, stream| {
            let mut random = Random::new(seed, stream);
            [random.draw(), random.draw(), random.draw()]
        };
        assert_eq!(draws(1, 2), draws(1, 2));
        assert_ne!(draws(1, 2), draws(2, 1));
        assert_ne!(draws(1, 2), draws(1, 3));
    }

    #[test]
    fn draws_stay_in_their_range_and_reach_its_ends() {
        let mut random = Random::new(7, 0);
        let mut seen = [false; 5];
        for _ in 0..1_000 {
            seen[random.between(3, 7) as usize - 3] = true;
        }
        assert_eq!(seen, [true; 5]);
        let hits = (0..10_000).filter(|_| random.percent(25)).count();
        assert!((2_300..2_700).contains(&hits), "{hits} of 10,000 draws at 25 %");
    }
}
