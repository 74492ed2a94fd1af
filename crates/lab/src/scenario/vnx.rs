//! A mid-range array of 2011 with 15 SAS disks, its cache memory, and FAST Cache on two flash devices of 100 GB.
//!
//! The published load is IOMeter's Database pattern (8 KiB, 67 % reads, all random) with 12, 24, 48, 96 and 192 requests outstanding, 15
//! minutes each. Three RAID 5 groups 4+1 carry a read at the cost of one disk access, a write at that of four: 15 disks of 150 a
//! second give 2,250 / (0.67 + 0.33 x 4) = 1,130 requests a second; practice is 1.5 to 2 times that, for the disks choose the order.

use seam::model::{ArraySpec, DiskType, RaidLevel};

use super::Scenario;
use super::bed::{Bed, FlashPlan, Plan};
use super::series::{Check, Outcome, Point, least_ratio, mean};
use crate::workload::Pattern;

const GB: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;
const OUTSTANDING: [u32; 5] = [12, 24, 48, 96, 192];
const STEP_MINUTES: u64 = 15;
const SOURCE: &str = "FAST Cache on a VNX, IOMeter Database pattern, published 2011-2012";
const QUEUEING: &str = "derived from the publication by queueing arithmetic (outstanding = rate x latency)";

/// A file in the cache memory.
pub const DRAM: Scenario = Scenario {
    name: "vnx-dram",
    title: "a file of 2 GB in 4 GB of memory",
    source: SOURCE,
    setting: "15 SAS 10k as three RAID 5 groups 4+1, 64 KiB stripes, a LUN on the first twelfth of each (1,620 and 2,280 requests a second without cache at 24 and 48 outstanding: no span gives both published figures); 4 GB memory, no flash; the file is read into memory first (at most 15 minutes of the first step), then 2 s a step",
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

/// A file that flash holds easily.
pub const FLASH_FITS: Scenario = Scenario {
    name: "vnx-flash-fits",
    title: "a file of 15 GB with two flash devices of 100 GB",
    source: SOURCE,
    setting: "as vnx-spill, and two flash devices of 100 GB and 3,500 requests a second; a step ends when three minutes differ by less than 1 %",
    run: flash_fits,
};

/// A file larger than the flash.
pub const FLASH_SPILLS: Scenario = Scenario {
    name: "vnx-flash-spills",
    title: "files of 150 GB, and of 1.5 times what flash holds clean: never slower than none",
    source: SOURCE,
    setting: "a third of everything: one RAID 5 group 4+1 of SAS 10k, 4 to 64 outstanding, 1.33 GB memory, two flash devices of 33 GB and 1,167 requests a second, a file of 50 GB and one of 1.5 times the room on flash",
    run: flash_spills,
};

/// A file that the flash just holds.
pub const FLASH_JUST_FITS: Scenario = Scenario {
    name: "vnx-flash-just-fits",
    title: "files of 80 GB, and of 0.95 times what flash holds clean: the gain grows with time",
    source: SOURCE,
    setting: "a third of everything, as vnx-flash-spills, with a file of 26.7 GB and one of 0.95 times the room on flash",
    run: flash_just_fits,
};

/// So many RAID 5 groups with a LUN each, and the part of everything else that goes with them.
fn plan(seed: u64, groups: u64, file_bytes: u64) -> Plan {
    let lun = (file_bytes / groups).next_multiple_of(64 * MIB);
    // The LUN lies on the first twelfth of its disks, as in a pool that is used a little.
    let array = ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas10k).fitted(12 * lun);
    Plan {
        seed,
        memory_bytes: 4 * GB * groups / 3,
        arrays: vec![(array, lun); groups as usize],
        flash: None,
        policy: engine::WritePolicy::WriteBack,
        cached: true,
    }
}

fn with_flash(plan: Plan) -> Plan {
    let groups = plan.arrays.len() as u64;
    Plan {
        flash: Some(FlashPlan {
            devices: 2,
            bytes: (100 * GB * groups / 3).next_multiple_of(MIB),
            iops: 3_500 * groups / 3,
        }),
        ..plan
    }
}

fn database(file_bytes: u64) -> Pattern {
    Pattern::random(file_bytes, 8192, 67)
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
    let mut bare = Bed::new(&Plan { cached: false, memory_bytes: 64 * MIB, ..plan(seed, 3, file) });
    let without: Vec<Point> = OUTSTANDING.map(|depth| bare.sample(&database(file), depth, 60, seed)).to_vec();
    let mut bed = Bed::new(&plan(seed, 3, file));
    bed.play(&database(file), OUTSTANDING[0], STEP_MINUTES, true, seed + 1);
    let with: Vec<Point> = OUTSTANDING.map(|depth| bed.sample(&database(file), depth, 60, seed)).to_vec();
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

fn flash_fits(seed: u64) -> Outcome {
    let file = 15 * GB;
    let mut bed = Bed::new(&with_flash(plan(seed, 3, file)));
    let mut steps: Vec<Vec<Point>> = Vec::new();
    for depth in OUTSTANDING {
        steps.push(bed.play(&database(file), depth, STEP_MINUTES, true, seed));
    }
    let settled = |step: usize| steps[step][steps[step].len() - 1];
    let first = &steps[0];
    let ceiling = 7_000.0;
    let mut checks = vec![
        Check::at_most(
            "latency at the end of the first step against its beginning",
            first[first.len() - 1].latency_ms / first[0].latency_ms,
            0.999,
            SOURCE,
        ),
        Check::at_least(
            "requests a second at 96 outstanding",
            settled(3).iops,
            ceiling,
            "10,000/s by queueing arithmetic, or what two devices of 3,500/s read, whichever is lower",
        ),
    ];
    for (step, depth) in OUTSTANDING.into_iter().enumerate().take(4) {
        checks.push(Check::at_most(
            format!("mean latency at {depth} outstanding, ms"),
            settled(step).latency_ms,
            10.0,
            SOURCE,
        ));
    }
    let notes = vec![format!("192 outstanding: {:.0}/s, {:.1} ms", settled(4).iops, settled(4).latency_ms)];
    let mut outcome = Outcome { checks, notes, ..Outcome::default() };
    outcome.run("with", steps.into_iter().flatten().collect());
    outcome
}

/// 75 minutes of a third of the load, with flash or without.
fn third(seed: u64, file_bytes: u64, flash: bool) -> Vec<Point> {
    let plan = plan(seed, 1, file_bytes);
    let mut bed = Bed::new(&if flash { with_flash(plan) } else { plan });
    let mut points = Vec::new();
    for depth in OUTSTANDING {
        points.extend(bed.play(&database(file_bytes), depth / 3, STEP_MINUTES, false, seed));
    }
    points
}

fn room() -> u64 {
    Bed::new(&with_flash(plan(1, 1, GB))).flash_room_bytes()
}

fn flash_spills(seed: u64) -> Outcome {
    let mut outcome = Outcome::default();
    for (name, file) in [("50 GB", 50 * GB), ("1.5 times the room", room() * 3 / 2)] {
        let (with, without) = (third(seed, file, true), third(seed, file, false));
        let least = least_ratio(&with, &without);
        outcome.checks.push(Check::at_least(
            format!("{name}: rate against no flash, the worst minute"),
            least,
            0.98,
            "promised; FAST Cache was slower than none",
        ));
        let last = with[with.len() - 1];
        outcome.notes.push(format!(
            "{name}: {:.2} times the rate without flash in the last five minutes, {:.0} % of flash filled",
            mean(&with[70..], |point| point.iops) / mean(&without[70..], |point| point.iops),
            last.flash_fill_ratio * 100.0
        ));
        outcome.run(&format!("with flash, {name}"), with).run(&format!("without, {name}"), without);
    }
    outcome
}

fn flash_just_fits(seed: u64) -> Outcome {
    let mut outcome = Outcome::default();
    for (name, file) in [("26.7 GB", 80 * GB / 3), ("0.95 times the room", room() * 95 / 100)] {
        let (with, without) = (third(seed, file, true), third(seed, file, false));
        let fives: Vec<f64> = with[10..].chunks_exact(5).map(|five| mean(five, |point| point.read_hit_ratio)).collect();
        let rise =
            fives.windows(2).map(|pair| if pair[0] > 0.99 { 0.0 } else { pair[1] - pair[0] }).fold(f64::MAX, f64::min);
        outcome.checks.push(Check::at_least(
            format!("{name}: rise of the hit ratio from minute 15 on, the worst five minutes (until 0.99)"),
            rise,
            0.0,
            SOURCE,
        ));
        outcome.checks.push(Check::at_least(
            format!("{name}: rate against no flash from minute 15 on, the worst minute"),
            least_ratio(&with[15..], &without[15..]),
            1.0,
            SOURCE,
        ));
        let ahead = mean(&with[58..61], |point| point.iops) / mean(&without[58..61], |point| point.iops);
        outcome.checks.push(Check::at_least(
            format!("{name}: rate against no flash at minute 60"),
            ahead,
            1.05,
            SOURCE,
        ));
        outcome.run(&format!("with flash, {name}"), with).run(&format!("without, {name}"), without);
    }
    outcome
}
