//! Latency histograms in the engine's layout: only occupied buckets are kept, and histograms add up.

use engine::{LATENCY_BUCKET_COUNT, latency_bucket_end_ns};
use messages::Counts;
use messages::report::{Bucket, percentile_us};

/// Latencies of reads or writes over some seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// Sum in microseconds.
    pub sum_us: u64,
    /// Occupied buckets with their number of requests, by rising bucket.
    pub counts: Vec<(usize, u64)>,
}

/// Upper end of a bucket; infinite for the last one.
pub fn end_us(bucket: usize) -> f64 {
    latency_bucket_end_ns(bucket).map_or(f64::INFINITY, |end_ns| end_ns as f64 / 1e3)
}

/// Lower end of a bucket.
fn start_us(bucket: usize) -> f64 {
    bucket.checked_sub(1).map_or(0.0, end_us)
}

impl Latencies {
    /// The histogram of a report; `None` if the report has none.
    pub fn of_report(counts: &Counts) -> Option<Latencies> {
        (!counts.is_omitted()).then(|| Latencies::of_buckets(counts.buckets(), counts.sum_us.round() as u64))
    }

    /// Converts any histogram to the layout. The requests of a bucket that spans several of the layout are spread over
    /// them evenly, as a percentile interpolates within it. A bucket without an upper end is converted to its lower
    /// end.
    pub fn of_buckets(buckets: impl Iterator<Item = Bucket>, sum_us: u64) -> Latencies {
        let mut latencies = Latencies { sum_us, counts: Vec::new() };
        for Bucket { from_us, to_us, count } in buckets.filter(|bucket| bucket.count > 0) {
            let first = layout_bucket(|end_us| end_us > from_us);
            let last = if to_us.is_infinite() { first } else { layout_bucket(|end_us| end_us >= to_us) };
            let mut assigned = 0;
            for bucket in first..=last.max(first) {
                let below = match bucket < last {
                    true => (count as f64 * (end_us(bucket) - from_us) / (to_us - from_us)) as u64,
                    false => count,
                };
                latencies.add_bucket(bucket, below.saturating_sub(assigned));
                assigned = assigned.max(below);
            }
        }
        latencies
    }

    /// Adds requests of a bucket that is not below the last occupied one.
    fn add_bucket(&mut self, bucket: usize, count: u64) {
        match self.counts.last_mut() {
            _ if count == 0 => {}
            Some((last, sum)) if *last == bucket => *sum += count,
            last => {
                assert!(last.is_none_or(|(last, _)| *last < bucket), "buckets rise");
                self.counts.push((bucket, count));
            }
        }
    }

    /// Number of requests.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|(_, count)| count).sum()
    }

    fn count_of(&self, bucket: usize) -> u64 {
        self.counts.binary_search_by_key(&bucket, |(bucket, _)| *bucket).map_or(0, |index| self.counts[index].1)
    }

    /// Adds another histogram, bucket by bucket.
    pub fn merge(&mut self, other: &Latencies) {
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
        for (bucket, count) in &other.counts {
            match self.counts.binary_search_by_key(bucket, |(bucket, _)| *bucket) {
                Ok(index) => self.counts[index].1 = self.counts[index].1.saturating_add(*count),
                Err(index) => self.counts.insert(index, (*bucket, *count)),
            }
        }
    }

    /// Requests since an earlier state; `None` if a count has decreased.
    pub fn since(&self, before: &Latencies) -> Option<Latencies> {
        let has_lost = |(bucket, count): &(usize, u64)| self.count_of(*bucket) < *count;
        if before.counts.iter().any(has_lost) || self.sum_us < before.sum_us {
            return None;
        }
        let increases = self.counts.iter().map(|(bucket, count)| (*bucket, count - before.count_of(*bucket)));
        let counts = increases.filter(|(_, count)| *count > 0).collect();
        Some(Latencies { sum_us: self.sum_us - before.sum_us, counts })
    }

    /// Latency that a fraction of the requests did not exceed; `None` without requests.
    pub fn percentile_us(&self, fraction: f64) -> Option<f64> {
        let buckets = self.counts.iter().map(|(bucket, count)| Bucket {
            from_us: start_us(*bucket),
            to_us: end_us(*bucket),
            count: *count,
        });
        percentile_us(buckets, fraction)
    }
}

/// The first bucket of the layout whose upper end meets `condition`. All later buckets meet it as well.
fn layout_bucket(condition: impl Fn(f64) -> bool) -> usize {
    let (mut low, mut high) = (0, LATENCY_BUCKET_COUNT - 1);
    while low < high {
        let middle = low.midpoint(high);
        if condition(end_us(middle)) { high = middle } else { low = middle + 1 }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_survives_merging() {
        let mut quick = Latencies { sum_us: 9_900, counts: vec![(20, 99)] };
        let slow = Latencies { sum_us: 90_000, counts: vec![(90, 1), (LATENCY_BUCKET_COUNT - 1, 1)] };
        assert_eq!(quick.percentile_us(0.5), Some(start_us(20) + (end_us(20) - start_us(20)) * 50.0 / 99.0));
        quick.merge(&slow);
        assert_eq!((quick.count(), quick.sum_us), (101, 99_900));
        assert!(quick.percentile_us(0.98).is_some_and(|us| us <= end_us(20)));
        // The mean of both p99 values would be far above; the true value is the latency of request 100 of 101.
        assert_eq!(quick.percentile_us(0.99), Some(end_us(90)));
        assert_eq!(quick.percentile_us(1.0), Some(start_us(LATENCY_BUCKET_COUNT - 1)));
        assert_eq!(quick.since(&slow).map(|since| since.counts), Some(vec![(20, 99)]));
        assert_eq!((slow.since(&quick), Latencies::default().percentile_us(0.5)), (None, None));
    }

    #[test]
    fn report_in_the_layout_is_converted_exactly() {
        let latencies = Latencies { sum_us: 77, counts: vec![(0, 4), (7, 3), (8, 1), (100, 2), (169, 5)] };
        let bucket =
            |bucket| Bucket { from_us: start_us(bucket), to_us: end_us(bucket), count: latencies.count_of(bucket) };
        let report = Counts::of_buckets((0..LATENCY_BUCKET_COUNT).map(bucket), 77.0);
        assert_eq!(report.below.len(), 7, "{report:?}");
        assert_eq!(Latencies::of_report(&report), Some(latencies));
        assert_eq!(Latencies::of_report(&Counts::default()), None);
    }

    #[test]
    fn coarse_bucket_is_spread_so_that_percentiles_stay() {
        let coarse = [
            Bucket { from_us: 0.0, to_us: 16.384, count: 10 },
            Bucket { from_us: 65.536, to_us: 262.144, count: 30 },
            Bucket { from_us: 1_073_741.824, to_us: f64::INFINITY, count: 1 },
        ];
        let latencies = Latencies::of_buckets(coarse.into_iter(), 0);
        assert_eq!((latencies.count(), latencies.count_of(0)), (41, 10));
        for fraction in [0.2, 0.3, 0.5, 0.7, 0.9, 1.0] {
            let (exact, own) = (percentile_us(coarse.into_iter(), fraction), latencies.percentile_us(fraction));
            let (exact, own) = (exact.expect("requests"), own.expect("requests"));
            assert!((own / exact - 1.0).abs() <= 0.13, "{fraction}: {own} for {exact}");
        }
    }
}
