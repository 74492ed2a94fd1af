//! Memory before flash, or one of the two: what a trace's requests find there.

use super::recording::{BLOCK_BYTES, BLOCKS_A_PAGE, PAGE_BYTES};
use super::{Cache, Outcome, Pages, Recording, Replacement};

/// How much room a layer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// So many bytes; what is left of a unit counts for nothing.
    Bytes(u64),
    /// So many thousandths of a percent of the trace's footprint, counted in the layer's unit.
    Share(u64),
}

impl Amount {
    /// Units of `unit_bytes` for a footprint of `distinct` units.
    pub fn units(self, distinct: u32, unit_bytes: u64) -> usize {
        let units = match self {
            Amount::Bytes(bytes) => u128::from(bytes / unit_bytes),
            Amount::Share(share) => u128::from(distinct) * u128::from(share) / 100_000,
        };
        // More than the footprint is never used.
        units.min(u128::from(distinct) * 2) as usize
    }

    /// True for nothing at all.
    pub fn is_zero(self) -> bool {
        matches!(self, Amount::Bytes(0) | Amount::Share(0))
    }
}

/// What to simulate.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Memory, in blocks of 4 KiB.
    pub memory: Amount,
    /// Flash, in pages of 64 KiB.
    pub flash: Amount,
    /// Without memory: the part of the flash's size that is memory for staging, in thousandths of a percent.
    pub stage_share: u64,
    /// Who comes in and who leaves, in both layers.
    pub policy: Replacement,
}

/// What came of one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    /// Its size, rounded down to its unit.
    pub size_bytes: u64,
    /// What it was asked for, and what it had.
    pub outcome: Outcome,
}

/// What came of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Reads and writes.
    pub requests: u64,
    /// Requests that found all that they touch.
    pub hits: u64,
    /// Requests that found some of it.
    pub partial_hits: u64,
    /// Reads that did not find everything.
    pub backing_reads: u64,
    /// Writes: without time nothing is merged or overwritten before it is destaged, so each goes to the backing once.
    pub backing_writes: u64,
    /// The memory cache.
    pub memory: Layer,
    /// The flash cache, its stage included.
    pub flash: Layer,
}

struct Counted {
    cache: Box<dyn Cache>,
    unit_bytes: u64,
    units: usize,
    outcome: Outcome,
}

impl Counted {
    fn access(&mut self, number: u32) -> bool {
        let hit = self.cache.access(number);
        self.outcome.accesses += 1;
        self.outcome.hits += u64::from(hit);
        hit
    }

    fn layer(self) -> Layer {
        let misses = self.outcome.accesses - self.outcome.hits;
        let outcome = Outcome { admitted: self.cache.admitted().unwrap_or(misses), ..self.outcome };
        Layer { size_bytes: self.units as u64 * self.unit_bytes, outcome }
    }
}

/// Plays a trace against the layers of a plan. Belady's optimum needs to know what a layer will be asked for, so it can be had of
/// one layer alone.
pub fn simulate(recording: &Recording, plan: &Plan) -> Report {
    let Recording { requests, blocks, pages, .. } = recording;
    let units = plan.memory.units(blocks.distinct, BLOCK_BYTES);
    let mut memory = (!plan.memory.is_zero()).then(|| {
        let cache = plan.policy.cache(units, blocks);
        Counted { cache, unit_bytes: BLOCK_BYTES, units, outcome: Outcome::default() }
    });
    let mut flash = (!plan.flash.is_zero()).then(|| flash(plan, units, pages));
    let mut report = Report { requests: requests.len() as u64, ..Report::default() };
    let (mut blocks, mut pages) = (blocks.accesses.iter(), pages.accesses.iter());
    for request in requests {
        let (mut found, mut absent) = (0, 0);
        for part in request.parts() {
            let page = *pages.next().expect("a page for each part");
            let missed = match &mut memory {
                Some(memory) => {
                    blocks.by_ref().take(part as usize).filter(|block| !memory.access(**block)).count() as u32
                }
                None => part,
            };
            let from_flash = missed > 0 && flash.as_mut().is_some_and(|flash| flash.access(page));
            let not_there = if from_flash { 0 } else { missed };
            (found, absent) = (found + part - not_there, absent + not_there);
        }
        report.hits += u64::from(absent == 0);
        report.partial_hits += u64::from(absent > 0 && found > 0);
        report.backing_reads += u64::from(absent > 0 && !request.write);
        report.backing_writes += u64::from(request.write);
    }
    report.memory = memory.map_or_else(Layer::default, Counted::layer);
    report.flash = flash.map_or_else(Layer::default, Counted::layer);
    report
}

fn flash(plan: &Plan, memory_blocks: usize, pages: &Pages) -> Counted {
    let units = plan.flash.units(pages.distinct, PAGE_BYTES);
    let stage = if plan.memory.is_zero() { (units as u64 * plan.stage_share / 100_000) as usize } else { 0 };
    let cache = plan.policy.flash(units, stage, memory_blocks / BLOCKS_A_PAGE as usize, pages);
    Counted { cache, unit_bytes: PAGE_BYTES, units, outcome: Outcome::default() }
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
        Recording::of(requests.iter().map(|each| Ok::<_, ()>(request(each)))).0
    }

    fn plan(memory: Amount, flash: Amount) -> Plan {
        Plan { memory, flash, stage_share: 10_000, policy: Replacement::Lru }
    }

    #[test]
    fn a_request_found_in_part_is_a_partial_hit_and_goes_to_the_backing() {
        let trace = recording(&[(Op::Read, 0, 8), (Op::Read, 4, 8), (Op::Write, 0, 12), (Op::Read, 64, 4)]);
        let report = simulate(&trace, &plan(Amount::Share(100_000), Amount::Bytes(0)));
        assert_eq!((report.requests, report.hits, report.partial_hits), (4, 1, 1));
        assert_eq!((report.backing_reads, report.backing_writes), (3, 1));
        assert_eq!(report.memory.outcome, Outcome { accesses: 8, hits: 4, admitted: 4 });
        assert_eq!(report.memory.size_bytes, 16 << 10);
        assert_eq!(report.flash, Layer::default());
    }

    #[test]
    fn flash_is_asked_for_what_memory_lacks_a_page_at_a_time() {
        let trace = recording(&[(Op::Read, 0, 128), (Op::Read, 0, 128)]);
        let report = simulate(&trace, &plan(Amount::Bytes(4 << 10), Amount::Share(100_000)));
        assert_eq!(report.flash.outcome, Outcome { accesses: 4, hits: 2, admitted: 2 });
        assert_eq!((report.hits, report.partial_hits, report.backing_reads), (1, 0, 1));
    }

    #[test]
    fn a_share_is_of_the_footprint_in_the_layers_unit() {
        assert_eq!(Amount::Share(10_000).units(19_373, 65_536), 1_937);
        assert_eq!(Amount::Bytes(10_000).units(19_373, 4_096), 2);
        assert_eq!(Amount::Bytes(u64::MAX).units(10, 4_096), 20);
    }

    #[test]
    fn the_stage_is_memory_inside_the_flashs_size() {
        let loads: Vec<_> = (0..40).flat_map(|_| (0..100).map(|page| (Op::Read, page * 64, 64))).collect();
        let mut plan = plan(Amount::Bytes(0), Amount::Share(50_000));
        plan.policy = Replacement::Default;
        let report = simulate(&recording(&loads), &plan);
        assert_eq!(report.flash.size_bytes, 50 * 65_536);
        assert!(
            report.flash.outcome.admitted < 200,
            "a loop twice as large as the flash is not written again and again"
        );
    }
}
