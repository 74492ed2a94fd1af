//! Purchases worth making: for each kind of cache the smallest size on sale that achieves most of the possible gain.

use super::{Assumptions, CacheAdvice, Step};

const GB: u64 = 1_000_000_000;
const GIB: u64 = 1 << 30;
/// Capacities of SSDs on sale.
const SSD_BYTES: [u64; 9] =
    [120 * GB, 240 * GB, 480 * GB, 960 * GB, 1_920 * GB, 3_840 * GB, 7_680 * GB, 15_360 * GB, 30_720 * GB];
/// Sizes of memory to add.
const MEMORY_BYTES: [u64; 10] =
    [GIB, 2 * GIB, 4 * GIB, 8 * GIB, 16 * GIB, 32 * GIB, 64 * GIB, 128 * GIB, 256 * GIB, 512 * GIB];
/// Fraction of the largest possible gain that a purchase must achieve.
const GAIN_FRACTION_MIN: f64 = 0.9;
/// Minimum gain of a purchase: in hit ratio (absolute), and in mean latency (relative).
const HIT_RATIO_GAIN_MIN: f64 = 0.02;
const LATENCY_GAIN_MIN: f64 = 0.05;
/// Minimum accesses for a reliable curve.
const ACCESSES_MIN: u64 = 10_000;
/// Minimum reads for a reliable hit ratio.
const READS_MIN: u64 = 1_000;
/// Maximum difference between the measured hit ratio and the curve's; above it the curve does not describe the load.
const DEVIATION_MAX: f64 = 0.15;
const HOUR_S: f64 = 3_600.0;
const DAY_S: f64 = 24.0 * HOUR_S;

/// Kind of cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Memory.
    Memory,
    /// Flash.
    Flash,
}

/// Hit ratios and resources of a load at present. The default describes a load without a cache.
#[derive(Clone, Copy, Debug, Default)]
pub struct PresentLoad {
    /// Reads served completely from memory, as a fraction of all reads.
    pub memory_hits: f64,
    /// Reads served completely by the caches with at least one block from flash, as a fraction of all reads.
    pub flash_hits: f64,
    /// Reads served from memory only because of readahead, as a fraction of all reads. They are fast but save no array
    /// reads.
    pub prefetched: f64,
    /// Reads.
    pub reads: u64,
    /// Reads per second; `None` if unknown.
    pub reads_per_s: Option<f64>,
    /// Reads per second sent to the array. `None` if unknown; one per missed read is then assumed.
    pub array_reads_per_s: Option<f64>,
    /// Bytes of memory and of flash that the load uses.
    pub used_bytes: [u64; 2],
    /// Unused bytes of memory and of flash, which the cache will fill by itself.
    pub free_bytes: [u64; 2],
    /// Size of all flash devices in service.
    pub flash_bytes: u64,
    /// Bytes of pages that they can hold.
    pub flash_page_bytes: u64,
}

/// A size to buy, with its effect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Purchase {
    /// Size of the SSD in place of all flash devices, or of the added memory.
    pub size_bytes: u64,
    /// Reads served by the present cache once it is filled, as a fraction of all reads.
    pub hit_ratio_before: f64,
    /// Mean latency of a read before the purchase, with the present cache filled.
    pub latency_before_ns: f64,
    /// Reads served by the cache with the purchase, as a fraction of all reads.
    pub hit_ratio: f64,
    /// Mean latency of a read with the purchase.
    pub latency_ns: f64,
    /// Array reads saved per second; `None` without a known rate. Never more than the array's reads.
    pub saved_reads_per_s: Option<f64>,
    /// Disks saved with these reads.
    pub saved_spindles: Option<f64>,
}

/// Reliability of advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confidence {
    /// A day or more in service, with a curve that describes the load.
    High,
    /// An hour or more.
    Medium,
    /// Less than an hour.
    Low,
    /// Too few accesses for a curve, or too few reads for a hit ratio: no recommendation.
    FewAccesses,
    /// The measured hit ratio is not the one of the curve, because the load has changed or the cache is not filled yet:
    /// no recommendation.
    Deviation,
}

impl Confidence {
    /// True if a verdict is possible: a recommendation, or that no purchase is worthwhile.
    pub fn is_sufficient(self) -> bool {
        matches!(self, Confidence::High | Confidence::Medium | Confidence::Low)
    }
}

/// Hit ratio of `size_bytes` on a curve, interpolated linearly.
pub(super) fn hit_ratio_at(steps: &[Step], size_bytes: u64) -> f64 {
    let after = steps.partition_point(|step| step.size_bytes < size_bytes);
    let Some(above) = steps.get(after) else { return steps.last().map_or(0.0, |step| step.hit_ratio) };
    let (size_below, ratio_below) =
        after.checked_sub(1).map_or((0, 0.0), |before| (steps[before].size_bytes, steps[before].hit_ratio));
    let fraction = (size_bytes - size_below) as f64 / (above.size_bytes - size_below) as f64;
    ratio_below + fraction * (above.hit_ratio - ratio_below)
}

impl PresentLoad {
    /// Measured hit ratio of memory and flash together.
    pub fn hit_ratio(&self) -> f64 {
        (self.memory_hits + self.flash_hits).min(1.0)
    }

    /// Mean latency of a read at the measured hit ratios.
    pub fn latency_ns(&self, assumptions: &Assumptions) -> f64 {
        self.memory_hits * assumptions.memory_ns as f64
            + self.flash_hits * assumptions.flash_ns as f64
            + (1.0 - self.hit_ratio()) * self.miss_ns(assumptions)
    }

    /// Mean latency of a read that is not a hit: some of them were read ahead.
    fn miss_ns(&self, assumptions: &Assumptions) -> f64 {
        let prefetched = (self.prefetched / (1.0 - self.hit_ratio()).max(f64::EPSILON)).clamp(0.0, 1.0);
        prefetched * assumptions.memory_ns as f64 + (1.0 - prefetched) * assumptions.array_ns as f64
    }

    /// Reliability of advice after `seconds` in service with `accesses` in the curves.
    pub fn confidence(&self, memory: &CacheAdvice, flash: &CacheAdvice, accesses: u64, seconds: f64) -> Confidence {
        // The curve of flash includes the hits of memory.
        let expected =
            hit_ratio_at(&memory.steps, self.used_bytes[0]).max(hit_ratio_at(&flash.steps, self.used_bytes[1]));
        if accesses < ACCESSES_MIN || self.reads < READS_MIN {
            Confidence::FewAccesses
        } else if self.used_bytes != [0, 0] && (expected - self.hit_ratio()).abs() > DEVIATION_MAX {
            Confidence::Deviation
        } else if seconds < HOUR_S {
            Confidence::Low
        } else if seconds < DAY_S {
            Confidence::Medium
        } else {
            Confidence::High
        }
    }

    /// The purchase of `kind` that is worth making; `None` if there is none.
    pub fn purchase(
        &self,
        kind: Kind,
        memory: &CacheAdvice,
        flash: &CacheAdvice,
        assumptions: &Assumptions,
    ) -> Option<Purchase> {
        let caches = [memory, flash];
        let hit_ratio_with = |sizes: [u64; 2]| {
            let [memory, flash] = [0, 1].map(|tier| hit_ratio_at(&caches[tier].steps, sizes[tier]));
            memory.max(flash)
        };
        // Fraction of the misses at hit ratio `before` that become hits at `after`.
        let misses_removed =
            |before: f64, after: f64| ((after - before) / (1.0 - before).max(f64::EPSILON)).clamp(0.0, 1.0);
        let filled = [0, 1].map(|tier| self.used_bytes[tier] + self.free_bytes[tier]);
        // The caches fill by themselves: the purchase is compared with the filled ones.
        let fill_gain =
            misses_removed(hit_ratio_with(self.used_bytes), hit_ratio_with(filled)) * (1.0 - self.hit_ratio());
        let hits_filled = self.hit_ratio() + fill_gain;
        let fill_ns = if self.flash_bytes > 0 { assumptions.flash_ns } else { assumptions.memory_ns };
        let latency_filled = self.latency_ns(assumptions) - fill_gain * (self.miss_ns(assumptions) - fill_ns as f64);
        // The fraction of a new SSD that can hold pages is assumed to be that of the present devices.
        let usable_fraction =
            if self.flash_bytes > 0 { self.flash_page_bytes as f64 / self.flash_bytes as f64 } else { 1.0 };
        let usable_growth = |size: u64| ((size - self.flash_bytes) as f64 * usable_fraction) as u64;
        let sizes: Vec<(u64, u64)> = match kind {
            Kind::Memory => MEMORY_BYTES.iter().map(|added| (*added, filled[0] + added)).collect(),
            // An SSD that is not larger than the present devices is no purchase.
            Kind::Flash => SSD_BYTES
                .iter()
                .filter(|size| **size > self.flash_bytes)
                .map(|size| (*size, filled[1] + usable_growth(*size)))
                .collect(),
        };
        let hit_ns = if kind == Kind::Memory { assumptions.memory_ns } else { assumptions.flash_ns } as f64;
        let effect = |(size_bytes, total): (u64, u64)| {
            let mut grown = filled;
            grown[kind as usize] = total;
            let gained = misses_removed(hit_ratio_with(filled), hit_ratio_with(grown));
            let hits = gained * (1.0 - hits_filled);
            // One readahead serves several reads, so the array's own count is used if known.
            let misses_per_s = self.reads_per_s.map(|rate| rate * (1.0 - self.hit_ratio()));
            let array_reads_per_s = self.array_reads_per_s.or(misses_per_s);
            let saved_reads_per_s = array_reads_per_s.zip(misses_per_s).map(|(array, misses)| {
                array.min(misses) * gained * (1.0 - hits_filled) / (1.0 - self.hit_ratio()).max(f64::EPSILON)
            });
            Purchase {
                size_bytes,
                hit_ratio_before: hits_filled,
                latency_before_ns: latency_filled,
                hit_ratio: hits_filled + hits,
                latency_ns: latency_filled - hits * (self.miss_ns(assumptions) - hit_ns),
                saved_reads_per_s,
                saved_spindles: saved_reads_per_s.map(|rate| rate / assumptions.spindle_rate),
            }
        };
        let effects: Vec<Purchase> = sizes.into_iter().map(effect).collect();
        let gain = |purchase: &Purchase| purchase.hit_ratio - hits_filled;
        let gain_max = gain(effects.last()?);
        effects.into_iter().find(|purchase| gain(purchase) >= GAIN_FRACTION_MIN * gain_max).filter(|purchase| {
            gain(purchase) >= HIT_RATIO_GAIN_MIN && purchase.latency_ns < (1.0 - LATENCY_GAIN_MIN) * latency_filled
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache_advice(points: &[(u64, f64)]) -> CacheAdvice {
        let step = |(size_bytes, hit_ratio): &(u64, f64)| Step {
            size_bytes: *size_bytes,
            hit_ratio: *hit_ratio,
            miss_ratio: 1.0 - hit_ratio,
            lru_miss_ratio: 1.0 - hit_ratio,
            latency_ns: 0.0,
            saved_spindles: None,
        };
        CacheAdvice { steps: points.iter().map(step).collect(), knee: None, present: None, purchase: None }
    }

    /// A load with 400 GiB of hot data and 8 GiB of memory for it.
    fn hot_data() -> (PresentLoad, CacheAdvice, CacheAdvice) {
        let present = PresentLoad {
            memory_hits: 0.5,
            reads: 50_000,
            reads_per_s: Some(1_000.0),
            used_bytes: [8 * GIB, 0],
            ..PresentLoad::default()
        };
        let points = [(8 * GIB, 0.5), (100 * GIB, 0.7), (400 * GIB, 0.9), (800 * GIB, 0.91)];
        (present, cache_advice(&points), cache_advice(&points))
    }

    #[test]
    fn smallest_ssd_with_most_of_the_gain_is_recommended() {
        let (present, memory, flash) = hot_data();
        let assumptions = Assumptions::default();
        let purchase = present.purchase(Kind::Flash, &memory, &flash, &assumptions).expect("flash helps");
        assert_eq!(purchase.size_bytes, 480 * GB);
        assert!((0.90..0.91).contains(&purchase.hit_ratio), "{purchase:?}");
        let saved = purchase.saved_reads_per_s.expect("the rate is known");
        assert!((400.0..410.0).contains(&saved), "{saved}");
        assert!((purchase.saved_spindles.expect("the rate is known") - saved / 180.0).abs() < 1e-9);
        // 0.5 x 20 µs + 0.5 x 8 ms before; about a tenth of the reads from the array afterwards.
        let (before, after) = (present.latency_ns(&assumptions), purchase.latency_ns);
        assert!((4.0e6..4.02e6).contains(&before) && (0.8e6..0.9e6).contains(&after), "{before} {after}");
    }

    #[test]
    fn saved_reads_never_exceed_the_reads_that_the_array_gets() {
        let (mut present, memory, flash) = hot_data();
        for memory_hits in [0.0, 0.3, 0.7, 0.95] {
            present.memory_hits = memory_hits;
            for kind in [Kind::Memory, Kind::Flash] {
                let Some(purchase) = present.purchase(kind, &memory, &flash, &Assumptions::default()) else { continue };
                let array = 1_000.0 * (1.0 - memory_hits);
                assert!(purchase.saved_reads_per_s.is_some_and(|saved| saved > 0.0 && saved <= array), "{purchase:?}");
                assert!(purchase.hit_ratio <= 1.0 && purchase.latency_ns > 0.0, "{purchase:?}");
            }
        }
    }

    #[test]
    fn recommended_flash_is_larger_than_the_present_one() {
        let (mut present, memory, flash) = hot_data();
        // Part of a device holds the map and the reserve.
        (present.flash_bytes, present.flash_page_bytes) = (240 * GB, 230 * GB);
        (present.used_bytes[1], present.flash_hits) = (230 * GB, 0.25);
        let purchase = present.purchase(Kind::Flash, &memory, &flash, &Assumptions::default());
        assert_eq!(purchase.map(|purchase| purchase.size_bytes), Some(480 * GB));
        // The hot data fits.
        (present.flash_bytes, present.flash_page_bytes) = (960 * GB, 920 * GB);
        (present.used_bytes[1], present.flash_hits) = (800 * GIB, 0.4);
        for kind in [Kind::Memory, Kind::Flash] {
            assert_eq!(present.purchase(kind, &memory, &flash, &Assumptions::default()), None);
        }
    }

    #[test]
    fn unfilled_cache_needs_no_purchase() {
        let (mut present, memory, flash) = hot_data();
        assert!(present.purchase(Kind::Memory, &memory, &flash, &Assumptions::default()).is_some());
        present.free_bytes = [512 * GIB, 0];
        for kind in [Kind::Memory, Kind::Flash] {
            assert_eq!(present.purchase(kind, &memory, &flash, &Assumptions::default()), None);
        }
    }

    #[test]
    fn purchase_is_compared_with_the_filled_cache() {
        let (mut present, memory, flash) = hot_data();
        present.free_bytes = [92 * GIB, 0];
        let purchase = present.purchase(Kind::Flash, &memory, &flash, &Assumptions::default()).expect("flash helps");
        // The curve has 0.7 at 100 GiB of memory.
        assert!((purchase.hit_ratio_before - 0.7).abs() < 1e-9, "{purchase:?}");
        assert!((2.40e6..2.43e6).contains(&purchase.latency_before_ns), "{purchase:?}");
    }

    #[test]
    fn reads_that_were_prefetched_are_fast_and_save_no_array_reads() {
        let (mut present, memory, flash) = hot_data();
        // All misses are prefetched, 32 at a time.
        (present.prefetched, present.array_reads_per_s) = (0.5, Some(500.0 / 32.0));
        assert_eq!(present.latency_ns(&Assumptions::default()), 20_000.0);
        assert_eq!(present.purchase(Kind::Flash, &memory, &flash, &Assumptions::default()), None);
        // Half of the misses are prefetched.
        (present.prefetched, present.array_reads_per_s) = (0.25, Some(250.0 + 250.0 / 32.0));
        let purchase = present.purchase(Kind::Flash, &memory, &flash, &Assumptions::default()).expect("flash helps");
        assert!(purchase.saved_reads_per_s.is_some_and(|saved| saved > 150.0 && saved < 258.0), "{purchase:?}");
    }

    #[test]
    fn latencies_of_zero_need_no_purchase() {
        let (present, memory, flash) = hot_data();
        let zero = Assumptions { array_ns: 0, flash_ns: 0, memory_ns: 0, ..Assumptions::default() };
        assert_eq!(present.purchase(Kind::Flash, &memory, &flash, &zero), None);
    }

    #[test]
    fn flash_as_slow_as_the_array_is_not_recommended() {
        let (present, memory, flash) = hot_data();
        let fast_array = Assumptions { array_ns: 150_000, ..Assumptions::default() };
        assert_eq!(present.purchase(Kind::Flash, &memory, &flash, &fast_array), None);
        assert!(present.purchase(Kind::Memory, &memory, &flash, &fast_array).is_some());
    }

    #[test]
    fn confidence_needs_accesses_time_and_a_curve_that_describes_the_load() {
        let (mut present, memory, flash) = hot_data();
        let confidence =
            |present: &PresentLoad, accesses, seconds| present.confidence(&memory, &flash, accesses, seconds);
        assert_eq!(confidence(&present, ACCESSES_MIN - 1, DAY_S), Confidence::FewAccesses);
        assert_eq!(confidence(&present, ACCESSES_MIN, 60.0), Confidence::Low);
        assert_eq!(confidence(&present, ACCESSES_MIN, HOUR_S), Confidence::Medium);
        assert_eq!(confidence(&present, ACCESSES_MIN, DAY_S), Confidence::High);
        let writes_alone = PresentLoad { reads: READS_MIN - 1, ..present };
        assert_eq!(confidence(&writes_alone, ACCESSES_MIN, DAY_S), Confidence::FewAccesses);
        // The curve expects 0.5.
        present.memory_hits = 0.1;
        assert_eq!(confidence(&present, ACCESSES_MIN, DAY_S), Confidence::Deviation);
        assert!(!Confidence::Deviation.is_sufficient() && !Confidence::FewAccesses.is_sufficient());
        assert!(Confidence::Low.is_sufficient());
    }
}
