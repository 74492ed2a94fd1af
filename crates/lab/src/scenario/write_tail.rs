//! The latency tail of reads beside writes that the array has yet to take: two loads at a fixed rate that the bare
//! array carries, each for two hours with the cache and without.
//!
//! The rates leave the bare array less than half busy, so its tail is that of single accesses and short queues. The
//! first load is that of `hotset demo`: 1.6 disk accesses per request (a read takes one, a write four), 400 requests
//! per second, 640 accesses of the 1,500 that five disks deliver. The second is a database over twice the flash: 1.9
//! accesses per request, 300 requests per second, 570 accesses.
//!
//! Misses of one minute are too few for a comparison of their percentiles: of the 192 misses that the demo's load has
//! in a minute, the second slowest would exceed the array's own 99th percentile in four of ten minutes even if both had
//! the same distribution. So misses are compared over the two hours, and all reads minute by minute.

use seam::Nanos;
use seam::model::{ArraySpec, DiskType, RaidLevel};

use super::Scenario;
use super::series::{Check, Outcome, Point};
use super::test_bed::{Plan, TestBed};
use crate::fixture::FlashPlan;
use crate::workload::address_space::Layout;
use crate::workload::{Job, Pace, Pattern, Skew};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const SOURCE: &str = "promised: never slower than the array alone, in the tail as well";
const MINUTES: u64 = 120;
/// Minutes until the cache is warm, which are not measured.
const WARM_MINUTES: u64 = 10;
/// Requests in flight at most.
const DEPTH: u32 = 16;

/// Reads beside writes.
pub const TAIL: Scenario = Scenario {
    name: "write-tail",
    title: "reads beside writes for two hours: the tail with the cache against the array alone",
    source: SOURCE,
    setting: "five SAS 15k in RAID 5, 32 MiB of memory, two flash devices of 512 MiB with 3,500 requests per second \
              each; 8 KiB; the demo's load on 4 GiB: 80 % reads, 99 % of requests to 2 % of the volume, 400 per \
              second; a database on 2 GiB, twice the flash: 70 % reads, uniform, 300 per second; ten minutes to warm",
    run: tail,
    demo: None,
};

/// A load of the scenario.
pub struct Load {
    name: &'static str,
    volume_bytes: u64,
    read_percent: u32,
    skew: Skew,
    rate: f64,
}

/// The load of `hotset demo`, with three misses per second.
pub const DEMO: Load = Load {
    name: "demo",
    volume_bytes: 4 * GIB,
    read_percent: 80,
    skew: Skew::HotCold { hot_percent: 2, accesses_percent: 99 },
    rate: 400.0,
};

const DATABASE: Load =
    Load { name: "database", volume_bytes: 2 * GIB, read_percent: 70, skew: Skew::Uniform, rate: 300.0 };

/// One side of a comparison.
pub struct Run {
    points: Vec<Point>,
    /// Number of reads that the array served.
    pub misses: u64,
    /// Their 99th and 99.9th percentile, over the whole time.
    pub misses_ms: [f64; 2],
}

impl Load {
    fn plan(&self, seed: u64, cached: bool) -> Plan {
        Plan {
            seed,
            memory_bytes: 32 * MIB,
            arrays: vec![(ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas15k), self.volume_bytes)],
            layout: Layout::Concatenated,
            flash: cached.then_some(FlashPlan { devices: 2, bytes: 512 * MIB, iops: 3_500 }),
            policy: engine::WritePolicy::WriteBack,
            cached,
            speedup: 1,
        }
    }

    fn jobs(&self) -> Vec<Job> {
        let pattern = Pattern::random(self.volume_bytes, 8192, self.read_percent).with_skew(self.skew);
        let pattern = Pattern { align_bytes: 8192, ..pattern };
        vec![Job::closed_loop(self.name, pattern, DEPTH).paced(Pace::Rate(self.rate))]
    }

    /// Runs the load for `minutes` after `warm_minutes`.
    pub fn run(&self, seed: u64, cached: bool, warm_minutes: u64, minutes: u64) -> Run {
        let mut bed = TestBed::new(&self.plan(seed, cached));
        let minute = Nanos::from_secs(60);
        let warm = bed.start_clients(&self.jobs(), seed + 1);
        bed.run_for(&warm, Nanos::from_secs(60 * warm_minutes));
        bed.stop_clients(warm);
        let clients = bed.start_clients(&self.jobs(), seed);
        bed.restart_clock();
        let misses_before = bed.misses();
        let points: Vec<Point> = (0..minutes).map(|_| bed.run_for(&clients, minute)).collect();
        let misses = if cached { bed.misses() - misses_before } else { clients.reads() };
        let misses_ms = [0.01, 0.001].map(|above| clients.percentile_of_slowest(misses, above).as_secs_f64() * 1e3);
        bed.stop_clients(clients);
        Run { points, misses, misses_ms }
    }
}

fn tail(seed: u64) -> Outcome {
    let mut outcome = Outcome::default();
    for load in [DEMO, DATABASE] {
        let [with, without] = [true, false].map(|cached| load.run(seed, cached, WARM_MINUTES, MINUTES));
        let name = load.name;
        let worst = |column: fn(&Point) -> f64| {
            let minutes = with.points.iter().zip(&without.points);
            minutes.map(|(with, without)| column(with) / column(without)).fold(0.0, f64::max)
        };
        let misses = |index: usize| with.misses_ms[index] / without.misses_ms[index];
        let errors = with.points.last().map_or(0, |point| point.errors);
        outcome.checks.extend([
            Check::at_most(format!("{name}: misses, p99 against the array alone"), misses(0), 1.0, SOURCE),
            Check::at_most(format!("{name}: misses, p99.9 against the array alone"), misses(1), 1.1, SOURCE),
            Check::at_most(
                format!("{name}: all reads, p99 against the array alone, the worst minute"),
                worst(|point| point.read_p99_ms),
                1.0,
                SOURCE,
            ),
            Check::at_most(
                format!("{name}: all reads, p99.9 against the array alone, the worst minute"),
                worst(|point| point.read_p999_ms),
                1.1,
                SOURCE,
            ),
            Check::at_most(format!("{name}: requests that failed"), errors as f64, 0.0, SOURCE),
        ]);
        let [p99, p999] = with.misses_ms;
        let [array_p99, array_p999] = without.misses_ms;
        outcome.notes.push(format!(
            "{name}: misses p99 {p99:.1} ms, p99.9 {p999:.1} ms; the array alone {array_p99:.1} and {array_p999:.1} ms"
        ));
        outcome.add_run(&format!("{name}, with"), with.points).add_run(&format!("{name}, without"), without.points);
    }
    outcome
}
