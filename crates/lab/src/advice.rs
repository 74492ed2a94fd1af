//! What each further step of memory or of flash would bring a load: hits, latency, spindles that are no longer needed.

use crate::curve::{Exact, knee};
use crate::replay::recording::{BLOCK_BYTES, PAGE_BYTES};
use crate::replay::{Amount, Layer, Pages, Plan, Recording, Replacement, Report, simulate};

/// Sizes that are tried, in thousandths of a percent of the footprint.
const SHARES: [u64; 13] =
    [1_000, 2_000, 3_000, 5_000, 7_500, 10_000, 15_000, 20_000, 30_000, 40_000, 50_000, 75_000, 100_000];
/// The part of the flash's size that is memory in front of it, in thousandths of a percent.
const STAGE_SHARE: u64 = 10_000;

/// What a request costs, and what a disk can do.
#[derive(Clone, Copy, Debug)]
pub struct Assumptions {
    /// Requests a second of one disk of the array.
    pub spindle_rate: f64,
    /// A request that the array answers, in nanoseconds.
    pub array_ns: u64,
    /// One that flash answers.
    pub flash_ns: u64,
    /// One that memory answers.
    pub memory_ns: u64,
}

impl Default for Assumptions {
    /// A 15k disk in a busy array, an SSD through a file system, memory through a socket.
    fn default() -> Self {
        Assumptions { spindle_rate: 180.0, array_ns: 8_000_000, flash_ns: 200_000, memory_ns: 20_000 }
    }
}

/// A size and what it brings.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The cache's size.
    pub size_bytes: u64,
    /// Requests that are served whole, of all.
    pub hit_ratio: f64,
    /// Blocks or pages that are missed, of all that are asked for.
    pub miss_ratio: f64,
    /// The same of an LRU, exactly.
    pub lru_miss_ratio: f64,
    /// Mean latency of a request in nanoseconds.
    pub latency_ns: f64,
    /// Disks that the hits spare; `None` where the trace has no times.
    pub saved_spindles: Option<f64>,
}

/// One kind of cache.
#[derive(Clone, Debug)]
pub struct Side {
    /// By growing size.
    pub steps: Vec<Step>,
    /// The step past which more brings less than on average.
    pub knee: Option<usize>,
}

/// Both kinds, each alone.
#[derive(Clone, Debug)]
pub struct Advice {
    /// Requests a second, on average; `None` where the trace has no times.
    pub rate: Option<f64>,
    /// Memory alone.
    pub memory: Side,
    /// Flash with a stage of memory inside.
    pub flash: Side,
}

/// Plays a trace against every size of memory and of flash.
pub fn advise(recording: &Recording, assumptions: &Assumptions) -> Advice {
    let seconds = recording.span_ns as f64 / 1e9;
    let rate = (recording.span_ns > 0).then(|| recording.requests.len() as f64 / seconds);
    let side =
        |pages: &Pages, unit_bytes: u64, hit_ns: u64, plan: &dyn Fn(Amount) -> Plan, layer: fn(&Report) -> Layer| {
            let exact = Exact::of(pages);
            let mut steps: Vec<Step> = Vec::new();
            for share in SHARES {
                let units = Amount::Share(share).units(pages.distinct, unit_bytes).max(1);
                let size_bytes = units as u64 * unit_bytes;
                if steps.last().is_some_and(|step| step.size_bytes == size_bytes) {
                    continue;
                }
                let report = simulate(recording, &plan(Amount::Bytes(size_bytes)));
                let hit_ratio = report.hits as f64 / report.requests.max(1) as f64;
                steps.push(Step {
                    size_bytes,
                    hit_ratio,
                    miss_ratio: layer(&report).outcome.miss_ratio(),
                    lru_miss_ratio: exact.miss_ratio(units),
                    latency_ns: hit_ratio * hit_ns as f64 + (1.0 - hit_ratio) * assumptions.array_ns as f64,
                    saved_spindles: rate.map(|rate| rate * hit_ratio / assumptions.spindle_rate),
                });
            }
            let points: Vec<_> = steps.iter().map(|step| (step.size_bytes as f64, step.hit_ratio)).collect();
            Side { knee: knee(&points), steps }
        };
    let none = Amount::Bytes(0);
    let plan = |memory, flash| Plan { memory, flash, stage_share: STAGE_SHARE, policy: Replacement::Default };
    let (memory_ns, flash_ns) = (assumptions.memory_ns, assumptions.flash_ns);
    Advice {
        rate,
        memory: side(&recording.blocks, BLOCK_BYTES, memory_ns, &|size| plan(size, none), |report| report.memory),
        flash: side(&recording.pages, PAGE_BYTES, flash_ns, &|size| plan(none, size), |report| report.flash),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use trace::{Op, Request};

    #[test]
    fn the_knee_of_a_hot_set_is_near_its_size() {
        let mut random = Random::new(3, 0);
        // Nine of ten requests go to 100 of 1,000 pages, a hundred requests a second.
        let requests = (0..40_000u64).map(|number| {
            let page = if random.percent(90) { random.below(100) } else { random.below(1_000) };
            let (at, time_ns) = (page * PAGE_BYTES, Some(number * 10_000_000));
            Ok::<_, ()>(Request { time_ns, op: Op::Read, at, len: BLOCK_BYTES, device: 0 })
        });
        let advice = advise(&Recording::of(requests).0, &Assumptions::default());
        for side in [&advice.memory, &advice.flash] {
            let knee = side.steps[side.knee.expect("there is a hot set")];
            let footprint = side.steps.last().expect("sizes were tried").size_bytes;
            assert!((9..=20).contains(&(knee.size_bytes * 100 / footprint)), "{knee:?}");
            assert!(knee.hit_ratio > 0.75 && knee.latency_ns < 2_500_000.0, "{knee:?}");
            assert!((0.4..0.56).contains(&knee.saved_spindles.expect("there are times")), "{knee:?}");
        }
        assert_eq!(advice.rate.map(f64::round), Some(100.0));
    }
}
