//! A hypervisor's host-side cache on one SSD: AutoCache's published hour.
//!
//! The array is sized so that it gives 1,500 requests a second of the load without a cache: five 15k disks in RAID 5 (4+1) carry
//! a read at one disk access and a write at four, 0.89 + 0.11 x 4 = 1.33, so 2,000 disk accesses a second, 400 a disk: such a rate takes
//! short strokes and deep queues, hence the span of the disks and the requests outstanding below.

use seam::model::{ArraySpec, DiskType, RaidLevel};

use super::Scenario;
use super::bed::{Bed, Layout, Plan};
use super::series::{Check, Outcome, Point, mean};
use crate::rig::FlashPlan;
use crate::workload::{Pattern, Skew};

const GIB: u64 = 1 << 30;
const HOT: u64 = 8 * GIB;
const FILE: u64 = 40 * GIB;
const OUTSTANDING: u32 = 32;
const SOURCE: &str = "Proximal Data AutoCache with one SSD, published 2012";
const UNCACHED: f64 = 1_500.0;

/// The hour.
pub const HOUR: Scenario = Scenario {
    name: "autocache",
    title: "one SSD of 120 GB before a RAID 5 of five disks, an hour from cold",
    source: SOURCE,
    setting: "4+1 SAS 15k in RAID 5 behind a controller with 512 MiB, a LUN of 40 GiB at their beginning; one SSD of 120 GB and 4,000 requests a second; write-through, 64 MiB of memory (transit alone); 16 KiB, 89 % reads, 32 outstanding, 99 % of them in 8 GiB, the rest in 32 GiB",
    run: hour,
};

fn hour(seed: u64) -> Outcome {
    let array = ArraySpec { controller_bytes: 512 << 20, ..ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas15k) };
    let plan = Plan {
        seed,
        memory_bytes: 64 << 20,
        arrays: vec![(array, FILE)],
        layout: Layout::Turns,
        flash: Some(FlashPlan { devices: 1, bytes: 120_000_000_000, iops: 4_000 }),
        policy: engine::WritePolicy::WriteThrough,
        cached: true,
        haste: 1,
    };
    let skew = Skew::HotCold { hot_percent: (HOT * 100 / FILE) as u32, accesses_percent: 99 };
    let pattern = Pattern::random(FILE, 16_384, 89).with_skew(skew);
    let mut bare = Bed::new(&Plan { cached: false, flash: None, ..plan.clone() });
    // The controller's memory is full before anything is measured.
    bare.sample(&pattern, OUTSTANDING, 300, seed + 1);
    let without = bare.play(&pattern, OUTSTANDING, 5, false, seed);
    let mut bed = Bed::new(&plan);
    let with = bed.play(&pattern, OUTSTANDING, 60, false, seed);
    let base = mean(&without, |point| point.iops);
    let at = |minute: usize| with[minute - 1];
    let writes = |point: &Point| point.backing_write_mb_s;
    let mut checks =
        vec![Check::between("requests a second without cache", base, UNCACHED * 0.9, UNCACHED * 1.1, SOURCE)];
    for (minute, times, hits) in [(3, 1.67, 0.38), (15, 2.67, 0.93), (60, 3.0, 1.0)] {
        checks.push(Check::at_least(
            format!("times the rate without, minute {minute}"),
            at(minute).iops / base,
            times,
            SOURCE,
        ));
        checks.push(Check::at_least(
            format!("reads from the cache, minute {minute}"),
            at(minute).read_hit_ratio,
            hits - 0.005,
            SOURCE,
        ));
    }
    let reads = at(60).backing_read_mb_s / (base * 0.89 * 16_384.0 / 1e6);
    checks.push(Check::at_most("reads of the array at the end against without", reads, 0.05, SOURCE));
    let written = writes(&at(60)) / (base * 0.11 * 16_384.0 / 1e6);
    checks.push(Check::at_least("writes to the array at the end against without", written, 1.0, SOURCE));
    let mut outcome = Outcome { checks, ..Outcome::default() };
    outcome.run("with", with).run("without", without);
    outcome
}
