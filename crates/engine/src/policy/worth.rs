//! What a return is worth: should a block that comes back from the ghost displace one of the main part?
//!
//! How long a ghost pays differs from load to load: a loop that fits is gained by a long one, one that does not fit is only churned by it.
//! So it is learned. Of the returns of each age it is counted how many were used before the clock first came by, and, of the blocks
//! that the main part let go, how many would have been used had they stayed for that long once more. Returns of an age are let in
//! while they do at least as well as what they displace. Those of the youngest quarter always are, and of the others now and then one, so
//! that a change of the load is noticed.

/// Ages that are told apart.
const AGES: usize = 8;
/// Of those the youngest, which are always let in.
const ALWAYS: usize = 2;
/// One of so many returns that are not worth it is let in all the same.
const PROBE: u32 = 16;
/// The part of a cache's worth of events over which is averaged.
const MEMORY_PART: usize = 8;
/// All of them, as a sample of a mean.
const ALL: u32 = 1 << 20;

/// How a block came into the main part: by a return of some age, or from probation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Origin(u8);

impl Origin {
    /// Used again while it was in probation.
    pub const PROBATION: Origin = Origin(AGES as u8);
}

/// A mean over the last `weight` samples or so, with 20 bits of a fraction.
#[derive(Clone, Copy)]
struct Mean(i64);

impl Mean {
    const fn of(sample: u32) -> Self {
        Mean((sample as i64) << 20)
    }

    fn add(&mut self, sample: u32, weight: i64) {
        self.0 += (Mean::of(sample).0 - self.0) / weight;
    }
}

/// What was learned.
pub struct Worth {
    weight: i64,
    /// Used before the clock first came by, by age of the return; in parts of [`ALL`].
    used: [Mean; AGES],
    /// Let go, and wanted again within a round.
    missed: Mean,
    /// Accesses between coming into the main part and the clock's first coming by; none before it came by anybody.
    round: Option<Mean>,
    refused: u32,
}

impl Worth {
    /// For a cache of `capacity` blocks.
    pub fn new(capacity: usize) -> Self {
        let weight = (capacity / MEMORY_PART).max(16) as i64;
        Worth { weight, used: [Mean::of(ALL / 2); AGES], missed: Mean::of(0), round: None, refused: 0 }
    }

    /// How a block may come in that returned after `age` of `horizon` insertions; `None` when it is not worth it.
    pub fn admit(&mut self, age: u32, horizon: u32) -> Option<Origin> {
        let bucket = (u64::from(age) * AGES as u64 / u64::from(horizon.max(1))).min(AGES as u64 - 1) as usize;
        if bucket >= ALWAYS && self.used[bucket].0 < self.missed.0 {
            self.refused = self.refused.wrapping_add(1);
            if !self.refused.is_multiple_of(PROBE) {
                return None;
            }
        }
        Some(Origin(bucket as u8))
    }

    /// The clock comes for the first time by a block that has been in the main part for `accesses`.
    pub fn first_look(&mut self, origin: Origin, used: bool, accesses: u32) {
        if let Some(mean) = self.used.get_mut(usize::from(origin.0)) {
            mean.add(if used { ALL } else { 0 }, self.weight);
        }
        self.round.get_or_insert(Mean::of(accesses)).add(accesses, self.weight);
    }

    /// The main part lets a block go.
    pub fn let_go(&mut self) {
        self.missed.add(0, self.weight);
    }

    /// A block that was let go `accesses` ago is wanted again.
    pub fn wanted_again(&mut self, accesses: u32) {
        if self.round.is_some_and(|round| Mean::of(accesses).0 <= round.0) {
            self.missed.0 += Mean::of(ALL).0 / self.weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HORIZON: u32 = 800;

    /// Of 1,000 returns of the oldest age, how many are let in.
    fn let_in(worth: &mut Worth) -> usize {
        (0..1_000).filter(|_| worth.admit(HORIZON - 1, HORIZON).is_some()).count()
    }

    #[test]
    fn returns_are_let_in_while_they_do_better_than_what_they_displace() {
        let mut worth = Worth::new(800);
        let old = worth.admit(HORIZON - 1, HORIZON).expect("at first everything is let in");
        for _ in 0..1_000 {
            worth.first_look(old, false, 100);
            worth.let_go();
            worth.wanted_again(101);
        }
        assert_eq!(let_in(&mut worth), 1_000, "what was let go came back too late to matter");
        for _ in 0..1_000 {
            worth.let_go();
            worth.wanted_again(99);
        }
        assert_eq!(let_in(&mut worth), 1_000 / PROBE as usize, "now and then one is let in to learn");
        assert_eq!((0..1_000).filter(|_| worth.admit(100, HORIZON).is_some()).count(), 1_000, "the young always are");
        for _ in 0..1_000 {
            worth.first_look(old, true, 100);
        }
        assert!(let_in(&mut worth) >= 990, "the load has changed");
    }

    #[test]
    fn how_blocks_from_probation_do_says_nothing_of_returns() {
        let mut worth = Worth::new(800);
        for _ in 0..1_000 {
            worth.first_look(Origin::PROBATION, false, 100);
            worth.let_go();
        }
        assert_eq!(let_in(&mut worth), 1_000);
    }
}
