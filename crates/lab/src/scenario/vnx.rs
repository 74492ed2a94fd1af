//! A mid-range array of 2011 with 15 SAS disks, its cache memory.
//!
//! The published load is IOMeter's Database pattern (8 KiB, 67 % reads, all random) with 12, 24, 48, 96 and 192 requests outstanding, 15
//! minutes each. Three RAID 5 groups 4+1 carry a read at the cost of one disk access, a write at that of four: 15 disks of 150 a
//! second give 2,250 / (0.67 + 0.33 x 4) = 1,130 requests a second; practice is 1.5 to 2 times that, for the disks choose the order.

use seam::model::{ArraySpec, DiskType, RaidLevel};

use super::Scenario;
use super::bed::{Bed, Layout, Plan};
use super::series::{Check, Outcome, Point};
use crate::workload::Pattern;

pub(super) const GB: u64 = 1_000_000_000;
pub(super) const MIB: u64 = 1 << 20;
pub(super) const OUTSTANDING: [u32; 5] = [12, 24, 48, 96, 192];
pub(super) const STEP_MINUTES: u64 = 15;
pub(super) const SOURCE: &str = "FAST Cache on a VNX, IOMeter Database pattern, published 2011-2012";
pub(super) const QUEUEING: &str = "derived from the publication by queueing arithmetic (outstanding = rate x latency)";

/// A file in the cache memory.
pub const DRAM: Scenario = Scenario {
    name: "vnx-dram",
    title: "a file of 2 GB in 4 GB of memory",
    source: SOURCE,
    setting: "15 SAS 10k as three RAID 5 groups 4+1, 64 KiB stripes, a LUN on the first twelfth of each (1,660 and 2,370 requests a second without cache at 24 and 48 outstanding: no span gives both published figures); 4 GB memory, no flash; the file is read into memory first (at most 15 minutes of the first step), then 2 s a step",
    run: dram,
};

/// A file four times as large as the memory.
pub const SPILL: Scenario = Scenario {
    name: "vnx-spill",
    title: "a file of 15 GB on bare disks, and behind 4 GB of memory",
    source: SOURCE,
    setting: "as vnx-dram with a file of 15 GB; a minute a step, with memory after 15 minutes of the first one",
    run: spill,
};

/// So many RAID 5 groups with a LUN each, and the part of everything else that goes with them.
pub(super) fn plan(seed: u64, groups: u64, file_bytes: u64) -> Plan {
    let lun = (file_bytes / groups).next_multiple_of(64 * MIB);
    // The LUN lies on the first twelfth of its disks, as in a pool that is used a little.
    let array = ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas10k).fitted(12 * lun);
    Plan {
        seed,
        memory_bytes: 4 * GB * groups / 3,
        arrays: vec![(array, lun); groups as usize],
        layout: Layout::Turns,
        flash: None,
        policy: engine::WritePolicy::WriteBack,
        cached: true,
        haste: 1,
    }
}

/// IOMeter aligns requests at multiples of their size.
pub(super) fn database(file_bytes: u64) -> Pattern {
    Pattern { align_bytes: 8192, ..Pattern::random(file_bytes, 8192, 67) }
}

fn dram(seed: u64) -> Outcome {
    let file = 2 * GB;
    let mut bed = Bed::new(&plan(seed, 3, file));
    let mut points = bed.warm(&database(file), OUTSTANDING[0], STEP_MINUTES, seed);
    for depth in OUTSTANDING {
        points.push(bed.sample(&database(file), depth, 2, seed));
    }
    let last = points[points.len() - 1];
    let checks = vec![
        Check::at_least("requests a second at 192 outstanding", last.iops, 28_600.0, QUEUEING),
        Check::at_most("mean latency at 192 outstanding, ms", last.latency_ms, 6.7, SOURCE),
    ];
    let notes = vec![format!("{:.1} times the published rate", last.iops / 28_600.0)];
    let mut outcome = Outcome { checks, notes, ..Outcome::default() };
    outcome.run("with", points);
    outcome
}

fn spill(seed: u64) -> Outcome {
    let file = 15 * GB;
    // Each step draws other requests: the same ones again would find in memory what the step before left there.
    let steps = || (1..).zip(OUTSTANDING).map(|(step, depth)| (depth, seed * 100 + step));
    let mut bare = Bed::new(&Plan { cached: false, memory_bytes: 64 * MIB, ..plan(seed, 3, file) });
    let without: Vec<Point> = steps().map(|(depth, seed)| bare.sample(&database(file), depth, 60, seed)).collect();
    let mut bed = Bed::new(&plan(seed, 3, file));
    bed.play(&database(file), OUTSTANDING[0], STEP_MINUTES, true, seed);
    let with: Vec<Point> = steps().map(|(depth, seed)| bed.sample(&database(file), depth, 60, seed)).collect();
    let mut checks = Vec::new();
    for (index, depth) in [(1, 24), (2, 48)] {
        let name = format!("requests a second without cache, {depth} outstanding");
        checks.push(Check::between(name, without[index].iops, 1_695.0, 2_260.0, SOURCE));
    }
    for (index, depth) in OUTSTANDING.into_iter().enumerate() {
        let name = format!("with memory against without, {depth} outstanding");
        checks.push(Check::at_least(name, with[index].iops / without[index].iops, 1.0, "promised: never slower"));
    }
    let steps = without.iter().zip(OUTSTANDING);
    let note =
        |(point, depth): (&Point, u32)| format!("{depth} outstanding: {:.0}/s, {:.1} ms", point.iops, point.latency_ms);
    let notes = vec![format!("without cache: {}", steps.map(note).collect::<Vec<_>>().join("; "))];
    let mut outcome = Outcome { checks, notes, ..Outcome::default() };
    outcome.run("with", with).run("without", without);
    outcome
}
