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
/// Weight of the newest sample.
const NEW_WEIGHT: f64 = 0.25;

/// Averaged samples of one load class.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    /// Small accesses per second.
    rate: f64,
    latency_ns: f64,
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
        let new = Sample { rate, latency_ns: latency.0 as f64, sampled_at: now };
        let slot = &mut self.samples[load_class(outstanding)];
        *slot = Some(match *slot {
            Some(old) if now.since(old.sampled_at) < SAMPLE_EXPIRY => Sample {
                rate: old.rate + (rate - old.rate) * NEW_WEIGHT,
                latency_ns: old.latency_ns + (new.latency_ns - old.latency_ns) * NEW_WEIGHT,
                sampled_at: now,
            },
            _ => new,
        });
    }

    /// Latency at the knee, where throughput stops growing; `None` until the knee has been observed.
    pub(crate) fn knee(&self, now: Nanos) -> Option<Nanos> {
        let unexpired: Vec<(usize, Sample)> = (0..)
            .zip(self.samples)
            .filter_map(|(class, sample)| Some((class, sample?)))
            .filter(|(_, sample)| now.since(sample.sampled_at) < SAMPLE_EXPIRY)
            .collect();
        let max_rate = self.max_rate(now)?;
        let (knee, sample) = unexpired.iter().find(|(_, sample)| sample.rate * 100.0 >= max_rate * KNEE_PERCENT)?;
        // Without a sample at a higher load the knee is unproven.
        let is_proven = unexpired.last().is_some_and(|(last, _)| last > knee);
        // If the smallest observed load is the knee, a smaller load may suffice.
        let is_smallest_load = unexpired.first().is_some_and(|(first, _)| first == knee && *knee > 0);
        let factor = if is_smallest_load { SMALLEST_LOAD_FACTOR } else { 1.0 };
        is_proven.then_some(Nanos((sample.latency_ns * factor) as u64))
    }

    /// The greatest rate of the unexpired samples, in small accesses per second.
    pub(crate) fn max_rate(&self, now: Nanos) -> Option<f64> {
        let valid = self.samples.iter().flatten().filter(|sample| now.since(sample.sampled_at) < SAMPLE_EXPIRY);
        valid.map(|sample| sample.rate).max_by(f64::total_cmp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records samples of disks whose throughput reaches `max_rate` at 8 requests in flight, at loads up to
    /// `load_max` requests.
    fn fill(samples: &mut Throughput, load_max: u64, now: Nanos, max_rate: f64) {
        for exponent in 0..=load_max.ilog2() {
            let outstanding = 1 << exponent;
            let rate = max_rate * (outstanding as f64 / 8.0).min(1.0);
            let latency = Nanos((outstanding as f64 / rate * 1e9) as u64);
            samples.record(Cost(outstanding * 1_000), rate, latency, now);
        }
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
            samples.record(Cost(outstanding * 1_000), 1_000.0, Nanos::from_millis(outstanding), now);
        }
        assert_eq!(samples.knee(now), Some(Nanos::from_millis(24)));
        samples.record(Cost(16_000), 900.0, Nanos::from_millis(18), now);
        assert_eq!(samples.knee(now), Some(Nanos(13_500_000)), "lower still");
        samples.record(Cost(8_000), 700.0, Nanos::from_millis(11), now);
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
}
