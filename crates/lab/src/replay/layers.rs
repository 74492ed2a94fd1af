//! Simulation of a memory cache, a flash cache, or both in sequence, over the requests of a trace.

use super::recording::{BLOCK_BYTES, BLOCKS_PER_PAGE, PAGE_BYTES};
use super::{Cache, Outcome, PageTrace, Recording, Replacement};

/// Size of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerSize {
    /// Bytes, rounded down to whole units.
    Bytes(u64),
    /// Thousandths of a percent of the trace's footprint, counted in the layer's unit.
    OfFootprint(u64),
}

impl LayerSize {
    /// Size in units of `unit_bytes`, for a footprint of `footprint_units` units.
    pub fn units(self, footprint_units: u32, unit_bytes: u64) -> usize {
        let units = match self {
            LayerSize::Bytes(bytes) => u128::from(bytes / unit_bytes),
            LayerSize::OfFootprint(millipercent) => u128::from(footprint_units) * u128::from(millipercent) / 100_000,
        };
        // Bounds the memory of the simulation: a cache never fills beyond the footprint. Twice that leaves space for
        // staging memory.
        units.min(u128::from(footprint_units) * 2) as usize
    }

    /// True when the size is 0.
    pub fn is_zero(self) -> bool {
        matches!(self, LayerSize::Bytes(0) | LayerSize::OfFootprint(0))
    }
}

/// The layers of a simulation. A flash cache alone has a *stage*: the part of its size that is memory and holds pages
/// until they are promoted.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Size of the memory cache, in blocks of 4 KiB.
    pub memory: LayerSize,
    /// Size of the flash cache, in pages of 64 KiB.
    pub flash: LayerSize,
    /// Without a memory cache: part of the flash size that is staging memory, in thousandths of a percent.
    pub stage_millipercent: u64,
    /// Policy of both layers.
    pub policy: Replacement,
}

/// Result of one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    /// Size in bytes, rounded down to whole units.
    pub size_bytes: u64,
    /// Accesses, hits and admissions.
    pub outcome: Outcome,
}

/// Result of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of reads and writes.
    pub requests: u64,
    /// Requests whose blocks were all cached.
    pub hits: u64,
    /// Requests with some of their blocks cached.
    pub partial_hits: u64,
    /// Reads with a missing block.
    pub backing_reads: u64,
    /// Writes to the backing, one per write request: the simulation has no clock, so no write is merged or
    /// overwritten before its destage.
    pub backing_writes: u64,
    /// The memory cache.
    pub memory: Layer,
    /// The flash cache including its stage.
    pub flash: Layer,
}

/// A cache and its counters.
struct CountedCache {
    cache: Box<dyn Cache>,
    unit_bytes: u64,
    units: usize,
    outcome: Outcome,
}

impl CountedCache {
    fn access(&mut self, unit: u32) -> bool {
        let hit = self.cache.access(unit);
        self.outcome.accesses += 1;
        self.outcome.hits += u64::from(hit);
        hit
    }

    fn into_layer(self) -> Layer {
        let misses = self.outcome.accesses - self.outcome.hits;
        let outcome = Outcome { admitted: self.cache.admitted().unwrap_or(misses), ..self.outcome };
        Layer { size_bytes: self.units as u64 * self.unit_bytes, outcome }
    }
}

/// Runs a trace through the layers of a plan. Belady's optimum must know a layer's accesses in advance, so it requires
/// a plan with one layer.
pub fn simulate(recording: &Recording, plan: &Plan) -> Report {
    let Recording { requests, blocks, pages, .. } = recording;
    let units = plan.memory.units(blocks.distinct, BLOCK_BYTES);
    let mut memory = (!plan.memory.is_zero()).then(|| {
        let cache = plan.policy.cache(units, blocks);
        CountedCache { cache, unit_bytes: BLOCK_BYTES, units, outcome: Outcome::default() }
    });
    let mut flash = (!plan.flash.is_zero()).then(|| flash_cache(plan, units, pages));
    let mut report = Report { requests: requests.len() as u64, ..Report::default() };
    let (mut blocks, mut pages) = (blocks.accesses.iter(), pages.accesses.iter());
    for request in requests {
        let (mut cached, mut missing) = (0, 0);
        for block_count in request.blocks_by_page() {
            let page = *pages.next().expect("each page of a request is recorded");
            let missed = match &mut memory {
                Some(memory) => {
                    blocks.by_ref().take(block_count as usize).filter(|block| !memory.access(**block)).count() as u32
                }
                None => block_count,
            };
            let from_flash = missed > 0 && flash.as_mut().is_some_and(|flash| flash.access(page));
            let missed_in_both = if from_flash { 0 } else { missed };
            (cached, missing) = (cached + block_count - missed_in_both, missing + missed_in_both);
        }
        report.hits += u64::from(missing == 0);
        report.partial_hits += u64::from(missing > 0 && cached > 0);
        report.backing_reads += u64::from(missing > 0 && !request.write);
        report.backing_writes += u64::from(request.write);
    }
    report.memory = memory.map_or_else(Layer::default, CountedCache::into_layer);
    report.flash = flash.map_or_else(Layer::default, CountedCache::into_layer);
    report
}

/// The flash cache of a plan behind `memory_blocks` blocks of memory.
fn flash_cache(plan: &Plan, memory_blocks: usize, pages: &PageTrace) -> CountedCache {
    let units = plan.flash.units(pages.distinct, PAGE_BYTES);
    let stage = if plan.memory.is_zero() { (units as u64 * plan.stage_millipercent / 100_000) as usize } else { 0 };
    let cache = plan.policy.flash(units, stage, memory_blocks / BLOCKS_PER_PAGE as usize, pages);
    CountedCache { cache, unit_bytes: PAGE_BYTES, units, outcome: Outcome::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trace::{Op, Request};

    fn recording(requests: &[(Op, u64, u64)]) -> Recording {
        let request = |(op, at, len): &(Op, u64, u64)| Request {
            time_ns: None,
            op: *op,
            at: at << 10,
            len: len << 10,
            device: 0,
        };
        Recording::of(requests.iter().map(|spec| Ok::<_, ()>(request(spec)))).0
    }

    fn plan(memory: LayerSize, flash: LayerSize) -> Plan {
        Plan { memory, flash, stage_millipercent: 10_000, policy: Replacement::Lru }
    }

    #[test]
    fn partly_cached_request_is_a_partial_hit_and_reads_the_backing() {
        let trace = recording(&[(Op::Read, 0, 8), (Op::Read, 4, 8), (Op::Write, 0, 12), (Op::Read, 64, 4)]);
        let report = simulate(&trace, &plan(LayerSize::OfFootprint(100_000), LayerSize::Bytes(0)));
        assert_eq!((report.requests, report.hits, report.partial_hits), (4, 1, 1));
        assert_eq!((report.backing_reads, report.backing_writes), (3, 1));
        assert_eq!(report.memory.outcome, Outcome { accesses: 8, hits: 4, admitted: 4 });
        assert_eq!(report.memory.size_bytes, 16 << 10);
        assert_eq!(report.flash, Layer::default());
    }

    #[test]
    fn memory_misses_access_flash_page_by_page() {
        let trace = recording(&[(Op::Read, 0, 128), (Op::Read, 0, 128)]);
        let report = simulate(&trace, &plan(LayerSize::Bytes(4 << 10), LayerSize::OfFootprint(100_000)));
        assert_eq!(report.flash.outcome, Outcome { accesses: 4, hits: 2, admitted: 2 });
        assert_eq!((report.hits, report.partial_hits, report.backing_reads), (1, 0, 1));
    }

    #[test]
    fn part_of_the_footprint_counts_in_the_layer_unit() {
        assert_eq!(LayerSize::OfFootprint(10_000).units(19_373, 65_536), 1_937);
        assert_eq!(LayerSize::Bytes(10_000).units(19_373, 4_096), 2);
        assert_eq!(LayerSize::Bytes(u64::MAX).units(10, 4_096), 20);
    }

    #[test]
    fn stage_counts_inside_the_flash_size() {
        let loads: Vec<_> = (0..40).flat_map(|_| (0..100).map(|page| (Op::Read, page * 64, 64))).collect();
        let mut plan = plan(LayerSize::Bytes(0), LayerSize::OfFootprint(50_000));
        plan.policy = Replacement::Default;
        let report = simulate(&recording(&loads), &plan);
        assert_eq!(report.flash.size_bytes, 50 * 65_536);
        assert!(
            report.flash.outcome.admitted < 200,
            "a loop twice as large as the flash is not written again and again"
        );
    }
}
