//! Advice on cache sizes: hit ratio, latency and saved spindles of a load at growing sizes of memory and of flash.

mod limits;
mod purchase;
mod tiers;

use engine::policy::curve::{CurveStats, VolumeCurveStats};

use crate::curve::{LruCurve, knee};
use crate::replay::recording::{BLOCK_BYTES, PAGE_BYTES};
use crate::replay::{Layer, LayerSize, PageTrace, Plan, Recording, Replacement, Report, simulate};

use purchase::hit_ratio_at;

pub use limits::{Limit, LimitSetting, Limits};
pub use purchase::{Confidence, Kind, PresentLoad, Purchase};
pub use tiers::{RESERVE_PERCENT, ShareStep, SliceLoads, TierAdvice, TierSize, TierStep};

/// Cache sizes to evaluate, in thousandths of a percent of the footprint.
const SIZES_MILLIPERCENT: [u64; 13] =
    [1_000, 2_000, 3_000, 5_000, 7_500, 10_000, 15_000, 20_000, 30_000, 40_000, 50_000, 75_000, 100_000];
/// Part of the flash size that is staging memory, in thousandths of a percent.
const STAGE_MILLIPERCENT: u64 = 10_000;

/// Latency of a request by the layer that serves it, and the request rate of a disk.
#[derive(Clone, Copy, Debug)]
pub struct Assumptions {
    /// Requests per second of one disk of the array.
    pub spindle_rate: f64,
    /// Latency of a request that the array serves, in nanoseconds.
    pub array_ns: u64,
    /// Latency of a request that flash serves, in nanoseconds.
    pub flash_ns: u64,
    /// Latency of a request that memory serves, in nanoseconds.
    pub memory_ns: u64,
}

impl Default for Assumptions {
    /// A 15k disk in a busy array, an SSD through a file system, memory through a socket.
    fn default() -> Self {
        Assumptions { spindle_rate: 180.0, array_ns: 8_000_000, flash_ns: 200_000, memory_ns: 20_000 }
    }
}

/// A cache size and its expected effect.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The cache's size.
    pub size_bytes: u64,
    /// Requests served entirely by the cache, as a fraction of all requests.
    pub hit_ratio: f64,
    /// Missed blocks or pages, as a fraction of all accesses.
    pub miss_ratio: f64,
    /// Miss ratio of an LRU cache of the same size.
    pub lru_miss_ratio: f64,
    /// Mean latency of a request in nanoseconds.
    pub latency_ns: f64,
    /// Disks saved by the hits. For a live volume only hits within its limit and beyond those of its present caches
    /// count. `None` when the trace has no times.
    pub saved_spindles: Option<f64>,
}

/// Size and hit ratio of a volume's cache at present.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PresentCache {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Reads served entirely by the cache, as a fraction of all reads.
    pub hit_ratio: f64,
}

/// Advice for one kind of cache.
#[derive(Clone, Debug, Default)]
pub struct CacheAdvice {
    /// Evaluated sizes, smallest first.
    pub steps: Vec<Step>,
    /// Index of the step after which a further step gains less than the average step.
    pub knee: Option<usize>,
    /// The present cache of a live volume.
    pub present: Option<PresentCache>,
    /// The purchase worth making within the load's limit.
    pub purchase: Option<Purchase>,
    /// The load's limit; `None` without one.
    pub limit: Option<LimitAdvice>,
}

/// A limit of a load in one kind of cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitAdvice {
    /// The setting that limits it.
    pub setting: LimitSetting,
    /// Bytes that the present cache may hold of the load; `None` for a part of a cache that does not exist.
    pub bytes: Option<u64>,
    /// The effect of removing the limit, with a purchase unless its size is 0; `None` unless the limit binds.
    pub raise: Option<Purchase>,
}

/// Advice for memory and for flash, each evaluated alone.
#[derive(Clone, Debug)]
pub struct Advice {
    /// Mean requests per second; `None` when the trace has no times.
    pub rate: Option<f64>,
    /// Memory alone.
    pub memory: CacheAdvice,
    /// Flash alone. For a trace the size includes the staging memory.
    pub flash: CacheAdvice,
    /// Hit ratios and resources of the load at present; the default for a trace.
    pub present: PresentLoad,
    /// Reliability of the purchases.
    pub confidence: Confidence,
}

/// Measurements of a live volume.
#[derive(Clone, Debug)]
pub struct LiveMeasurements {
    /// The volume's miss-ratio curves.
    pub curves: VolumeCurveStats,
    /// Time since the volume was attached, in seconds.
    pub seconds: f64,
    /// Mean requests per second; `None` without requests.
    pub rate: Option<f64>,
    /// Hit ratios and resources at present.
    pub present: PresentLoad,
}

/// Result for one cache size.
struct SizeResult {
    size_bytes: u64,
    hit_ratio: f64,
    miss_ratio: f64,
    lru_miss_ratio: f64,
}

/// Derives advice from a trace by simulating it with each size of memory and of flash.
pub fn of_trace(recording: &Recording, assumptions: &Assumptions) -> Advice {
    let seconds = recording.span_ns as f64 / 1e9;
    let rate = (recording.span_ns > 0).then(|| recording.requests.len() as f64 / seconds);
    let evaluate =
        |pages: &PageTrace, unit_bytes: u64, plan: &dyn Fn(LayerSize) -> Plan, layer: fn(&Report) -> Layer| {
            let exact = LruCurve::of(pages);
            let units =
                SIZES_MILLIPERCENT.map(|size| LayerSize::OfFootprint(size).units(pages.distinct, unit_bytes).max(1));
            let results = units.into_iter().map(|units| {
                let size_bytes = units as u64 * unit_bytes;
                let report = simulate(recording, &plan(LayerSize::Bytes(size_bytes)));
                SizeResult {
                    size_bytes,
                    hit_ratio: report.hits as f64 / report.requests.max(1) as f64,
                    miss_ratio: layer(&report).outcome.miss_ratio(),
                    lru_miss_ratio: exact.miss_ratio(units),
                }
            });
            results.collect()
        };
    let none = LayerSize::Bytes(0);
    let plan =
        |memory, flash| Plan { memory, flash, stage_millipercent: STAGE_MILLIPERCENT, policy: Replacement::Default };
    let memory = evaluate(&recording.blocks, BLOCK_BYTES, &|size| plan(size, none), |report| report.memory);
    let flash = evaluate(&recording.pages, PAGE_BYTES, &|size| plan(none, size), |report| report.flash);
    let reads = recording.requests.iter().filter(|request| !request.write).count();
    let reads_per_s = (recording.span_ns > 0).then(|| reads as f64 / seconds);
    let observation = Observation {
        rate,
        seconds,
        accesses: recording.requests.len() as u64,
        present: PresentLoad { reads: reads as u64, reads_per_s, ..PresentLoad::default() },
    };
    advise(observation, (memory, None), (flash, None), assumptions)
}

/// Derives advice from the miss-ratio curves of a live volume. The curves are an LRU's; the hit ratio of requests is
/// taken to be that of blocks or pages.
pub fn of_volume(live: &LiveMeasurements, assumptions: &Assumptions) -> Advice {
    let results_of = |curve: &CurveStats| {
        let points = curve.points.iter().map(|point| SizeResult {
            size_bytes: point.size_bytes,
            hit_ratio: 1.0 - point.miss_ratio,
            miss_ratio: point.miss_ratio,
            lru_miss_ratio: point.miss_ratio,
        });
        points.collect()
    };
    let (memory, flash) = (results_of(&live.curves.memory), results_of(&live.curves.flash));
    let present = live.present;
    let present_cache = |tier: usize, hit_ratio| Some(PresentCache { size_bytes: present.used_bytes[tier], hit_ratio });
    let accesses = live.curves.memory.uses;
    let observation = Observation { rate: live.rate, seconds: live.seconds, accesses, present };
    let (memory, flash) =
        ((memory, present_cache(0, present.memory_hits)), (flash, present_cache(1, present.flash_hits)));
    advise(observation, memory, flash, assumptions)
}

/// Results by size, and the present cache of a live volume.
type MeasuredCache = (Vec<SizeResult>, Option<PresentCache>);

/// Measurements of a load beside its curves.
struct Observation {
    rate: Option<f64>,
    seconds: f64,
    accesses: u64,
    present: PresentLoad,
}

fn advise(observation: Observation, memory: MeasuredCache, flash: MeasuredCache, assumptions: &Assumptions) -> Advice {
    let Observation { rate, seconds, accesses, present } = observation;
    let cache_advice = |(mut results, present_cache): MeasuredCache, hit_ns: u64| {
        results.dedup_by_key(|result| result.size_bytes);
        let step = |result: &SizeResult| Step {
            size_bytes: result.size_bytes,
            hit_ratio: result.hit_ratio,
            miss_ratio: result.miss_ratio,
            lru_miss_ratio: result.lru_miss_ratio,
            latency_ns: result.hit_ratio * hit_ns as f64 + (1.0 - result.hit_ratio) * assumptions.array_ns as f64,
            saved_spindles: None,
        };
        let points: Vec<_> = results.iter().map(|result| (result.size_bytes as f64, result.hit_ratio)).collect();
        CacheAdvice {
            knee: knee(&points),
            steps: results.iter().map(step).collect(),
            present: present_cache,
            ..CacheAdvice::default()
        }
    };
    let (mut memory, mut flash) =
        (cache_advice(memory, assumptions.memory_ns), cache_advice(flash, assumptions.flash_ns));
    // Hits that the other kind of cache serves already save no disk.
    let at_present =
        |cache: &CacheAdvice| cache.present.map_or(0.0, |present| hit_ratio_at(&cache.steps, present.size_bytes));
    let hits_at_present = at_present(&memory).max(at_present(&flash));
    for (kind, cache) in [(Kind::Memory, &mut memory), (Kind::Flash, &mut flash)] {
        let limit_bytes = present.limit_bytes(kind);
        let hits_max = limit_bytes.map_or(1.0, |bytes| hit_ratio_at(&cache.steps, bytes));
        for step in &mut cache.steps {
            let gain = (step.hit_ratio.min(hits_max) - hits_at_present).max(0.0);
            step.saved_spindles = present.reads_per_s.map(|rate| rate * gain / assumptions.spindle_rate);
        }
        let setting = present.limits.setting(kind);
        cache.limit = setting.map(|setting| LimitAdvice { setting, bytes: limit_bytes, raise: None });
    }
    let confidence = present.confidence(&memory, &flash, accesses, seconds);
    if confidence.is_sufficient() {
        let purchases = [Kind::Memory, Kind::Flash].map(|kind| present.purchase(kind, &memory, &flash, assumptions));
        let raises = [Kind::Memory, Kind::Flash].map(|kind| present.raise(kind, &memory, &flash, assumptions));
        for (cache, (purchase, raise)) in [&mut memory, &mut flash].into_iter().zip(purchases.into_iter().zip(raises)) {
            cache.purchase = purchase;
            cache.limit = cache.limit.map(|limit| LimitAdvice { raise, ..limit });
        }
    }
    Advice { rate, memory, flash, present, confidence }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::workload::{Pattern, Skew, Stream};
    use engine::ByteOffset;
    use engine::policy::curve::VolumeCurves;
    use trace::{Op, Request};

    #[test]
    fn hot_set_knee_is_near_its_size() {
        let mut random = Random::new(3, 0);
        // Nine of ten requests go to 100 of 1,000 pages, at a hundred requests per second.
        let requests = (0..40_000u64).map(|number| {
            let page = if random.percent(90) { random.below(100) } else { random.below(1_000) };
            let (at, time_ns) = (page * PAGE_BYTES, Some(number * 10_000_000));
            Ok::<_, ()>(Request { time_ns, op: Op::Read, at, len: BLOCK_BYTES, device: 0 })
        });
        let advice = of_trace(&Recording::of(requests).0, &Assumptions::default());
        for cache in [&advice.memory, &advice.flash] {
            let knee = cache.steps[cache.knee.expect("a load with a hot set has a knee")];
            let footprint = cache.steps.last().expect("advice for a cache has steps").size_bytes;
            assert!((9..=20).contains(&(knee.size_bytes * 100 / footprint)), "{knee:?}");
            assert!(knee.hit_ratio > 0.75 && knee.latency_ns < 2_500_000.0, "{knee:?}");
            assert!((0.4..0.56).contains(&knee.saved_spindles.expect("a trace with times has a rate")), "{knee:?}");
        }
        assert_eq!(advice.rate.map(f64::round), Some(100.0));
    }

    #[test]
    fn live_volume_advice_is_its_hot_set_size() {
        // The load of the scenario `autocache`: 16 KiB, 99 % of them in 8 GiB of 40.
        const GIB: u64 = 1 << 30;
        let skew = Skew::HotCold { hot_percent: 20, accesses_percent: 99 };
        let mut stream = Stream::new(Pattern::random(40 * GIB, 16_384, 89).with_skew(skew), 7, 0);
        let mut curves = VolumeCurves::default();
        for _ in 0..3_000_000 {
            let access = stream.draw();
            curves.record_use(ByteOffset(access.at), u64::from(access.len));
        }
        let present = PresentLoad { reads: 3_000_000, reads_per_s: Some(1_500.0), ..PresentLoad::default() };
        let live = LiveMeasurements { curves: curves.stats(), seconds: 2_000.0, rate: Some(1_500.0), present };
        let advice = of_volume(&live, &Assumptions::default());
        let knee = advice.flash.steps[advice.flash.knee.expect("a load with a hot set has a knee")];
        assert!(knee.size_bytes.abs_diff(8 * GIB) <= 8 * GIB / 5, "{knee:?}");
        assert!(knee.hit_ratio > 0.8 && knee.saved_spindles.is_some_and(|saved| saved > 6.0), "{knee:?}");
        let sizes = [advice.memory.purchase, advice.flash.purchase]
            .map(|purchase| purchase.map(|purchase| purchase.size_bytes));
        assert_eq!((advice.confidence, sizes), (Confidence::Low, [Some(8 * GIB), Some(120_000_000_000)]));
    }
}
