//! How fine is kept for how long.

/// A resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tier {
    /// Seconds that one of its points stands for.
    pub step: u64,
    /// Seconds for which points are kept.
    pub keep: u64,
    /// Seconds of points that share a row.
    pub row: u64,
    /// Seconds that stay when room is short: what is needed to make up the next tier's points after a kill.
    pub floor: u64,
}

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// The finest first; each step divides the next, so that their points can be made of one another.
pub const TIERS: [Tier; 4] = [
    Tier { step: 1, keep: HOUR, row: 10, floor: MINUTE },
    Tier { step: 10, keep: DAY, row: 5 * MINUTE, floor: 10 * MINUTE },
    Tier { step: MINUTE, keep: 31 * DAY, row: HOUR, floor: 2 * HOUR },
    Tier { step: HOUR, keep: 731 * DAY, row: DAY, floor: DAY },
];

impl Tier {
    /// The first second of the point that `second` belongs to.
    pub fn bucket(&self, second: u64) -> u64 {
        second - second % self.step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tier_can_be_made_of_the_one_before_even_at_its_shortest() {
        for pair in TIERS.windows(2) {
            assert!(pair[1].step.is_multiple_of(pair[0].step) && pair[0].row.is_multiple_of(pair[0].step));
            assert!(pair[0].floor >= pair[1].step && pair[0].keep < pair[1].keep);
        }
    }
}
