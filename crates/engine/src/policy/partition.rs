//! Partition of a common cache among volumes: the next block goes to the volume whose miss-ratio curve predicts the
//! most hits for it.
//!
//! The algorithm is greedy by marginal gain, which is optimal only for concave hit curves. So each curve is replaced by
//! its upper concave hull. A volume that gains nothing until its loop fits gets all of the loop or nothing. (Talus does
//! the same for one cache: Beckmann and Sanchez, HPCA 2015.)

/// A volume's demand for memory: its bounds and its gain by size.
#[derive(Clone, Debug, Default)]
pub struct VolumeDemand {
    min_blocks: u64,
    max_blocks: u64,
    recent_uses: f64,
    /// Upper hull of the points (blocks, hits among the recent uses), starting at zero.
    hull: Vec<(u64, f64)>,
}

/// A straight segment of a volume's hull.
struct HullSegment {
    volume_index: usize,
    blocks: u64,
    /// Hits for each block.
    gain_per_block: f64,
}

impl VolumeDemand {
    /// A demand of a volume with bounds `min` and `max` in blocks and `recent_uses` of blocks, a decayed count.
    /// `points` are its miss-ratio curve, by growing size: blocks, and the miss ratio of an LRU of that size.
    pub fn new(min: u64, max: u64, recent_uses: f64, points: impl IntoIterator<Item = (u64, f64)>) -> Self {
        let mut hull: Vec<(u64, f64)> = vec![(0, 0.0)];
        for (blocks, miss_ratio) in points {
            let point = (blocks, recent_uses * (1.0 - miss_ratio));
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
        VolumeDemand { min_blocks: min.min(max), max_blocks: max, recent_uses, hull }
    }

    /// Recent uses of blocks, a decayed count.
    pub fn recent_uses(&self) -> f64 {
        self.recent_uses
    }

    /// The misses among the recent uses that are expected with `blocks` blocks.
    pub fn expected_misses(&self, blocks: u64) -> f64 {
        let above = self.hull.partition_point(|point| point.0 <= blocks);
        let below = self.hull[above - 1];
        let gain = self.hull.get(above).map_or(0.0, |next| slope(below, *next) * (blocks - below.0) as f64);
        (self.recent_uses - below.1 - gain).max(0.0)
    }
}

/// Gain for each block between two points of a hull.
fn slope(from: (u64, f64), to: (u64, f64)) -> f64 {
    (to.1 - from.1) / (to.0 - from.0) as f64
}

/// Partitions `blocks` among the demands; returns the blocks of each. Each volume gets at least its minimum, as far as
/// all minimums fit, and never more than its maximum. Blocks that add no hits to any volume are divided equally.
pub fn partition(blocks: u64, demands: &[VolumeDemand]) -> Vec<u64> {
    let mut remaining = blocks;
    // Assigns up to `wanted` more blocks to a volume, and returns the blocks that remain.
    let mut assign = |sizes: &mut [u64], volume: usize, wanted: u64| {
        let assigned = wanted.min(remaining).min(demands[volume].max_blocks - sizes[volume]);
        sizes[volume] += assigned;
        remaining -= assigned;
        remaining
    };
    let mut sizes = vec![0; demands.len()];
    for (volume, demand) in demands.iter().enumerate() {
        assign(&mut sizes, volume, demand.min_blocks);
    }
    let mut segments: Vec<HullSegment> =
        (0..).zip(demands).flat_map(|(volume, demand)| hull_segments(volume, demand)).collect();
    // The sort is stable: the segments of one volume keep their order.
    segments.sort_by(|left, right| right.gain_per_block.total_cmp(&left.gain_per_block));
    // The part of the hull that a minimum covers is already assigned.
    let mut covered = sizes.clone();
    for HullSegment { volume_index: volume, blocks, .. } in segments {
        let assigned = covered[volume].min(blocks);
        covered[volume] -= assigned;
        assign(&mut sizes, volume, blocks - assigned);
    }
    loop {
        let below_max: Vec<usize> =
            (0..demands.len()).filter(|volume| sizes[*volume] < demands[*volume].max_blocks).collect();
        let Some(first) = below_max.first() else { return sizes };
        // An assignment of nothing returns the blocks that remain.
        let each = assign(&mut sizes, *first, 0) / below_max.len() as u64;
        let remaining = below_max.into_iter().map(|volume| assign(&mut sizes, volume, each.max(1))).last();
        if remaining == Some(0) {
            return sizes;
        }
    }
}

/// The straight segments of a volume's hull, by falling gain.
fn hull_segments(volume: usize, demand: &VolumeDemand) -> Vec<HullSegment> {
    let segment = |ends: &[(u64, f64)]| HullSegment {
        volume_index: volume,
        blocks: ends[1].0 - ends[0].0,
        gain_per_block: slope(ends[0], ends[1]),
    };
    demand.hull.windows(2).map(segment).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(rate: f64, points: &[(u64, f64)]) -> VolumeDemand {
        bound(0, u64::MAX, rate, points)
    }

    fn bound(min: u64, max: u64, rate: f64, points: &[(u64, f64)]) -> VolumeDemand {
        VolumeDemand::new(min, max, rate, points.iter().copied())
    }

    #[test]
    fn blocks_go_where_they_add_most_hits() {
        let steep = demand(100.0, &[(10, 0.9), (50, 0.1), (100, 0.1)]);
        let flat = [(1_000, 0.9)];
        // The steep demand gains nothing beyond 50 blocks.
        assert_eq!(partition(60, &[steep.clone(), demand(100.0, &flat)]), [50, 10]);
        assert_eq!(partition(60, &[demand(100.0, &flat), steep.clone()]), [10, 50]);
        assert_eq!(partition(60, &[steep, demand(1e6, &flat)]), [0, 60], "a volume with more accesses gets more");
    }

    #[test]
    fn loop_gets_all_its_blocks_or_none() {
        let points = [(1, 1.0), (99, 1.0), (100, 0.0)];
        let flat = demand(10.0, &[(1_000, 0.5)]);
        assert_eq!(partition(150, &[demand(10.0, &points), flat.clone()]), [100, 50]);
        assert_eq!(partition(150, &[demand(0.01, &points), flat]), [0, 150]);
    }

    #[test]
    fn bounds_hold_and_all_blocks_are_assigned() {
        let steep = bound(0, 20, 100.0, &[(50, 0.1)]);
        let flat = |max| bound(30.min(max), max, 1.0, &[(1_000, 0.9)]);
        assert_eq!(partition(100, &[steep.clone(), flat(u64::MAX)]), [20, 80]);
        assert_eq!(partition(40, &[steep.clone(), flat(u64::MAX)]), [10, 30]);
        assert_eq!(partition(101, &[demand(0.0, &[]), demand(0.0, &[])]), [51, 50], "nothing is known");
        assert_eq!(partition(100, &[steep, flat(5)]), [20, 5], "both maximums hold");
        assert_eq!(partition(100, &[]), []);
    }

    #[test]
    fn misses_lie_on_the_hull() {
        let demand = demand(10.0, &[(10, 0.9), (20, 0.9), (30, 0.1), (40, 0.1)]);
        let misses = [0, 15, 30, 100].map(|blocks| demand.expected_misses(blocks));
        assert_eq!(misses.map(|misses| (misses * 10.0).round()), [100.0, 55.0, 10.0, 10.0]);
    }
}
