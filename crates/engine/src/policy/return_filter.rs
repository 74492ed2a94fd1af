//! Admission of returns: whether a block that returns from the ghost list should displace one of the main part.
//!
//! The useful length of a ghost list depends on the load: a long list keeps a loop that fits, and only replaces blocks
//! of one that does not fit. So the benefit is measured, by age of the return. Of the returns of each age, the policy
//! counts how many were used before the clock hand first reached them. Of the blocks evicted from the main part, it
//! counts how many would have been used within one more round. Returns of an age are admitted while they do at least as
//! well as the blocks that they displace. Returns of the youngest quarter are always admitted; of the others an
//! occasional probe is, so that a change of the load is detected.

/// Number of age classes.
const AGE_CLASSES: usize = 8;
/// The youngest age classes, which are always admitted.
const ALWAYS_ADMITTED_CLASSES: usize = 2;
/// One of this many rejected returns is admitted as a probe.
const PROBE_INTERVAL: u32 = 16;
/// Means are taken over the capacity divided by this many events.
const WEIGHT_DIVISOR: usize = 8;
/// The value 1, as a sample of a mean.
const UNIT_SAMPLE: u32 = 1 << 20;

/// Way of a block into the main part: by a return of some age class, or from probation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Origin(u8);

impl Origin {
    /// Promoted by a hit in probation.
    pub const PROBATION: Origin = Origin(AGE_CLASSES as u8);
}

/// An exponential mean over about the last `weight` samples, with 20 fraction bits.
#[derive(Clone, Copy)]
struct Mean(i64);

impl Mean {
    const fn of(sample: u32) -> Self {
        Mean((sample as i64) << 20)
    }

    fn add(&mut self, sample: u32, weight: i64) {
        self.0 += (Mean::of(sample).0 - self.0) / weight;
    }
}

/// The filter: admits returns by measured means.
pub struct ReturnFilter {
    mean_weight: i64,
    /// Part of the returns of each age class that are used before the clock hand first reaches them, in parts of
    /// [`UNIT_SAMPLE`].
    used_ratios: [Mean; AGE_CLASSES],
    /// Part of the evicted blocks that are requested again within a round.
    missed_ratio: Mean,
    /// Accesses between entry into the main part and the first visit of the clock hand; `None` before the first visit.
    round_accesses: Option<Mean>,
    /// Number of returns that the means reject, probes included.
    rejected_returns: u32,
}

impl ReturnFilter {
    /// For a cache of `capacity` blocks.
    pub fn new(capacity: usize) -> Self {
        let weight = (capacity / WEIGHT_DIVISOR).max(16) as i64;
        ReturnFilter {
            mean_weight: weight,
            used_ratios: [Mean::of(UNIT_SAMPLE / 2); AGE_CLASSES],
            missed_ratio: Mean::of(0),
            round_accesses: None,
            rejected_returns: 0,
        }
    }

    /// The origin of a block that returns after `age` of `horizon` insertions; `None` if the return is rejected.
    pub fn admit(&mut self, age: u32, horizon: u32) -> Option<Origin> {
        let age_class =
            (u64::from(age) * AGE_CLASSES as u64 / u64::from(horizon.max(1))).min(AGE_CLASSES as u64 - 1) as usize;
        if age_class >= ALWAYS_ADMITTED_CLASSES && self.used_ratios[age_class].0 < self.missed_ratio.0 {
            self.rejected_returns = self.rejected_returns.wrapping_add(1);
            if !self.rejected_returns.is_multiple_of(PROBE_INTERVAL) {
                return None;
            }
        }
        Some(Origin(age_class as u8))
    }

    /// Records the first visit of the clock hand to a block that has been in the main part for `accesses`.
    pub fn record_first_visit(&mut self, origin: Origin, was_used: bool, accesses: u32) {
        if let Some(mean) = self.used_ratios.get_mut(usize::from(origin.0)) {
            mean.add(if was_used { UNIT_SAMPLE } else { 0 }, self.mean_weight);
        }
        self.round_accesses.get_or_insert(Mean::of(accesses)).add(accesses, self.mean_weight);
    }

    /// Records an eviction from the main part.
    pub fn record_eviction(&mut self) {
        self.missed_ratio.add(0, self.mean_weight);
    }

    /// Records a use of a block that was evicted `accesses` ago.
    pub fn record_reuse(&mut self, accesses: u32) {
        if self.round_accesses.is_some_and(|round| Mean::of(accesses).0 <= round.0) {
            self.missed_ratio.0 += Mean::of(UNIT_SAMPLE).0 / self.mean_weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HORIZON: u32 = 800;

    /// Number of admitted returns among 1,000 of the oldest age.
    fn admissions(filter: &mut ReturnFilter) -> usize {
        (0..1_000).filter(|_| filter.admit(HORIZON - 1, HORIZON).is_some()).count()
    }

    #[test]
    fn returns_are_admitted_while_better_than_displaced_blocks() {
        let mut filter = ReturnFilter::new(800);
        let old = filter.admit(HORIZON - 1, HORIZON).expect("every return is admitted at first");
        for _ in 0..1_000 {
            filter.record_first_visit(old, false, 100);
            filter.record_eviction();
            filter.record_reuse(101);
        }
        assert_eq!(admissions(&mut filter), 1_000, "evicted blocks came back too late to matter");
        for _ in 0..1_000 {
            filter.record_eviction();
            filter.record_reuse(99);
        }
        assert_eq!(admissions(&mut filter), 1_000 / PROBE_INTERVAL as usize, "only probes are admitted");
        assert_eq!(
            (0..1_000).filter(|_| filter.admit(100, HORIZON).is_some()).count(),
            1_000,
            "young returns are always admitted"
        );
        for _ in 0..1_000 {
            filter.record_first_visit(old, true, 100);
        }
        assert!(admissions(&mut filter) >= 990, "the load has changed");
    }

    #[test]
    fn use_of_blocks_from_probation_does_not_affect_returns() {
        let mut filter = ReturnFilter::new(800);
        for _ in 0..1_000 {
            filter.record_first_visit(Origin::PROBATION, false, 100);
            filter.record_eviction();
        }
        assert_eq!(admissions(&mut filter), 1_000);
    }
}
