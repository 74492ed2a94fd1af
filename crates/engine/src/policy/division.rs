//! Division of a common cache among volumes: the next block goes to the volume whose miss-ratio curve promises most
//! hits a second for it.
//!
//! The algorithm is greedy by marginal gain, which is optimal only for concave hit curves. So each curve is replaced by
//! its upper concave hull. A volume that gains nothing until its loop fits is offered all of the loop or nothing.
//! (Talus does the same for one cache: Beckmann and Sanchez, HPCA 2015.)

/// A volume's claim to room: its bounds and its gain by size.
#[derive(Clone, Debug, Default)]
pub struct Claim {
    min: u64,
    max: u64,
    rate: f64,
    /// Upper hull of the points (blocks, hits a second), starting at zero.
    hull: Vec<(u64, f64)>,
}

/// A straight segment of a volume's hull.
struct Part {
    volume: usize,
    blocks: u64,
    /// Hits a second for each block.
    worth: f64,
}

impl Claim {
    /// A claim of a volume with bounds `min` and `max` in blocks and a load of `rate` block accesses a second. `points`
    /// are its miss-ratio curve, by growing size: blocks, and the miss ratio of an LRU of that size.
    pub fn new(min: u64, max: u64, rate: f64, points: impl IntoIterator<Item = (u64, f64)>) -> Self {
        let mut hull: Vec<(u64, f64)> = vec![(0, 0.0)];
        for (blocks, miss_ratio) in points {
            let point = (blocks, rate * (1.0 - miss_ratio));
            let last = hull[hull.len() - 1];
            if point.0 <= last.0 || point.1 <= last.1 {
                continue;
            }
            while hull.len() > 1
                && slope(hull[hull.len() - 2], hull[hull.len() - 1]) <= slope(hull[hull.len() - 1], point)
            {
                hull.pop();
            }
            hull.push(point);
        }
        Claim { min: min.min(max), max, rate, hull }
    }

    /// Block accesses a second.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Misses a second with `blocks` blocks.
    pub fn misses(&self, blocks: u64) -> f64 {
        let above = self.hull.partition_point(|point| point.0 <= blocks);
        let below = self.hull[above - 1];
        let more = self.hull.get(above).map_or(0.0, |next| slope(below, *next) * (blocks - below.0) as f64);
        (self.rate - below.1 - more).max(0.0)
    }
}

fn slope(from: (u64, f64), to: (u64, f64)) -> f64 {
    (to.1 - from.1) / (to.0 - from.0) as f64
}

/// Divides `blocks` among the claims; returns the blocks of each. Each volume gets at least its minimum, as far as
/// there is room for all minimums, and never more than its maximum. Blocks that bring no volume any hits are divided
/// equally.
pub fn divide(blocks: u64, claims: &[Claim]) -> Vec<u64> {
    let mut left = blocks;
    let mut give = |shares: &mut [u64], volume: usize, wanted: u64| {
        let given = wanted.min(left).min(claims[volume].max - shares[volume]);
        shares[volume] += given;
        left -= given;
        left
    };
    let mut shares = vec![0; claims.len()];
    for (volume, claim) in claims.iter().enumerate() {
        give(&mut shares, volume, claim.min);
    }
    let mut parts: Vec<Part> = (0..).zip(claims).flat_map(|(volume, claim)| parts(volume, claim)).collect();
    // The sort is stable: the parts of one volume keep their order.
    parts.sort_by(|one, other| other.worth.total_cmp(&one.worth));
    // The part of the hull that a minimum covers is already assigned.
    let mut covered = shares.clone();
    for Part { volume, blocks, .. } in parts {
        let there = covered[volume].min(blocks);
        covered[volume] -= there;
        give(&mut shares, volume, blocks - there);
    }
    loop {
        let takers: Vec<usize> = (0..claims.len()).filter(|at| shares[*at] < claims[*at].max).collect();
        let Some(first) = takers.first() else { return shares };
        let each = give(&mut shares, *first, 0) / takers.len() as u64;
        let left = takers.into_iter().map(|volume| give(&mut shares, volume, each.max(1))).last();
        if left == Some(0) {
            return shares;
        }
    }
}

fn parts(volume: usize, claim: &Claim) -> Vec<Part> {
    let part = |ends: &[(u64, f64)]| Part { volume, blocks: ends[1].0 - ends[0].0, worth: slope(ends[0], ends[1]) };
    claim.hull.windows(2).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(rate: f64, points: &[(u64, f64)]) -> Claim {
        bound(0, u64::MAX, rate, points)
    }

    fn bound(min: u64, max: u64, rate: f64, points: &[(u64, f64)]) -> Claim {
        Claim::new(min, max, rate, points.iter().copied())
    }

    #[test]
    fn room_goes_where_it_brings_most_hits() {
        let steep = claim(100.0, &[(10, 0.9), (50, 0.1), (100, 0.1)]);
        let flat = [(1_000, 0.9)];
        // The steep claim gains nothing beyond 50 blocks.
        assert_eq!(divide(60, &[steep.clone(), claim(100.0, &flat)]), [50, 10]);
        assert_eq!(divide(60, &[claim(100.0, &flat), steep.clone()]), [10, 50]);
        assert_eq!(divide(60, &[steep, claim(1e6, &flat)]), [0, 60], "a volume with more accesses gets more");
    }

    #[test]
    fn loop_gets_all_its_blocks_or_none() {
        let points = [(1, 1.0), (99, 1.0), (100, 0.0)];
        let flat = claim(10.0, &[(1_000, 0.5)]);
        assert_eq!(divide(150, &[claim(10.0, &points), flat.clone()]), [100, 50]);
        assert_eq!(divide(150, &[claim(0.01, &points), flat]), [0, 150]);
    }

    #[test]
    fn bounds_hold_and_all_blocks_are_assigned() {
        let steep = bound(0, 20, 100.0, &[(50, 0.1)]);
        let flat = |max| bound(30.min(max), max, 1.0, &[(1_000, 0.9)]);
        assert_eq!(divide(100, &[steep.clone(), flat(u64::MAX)]), [20, 80]);
        assert_eq!(divide(40, &[steep.clone(), flat(u64::MAX)]), [10, 30]);
        assert_eq!(divide(101, &[claim(0.0, &[]), claim(0.0, &[])]), [51, 50], "nothing is known");
        assert_eq!(divide(100, &[steep, flat(5)]), [20, 5], "both maximums hold");
        assert_eq!(divide(100, &[]), []);
    }

    #[test]
    fn misses_lie_on_the_hull() {
        let claim = claim(10.0, &[(10, 0.9), (20, 0.9), (30, 0.1), (40, 0.1)]);
        let misses = [0, 15, 30, 100].map(|blocks| claim.misses(blocks));
        assert_eq!(misses.map(|misses| (misses * 10.0).round()), [100.0, 55.0, 10.0, 10.0]);
    }
}
