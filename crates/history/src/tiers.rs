//! Resolutions and their retention times.

/// A resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tier {
    /// Seconds of a point.
    pub step: u64,
    /// Retention time of points, in seconds.
    pub keep: u64,
    /// Seconds of a row.
    pub row: u64,
    /// Seconds that are kept even at the size limit: needed to rebuild the next tier's points after a kill.
    pub floor: u64,
}

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Tiers, finest first. Each step divides the next, so that points of a tier can be built from the previous tier.
pub const TIERS: [Tier; 4] = [
    Tier { step: 1, keep: HOUR, row: 10, floor: MINUTE },
    Tier { step: 10, keep: DAY, row: 5 * MINUTE, floor: 10 * MINUTE },
    Tier { step: MINUTE, keep: 31 * DAY, row: HOUR, floor: 2 * HOUR },
    Tier { step: HOUR, keep: 731 * DAY, row: DAY, floor: DAY },
];

impl Tier {
    /// First second of the point that contains `second`.
    pub fn point_start(&self, second: u64) -> u64 {
        second - second % self.step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tier_can_be_built_from_the_floor_of_the_previous_one() {
        for pair in TIERS.windows(2) {
            assert!(pair[1].step.is_multiple_of(pair[0].step) && pair[0].row.is_multiple_of(pair[0].step));
            assert!(pair[0].floor >= pair[1].step && pair[0].keep < pair[1].keep);
        }
    }
}
