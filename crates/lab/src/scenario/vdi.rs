//! 200 virtual desktops on five disks.
//!
//! By the disk rule (180 a second each, a write in RAID 5 at four accesses) five 15k disks carry 900 / (0.15 + 0.85 x 4) = 253 requests
//! a second of this mix; the desktops ask for 200 x (1.34 + 7.58) = 1,784.

use seam::Nanos;
use seam::model::{ArraySpec, DiskType, RaidLevel};

use super::Scenario;
use super::bed::{Bed, Crowd, FlashPlan, Paced, Plan};
use super::series::{Check, Outcome, Point, mean};
use crate::random::Random;
use crate::workload::{Pattern, Skew, Stream};

const GB: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;
const DESKTOPS: u64 = 200;
/// What a desktop's disk holds that is used.
const DESKTOP_BYTES: u64 = 256 * MIB;
/// Requests a desktop makes in a thousand seconds.
const RATE: u64 = 8_920;
const MINUTES: u64 = 90;
const SOURCE: &str = "EMC reference architecture for VDI with FAST Cache, published 2011";

/// Steady state, twice.
pub const DESKTOPS_200: Scenario = Scenario {
    name: "vdi-200",
    title: "200 virtual desktops on five disks, and once more after all were deleted and recreated",
    source: SOURCE,
    setting: "4+1 SAS 15k in RAID 5, 12 GB memory, two flash devices of 100 GB and 3,500 requests a second; a desktop reads 14 KiB 1.34 and writes 12 KiB 7.58 times a second over 256 MiB of its own (90 % of it to a tenth), three log-ons every 5 s; every tenth minute at 2.2 times the rate; 90 minutes, then 20 minutes after a discard of everything",
    run: desktops,
};

fn desktops(seed: u64) -> Outcome {
    let file = DESKTOPS * DESKTOP_BYTES;
    let mut bed = Bed::new(&Plan {
        seed,
        memory_bytes: 12 * GB,
        arrays: vec![(ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas15k).fitted(file), file)],
        flash: Some(FlashPlan { devices: 2, bytes: 100 * GB, iops: 3_500 }),
        policy: engine::WritePolicy::WriteBack,
        cached: true,
    });
    let first = session(&mut bed, MINUTES, seed);
    let volume = bed.volumes[0].clone();
    bed.rig.world.block_on(volume.discard(0, file, engine::WriteFlags::default())).expect("a discard of everything");
    let again = session(&mut bed, 20, seed + 1);
    let mut outcome = Outcome::default();
    for (name, points) in [("first", &first), ("recreated", &again)] {
        // All desktops are there from the sixth minute on.
        let steady = &points[6..];
        let peak =
            steady.iter().fold(Point::default(), |peak, point| if point.iops > peak.iops { *point } else { peak });
        let calm: Vec<Point> = steady.iter().filter(|point| point.iops < 2_500.0).copied().collect();
        outcome.checks.extend([
            Check::at_least(
                format!("{name}: requests a second, mean"),
                mean(&calm, |point| point.iops),
                1_784.0 * 0.99,
                SOURCE,
            ),
            Check::at_least(format!("{name}: requests a second, the peak minute"), peak.iops, 3_848.0, SOURCE),
            Check::at_most(
                format!("{name}: latency, mean of the calm minutes, ms"),
                mean(&calm, |point| point.latency_ms),
                2.0,
                SOURCE,
            ),
            Check::at_most(format!("{name}: latency in the peak minute, ms"), peak.latency_ms, 3.17, SOURCE),
        ]);
        outcome.notes.push(format!(
            "{name}: {:.1} % of the reads from the cache in the last minute",
            points[points.len() - 1].read_hit_ratio * 100.0
        ));
    }
    let failed = again[again.len() - 1].errors + first[first.len() - 1].errors;
    outcome.checks.push(Check::at_most("requests that failed", failed as f64, 0.0, "promised"));
    outcome.run("with", first).run("recreated", again);
    outcome
}

/// Desktops that log on one after the other and work for so many minutes.
fn session(bed: &mut Bed, minutes: u64, seed: u64) -> Vec<Point> {
    let crowd = Crowd::default();
    let begin = bed.rig.world.now();
    let end = begin + Nanos::from_secs(minutes * 60);
    for desktop in 0..DESKTOPS {
        let pattern = Pattern {
            start_bytes: desktop * DESKTOP_BYTES,
            region_bytes: DESKTOP_BYTES,
            read_percent: 15,
            read_bytes: 14 << 10,
            write_bytes: 12 << 10,
            align_bytes: 4096,
            skew: Skew::HotCold { hot_percent: 10, accesses_percent: 90 },
        };
        let log_on = begin + Nanos::from_millis(desktop * 5_000 / 3);
        let paced = |number: u64, rate: u64, from: Nanos, to: Nanos| Paced {
            stream: Stream::new(pattern.clone(), seed, desktop << 8 | number),
            pause: Nanos(1_000_000_000_000 / rate),
            random: Random::new(seed, desktop << 8 | 0x80 | number),
            from,
            to,
        };
        bed.hire(&crowd, paced(0, RATE, log_on, end));
        for burst in 1..=minutes / 10 {
            let from = begin + Nanos::from_secs(burst * 600 - 60);
            bed.hire(&crowd, paced(burst, RATE * 12 / 10, from, from + Nanos::from_secs(60)));
        }
    }
    let points = (0..minutes).map(|_| bed.minute(&crowd, Nanos::from_secs(60))).collect();
    bed.dismiss(crowd);
    points
}
