//! Latency histograms, and requests to a backing by operation and cause.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Latency histograms of client requests. The total is what clients see: service time and held time together. Held time
/// is the wait for the volume's limit and for requests of other volumes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LatencyCountsReport {
    /// Total of reads.
    pub read: Counts,
    /// Total of writes.
    pub write: Counts,
    /// Service time of reads; absent if no read was held, then it equals the total.
    #[serde(default, skip_serializing_if = "Counts::is_omitted")]
    pub read_service: Counts,
    /// Held time of reads; absent if no read was held.
    #[serde(default, skip_serializing_if = "Counts::is_omitted")]
    pub read_held: Counts,
    /// Service time of writes; absent if no write was held, then it equals the total.
    #[serde(default, skip_serializing_if = "Counts::is_omitted")]
    pub write_service: Counts,
    /// Held time of writes; absent if no write was held.
    #[serde(default, skip_serializing_if = "Counts::is_omitted")]
    pub write_held: Counts,
}

/// Latencies of one kind of request, in buckets that add up over volumes and time. Empty buckets may be left out: a
/// bucket begins at the bound of the entry before it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Counts {
    /// By growing latency. The first bound is the shortest measured latency.
    pub below: Vec<CountsBelow>,
    /// Requests that were counted.
    pub all: u64,
    /// Sum of their latencies.
    pub sum_us: f64,
}

/// Requests that took less than a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CountsBelow {
    /// The time.
    pub us: f64,
    /// How many took less.
    pub count: u64,
}

/// A bucket of a histogram.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    /// Lower end.
    pub from_us: f64,
    /// Upper end; infinite for the last bucket.
    pub to_us: f64,
    /// Requests in it.
    pub count: u64,
}

/// Latency that a fraction of the requests in `buckets` did not exceed; `None` without requests.
///
/// All percentiles that Hotset shows come from this function (and its copy in the page's `rates.ts`). It interpolates
/// linearly within a bucket, as Prometheus does. In the first bucket nothing more is known: the result is its upper
/// end, and is shown as "less than" that. In a bucket without an upper end the result is the lower end.
pub fn percentile_us(buckets: impl Iterator<Item = Bucket> + Clone, fraction: f64) -> Option<f64> {
    let total: u64 = buckets.clone().map(|bucket| bucket.count).sum();
    let rank = ((total as f64 * fraction).ceil() as u64).clamp(1, total.max(1));
    let mut below = 0;
    for bucket in buckets.filter(|bucket| bucket.count > 0) {
        if below + bucket.count >= rank {
            return Some(match bucket {
                Bucket { from_us, to_us, .. } if to_us.is_infinite() => from_us,
                Bucket { from_us: 0.0, to_us, .. } => to_us,
                Bucket { from_us, to_us, count } => from_us + (to_us - from_us) * (rank - below) as f64 / count as f64,
            });
        }
        below += bucket.count;
    }
    None
}

impl Counts {
    /// Counts of buckets, by rising latency; a bucket begins where the one before it ends. Empty buckets are left out,
    /// except the first one and those that a neighbour needs for its lower end.
    pub fn of_buckets(buckets: impl Iterator<Item = Bucket>, sum_us: f64) -> Counts {
        let mut counts = Counts { sum_us, ..Counts::default() };
        let mut last_us = 0.0;
        for (index, bucket) in buckets.enumerate() {
            if index > 0 && bucket.count == 0 {
                continue;
            }
            if bucket.from_us > last_us {
                counts.below.push(CountsBelow { us: bucket.from_us, count: counts.all });
            }
            counts.all += bucket.count;
            if bucket.to_us.is_finite() {
                counts.below.push(CountsBelow { us: bucket.to_us, count: counts.all });
                last_us = bucket.to_us;
            }
        }
        counts
    }

    /// The buckets; the last one has no upper end.
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> + Clone + '_ {
        let ends = self.below.iter().map(|below| (below.us, below.count)).chain([(f64::INFINITY, self.all)]);
        let starts = std::iter::once((0.0, 0)).chain(self.below.iter().map(|below| (below.us, below.count)));
        starts.zip(ends).map(|((from_us, before), (to_us, count))| Bucket {
            from_us,
            to_us,
            count: count.saturating_sub(before),
        })
    }

    /// Number of requests that took less than `us`, a bound of the histogram's buckets.
    pub fn count_below(&self, us: f64) -> u64 {
        let end = self.below.partition_point(|below| below.us <= us);
        end.checked_sub(1).map_or(0, |index| self.below[index].count)
    }

    /// Latency that a fraction of the requests did not exceed ([`percentile_us`]).
    pub fn percentile_us(&self, fraction: f64) -> Option<f64> {
        percentile_us(self.buckets(), fraction)
    }

    /// Adds the requests of another histogram.
    pub fn add(&mut self, other: &Counts) {
        self.combine_counts(other, |own, other| own + other);
        self.sum_us += other.sum_us;
    }

    /// The requests since an earlier state.
    pub fn since(&self, before: &Counts) -> Counts {
        let mut since = self.clone();
        since.combine_counts(before, u64::saturating_sub);
        since.sum_us = (self.sum_us - before.sum_us).max(0.0);
        since
    }

    /// Combines the counts below every bound of either histogram. The caller combines the sums of the latencies.
    fn combine_counts(&mut self, other: &Counts, combine: fn(u64, u64) -> u64) {
        let mut bounds: Vec<f64> = self.below.iter().chain(&other.below).map(|below| below.us).collect();
        bounds.sort_by(f64::total_cmp);
        bounds.dedup();
        let below = bounds
            .iter()
            .map(|us| CountsBelow { us: *us, count: combine(self.count_below(*us), other.count_below(*us)) });
        self.below = below.collect();
        self.all = combine(self.all, other.all);
    }

    /// Held-time histogram of the requests of `total`, none of which was held: all fall into the first bucket.
    fn not_held(total: &Counts) -> Counts {
        let first = total.below.first().map(|first| CountsBelow { us: first.us, count: total.all });
        Counts { below: first.into_iter().collect(), all: total.all, sum_us: 0.0 }
    }

    /// True for an omitted histogram; an empty histogram has its first bound.
    pub fn is_omitted(&self) -> bool {
        self.below.is_empty()
    }

    /// True if a request reached the first bound, the shortest measured latency.
    fn exceeds_first_bound(&self) -> bool {
        self.below.first().is_some_and(|first| first.count < self.all)
    }
}

impl LatencyCountsReport {
    /// Service time of reads; the total if no read was held.
    pub fn service_of_reads(&self) -> &Counts {
        if self.read_service.is_omitted() { &self.read } else { &self.read_service }
    }

    /// Service time of writes; the total if no write was held.
    pub fn service_of_writes(&self) -> &Counts {
        if self.write_service.is_omitted() { &self.write } else { &self.write_service }
    }

    /// Held time of reads, if a read was held for a measurable time.
    pub fn held_reads(&self) -> Option<&Counts> {
        Some(&self.read_held).filter(|held| held.exceeds_first_bound())
    }

    /// Held time of writes, if a write was held for a measurable time.
    pub fn held_writes(&self) -> Option<&Counts> {
        Some(&self.write_held).filter(|held| held.exceeds_first_bound())
    }

    /// Adds the requests of another volume.
    pub fn add(&mut self, other: &LatencyCountsReport) {
        self.combine(other, Counts::add);
    }

    /// The requests since an earlier state.
    pub fn since(&self, before: &LatencyCountsReport) -> LatencyCountsReport {
        let mut since = self.clone();
        since.combine(before, |now, before| *now = now.since(before));
        since
    }

    fn combine(&mut self, other: &LatencyCountsReport, combine: fn(&mut Counts, &Counts)) {
        let reads = [&mut self.read, &mut self.read_service, &mut self.read_held];
        combine_parts(reads, [&other.read, &other.read_service, &other.read_held], combine);
        let writes = [&mut self.write, &mut self.write_service, &mut self.write_held];
        combine_parts(writes, [&other.write, &other.write_service, &other.write_held], combine);
    }
}

/// Combines total, service time and held time. A side that omits the last two held no request: its total counts as
/// service time, and its held times are zero. If both sides omit them, the result does, too.
fn combine_parts(
    [total, service, held]: [&mut Counts; 3],
    [other_total, other_service, other_held]: [&Counts; 3],
    combine: fn(&mut Counts, &Counts),
) {
    if !service.is_omitted() || !other_service.is_omitted() {
        if service.is_omitted() {
            service.clone_from(total);
            *held = Counts::not_held(total);
        }
        if other_service.is_omitted() {
            combine(service, other_total);
            combine(held, &Counts::not_held(other_total));
        } else {
            combine(service, other_service);
            combine(held, other_held);
        }
    }
    combine(total, other_total);
}

/// Requests to a backing of one operation and cause.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BackingRequests {
    /// `read`, `write`, `zero` or `flush`.
    pub op: String,
    /// `client-read`, `destage`, `readahead` or `promotion`.
    pub cause: String,
    /// Requests.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Latencies at the backing; absent on the stream.
    #[serde(default, skip_serializing_if = "Counts::is_omitted")]
    pub latency: Counts,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A histogram with buckets that end at 16, 32, 64, ... microseconds.
    fn counts(buckets: &[u64]) -> Counts {
        let bucket = |(index, count): (usize, &u64)| Bucket {
            from_us: if index == 0 { 0.0 } else { f64::from(8 << index) },
            to_us: f64::from(16 << index),
            count: *count,
        };
        Counts::of_buckets(buckets.iter().enumerate().map(bucket), buckets.iter().sum::<u64>() as f64 * 10.0)
    }

    #[test]
    fn percentile_is_interpolated_and_a_bound_in_the_first_bucket() {
        let counts = counts(&[50, 0, 0, 49, 0, 0, 1]);
        assert_eq!(counts.below.len(), 5, "empty buckets are left out: {counts:?}");
        assert_eq!((counts.percentile_us(0.1), counts.percentile_us(0.5)), (Some(16.0), Some(16.0)));
        assert_eq!(counts.percentile_us(0.99), Some(128.0));
        assert_eq!(counts.percentile_us(0.75), Some(64.0 + 64.0 * 25.0 / 49.0));
        assert_eq!(counts.percentile_us(1.0), Some(1024.0));
        assert_eq!(Counts::default().percentile_us(0.5), None);
        let slow = Counts { all: 101, ..counts };
        assert_eq!(slow.percentile_us(1.0), Some(1024.0), "past the last bound");
    }

    #[test]
    fn sums_and_differences_equal_those_of_all_buckets() {
        let (first, second) = ([3, 0, 5, 0, 0, 7], [1, 2, 0, 0, 9, 4]);
        let both: Vec<u64> = first.iter().zip(second).map(|(first, second)| first + second).collect();
        let mut sum = counts(&first);
        sum.add(&counts(&second));
        for fraction in [0.1, 0.25, 0.5, 0.9, 0.99, 1.0] {
            assert_eq!(sum.percentile_us(fraction), counts(&both).percentile_us(fraction), "{fraction}");
            assert_eq!(
                sum.since(&counts(&first)).percentile_us(fraction),
                counts(&second).percentile_us(fraction),
                "{fraction}"
            );
        }
        assert_eq!((sum.all, sum.sum_us, sum.since(&counts(&first)).sum_us), (31, 310.0, 160.0));
    }

    #[test]
    fn difference_to_a_later_state_is_empty() {
        let (earlier, mut later) = (counts(&[3, 0, 5]), counts(&[3, 0, 5]));
        later.add(&counts(&[1, 2, 0]));
        let since = later.since(&earlier);
        assert_eq!((since.all, since.sum_us), (3, 30.0));
        let reversed = earlier.since(&later);
        assert_eq!((reversed.all, reversed.sum_us), (0, 0.0));
        assert!(reversed.buckets().all(|bucket| bucket.count == 0), "{reversed:?}");
    }

    #[test]
    fn requests_that_were_not_held_count_as_such_in_sums() {
        let free = LatencyCountsReport { read: counts(&[4, 2]), ..LatencyCountsReport::default() };
        let limited = LatencyCountsReport {
            read: counts(&[0, 0, 0, 5]),
            read_service: counts(&[5]),
            read_held: counts(&[0, 0, 0, 5]),
            ..LatencyCountsReport::default()
        };
        let mut after = free.clone();
        after.add(&limited);
        assert_eq!((after.read.all, after.read_service.all, after.read_held.all), (11, 11, 11));
        assert_eq!(after.read_service.percentile_us(1.0), Some(32.0));
        assert_eq!((after.read_held.percentile_us(0.5), after.read_held.percentile_us(1.0)), (Some(16.0), Some(128.0)));
        let mut reversed = limited.clone();
        reversed.add(&free);
        assert_eq!(reversed, after);
        let mut from_nothing = LatencyCountsReport::default();
        from_nothing.add(&limited);
        assert_eq!((from_nothing.read_held.all, from_nothing.read.all), (5, 5));
        // The difference to a state without held requests, and a difference that contains none.
        let since = after.since(&free);
        assert_eq!((since.read_service.all, since.held_reads().map(|held| held.all)), (5, Some(5)));
        let mut later = after.clone();
        later.add(&free);
        assert_eq!((later.since(&after).held_reads(), later.since(&after).service_of_reads().all), (None, 6));
        assert_eq!(free.held_reads(), None);
    }

    #[test]
    fn report_without_held_requests_omits_the_parts() {
        let report = LatencyCountsReport { read: counts(&[1]), write: counts(&[0]), ..LatencyCountsReport::default() };
        let text = serde_json::to_string(&report).expect("a report has only text keys");
        assert!(!text.contains("service") && !text.contains("held"), "{text}");
        assert_eq!(serde_json::from_str::<LatencyCountsReport>(&text).expect("its own text"), report);
    }
}
