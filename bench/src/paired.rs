//! Ratios of paired runs and their bounds: the mean of the logarithm with a 95 % confidence interval.
//!
//! The runs of a round are adjacent, so that slowdowns of the machine affect all of them. The interval is Student's
//! t-interval, computed in closed form, so the same runs always give the same interval.

use std::fmt;

/// Number of pairs needed to judge a bound of a few percent.
pub const PAIRS_MIN: usize = 50;

/// 95 % confidence interval of a ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Geometric mean of the pairs' ratios.
    pub mean: f64,
    /// Upper end.
    pub high: f64,
}

/// Whether an interval meets a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The whole interval meets the bound.
    Pass,
    /// The bound lies inside the interval; more pairs are needed.
    Inconclusive,
    /// The whole interval misses the bound.
    Fail,
}

impl Interval {
    /// Interval of the ratio of the second value to the first of each pair.
    pub fn of_ratio(pairs: impl IntoIterator<Item = (f64, f64)>) -> Interval {
        let logarithms: Vec<f64> = pairs.into_iter().map(|(first, second)| (second / first).ln()).collect();
        let count = logarithms.len() as f64;
        let mean = logarithms.iter().sum::<f64>() / count;
        let squares: f64 = logarithms.iter().map(|logarithm| (logarithm - mean).powi(2)).sum();
        let half_width = match logarithms.len() {
            0 | 1 => f64::INFINITY,
            pairs => t_quantile(pairs - 1) * (squares / (count - 1.0) / count).sqrt(),
        };
        Interval { low: (mean - half_width).exp(), mean: mean.exp(), high: (mean + half_width).exp() }
    }

    /// Judges the upper bound `bound`.
    pub fn judge_at_most(self, bound: f64) -> Verdict {
        if self.high <= bound {
            Verdict::Pass
        } else if self.low > bound {
            Verdict::Fail
        } else {
            Verdict::Inconclusive
        }
    }

    /// Judges the lower bound `bound`.
    pub fn judge_at_least(self, bound: f64) -> Verdict {
        if self.low >= bound {
            Verdict::Pass
        } else if self.high < bound {
            Verdict::Fail
        } else {
            Verdict::Inconclusive
        }
    }
}

impl fmt::Display for Interval {
    /// Renders the interval for a Markdown table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "**{:.3}** ({:.3} to {:.3})", self.mean, self.low, self.high)
    }
}

impl Verdict {
    /// Verdict of a figure without an interval.
    pub fn of(is_met: bool) -> Verdict {
        if is_met { Verdict::Pass } else { Verdict::Fail }
    }
}

impl fmt::Display for Verdict {
    /// Renders the verdict for a Markdown table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Pass => "pass",
            Verdict::Inconclusive => "inconclusive",
            Verdict::Fail => "**fail**",
        })
    }
}

/// Two-sided 95 % quantile of Student's t distribution. Beyond ten degrees of freedom it uses the expansion of
/// Abramowitz and Stegun, 26.7.5, which is accurate to a thousandth there.
fn t_quantile(degrees_of_freedom: usize) -> f64 {
    const TABLE: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    const NORMAL: f64 = 1.959_964;
    if let Some(quantile) = degrees_of_freedom.checked_sub(1).and_then(|index| TABLE.get(index)) {
        return *quantile;
    }
    let (z, n) = (NORMAL, degrees_of_freedom as f64);
    let first = (z.powi(3) + z) / 4.0;
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    let third = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
    z + first / n + second / n.powi(2) + third / n.powi(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeded noise of a run, about one and a half percent.
    struct Noise(u64);

    impl Noise {
        fn next(&mut self) -> f64 {
            // A sum of twelve uniform numbers approximates the normal distribution; the generator is splitmix64.
            let uniform = || {
                self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
                let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                (mixed >> 40) as f64 / (1 << 24) as f64
            };
            let sum: f64 = std::iter::repeat_with(uniform).take(12).sum();
            (0.015 * (sum - 6.0)).exp()
        }

        /// Pairs whose second value has `ratio` times the first one's rate, on a machine whose speed drifts between
        /// rounds.
        fn pairs(&mut self, count: usize, ratio: f64) -> Vec<(f64, f64)> {
            let machine_rate = |round: usize| 40_000.0 * (1.0 + 0.2 * (round as f64 / 8.0).sin());
            (0..count)
                .map(|round| (machine_rate(round) * self.next(), machine_rate(round) * ratio * self.next()))
                .collect()
        }
    }

    #[test]
    fn intervals_match_the_tables() {
        let close = |actual: f64, expected: f64| assert!((actual - expected).abs() < 0.001, "{actual} for {expected}");
        for (freedom, expected) in [(2, 4.303), (10, 2.228), (11, 2.201), (20, 2.086), (49, 2.010), (1_000, 1.962)] {
            close(t_quantile(freedom), expected);
        }
        // Logarithms of 0, 0.1 and -0.1: their sample standard deviation is 0.1, so the interval reaches
        // 4.303 * 0.1 / sqrt(3).
        let interval = Interval::of_ratio([0.0, 0.1, -0.1].map(|log: f64| (2.0, 2.0 * log.exp())));
        close(interval.mean, 1.0);
        close(interval.low.ln(), -0.2484);
        close(interval.high.ln(), 0.2484);
        let single = Interval::of_ratio([(2.0, 1.0)]);
        assert_eq!((single.low, single.mean, single.high), (0.0, 0.5, f64::INFINITY), "one pair gives no interval");
    }

    #[test]
    fn nineteen_of_twenty_intervals_contain_the_true_ratio() {
        let holds = |seed: &u64| {
            let interval = Interval::of_ratio(Noise(seed * 1_000_003).pairs(10, 0.97));
            interval.low <= 0.97 && 0.97 <= interval.high
        };
        let held = (0..1_000).filter(holds).count();
        assert!((930..970).contains(&held), "{held} of 1,000");
    }

    #[test]
    fn loss_of_five_percent_is_detected_and_no_loss_passes() {
        for seed in 0..20 {
            let mut noise = Noise(seed);
            let (same, less) = (noise.pairs(PAIRS_MIN, 1.0), noise.pairs(PAIRS_MIN, 0.95));
            let (same, less) = (Interval::of_ratio(same), Interval::of_ratio(less));
            assert_eq!(
                (same.judge_at_least(0.975), same.judge_at_most(1.025)),
                (Verdict::Pass, Verdict::Pass),
                "{same:?}"
            );
            assert_eq!(less.judge_at_least(0.975), Verdict::Fail, "{less:?}");
            assert!(less.low <= 0.96 && less.high >= 0.94, "{less:?}");
        }
        let few = Interval::of_ratio(Noise(1).pairs(2, 0.95));
        assert_eq!(few.judge_at_least(0.975), Verdict::Inconclusive, "{few:?}: two pairs are not enough");
    }
}
