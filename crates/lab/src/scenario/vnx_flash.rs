//! The array of `vnx.rs` with two flash devices of 100 GB, and a file that fits on them.
//!
//! It is a ninth of the publication: one of three RAID 5 groups with a third of the requests outstanding, so that a rate is a third of the
//! published one; and a third of the bytes (of file, memory, flash and the disks' span) and of the time, so that what takes a minute there takes
//! 20 s here. Figures are of the whole and minutes are those of the publication; an SSD serves a third of its requests a second.
//!
//! The SSDs' own ceiling is 2 x 3,500 requests a second; what memory holds of the file, 4 of 15 GB, does not ask them.

use super::Scenario;
use super::bed::{Bed, Plan};
use super::series::{Check, Outcome, Point, mean};
use super::vnx::{GB, OUTSTANDING, QUEUEING, SOURCE, STEP_MINUTES, database, plan};
use crate::rig::FlashPlan;

/// The part of the rates.
const PARTS: u64 = 3;
/// The part of the time, and once more of the bytes.
const HASTE: u64 = 3;
const PROMISED: &str = "promised: never slower than without flash";

/// A file of which flash has room for all.
pub const FITS: Scenario = Scenario {
    name: "vnx-flash-fits",
    title: "a file of 15 GB before 4 GB of memory and flash of 2 x 100 GB",
    source: SOURCE,
    setting: "a third of the rates, one RAID 5 group 4+1 of SAS 10k as in vnx-spill, two SSDs with 1,166 requests a second each, 4 to 64 requests outstanding; a ninth of the bytes: a file of 1.67 GB, 0.44 GB memory, 2 x 11.1 GB flash; a third of the time, a minute is 20 s; from cold, at most 15 minutes a step, less once three differ by less than 1 %",
    run: fits,
};

fn flash() -> FlashPlan {
    FlashPlan { devices: 2, bytes: (100 * GB / PARTS / HASTE).next_multiple_of(1 << 20), iops: 3_500 / PARTS }
}

/// The published steps of a quarter of an hour, with flash or without; a step ends once its rate is steady.
fn steps(seed: u64, file_bytes: u64, flash: Option<FlashPlan>) -> Vec<Vec<Point>> {
    let memory_bytes = 4 * GB / PARTS / HASTE;
    let mut bed = Bed::new(&Plan { flash, memory_bytes, haste: HASTE, ..plan(seed, 1, file_bytes) });
    let mut step = |(step, depth): (u64, u32)| {
        bed.play(&database(file_bytes), depth / PARTS as u32, STEP_MINUTES, true, seed * 100 + step)
    };
    (1..).zip(OUTSTANDING).map(&mut step).collect()
}

fn fits(seed: u64) -> Outcome {
    let file = 15 * GB / PARTS / HASTE;
    let (with, without) = (steps(seed, file, Some(flash())), steps(seed, file, None));
    // The last three minutes of each step.
    let last = |steps: &[Vec<Point>], step: usize, of: fn(&Point) -> f64| {
        let points = &steps[step];
        mean(&points[points.len().saturating_sub(3)..], of)
    };
    let iops = last(&with, 3, |point| point.iops) * PARTS as f64;
    let ceiling = 7_000.0 / (1.0 - 4.0 / 15.0);
    let mut checks = vec![
        Check::at_least("requests a second at 96 outstanding", iops, f64::min(10_000.0, ceiling), QUEUEING),
        Check::at_most("mean latency at 96 outstanding, ms", last(&with, 3, |point| point.latency_ms), 10.0, SOURCE),
    ];
    let warmer = last(&with, 0, |point| point.latency_ms) / with[0][0].latency_ms;
    checks.push(Check::at_most("latency at the end of the first step against its beginning", warmer, 1.0, SOURCE));
    for (step, depth) in OUTSTANDING.into_iter().enumerate() {
        let ratio = last(&with, step, |point| point.iops) / last(&without, step, |point| point.iops);
        checks.push(Check::at_least(format!("with flash against without, {depth} outstanding"), ratio, 0.98, PROMISED));
    }
    let line = |(step, depth): (usize, u32)| {
        let (iops, latency) = (last(&with, step, |point| point.iops), last(&with, step, |point| point.latency_ms));
        format!("{depth} outstanding: {:.0}/s, {latency:.1} ms", iops * PARTS as f64)
    };
    let lines: Vec<String> = OUTSTANDING.into_iter().enumerate().map(line).collect();
    let mut outcome =
        Outcome { checks, notes: vec![format!("with flash: {}", lines.join("; "))], ..Outcome::default() };
    outcome.run("with", with.concat()).run("without", without.concat());
    outcome
}
