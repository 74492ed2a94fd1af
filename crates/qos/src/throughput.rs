//! Throughput and latency of disks by load: past the knee, more load adds only latency.

use seam::Nanos;

use crate::Cost;

/// Load classes per doubling of the load.
const CLASSES_PER_DOUBLING: u32 = 2;
/// Number of load classes: from one small access to 4,096 in flight.
const LOAD_CLASSES: usize = 12 * CLASSES_PER_DOUBLING as usize + 1;
/// Age at which a sample expires: disks and workloads change.
const SAMPLE_EXPIRY: Nanos = Nanos::from_secs(600);
/// Percentage of the greatest observed throughput at which the knee lies. More load gains little there; an elevator
/// always gains a little from more requests to choose from.
const KNEE_PERCENT: f64 = 85.0;
/// Factor on the knee's latency when the smallest observed load reaches the knee: a smaller load may suffice.
const SMALLEST_LOAD_FACTOR: f64 = 0.75;
/// Samples that a load class needs, as many as a probe gives. One sample of 100 ms deviates by several percent, and the
/// greatest of several such deviations would pass for the throughput of the disks.
const SAMPLES_MIN: u32 = 4;
/// Number of samples over which a load class is averaged.
const SAMPLES_AVERAGED: u32 = 16;

/// Averaged samples of one load class.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    /// Small accesses per second.
    rate: f64,
    latency_ns: f64,
    /// Number of samples, up to [`SAMPLES_AVERAGED`].
    count: u32,
    /// Time of the newest sample.
    sampled_at: Nanos,
}

/// Throughput and latency by load class.
#[derive(Clone, Debug, Default)]
pub(crate) struct Throughput {
    samples: [Option<Sample>; LOAD_CLASSES],
}

fn load_class(outstanding: Cost) -> usize {
    let accesses = outstanding.as_accesses().max(1.0);
    ((accesses.log2() * f64::from(CLASSES_PER_DOUBLING)).round() as usize).min(LOAD_CLASSES - 1)
}

impl Throughput {
    /// Records the rate and the mean latency at an average load of `outstanding`.
    pub(crate) fn record(&mut self, outstanding: Cost, rate: f64, latency: Nanos, now: Nanos) {
        let slot = &mut self.samples[load_class(outstanding)];
        let old = slot.filter(|old| now.since(old.sampled_at) < SAMPLE_EXPIRY).unwrap_or_default();
        let count = (old.count + 1).min(SAMPLES_AVERAGED);
        let average = |old: f64, new: f64| old + (new - old) / f64::from(count);
        *slot = Some(Sample {
            rate: average(old.rate, rate),
            latency_ns: average(old.latency_ns, latency.0 as f64),
            count,
            sampled_at: now,
        });
    }

    /// Latency at the knee, where throughput stops growing; `None` until the knee has been observed.
    pub(crate) fn knee(&self, now: Nanos) -> Option<Nanos> {
        let valid: Vec<(usize, Sample)> = self.valid(now).collect();
        let max_rate = self.max_rate(now)?;
        let (knee, sample) = valid.iter().find(|(_, sample)| sample.rate * 100.0 >= max_rate * KNEE_PERCENT)?;
        // Without a sample at a higher load the knee is unproven.
        let is_proven = valid.last().is_some_and(|(last, _)| last > knee);
        // If the smallest observed load is the knee, a smaller load may suffice.
        let is_smallest_load = valid.first().is_some_and(|(first, _)| first == knee && *knee > 0);
        let factor = if is_smallest_load { SMALLEST_LOAD_FACTOR } else { 1.0 };
        is_proven.then_some(Nanos((sample.latency_ns * factor) as u64))
    }

    /// The greatest rate of the valid samples, in small accesses per second.
    pub(crate) fn max_rate(&self, now: Nanos) -> Option<f64> {
        self.valid(now).map(|(_, sample)| sample.rate).max_by(f64::total_cmp)
    }

    /// The load classes with enough samples that have not expired.
    fn valid(&self, now: Nanos) -> impl Iterator<Item = (usize, Sample)> {
        let sampled = (0..).zip(self.samples).filter_map(|(class, sample)| Some((class, sample?)));
        sampled.filter(move |(_, sample)| sample.count >= SAMPLES_MIN && now.since(sample.sampled_at) < SAMPLE_EXPIRY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records [`SAMPLES_MIN`] samples each of disks whose throughput reaches `max_rate` at 8 requests in flight, at
    /// loads up to `load_max` requests.
    fn fill(samples: &mut Throughput, load_max: u64, now: Nanos, max_rate: f64) {
        for exponent in 0..=load_max.ilog2() {
            let outstanding = 1 << exponent;
            let rate = max_rate * (outstanding as f64 / 8.0).min(1.0);
            let latency = Nanos((outstanding as f64 / rate * 1e9) as u64);
            record(samples, outstanding, rate, latency, now);
        }
    }

    fn record(samples: &mut Throughput, outstanding: u64, rate: f64, latency: Nanos, now: Nanos) {
        (0..SAMPLES_MIN).for_each(|_| samples.record(Cost(outstanding * 1_000), rate, latency, now));
    }

    #[test]
    fn knee_is_where_disks_become_busy() {
        let (mut samples, now) = (Throughput::default(), Nanos::from_secs(1));
        fill(&mut samples, 8, now, 1_000.0);
        assert_eq!(samples.knee(now), None, "no sample beyond the knee yet");
        fill(&mut samples, 64, now, 1_000.0);
        assert_eq!(samples.knee(now), Some(Nanos::from_millis(8)));
        assert_eq!(samples.max_rate(now), Some(1_000.0));
    }

    #[test]
    fn knee_at_smallest_load_lowers_threshold() {
        let (mut samples, now) = (Throughput::default(), Nanos::from_secs(1));
        for outstanding in [32, 64] {
            record(&mut samples, outstanding, 1_000.0, Nanos::from_millis(outstanding), now);
        }
        assert_eq!(samples.knee(now), Some(Nanos::from_millis(24)));
        record(&mut samples, 16, 900.0, Nanos::from_millis(18), now);
        assert_eq!(samples.knee(now), Some(Nanos(13_500_000)), "lower still");
        record(&mut samples, 8, 700.0, Nanos::from_millis(11), now);
        assert_eq!(samples.knee(now), Some(Nanos::from_millis(18)), "less is not enough");
    }

    #[test]
    fn expired_samples_are_learned_anew() {
        let (mut samples, now) = (Throughput::default(), Nanos::from_secs(1));
        fill(&mut samples, 64, now, 1_000.0);
        let later = now + SAMPLE_EXPIRY;
        assert_eq!((samples.knee(later), samples.max_rate(later)), (None, None));
        for _ in 0..20 {
            fill(&mut samples, 64, now, 4_000.0);
        }
        assert!(samples.knee(now).is_some_and(|knee| knee < Nanos::from_micros(2_200)), "{:?}", samples.knee(now));
    }

    #[test]
    fn knee_ignores_the_deviation_of_rare_samples() {
        let (mut samples, now) = (Throughput::default(), Nanos::from_secs(1));
        let millis = Nanos::from_millis;
        for (outstanding, rate) in [(16, 900.0), (32, 1_000.0)] {
            // The mean is exact, single samples deviate by 8 %.
            for deviation in [-80.0, 80.0].repeat(SAMPLES_AVERAGED as usize) {
                samples.record(Cost(outstanding * 1_000), rate + deviation, millis(outstanding), now);
            }
        }
        record(&mut samples, 8, 700.0, millis(11), now);
        assert_eq!(samples.knee(now), Some(millis(16)));
        // At twice the load the disks deliver 1,000 per second as well, and one sample has 18 % more.
        samples.record(Cost(64_000), 1_180.0, millis(54), now);
        assert_eq!(samples.knee(now), Some(millis(16)), "one sample is no throughput");
        for rate in [940.0, 1_000.0, 930.0] {
            samples.record(Cost(64_000), rate, millis(64), now);
        }
        assert_eq!(samples.knee(now), Some(millis(16)), "the mean of four samples counts");
    }
}
