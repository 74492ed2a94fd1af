//! The heat histogram of a pool, and the measured tier curve: the share of disk time that the hottest slices carry.

use seam::Nanos;

use super::{ClassCost, PPM, Slices};

/// Buckets of an octave.
const STEPS: u32 = 8;
/// Buckets: zero, and all octaves of 64-bit nanoseconds.
const BUCKETS: usize = 1 + 64 * STEPS as usize;

/// Slices of similar heat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeatBucket {
    /// Least disk time per hour.
    pub from: Nanos,
    /// Number of slices by their present tier.
    pub slices: Vec<u64>,
    /// Sum of their disk time per hour.
    pub disk_time: Nanos,
}

/// Slices by the disk time per hour that they would cost on one class, the same for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeatHistogram {
    /// Coldest first; bucket 0 holds idle slices.
    buckets: Vec<HeatBucket>,
}

impl HeatHistogram {
    /// The histogram of `slices` in a pool of `tiers` tiers, priced on `class`: usually that of the slowest tier.
    pub fn of(slices: &impl Slices, tiers: usize, class: &ClassCost) -> HeatHistogram {
        let mut histogram = HeatHistogram::empty(tiers);
        for slice in (0..slices.count()).filter_map(|index| slices.slice(index)) {
            histogram.add(usize::from(slice.place.tier), class.price(slice.demand));
        }
        histogram
    }

    /// A histogram of no slices in a pool of `tiers` tiers.
    pub fn empty(tiers: usize) -> HeatHistogram {
        let bucket = |number| HeatBucket { from: lower_bound(number), slices: vec![0; tiers], disk_time: Nanos::ZERO };
        HeatHistogram { buckets: (0..BUCKETS).map(bucket).collect() }
    }

    /// Adds a slice of a tier that costs this disk time per hour.
    pub fn add(&mut self, tier: usize, price: Nanos) {
        let bucket = &mut self.buckets[bucket_of(price)];
        bucket.slices[tier] += 1;
        bucket.disk_time += price;
    }

    /// Buckets that hold slices, coldest first.
    pub fn buckets(&self) -> impl DoubleEndedIterator<Item = &HeatBucket> {
        self.buckets.iter().filter(|bucket| bucket.count() > 0)
    }

    /// The tier curve: share of all disk time, in millionths, that the hottest `slices` slices carry. Within a bucket
    /// (9 % wide) all slices count as equal.
    pub fn share_of_hottest(&self, slices: u64) -> u64 {
        let total = self.total();
        let (mut remaining, mut carried) = (slices, 0u128);
        for bucket in self.buckets().rev() {
            let taken = remaining.min(bucket.count());
            carried += u128::from(bucket.disk_time.0) * u128::from(taken) / u128::from(bucket.count());
            remaining -= taken;
        }
        (carried * u128::from(PPM)).checked_div(total).map_or(0, |share| share as u64)
    }

    /// The inverse: the least number of hottest slices that carry `share_ppm` millionths of all disk time.
    pub fn slices_for_share(&self, share_ppm: u64) -> u64 {
        let wanted = (self.total() * u128::from(share_ppm)).div_ceil(u128::from(PPM));
        let (mut slices, mut carried) = (0, 0u128);
        for bucket in self.buckets().rev() {
            let disk_time = u128::from(bucket.disk_time.0);
            if carried + disk_time >= wanted {
                let part = ((wanted - carried) * u128::from(bucket.count())).div_ceil(disk_time.max(1));
                return slices + part as u64;
            }
            slices += bucket.count();
            carried += disk_time;
        }
        slices
    }

    fn total(&self) -> u128 {
        self.buckets.iter().map(|bucket| u128::from(bucket.disk_time.0)).sum()
    }
}

impl HeatBucket {
    /// Number of slices in all tiers.
    pub fn count(&self) -> u64 {
        self.slices.iter().sum()
    }
}

fn bucket_of(price: Nanos) -> usize {
    if price == Nanos::ZERO {
        return 0;
    }
    let octave = price.0.ilog2();
    // The bits below the highest one divide an octave linearly.
    let step = (u128::from(price.0) << STEPS.ilog2() >> octave) as usize - STEPS as usize;
    1 + (octave * STEPS) as usize + step
}

fn lower_bound(bucket: usize) -> Nanos {
    let Some(number) = bucket.checked_sub(1) else { return Nanos::ZERO };
    let (octave, step) = (number / STEPS as usize, number % STEPS as usize);
    Nanos(((u128::from(STEPS) + step as u128) << octave >> STEPS.ilog2()) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::tests::fixture::{TestPool, nl_sas, reads};

    #[test]
    fn every_price_lies_between_the_bounds_of_its_bucket() {
        for price in (0..2000).chain((11..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 7])) {
            let bucket = bucket_of(Nanos(price));
            assert!(lower_bound(bucket).0 <= price, "{price} in {bucket}");
            assert!(bucket + 1 == BUCKETS || price < lower_bound(bucket + 1).0 || price < 8, "{price} in {bucket}");
        }
        assert_eq!(bucket_of(Nanos::MAX), BUCKETS - 1);
    }

    #[test]
    fn curve_tells_the_share_of_the_hottest_slices() {
        let mut pool = TestPool::new(vec![vec![(nl_sas(), 1000)]]);
        // Ten slices carry 90 %, a hundred 10 %, the others nothing.
        pool.add_many(10, reads(900), 0, 0);
        pool.add_many(100, reads(10), 0, 0);
        pool.add_many(500, reads(0), 0, 0);
        let histogram = HeatHistogram::of(&pool, 1, &nl_sas());
        assert_eq!(histogram.buckets().map(HeatBucket::count).collect::<Vec<_>>(), [500, 100, 10]);
        let near = |share: u64, percent: u64| share.abs_diff(percent * PPM / 100) < PPM / 1000;
        assert!(near(histogram.share_of_hottest(5), 45) && near(histogram.share_of_hottest(10), 90));
        assert!(near(histogram.share_of_hottest(60), 95) && near(histogram.share_of_hottest(5000), 100));
        assert_eq!(histogram.slices_for_share(PPM * 90 / 100), 10);
        assert_eq!(histogram.slices_for_share(PPM * 95 / 100), 60);
        assert_eq!((histogram.slices_for_share(PPM), histogram.slices_for_share(0)), (110, 0));
    }

    #[test]
    fn idle_pool_has_a_flat_curve() {
        let mut pool = TestPool::new(vec![vec![(nl_sas(), 10)]]);
        pool.add(reads(0), 0, 0);
        let histogram = HeatHistogram::of(&pool, 1, &nl_sas());
        assert_eq!((histogram.share_of_hottest(1), histogram.slices_for_share(PPM / 2)), (0, 0));
    }
}
