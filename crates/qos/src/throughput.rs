//! Throughput and latency of disks by load: past the knee, more load adds only latency.

use seam::Nanos;

use crate::Cost;

/// Load classes to a doubling of the load.
const STEPS: u32 = 2;
/// Number of load classes: from one small access to 4,096 in flight.
const PLACES: usize = 12 * STEPS as usize + 1;
/// Age at which a sample expires: disks and workloads change.
const FORGET_AFTER: Nanos = Nanos::from_secs(600);
/// Percentage of the greatest observed throughput at which the knee lies. More load gains little there; an elevator
/// always gains a little from more requests to choose from.
const ENOUGH_PERCENT: f64 = 85.0;
/// Factor on the knee's latency when the smallest observed load reaches the knee: a smaller load may suffice.
const LESS: f64 = 0.75;
/// Weight of the newest sample.
const NEW: f64 = 0.25;

/// Averaged samples of one load class.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Small accesses a second.
    rate: f64,
    latency_ns: f64,
    at: Nanos,
}

/// Throughput and latency by load class.
#[derive(Clone, Debug, Default)]
pub(crate) struct Throughput {
    seen: [Option<Seen>; PLACES],
}

fn place_of(under_way: Cost) -> usize {
    let accesses = under_way.as_accesses().max(1.0);
    ((accesses.log2() * f64::from(STEPS)).round() as usize).min(PLACES - 1)
}

impl Throughput {
    /// Records the rate and the mean latency at an average load of `under_way`.
    pub(crate) fn note(&mut self, under_way: Cost, rate: f64, latency: Nanos, now: Nanos) {
        let fresh = Seen { rate, latency_ns: latency.0 as f64, at: now };
        let place = &mut self.seen[place_of(under_way)];
        *place = Some(match *place {
            Some(old) if now.since(old.at) < FORGET_AFTER => Seen {
                rate: old.rate + (rate - old.rate) * NEW,
                latency_ns: old.latency_ns + (fresh.latency_ns - old.latency_ns) * NEW,
                at: now,
            },
            _ => fresh,
        });
    }

    /// Latency at the knee, where throughput stops growing; `None` until the knee has been observed.
    pub(crate) fn knee(&self, now: Nanos) -> Option<Nanos> {
        let known: Vec<(usize, Seen)> = (0..)
            .zip(self.seen)
            .filter_map(|(place, seen)| Some((place, seen?)))
            .filter(|(_, seen)| now.since(seen.at) < FORGET_AFTER)
            .collect();
        let most = self.greatest(now)?;
        let (knee, seen) = known.iter().find(|(_, seen)| seen.rate * 100.0 >= most * ENOUGH_PERCENT)?;
        // Without a sample at a higher load the knee is unproven.
        let tried = known.last().is_some_and(|(last, _)| last > knee);
        // If the smallest observed load is the knee, a smaller load may suffice.
        let least = known.first().is_some_and(|(first, _)| first == knee && *knee > 0);
        let part = if least { LESS } else { 1.0 };
        tried.then_some(Nanos((seen.latency_ns * part) as u64))
    }

    /// The greatest rate of the unexpired samples, in small accesses a second.
    pub(crate) fn greatest(&self, now: Nanos) -> Option<f64> {
        let fresh = self.seen.iter().flatten().filter(|seen| now.since(seen.at) < FORGET_AFTER);
        fresh.map(|seen| seen.rate).max_by(f64::total_cmp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of disks whose throughput reaches `most` a second at 8 requests in flight.
    fn fill(seen: &mut Throughput, up_to: u64, now: Nanos, most: f64) {
        for under_way in 0..=up_to.ilog2() {
            let under_way = 1 << under_way;
            let rate = most * (under_way as f64 / 8.0).min(1.0);
            let latency = Nanos((under_way as f64 / rate * 1e9) as u64);
            seen.note(Cost(under_way * 1_000), rate, latency, now);
        }
    }

    #[test]
    fn knee_is_where_disks_become_busy() {
        let (mut seen, now) = (Throughput::default(), Nanos::from_secs(1));
        fill(&mut seen, 8, now, 1_000.0);
        assert_eq!(seen.knee(now), None, "no sample beyond the knee yet");
        fill(&mut seen, 64, now, 1_000.0);
        assert_eq!(seen.knee(now), Some(Nanos::from_millis(8)));
        assert_eq!(seen.greatest(now), Some(1_000.0));
    }

    #[test]
    fn knee_at_smallest_load_lowers_threshold() {
        let (mut seen, now) = (Throughput::default(), Nanos::from_secs(1));
        for under_way in [32, 64] {
            seen.note(Cost(under_way * 1_000), 1_000.0, Nanos::from_millis(under_way), now);
        }
        assert_eq!(seen.knee(now), Some(Nanos::from_millis(24)));
        seen.note(Cost(16_000), 900.0, Nanos::from_millis(18), now);
        assert_eq!(seen.knee(now), Some(Nanos(13_500_000)), "lower still");
        seen.note(Cost(8_000), 700.0, Nanos::from_millis(11), now);
        assert_eq!(seen.knee(now), Some(Nanos::from_millis(18)), "less is not enough");
    }

    #[test]
    fn expired_samples_are_learned_anew() {
        let (mut seen, now) = (Throughput::default(), Nanos::from_secs(1));
        fill(&mut seen, 64, now, 1_000.0);
        let later = now + FORGET_AFTER;
        assert_eq!((seen.knee(later), seen.greatest(later)), (None, None));
        for _ in 0..20 {
            fill(&mut seen, 64, now, 4_000.0);
        }
        assert!(seen.knee(now).is_some_and(|knee| knee < Nanos::from_micros(2_200)), "{:?}", seen.knee(now));
    }
}
