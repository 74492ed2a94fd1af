//! What pairs of runs say of a ratio, and whether it keeps a bound: the mean of its logarithm with a 95 % confidence interval.
//!
//! Runs of one round stand side by side, so that what slows the machine down for a while slows all of them; the interval is Student's, of as
//! many pairs as there are, and nothing in it is drawn by chance.

use std::fmt;

/// Pairs from which on a bound of a few percent can be judged.
pub const PAIRS_WANTED: usize = 50;

/// Where a ratio lies with 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Its lower end.
    pub low: f64,
    /// The geometric mean of the pairs' ratios.
    pub mid: f64,
    /// Its upper end.
    pub high: f64,
}

/// What an interval says of a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All of it is within.
    Pass,
    /// The bound is somewhere in it: more pairs would tell.
    Open,
    /// None of it is within.
    Miss,
}

impl Interval {
    /// Of the ratio of the second to the first of each pair.
    pub fn of_ratio(pairs: impl IntoIterator<Item = (f64, f64)>) -> Interval {
        let logarithms: Vec<f64> = pairs.into_iter().map(|(first, second)| (second / first).ln()).collect();
        let count = logarithms.len() as f64;
        let mean = logarithms.iter().sum::<f64>() / count;
        let squares: f64 = logarithms.iter().map(|each| (each - mean).powi(2)).sum();
        let reach = match logarithms.len() {
            0 | 1 => f64::INFINITY,
            some => student(some - 1) * (squares / (count - 1.0) / count).sqrt(),
        };
        Interval { low: (mean - reach).exp(), mid: mean.exp(), high: (mean + reach).exp() }
    }

    /// Whether it is `bound` at most.
    pub fn at_most(self, bound: f64) -> Verdict {
        if self.high <= bound {
            Verdict::Pass
        } else if self.low > bound {
            Verdict::Miss
        } else {
            Verdict::Open
        }
    }

    /// Whether it is `bound` at least.
    pub fn at_least(self, bound: f64) -> Verdict {
        if self.low >= bound {
            Verdict::Pass
        } else if self.high < bound {
            Verdict::Miss
        } else {
            Verdict::Open
        }
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "**{:.3}** ({:.3} to {:.3})", self.mid, self.low, self.high)
    }
}

impl Verdict {
    /// Of a figure that has no interval.
    pub fn of(is_kept: bool) -> Verdict {
        if is_kept { Verdict::Pass } else { Verdict::Miss }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Pass => "pass",
            Verdict::Open => "open",
            Verdict::Miss => "**miss**",
        })
    }
}

/// Between plus and minus this 95 % of Student's distribution lie; beyond ten degrees of freedom by the expansion of Abramowitz and Stegun,
/// 26.7.5, which is within a thousandth there.
fn student(freedom: usize) -> f64 {
    const FEW: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    const NORMAL: f64 = 1.959_964;
    if let Some(few) = freedom.checked_sub(1).and_then(|at| FEW.get(at)) {
        return *few;
    }
    let (z, n) = (NORMAL, freedom as f64);
    let first = (z.powi(3) + z) / 4.0;
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    let third = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
    z + first / n + second / n.powi(2) + third / n.powi(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Noise of a run: about one and a half percent, from a seed.
    struct Noise(u64);

    impl Noise {
        fn next(&mut self) -> f64 {
            // A sum of twelve uniform numbers is as good as normal; splitmix64.
            let uniform = || {
                self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
                let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                (mixed >> 40) as f64 / (1 << 24) as f64
            };
            let sum: f64 = std::iter::repeat_with(uniform).take(12).sum();
            (0.015 * (sum - 6.0)).exp()
        }

        /// Pairs of which the second has `part` of the first's rate, on a machine that gets slower and faster meanwhile.
        fn pairs(&mut self, count: usize, part: f64) -> Vec<(f64, f64)> {
            let machine = |round: usize| 40_000.0 * (1.0 + 0.2 * (round as f64 / 8.0).sin());
            (0..count).map(|round| (machine(round) * self.next(), machine(round) * part * self.next())).collect()
        }
    }

    #[test]
    fn intervals_are_those_of_the_book() {
        let close = |is: f64, wanted: f64| assert!((is - wanted).abs() < 0.001, "{is} for {wanted}");
        for (freedom, wanted) in [(2, 4.303), (10, 2.228), (11, 2.201), (20, 2.086), (49, 2.010), (1_000, 1.962)] {
            close(student(freedom), wanted);
        }
        // Logarithms of 0, 0.1 and -0.1: their deviation is 0.1, so the interval reaches 4.303 * 0.1 / sqrt(3).
        let interval = Interval::of_ratio([0.0, 0.1, -0.1].map(|log: f64| (2.0, 2.0 * log.exp())));
        close(interval.mid, 1.0);
        close(interval.low.ln(), -0.2484);
        close(interval.high.ln(), 0.2484);
        let single = Interval::of_ratio([(2.0, 1.0)]);
        assert_eq!(
            (single.low, single.mid, single.high),
            (0.0, 0.5, f64::INFINITY),
            "one pair says nothing of the next"
        );
    }

    #[test]
    fn nineteen_of_twenty_intervals_hold_the_truth() {
        let holds = |seed: &u64| {
            let interval = Interval::of_ratio(Noise(seed * 1_000_003).pairs(10, 0.97));
            interval.low <= 0.97 && 0.97 <= interval.high
        };
        let held = (0..1_000).filter(holds).count();
        assert!((930..970).contains(&held), "{held} of 1,000");
    }

    #[test]
    fn a_loss_of_five_percent_is_found_and_one_of_nothing_is_not() {
        for seed in 0..20 {
            let mut noise = Noise(seed);
            let (same, less) = (noise.pairs(PAIRS_WANTED, 1.0), noise.pairs(PAIRS_WANTED, 0.95));
            let (same, less) = (Interval::of_ratio(same), Interval::of_ratio(less));
            assert_eq!((same.at_least(0.975), same.at_most(1.025)), (Verdict::Pass, Verdict::Pass), "{same:?}");
            assert_eq!(less.at_least(0.975), Verdict::Miss, "{less:?}");
            assert!(less.low <= 0.96 && less.high >= 0.94, "{less:?}");
        }
        let few = Interval::of_ratio(Noise(1).pairs(2, 0.95));
        assert_eq!(few.at_least(0.975), Verdict::Open, "{few:?}: two pairs are not enough");
    }
}
