//! A mid-range array of 2011 with 15 SAS disks: its cache memory.
//!
//! The published load is IOMeter's Database pattern (8 KiB, 67 % reads, all random) with 12, 24, 48, 96 and 192
//! requests outstanding, 15 minutes each. On three RAID 5 groups 4+1 a read costs one disk access and a write four. 15
//! disks of 150 per second give 2,250 / (0.67 + 0.33 x 4) = 1,130 requests per second. Practice reaches 1.5 to 2 times
//! that, because the disks choose the order.

use seam::model::{ArraySpec, DiskType, RaidLevel};

use super::series::{Check, Outcome, Point, mean};
use super::test_bed::{Plan, TestBed};
use super::{Demo, Phase, Scenario, Setup};
use crate::workload::address_space::Layout;
use crate::workload::{Job, Pattern};

pub(super) const GB: u64 = 1_000_000_000;
pub(super) const MIB: u64 = 1 << 20;
pub(super) const OUTSTANDING: [u32; 5] = [12, 24, 48, 96, 192];
pub(super) const STEP_MINUTES: u64 = 15;
/// Stripe of a file over several LUNs.
pub(super) const STRIPE_BYTES: u64 = 64 * MIB;
pub(super) const SOURCE: &str = "FAST Cache on a VNX, IOMeter Database pattern, published 2011-2012";
pub(super) const QUEUEING: &str = "derived from the publication by queueing arithmetic (outstanding = rate x latency)";

/// A file that fits in the cache memory.
pub const DRAM: Scenario = Scenario {
    name: "vnx-dram",
    title: "a file of 2 GB in 4 GB of memory",
    source: SOURCE,
    setting: "15 SAS 10k as three RAID 5 groups 4+1, 64 KiB stripes, a LUN on the first twelfth of each (1,660 and \
              2,370 requests per second without cache at 24 and 48 outstanding: no span gives both published figures); \
              4 GB memory, no flash; the file is read into memory first (at most 15 minutes of the first step), then \
              2 s a step",
    run: dram,
    demo: Some(Demo {
        part: "",
        timed: true,
        byte_divisor_min: 20,
        setup: |byte_divisor| setup(DRAM_FILE_BYTES, STROKE_PART, byte_divisor),
        checks: |with, _| dram_checks(*with.concat().last().expect("every phase has a point")),
    }),
};

/// A file four times as large as the memory.
pub const SPILL: Scenario = Scenario {
    name: "vnx-spill",
    title: "a file of 15 GB on bare disks, and behind 4 GB of memory",
    source: SOURCE,
    setting: "as vnx-dram with a file of 15 GB over the whole stroke of the disks, as for the published peak loads; a \
              minute a step, with memory after 15 minutes of the first one",
    run: spill,
    demo: Some(Demo {
        part: "",
        timed: true,
        byte_divisor_min: 20,
        setup: |byte_divisor| setup(SPILL_FILE_BYTES, WHOLE_STROKE, byte_divisor),
        checks: |with, without| {
            let last = |steps: &[Vec<Point>]| steps.iter().map(|step| last_minutes(step)).collect::<Vec<_>>();
            spill_checks(&last(with), &last(without))
        },
    }),
};

const GROUPS: u64 = 3;
/// A LUN lies on the first twelfth of its disks, as in a lightly used pool.
pub(super) const STROKE_PART: u64 = 12;
/// A LUN lies on its disks from end to end.
const WHOLE_STROKE: u64 = 1;
const DRAM_FILE_BYTES: u64 = 2 * GB;
const SPILL_FILE_BYTES: u64 = 15 * GB;

/// `groups` RAID 5 groups with a LUN each on the first `1 / stroke_part` of the disks, and the corresponding part of
/// memory.
pub(super) fn plan(seed: u64, groups: u64, file_bytes: u64, stripe_bytes: u64, stroke_part: u64) -> Plan {
    let lun = (file_bytes / groups).next_multiple_of(stripe_bytes);
    let array = ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas10k).fitted(stroke_part * lun);
    Plan {
        seed,
        memory_bytes: 4 * GB * groups / 3,
        arrays: vec![(array, lun); groups as usize],
        layout: Layout::Striped(stripe_bytes),
        flash: None,
        policy: engine::WritePolicy::WriteBack,
        cached: true,
        speedup: 1,
    }
}

/// IOMeter's Database pattern; IOMeter aligns requests to multiples of their size.
pub(super) fn database(file_bytes: u64) -> Pattern {
    Pattern { align_bytes: 8192, ..Pattern::random(file_bytes, 8192, 67) }
}

/// The published steps, each with `1 / parts` of the requests outstanding.
pub(super) fn phases(file_bytes: u64, parts: u64) -> Vec<Phase> {
    let phase = |depth: u32| {
        let jobs = vec![Job::closed_loop("all", database(file_bytes), depth / parts as u32)];
        Phase::new(format!("{depth} outstanding"), STEP_MINUTES, jobs)
    };
    OUTSTANDING.map(phase).into()
}

/// The set-up of a demonstration, with bytes and time divided by `byte_divisor`.
fn setup(file_bytes: u64, stroke_part: u64, byte_divisor: u64) -> Setup {
    let file_bytes = file_bytes / byte_divisor;
    // Smaller stripes, so that a small file also lies on all LUNs.
    let plan = plan(1, GROUPS, file_bytes, MIB, stroke_part);
    let with = Plan { memory_bytes: 4 * GB / byte_divisor, speedup: byte_divisor, ..plan };
    let without = Plan { cached: false, ..with.clone() };
    Setup::new(with, without, phases(file_bytes, 1), byte_divisor)
}

/// Mean rate and latency of a step's last five minutes.
fn last_minutes(step: &[Point]) -> Point {
    let last = &step[step.len().saturating_sub(5)..];
    let (iops, latency_ms) = (mean(last, |point| point.iops), mean(last, |point| point.latency_ms));
    Point { iops, latency_ms, ..Point::default() }
}

fn dram(seed: u64) -> Outcome {
    let file_bytes = DRAM_FILE_BYTES;
    let mut bed = TestBed::new(&plan(seed, GROUPS, file_bytes, STRIPE_BYTES, STROKE_PART));
    let mut points = bed.warm_up(&database(file_bytes), OUTSTANDING[0], STEP_MINUTES, seed);
    for depth in OUTSTANDING {
        points.push(bed.measure_rate(&database(file_bytes), depth, 2, seed));
    }
    let last = points[points.len() - 1];
    let checks = dram_checks(last);
    let notes = vec![format!("{:.1} times the published rate", last.iops / 28_600.0)];
    let mut outcome = Outcome { checks, notes, ..Outcome::default() };
    outcome.add_run("with", points);
    outcome
}

fn dram_checks(last: Point) -> Vec<Check> {
    vec![
        Check::at_least("requests per second at 192 outstanding", last.iops, 28_600.0, QUEUEING),
        Check::at_most("mean latency at 192 outstanding, ms", last.latency_ms, 6.7, SOURCE),
    ]
}

fn spill(seed: u64) -> Outcome {
    let file_bytes = SPILL_FILE_BYTES;
    // Each step draws different requests; the same requests would hit data that the previous step left in memory.
    let steps = || (1..).zip(OUTSTANDING).map(|(step, depth)| (depth, seed * 100 + step));
    let plan = plan(seed, GROUPS, file_bytes, STRIPE_BYTES, WHOLE_STROKE);
    let mut bare = TestBed::new(&Plan { cached: false, memory_bytes: 64 * MIB, ..plan.clone() });
    let without: Vec<Point> =
        steps().map(|(depth, seed)| bare.measure_rate(&database(file_bytes), depth, 60, seed)).collect();
    let mut bed = TestBed::new(&plan);
    bed.run_pattern(&database(file_bytes), OUTSTANDING[0], STEP_MINUTES, true, seed);
    let with: Vec<Point> =
        steps().map(|(depth, seed)| bed.measure_rate(&database(file_bytes), depth, 60, seed)).collect();
    let checks = spill_checks(&with, &without);
    let steps = without.iter().zip(OUTSTANDING);
    let note =
        |(point, depth): (&Point, u32)| format!("{depth} outstanding: {:.0}/s, {:.1} ms", point.iops, point.latency_ms);
    let notes = vec![format!("without cache: {}", steps.map(note).collect::<Vec<_>>().join("; "))];
    let mut outcome = Outcome { checks, notes, ..Outcome::default() };
    outcome.add_run("with", with).add_run("without", without);
    outcome
}

/// Checks of the steps, a point per step.
fn spill_checks(with: &[Point], without: &[Point]) -> Vec<Check> {
    let plateau = without[OUTSTANDING.len() - 1].iops;
    let mut checks = vec![
        Check::between("requests per second without cache, 192 outstanding", plateau, 1_695.0, 2_260.0, SOURCE),
        Check::at_least("requests per second with memory, 24 outstanding", with[1].iops, 24.0 / 0.014, QUEUEING),
    ];
    for (index, depth) in OUTSTANDING.into_iter().enumerate() {
        let name = format!("with memory against without, {depth} outstanding");
        checks.push(Check::at_least(name, with[index].iops / without[index].iops, 1.0, "promised: never slower"));
    }
    checks
}
