//! Histogram of uses by reuse distance: the number of other pages used since the last use of the same page.

/// Buckets in an octave of distances.
pub const BUCKETS_PER_OCTAVE: usize = 16;
/// Number of octaves.
const OCTAVES: usize = 44;
/// Fraction bits of a weight and of a distance.
pub const FRACTION_BITS: u32 = 16;

/// Uses of the pages of a curve, by reuse distance. A sampled use has the weight of all uses that it stands for.
pub struct ReuseHistogram {
    /// Weight of reuses of sampled pages, by bucket of their distance.
    by_distance: Vec<u64>,
    /// Weight of first uses of sampled pages.
    pub first_uses: u64,
    /// All uses, sampled or not.
    pub total_uses: u64,
}

impl Default for ReuseHistogram {
    fn default() -> Self {
        ReuseHistogram { by_distance: vec![0; BUCKETS_PER_OCTAVE * OCTAVES], first_uses: 0, total_uses: 0 }
    }
}

impl ReuseHistogram {
    /// Memory in bytes.
    pub const BYTES: usize = BUCKETS_PER_OCTAVE * OCTAVES * size_of::<u64>();

    /// Records a reuse at `distance`. Both arguments have [`FRACTION_BITS`] fraction bits.
    pub fn record_reuse(&mut self, distance: u64, weight: u64) {
        self.by_distance[bucket(distance).0] += weight;
    }

    /// Multiplies all counts by `factor`.
    pub fn decay(&mut self, factor: f64) {
        let decay = |count: &mut u64| *count = (*count as f64 * factor) as u64;
        self.by_distance.iter_mut().for_each(decay);
        decay(&mut self.first_uses);
        decay(&mut self.total_uses);
    }

    /// Misses for each use of LRUs of the given numbers of pages, in growing order; 1 before the first use.
    pub fn miss_ratios(&self, sizes: impl IntoIterator<Item = u64>) -> impl Iterator<Item = f64> {
        let counted = self.by_distance.iter().sum::<u64>() + self.first_uses;
        let total = (self.total_uses << FRACTION_BITS) as f64;
        // Pages with very many uses are rarely sampled, and a sampled one weighs too much. The missing or excess weight
        // belongs to uses at the shortest distance.
        let missing = total - counted as f64;
        let (mut below, mut next) = (0, 0);
        sizes.into_iter().map(move |pages| {
            let (bucket, inside) = bucket(pages.max(1) << FRACTION_BITS);
            assert!(bucket >= next, "sizes grow");
            while next < bucket {
                below += self.by_distance[next];
                next += 1;
            }
            let hits = below as f64 + self.by_distance[bucket] as f64 * inside;
            if counted == 0 { 1.0 } else { (1.0 - (hits + missing) / total).clamp(0.0, 1.0) }
        })
    }
}

/// The bucket of a distance (with its fraction bits), and its position in the bucket from 0 (start) to 1 (end).
fn bucket(distance: u64) -> (usize, f64) {
    let scaled = distance >> (FRACTION_BITS - BUCKETS_PER_OCTAVE.ilog2());
    let octave = scaled.max(1).ilog2().saturating_sub(BUCKETS_PER_OCTAVE.ilog2());
    let step = scaled >> octave;
    let index = u64::from(octave) * BUCKETS_PER_OCTAVE as u64 + step;
    let low = step << octave;
    let inside = (scaled - low) as f64 / (1_u64 << octave) as f64;
    ((index as usize).min(BUCKETS_PER_OCTAVE * OCTAVES - 1), inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous() {
        let mut before = (0, 0.0);
        for distance in (0_u64..2_000_000).map(|number| number << 10) {
            let (index, inside) = bucket(distance);
            assert!((0.0..1.0).contains(&inside), "{distance}");
            assert!(index == before.0 || index == before.0 + 1, "{distance}: {index} after {}", before.0);
            before = (index, inside);
        }
    }
}
