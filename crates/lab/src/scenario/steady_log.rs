//! A day of overwrites with a log that has long been full: the rate that clients get then has to be a steady one.
//!
//! More is overwritten than the flash holds, so in the long run every write costs a write to the array, and clients get
//! what destage delivers. A log that is freed in waves would let them run ahead and then stop them.

use seam::Nanos;
use seam::model::{ArraySpec, DiskType, RaidLevel};

use super::Scenario;
use super::series::{Check, Outcome, Point};
use super::test_bed::{Plan, TestBed};
use crate::fixture::FlashPlan;
use crate::workload::address_space::Layout;
use crate::workload::{Job, Pattern};

const MIB: u64 = 1 << 20;
const VOLUME_BYTES: u64 = 2 << 30;
const SOURCE: &str = "promised: a full log slows clients evenly";
/// Factor by which bytes and time are reduced.
const SPEEDUP: u64 = 48;
/// Minutes of the reduced day.
const MINUTES: u64 = 24 * 60 / SPEEDUP;
/// Minutes of it until the log is full, which are not measured.
const WARM_MINUTES: u64 = 10;
/// Lowest rate of a minute as a fraction of the median.
const FRACTION_MIN: f64 = 0.9;

/// A day of overwrites.
pub const LOG: Scenario = Scenario {
    name: "steady-log",
    title: "a day of overwrites with a log that has long been full",
    source: SOURCE,
    setting: "a 48th of the bytes and of the time, so that a minute stands for 48: four SAS 10k in RAID 10, a \
              volume of 2 GiB, 32 MiB of memory, two flash devices of 512 MiB with 3,500 requests per second each; \
              writes of 8 KiB, uniform, 16 outstanding; ten minutes to fill the log",
    run: day,
    demo: None,
};

fn plan(seed: u64) -> Plan {
    Plan {
        seed,
        memory_bytes: 32 * MIB,
        arrays: vec![(ArraySpec::new(RaidLevel::Raid10, 4, DiskType::Sas10k), VOLUME_BYTES)],
        layout: Layout::Concatenated,
        flash: Some(FlashPlan { devices: 2, bytes: 512 * MIB, iops: 3_500 }),
        policy: engine::WritePolicy::WriteBack,
        cached: true,
        speedup: SPEEDUP,
    }
}

fn day(seed: u64) -> Outcome {
    let mut bed = TestBed::new(&plan(seed));
    let pattern = Pattern { align_bytes: 8192, ..Pattern::random(VOLUME_BYTES, 8192, 0) };
    let clients = bed.start_clients(&[Job::closed_loop("all", pattern, 16)], seed);
    let minute = Nanos::from_secs(60);
    bed.run_for(&clients, Nanos::from_secs(60 * WARM_MINUTES));
    bed.restart_clock();
    let points: Vec<Point> = (0..MINUTES).map(|_| bed.run_for(&clients, minute)).collect();
    bed.stop_clients(clients);
    let mut rates: Vec<f64> = points.iter().map(|point| point.iops).collect();
    rates.sort_by(f64::total_cmp);
    let (median, slowest) = (rates[rates.len() / 2], rates[0]);
    let errors = points.last().map_or(0, |point| point.errors);
    let checks = vec![
        Check::at_least("rate of the slowest minute against the day's median", slowest / median, FRACTION_MIN, SOURCE),
        Check::at_most("requests that failed", errors as f64, 0.0, SOURCE),
    ];
    let fastest = rates[rates.len() - 1];
    let notes = vec![format!("{median:.0} writes per second in the median minute, {slowest:.0} to {fastest:.0}")];
    let mut outcome = Outcome { checks, notes, ..Outcome::default() };
    outcome.add_run("with", points);
    outcome
}
