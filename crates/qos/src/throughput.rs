//! What disks do with so much work under way at once: where their throughput stops growing, more of it only makes everybody wait.

use seam::Nanos;

use crate::Cost;

/// Steps to a doubling of what is under way.
const STEPS: u32 = 2;
/// From one small access to 4,096 under way.
const PLACES: usize = 12 * STEPS as usize + 1;
/// What was seen longer ago counts no more: disks change, and what they are asked for.
const FORGET_AFTER: Nanos = Nanos::from_secs(600);
/// Of the greatest throughput that was seen, in percent: where that is reached, more under way gains little. An elevator always does a little
/// better with more to choose from.
const ENOUGH_PERCENT: f64 = 85.0;
/// To what part of its latency one goes down from the least that was seen, where that does nearly all.
const LESS: f64 = 0.75;
/// Weight of the newest figure.
const NEW: f64 = 0.25;

/// What was seen with so much under way.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Small accesses a second.
    rate: f64,
    latency_ns: f64,
    at: Nanos,
}

/// Throughput and latency by how much is under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Throughput {
    seen: [Option<Seen>; PLACES],
}

fn place_of(under_way: Cost) -> usize {
    let accesses = under_way.as_accesses().max(1.0);
    ((accesses.log2() * f64::from(STEPS)).round() as usize).min(PLACES - 1)
}

impl Throughput {
    /// So much was under way on average, and these were rate and mean latency.
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

    /// The latency where throughput stops growing; `None` while it was not seen to stop.
    pub(crate) fn knee(&self, now: Nanos) -> Option<Nanos> {
        let known: Vec<(usize, Seen)> = (0..)
            .zip(self.seen)
            .filter_map(|(place, seen)| Some((place, seen?)))
            .filter(|(_, seen)| now.since(seen.at) < FORGET_AFTER)
            .collect();
        let most = self.greatest(now)?;
        let (knee, seen) = known.iter().find(|(_, seen)| seen.rate * 100.0 >= most * ENOUGH_PERCENT)?;
        // Where nothing beyond was tried nobody knows that it would not have been better.
        let tried = known.last().is_some_and(|(last, _)| last > knee);
        // Nor whether less would do, where the least that was tried does.
        let least = known.first().is_some_and(|(first, _)| first == knee && *knee > 0);
        let part = if least { LESS } else { 1.0 };
        tried.then_some(Nanos((seen.latency_ns * part) as u64))
    }

    /// The greatest rate that was seen lately, in small accesses a second.
    pub(crate) fn greatest(&self, now: Nanos) -> Option<f64> {
        let fresh = self.seen.iter().flatten().filter(|seen| now.since(seen.at) < FORGET_AFTER);
        fresh.map(|seen| seen.rate).max_by(f64::total_cmp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Disks that do 1,000 a second from 8 at once on.
    fn fill(seen: &mut Throughput, up_to: u64, now: Nanos, most: f64) {
        for under_way in 0..=up_to.ilog2() {
            let under_way = 1 << under_way;
            let rate = most * (under_way as f64 / 8.0).min(1.0);
            let latency = Nanos((under_way as f64 / rate * 1e9) as u64);
            seen.note(Cost(under_way * 1_000), rate, latency, now);
        }
    }

    #[test]
    fn throughput_stops_growing_where_the_disks_are_busy() {
        let (mut seen, now) = (Throughput::default(), Nanos::from_secs(1));
        fill(&mut seen, 8, now, 1_000.0);
        assert_eq!(seen.knee(now), None, "nobody knows yet what more would bring");
        fill(&mut seen, 64, now, 1_000.0);
        assert_eq!(seen.knee(now), Some(Nanos::from_millis(8)));
        assert_eq!(seen.greatest(now), Some(1_000.0));
    }

    #[test]
    fn where_the_least_that_was_seen_is_enough_less_is_tried() {
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
    fn what_changed_is_learned_anew() {
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
