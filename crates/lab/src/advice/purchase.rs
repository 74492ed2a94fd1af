//! Purchases worth making: for each kind of cache the smallest size on sale that achieves most of the possible gain.

use super::limits::{Limit, Limits};
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
    /// Bytes that count towards the limits, if they are more than the used ones: on flash whole pages.
    pub held_bytes: [u64; 2],
    /// Unused bytes of memory and of flash, which the cache will fill by itself.
    pub free_bytes: [u64; 2],
    /// Bytes of blocks that memory can hold.
    pub memory_bytes: u64,
    /// Size of all flash devices in service.
    pub flash_bytes: u64,
    /// Bytes of pages that they can hold.
    pub flash_page_bytes: u64,
    /// Limits of the load by its settings.
    pub limits: Limits,
}

/// A size to buy, with its effect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Purchase {
    /// Size of the SSD in place of all flash devices, or of the added memory; 0 for a change of a limit alone.
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

    /// The purchase of `kind` that is worth making within the limits; `None` if there is none.
    pub fn purchase(
        &self,
        kind: Kind,
        memory: &CacheAdvice,
        flash: &CacheAdvice,
        assumptions: &Assumptions,
    ) -> Option<Purchase> {
        Estimate::new(self, [memory, flash], assumptions).best_purchase(kind, self.limits)
    }

    /// The effect of removing the limit of `kind` that binds; its size is 0 if that needs no purchase. `None` if no
    /// limit of `kind` prevents hits that are worthwhile.
    pub fn raise(
        &self,
        kind: Kind,
        memory: &CacheAdvice,
        flash: &CacheAdvice,
        assumptions: &Assumptions,
    ) -> Option<Purchase> {
        let without = self.limits.without(kind)?;
        let estimate = Estimate::new(self, [memory, flash], assumptions);
        // The limit may keep the load from present cache, which costs nothing.
        let present = estimate.effect(kind, 0, without);
        if estimate.is_worthwhile(&present) {
            return Some(present);
        }
        let bought = estimate.best_purchase(kind, without)?;
        let within = estimate.best_purchase(kind, self.limits).unwrap_or_else(|| estimate.effect(kind, 0, self.limits));
        exceeds(&bought, within.hit_ratio, within.latency_ns).then_some(bought)
    }

    /// Bytes of the load in each cache that has grown by `added` bytes and is filled, within `limits`.
    fn filled_bytes(&self, limits: Limits, added: [u64; 2]) -> [u64; 2] {
        let (limits, wholes) = (limits.in_force(), [self.memory_bytes, self.flash_page_bytes]);
        [0, 1].map(|tier| {
            let held = self.held_bytes[tier].max(self.used_bytes[tier]);
            let room = limits[tier].bytes_of(wholes[tier] + added[tier]).saturating_sub(held);
            self.used_bytes[tier] + (self.free_bytes[tier] + added[tier]).min(room)
        })
    }

    /// Bytes that the present cache of `kind` may hold of the load; `None` without a limit, and for a part of a cache
    /// that does not exist.
    pub fn limit_bytes(&self, kind: Kind) -> Option<u64> {
        let whole = [self.memory_bytes, self.flash_page_bytes][kind as usize];
        match self.limits.in_force()[kind as usize] {
            Limit::None => None,
            Limit::PerMille(_) if whole == 0 => None,
            limit => Some(limit.bytes_of(whole)),
        }
    }
}

/// Fraction of the misses at hit ratio `before` that become hits at `after`.
fn misses_removed(before: f64, after: f64) -> f64 {
    ((after - before) / (1.0 - before).max(f64::EPSILON)).clamp(0.0, 1.0)
}

/// True if the effect exceeds this hit ratio and undercuts this latency enough to be recommended.
fn exceeds(effect: &Purchase, hit_ratio: f64, latency_ns: f64) -> bool {
    effect.hit_ratio - hit_ratio >= HIT_RATIO_GAIN_MIN && effect.latency_ns < (1.0 - LATENCY_GAIN_MIN) * latency_ns
}

/// Effects of larger caches and of other limits on a load, relative to its present caches once they are filled within
/// the limits in force: caches fill by themselves.
struct Estimate<'a> {
    load: &'a PresentLoad,
    caches: [&'a CacheAdvice; 2],
    assumptions: &'a Assumptions,
    filled_bytes: [u64; 2],
    hits_filled: f64,
    latency_filled_ns: f64,
}

impl<'a> Estimate<'a> {
    fn new(load: &'a PresentLoad, caches: [&'a CacheAdvice; 2], assumptions: &'a Assumptions) -> Self {
        let filled_bytes = load.filled_bytes(load.limits, [0, 0]);
        let mut estimate =
            Estimate { load, caches, assumptions, filled_bytes, hits_filled: 0.0, latency_filled_ns: 0.0 };
        let (present, filled) = (estimate.hit_ratio_with(load.used_bytes), estimate.hit_ratio_with(filled_bytes));
        let fill_gain = misses_removed(present, filled) * (1.0 - load.hit_ratio());
        let fills_flash = load.flash_bytes > 0 && load.limit_bytes(Kind::Flash) != Some(0);
        let fill_ns = if fills_flash { assumptions.flash_ns } else { assumptions.memory_ns };
        estimate.hits_filled = load.hit_ratio() + fill_gain;
        estimate.latency_filled_ns =
            load.latency_ns(assumptions) - fill_gain * (load.miss_ns(assumptions) - fill_ns as f64);
        estimate
    }

    /// Hit ratio by the curves with these bytes of memory and of flash.
    fn hit_ratio_with(&self, bytes: [u64; 2]) -> f64 {
        let [memory, flash] = [0, 1].map(|tier| hit_ratio_at(&self.caches[tier].steps, bytes[tier]));
        memory.max(flash)
    }

    /// The smallest size on sale with most of the gain that is possible within `limits`, if it is worthwhile.
    fn best_purchase(&self, kind: Kind, limits: Limits) -> Option<Purchase> {
        let sizes: Vec<u64> = match kind {
            Kind::Memory => MEMORY_BYTES.to_vec(),
            // An SSD that is not larger than the present devices is no purchase.
            Kind::Flash => SSD_BYTES.into_iter().filter(|size| *size > self.load.flash_bytes).collect(),
        };
        let effects: Vec<Purchase> = sizes.into_iter().map(|size| self.effect(kind, size, limits)).collect();
        let gain = |purchase: &Purchase| purchase.hit_ratio - self.hits_filled;
        let gain_max = gain(effects.last()?);
        let best = effects.into_iter().find(|purchase| gain(purchase) >= GAIN_FRACTION_MIN * gain_max);
        best.filter(|purchase| self.is_worthwhile(purchase))
    }

    fn is_worthwhile(&self, effect: &Purchase) -> bool {
        exceeds(effect, self.hits_filled, self.latency_filled_ns)
    }

    /// The effect of a purchase within `limits`; of the limits alone if its size is 0.
    fn effect(&self, kind: Kind, size_bytes: u64, limits: Limits) -> Purchase {
        let Estimate { load, assumptions, hits_filled, latency_filled_ns, .. } = *self;
        let mut added = [0, 0];
        added[kind as usize] = match kind {
            Kind::Memory => size_bytes,
            Kind::Flash => self.usable_growth(size_bytes),
        };
        let grown_bytes = load.filled_bytes(limits, added);
        let gained = misses_removed(self.hit_ratio_with(self.filled_bytes), self.hit_ratio_with(grown_bytes));
        let hits = gained * (1.0 - hits_filled);
        let hit_ns = if kind == Kind::Memory { assumptions.memory_ns } else { assumptions.flash_ns } as f64;
        // One readahead serves several reads, so the array's own count is used if known.
        let misses_per_s = load.reads_per_s.map(|rate| rate * (1.0 - load.hit_ratio()));
        let array_reads_per_s = load.array_reads_per_s.or(misses_per_s);
        let saved_reads_per_s = array_reads_per_s
            .zip(misses_per_s)
            .map(|(array, misses)| array.min(misses) * hits / (1.0 - load.hit_ratio()).max(f64::EPSILON));
        Purchase {
            size_bytes,
            hit_ratio_before: hits_filled,
            latency_before_ns: latency_filled_ns,
            hit_ratio: hits_filled + hits,
            latency_ns: latency_filled_ns - hits * (load.miss_ns(assumptions) - hit_ns),
            saved_reads_per_s,
            saved_spindles: saved_reads_per_s.map(|rate| rate / assumptions.spindle_rate),
        }
    }

    /// Further bytes of pages on an SSD in place of all flash devices. The fraction that can hold pages is assumed to
    /// be that of the present devices.
    fn usable_growth(&self, size_bytes: u64) -> u64 {
        let PresentLoad { flash_bytes, flash_page_bytes, .. } = *self.load;
        let usable_fraction = if flash_bytes > 0 { flash_page_bytes as f64 / flash_bytes as f64 } else { 1.0 };
        (size_bytes.saturating_sub(flash_bytes) as f64 * usable_fraction) as u64
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
        CacheAdvice { steps: points.iter().map(step).collect(), ..CacheAdvice::default() }
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
    fn quota_that_binds_permits_no_purchase_and_is_named() {
        let (mut present, memory, flash) = hot_data();
        let assumptions = Assumptions::default();
        let unlimited = present.purchase(Kind::Memory, &memory, &flash, &assumptions);
        assert!(unlimited.is_some() && present.raise(Kind::Memory, &memory, &flash, &assumptions).is_none());
        present.limits.memory_max = Limit::Bytes(8 * GIB);
        assert_eq!(present.purchase(Kind::Memory, &memory, &flash, &assumptions), None);
        assert_eq!(present.raise(Kind::Memory, &memory, &flash, &assumptions), unlimited);
        assert!(present.purchase(Kind::Flash, &memory, &flash, &assumptions).is_some());
        // A quota that holds the hot data does not bind.
        present.limits.memory_max = Limit::Bytes(800 * GIB);
        assert_eq!(present.purchase(Kind::Memory, &memory, &flash, &assumptions), unlimited);
        assert_eq!(present.raise(Kind::Memory, &memory, &flash, &assumptions), None);
    }

    #[test]
    fn quota_that_prevents_use_of_free_memory_needs_no_purchase() {
        let (mut present, memory, flash) = hot_data();
        (present.free_bytes, present.limits.memory_max) = ([392 * GIB, 0], Limit::Bytes(8 * GIB));
        let raise = present.raise(Kind::Memory, &memory, &flash, &Assumptions::default()).expect("the quota binds");
        assert_eq!((raise.size_bytes, raise.hit_ratio_before), (0, 0.5));
        assert!((raise.hit_ratio - 0.9).abs() < 1e-9 && raise.latency_ns < 0.9e6, "{raise:?}");
        assert_eq!(raise.saved_reads_per_s.map(f64::round), Some(400.0));
        // Flash is compared with the memory that the volume may use.
        let purchase = present.purchase(Kind::Flash, &memory, &flash, &Assumptions::default()).expect("flash helps");
        assert_eq!(purchase.hit_ratio_before, 0.5);
    }

    #[test]
    fn percentage_quota_grows_with_the_purchased_cache() {
        let (mut present, memory, flash) = hot_data();
        (present.memory_bytes, present.limits.memory_max) = (16 * GIB, Limit::PerMille(500));
        let purchase = present.purchase(Kind::Memory, &memory, &flash, &Assumptions::default()).expect("memory helps");
        // Half of 512 GiB: 264 of 400 GiB of hot data.
        assert_eq!(purchase.size_bytes, 512 * GIB);
        assert!((purchase.hit_ratio - (0.7 + 0.2 * 164.0 / 300.0)).abs() < 1e-9, "{purchase:?}");
        let raise = present.raise(Kind::Memory, &memory, &flash, &Assumptions::default()).expect("the quota binds");
        assert!(raise.hit_ratio > 0.9, "{raise:?}");
        // A part of flash that does not exist yet.
        present.limits.flash_max = Limit::PerMille(100);
        let purchase = present.purchase(Kind::Flash, &memory, &flash, &Assumptions::default()).expect("flash helps");
        assert_eq!(purchase.size_bytes, 3_840 * GB);
    }

    #[test]
    fn disabled_flash_is_not_recommended_and_its_setting_is_named() {
        let (mut present, memory, flash) = hot_data();
        let assumptions = Assumptions::default();
        let unlimited = present.purchase(Kind::Flash, &memory, &flash, &assumptions);
        present.limits.is_flash_disabled = true;
        assert_eq!(present.purchase(Kind::Flash, &memory, &flash, &assumptions), None);
        assert_eq!(present.raise(Kind::Flash, &memory, &flash, &assumptions), unlimited);
        // Free flash of other volumes is no future hit of this one.
        (present.flash_bytes, present.flash_page_bytes, present.free_bytes) = (960 * GB, 920 * GB, [0, 920 * GB]);
        let raise = present.raise(Kind::Flash, &memory, &flash, &assumptions).expect("flash helps");
        assert_eq!((raise.size_bytes, raise.hit_ratio_before), (0, 0.5));
        // A small quota stays when flash is enabled.
        present.limits.flash_max = Limit::Bytes(GIB);
        assert_eq!(present.raise(Kind::Flash, &memory, &flash, &assumptions), None);
    }

    #[test]
    fn flash_quota_counts_whole_pages() {
        let (mut present, memory, flash) = hot_data();
        (present.flash_bytes, present.flash_page_bytes) = (960 * GB, 920 * GB);
        (present.used_bytes, present.free_bytes) = ([GIB, 8 * GIB], [0, 500 * GB]);
        // Half of each page is readable.
        (present.held_bytes, present.limits.flash_max) = ([GIB, 16 * GIB], Limit::Bytes(16 * GIB));
        let raise = present.raise(Kind::Flash, &memory, &flash, &Assumptions::default()).expect("the quota binds");
        assert_eq!((raise.size_bytes, raise.hit_ratio_before), (0, 0.5));
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
