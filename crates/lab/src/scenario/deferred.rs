//! Deferred writes: a memory cache that acknowledges writes and flushes before they are durable, for up to ten seconds,
//! in front of four striped disks.
//!
//! Four 15k disks in RAID 0 write 4 KiB at random at 4 x 180 = 720 per second, and at a quarter of that with one
//! request at a time.

use seam::model::{ArraySpec, DiskType, RaidLevel};

use super::series::{Check, Outcome, Point, mean};
use super::test_bed::{Plan, TestBed};
use super::{Demo, Phase, Scenario, Setup};
use crate::workload::address_space::Layout;
use crate::workload::{Job, Pattern};

const GIB: u64 = 1 << 30;
const SOURCE: &str = "PrimoCache's deferred writes, published comparisons with raw disks";

/// Random writes into memory.
pub const WRITES: Scenario = Scenario {
    name: "deferred-writes",
    title: "4 KiB random writes into 16 GB of memory, deferred for 10 s",
    source: SOURCE,
    setting: "four SAS 15k in RAID 0, 64 KiB stripes, a file of 4 GiB at their beginning, 1 and 32 outstanding, 2 s \
              each (less than the deferral), then the time until everything is on the disks; raw disks, disks behind \
              a controller with 512 MiB",
    run: writes,
    demo: Some(Demo {
        part: "against the raw disks alone, not those behind a controller",
        timed: false,
        byte_divisor_min: 32,
        setup: |byte_divisor| {
            let jobs = |depth| vec![Job::closed_loop("all", pattern(byte_divisor), depth)];
            let phases = OUTSTANDING.map(|depth| Phase::new(format!("{depth} outstanding"), 1, jobs(depth)));
            Setup::new(
                plan(1, byte_divisor),
                Plan { cached: false, ..plan(1, byte_divisor) },
                phases.into(),
                byte_divisor,
            )
        },
        checks: |with, without| {
            let rate = |points: &[Vec<Point>]| mean(&points[0], |point| point.iops);
            vec![times_raw(rate(with) / rate(without))]
        },
    }),
};

const FILE_BYTES: u64 = 4 * GIB;
const OUTSTANDING: [u32; 2] = [1, 32];

/// The file at the beginning of the disks; bytes are divided by `byte_divisor`.
fn plan(seed: u64, byte_divisor: u64) -> Plan {
    let disk_bytes =
        (byte_divisor > 1).then(|| DiskType::Sas15k.capacity_bytes() / byte_divisor / (1 << 16) * (1 << 16));
    let raid = ArraySpec { disk_bytes, ..ArraySpec::new(RaidLevel::Raid0, 4, DiskType::Sas15k) };
    Plan {
        seed,
        memory_bytes: 16 * GIB / byte_divisor,
        arrays: vec![(raid, FILE_BYTES / byte_divisor / (1 << 20) * (1 << 20))],
        layout: Layout::Concatenated,
        flash: None,
        policy: engine::WritePolicy::WriteBackVolatile,
        cached: true,
        speedup: 1,
    }
}

fn pattern(byte_divisor: u64) -> Pattern {
    Pattern::random(FILE_BYTES / byte_divisor / (1 << 20) * (1 << 20), 4096, 0)
}

fn times_raw(ratio: f64) -> Check {
    Check::at_least("times the raw disks' rate, one outstanding", ratio, 300.0, SOURCE)
}

fn writes(seed: u64) -> Outcome {
    let (plan, pattern) = (plan(seed, 1), pattern(1));
    let bare = Plan { cached: false, memory_bytes: 64 << 20, ..plan.clone() };
    let (raid, file_bytes) = plan.arrays[0];
    let controller = ArraySpec { write_cache_bytes: 512 << 20, ..raid };
    let with_controller = Plan { arrays: vec![(controller, file_bytes)], ..bare.clone() };
    let mut with_controller = TestBed::new(&with_controller);
    // The controller's memory is filled first: the comparison is with its sustained rate.
    with_controller.measure_rate(&pattern, 32, 240, seed + 1);
    let mut bed = TestBed::new(&plan);
    let [one, many] = OUTSTANDING.map(|depth| {
        let seed = seed * 100 + u64::from(depth);
        let raw = TestBed::new(&bare).measure_rate(&pattern, depth, 30, seed);
        (bed.measure_rate(&pattern, depth, 2, seed), raw, with_controller.measure_rate(&pattern, depth, 30, seed))
    });
    let started_at = bed.fixture.world.now();
    bed.fixture.world.block_on(bed.volumes[0].destage_all()).expect("a modelled array does not fail");
    let drained = bed.fixture.world.now().since(started_at);
    let ratio = |(with, raw, _): &(Point, Point, Point)| with.iops / raw.iops;
    let checks = vec![
        times_raw(ratio(&one)),
        Check::at_least(
            "times the rate behind a controller with memory, 32 outstanding",
            many.0.iops / many.2.iops,
            1.0,
            SOURCE,
        ),
        Check::at_most("requests that failed", (one.0.errors + many.0.errors) as f64, 0.0, "promised"),
    ];
    let line = |depth: u32, (with, raw, with_controller): &(Point, Point, Point)| {
        let (with, raw, with_controller) = (with.iops, raw.iops, with_controller.iops);
        format!(
            "{depth} outstanding: raw {raw:.0}/s, behind a controller {with_controller:.0}/s, with deferral \
             {with:.0}/s ({:.0} times raw)",
            with / raw
        )
    };
    let notes = vec![line(1, &one), line(32, &many), format!("drained in {drained} after 4 s of writes")];
    let mut outcome = Outcome { checks, notes, ..Outcome::default() };
    outcome
        .add_run("with", vec![one.0, many.0])
        .add_run("raw", vec![one.1, many.1])
        .add_run("controller", vec![one.2, many.2]);
    outcome
}
