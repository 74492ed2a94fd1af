//! Shares, limits and reservations: the published behaviour of Storage I/O Control for volumes on five shared spindles,
//! tested with Hotset.
//!
//! Five 15k disks in RAID 5 serve about 1,700 small random reads per second with long queues, and 180 with one request
//! at a time. Three volumes with 32 requests each exceed the threshold of 30 ms by far.

use std::cell::RefCell;
use std::rc::Rc;

use engine::{CoreSpec, DatastoreSpec, Limits, MemoryQuota, Qos, Threshold, Volume};
use seam::model::{ArraySpec, DiskType, RaidLevel};
use seam::sim::{SimSeam, StoredContent, WorldSpec};
use seam::{Nanos, Seam};

use super::Scenario;
use super::series::{Check, Outcome};
use crate::fixture::{Fixture, Target};
use crate::workload::{Access, Job, Pace, Pattern, RequestTarget, RunningJobs, Skew};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;
const DATASTORE: &str = "spindles";
const SOURCE: &str =
    "VMware, Storage I/O Control: shares, limits and reservations, published evaluations; bounds of the project's own";

/// Contending volumes.
pub const CONTENTION: Scenario = Scenario {
    name: "sioc",
    title: "volumes that contend for five spindles, with shares, limits and reservations",
    source: SOURCE,
    setting: "five SAS 15k in RAID 5, 64 KiB stripes, volumes of 8 GiB that fill them, a threshold of 30 ms (5 ms for \
              volumes that mostly hit); reads that miss unless a check says that they hit",
    run,
    demo: None,
};

/// A completed client request.
#[derive(Clone, Copy)]
struct CompletedRequest {
    completed_at: Nanos,
    latency: Nanos,
}

/// A volume and its completed requests.
struct Vm {
    volume: Volume<SimSeam>,
    completed: Rc<RefCell<Vec<CompletedRequest>>>,
}

/// Executes requests on one volume.
#[derive(Clone)]
struct VolumeTarget(Target);

impl RequestTarget<SimSeam> for VolumeTarget {
    async fn execute(&self, seam: &SimSeam, access: Access) -> bool {
        let Access { at, len, .. } = access;
        let result = match access.write {
            true => self.0.write(seam, at, len as usize, 1).await,
            false => self.0.read(seam, at, len as usize).await,
        };
        result.is_ok()
    }
}

/// A test bed of contending volumes.
struct ContentionBed {
    fixture: Fixture,
    vms: Vec<Vm>,
    seed: u64,
}

impl ContentionBed {
    fn new(seed: u64, memory_bytes: u64, threshold: Option<Threshold>, qos: &[Qos], size_bytes: u64) -> ContentionBed {
        let world = WorldSpec {
            blocks: (memory_bytes / seam::BLOCK_BYTES as u64) as usize,
            time_max: Nanos::from_secs(1 << 20),
            content: StoredContent::MetadataOnly,
            ..WorldSpec::new(seed)
        };
        let core = CoreSpec { readahead_max_bytes: 0, flash_check_blocks: 0, ..CoreSpec::default() };
        let fixture = Fixture::new(world, core);
        if let Some(threshold) = threshold {
            fixture.core.set_datastore(&DatastoreSpec { threshold, ..DatastoreSpec::new(DATASTORE) });
        }
        let spec = ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas15k);
        let disks = fixture.add_disks_on_array(spec, &vec![size_bytes; qos.len()]);
        let vms = qos.iter().zip(disks).enumerate().map(|(number, (qos, disk))| {
            let name = format!("vm{number}");
            let edit = |spec: &mut engine::VolumeSpec| (spec.qos, spec.datastore) = (*qos, DATASTORE.to_owned());
            let volume = fixture.attach_disk(&name, disk, edit).expect("volume names are unique");
            Vm { volume, completed: Rc::default() }
        });
        let vms = vms.collect();
        ContentionBed { fixture, vms, seed }
    }

    /// Starts a client that keeps `depth` requests of a pattern in flight on a volume.
    fn start_client(&self, vm: usize, pattern: Pattern, depth: u32) -> RunningJobs {
        self.start_job(vm, Job::closed_loop("vm", pattern, depth))
    }

    fn start_job(&self, vm: usize, job: Job) -> RunningJobs {
        let target = VolumeTarget(Target::Volume(self.vms[vm].volume.clone()));
        let (completed, seam) = (Rc::clone(&self.vms[vm].completed), self.fixture.seam.clone());
        let seed = self.seed * 100 + vm as u64;
        RunningJobs::start(&self.fixture.seam, &target, &[job], seed, move |request| {
            if request.ok {
                completed.borrow_mut().push(CompletedRequest { completed_at: seam.now(), latency: request.latency });
            }
        })
    }

    /// Runs the clients for a time; returns its end.
    fn run_for(&self, seconds: u64) -> Nanos {
        let end = self.fixture.seam.now() + Nanos::from_secs(seconds);
        self.fixture.world.block_on(self.fixture.seam.sleep_until(end));
        end
    }

    fn stop_client(&self, client: RunningJobs) {
        self.fixture.world.block_on(client.stop(&self.fixture.seam));
    }

    /// Requests of a volume that ended in `[from, from + time)`.
    fn count(&self, vm: usize, from: Nanos, time: Nanos) -> u64 {
        let completed = self.vms[vm].completed.borrow();
        let count_before = |time: Nanos| completed.partition_point(|request| request.completed_at < time);
        (count_before(from + time) - count_before(from)) as u64
    }

    /// 99th percentile of a volume's latency in `[from, from + time)`, in milliseconds.
    fn p99(&self, vm: usize, from: Nanos, time: Nanos) -> f64 {
        let completed = self.vms[vm].completed.borrow();
        let within =
            completed.iter().filter(|request| request.completed_at >= from && request.completed_at < from + time);
        let mut latencies: Vec<Nanos> = within.map(|request| request.latency).collect();
        latencies.sort_unstable();
        latencies.get(latencies.len().saturating_sub(1) * 99 / 100).map_or(f64::NAN, |latency| latency.0 as f64 / 1e6)
    }

    /// Highest number of requests of a volume that ended within any second.
    fn max_per_second(&self, vm: usize) -> u64 {
        let completed = self.vms[vm].completed.borrow();
        let mut first = 0;
        let counts = completed.iter().enumerate().map(|(last, request)| {
            while request.completed_at.since(completed[first].completed_at).0 >= SECOND {
                first += 1;
            }
            (last - first + 1) as u64
        });
        counts.max().unwrap_or(0)
    }

    /// Memory hits and reads of some volumes.
    fn hits(&self, vms: std::ops::Range<usize>) -> (u64, u64) {
        let stats = vms.map(|vm| self.vms[vm].volume.stats());
        stats.fold((0, 0), |sum, stats| (sum.0 + stats.memory_hits, sum.1 + stats.reads))
    }
}

/// The threshold commonly recommended for disks.
fn threshold() -> Option<Threshold> {
    Some(Threshold::Latency(Nanos::from_millis(30)))
}

fn shares(shares: u32) -> Qos {
    Qos { shares, ..Qos::default() }
}

fn misses(bytes: u32) -> Pattern {
    Pattern::random(8 * GIB, bytes, 100)
}

fn run(seed: u64) -> Outcome {
    let mut outcome = Outcome::default();
    for weights in [[2_000, 1_000, 500], [1_000, 500, 500]] {
        proportions(seed, threshold(), weights, &mut outcome);
    }
    proportions(seed, Some(Threshold::Auto), [2_000, 1_000, 500], &mut outcome);
    stopped_volume(seed, &mut outcome);
    limits(seed, &mut outcome);
    reservation(seed, &mut outcome);
    large_blocks(seed, &mut outcome);
    neighbours(seed, false, &mut outcome);
    neighbours(seed, true, &mut outcome);
    outcome
}

fn proportions(seed: u64, threshold: Option<Threshold>, weights: [u32; 3], outcome: &mut Outcome) {
    let bed = ContentionBed::new(seed, 64 * MIB, threshold, &weights.map(shares), 8 * GIB);
    let _clients: Vec<_> = (0..3).map(|vm| bed.start_client(vm, misses(4096), 32)).collect();
    // Finding the threshold automatically takes longer.
    let measured_from = bed.run_for(if threshold == Some(Threshold::Auto) { 60 } else { 5 });
    bed.run_for(60);
    let mut deviation_max = 0.0_f64;
    for second in 0..50 {
        let from = measured_from + Nanos::from_secs(second);
        let counts = [0, 1, 2].map(|vm| bed.count(vm, from, Nanos::from_secs(10)) as f64);
        let total: f64 = counts.iter().sum();
        let weight_sum: u32 = weights.iter().sum();
        for (count, weight) in counts.iter().zip(weights) {
            let expected = total * f64::from(weight) / f64::from(weight_sum);
            deviation_max = deviation_max.max((count / expected - 1.0).abs());
        }
    }
    let suffix = if threshold == Some(Threshold::Auto) { ", automatic threshold" } else { "" };
    let name =
        format!("shares {weights:?}{suffix}: largest relative deviation from the share-weighted rate in any 10 s");
    outcome.checks.push(Check::at_most(name, deviation_max, 0.05, SOURCE));
    let rate: u64 = (0..3).map(|vm| bed.count(vm, measured_from, Nanos::from_secs(60))).sum();
    let stats = &bed.fixture.core.datastores()[0];
    let latency = (0..3).map(|vm| bed.p99(vm, measured_from, Nanos::from_secs(60)));
    let latency: Vec<_> = latency.map(|p99| format!("{p99:.0}")).collect();
    outcome.notes.push(format!(
        "shares {weights:?}{suffix}: {} reads per second in all, p99 {} ms, threshold {}, window {:.0}",
        rate / 60,
        latency.join("/"),
        stats.threshold,
        stats.window_accesses.unwrap_or(0.0),
    ));
}

fn stopped_volume(seed: u64, outcome: &mut Outcome) {
    let bed = ContentionBed::new(seed, 64 * MIB, threshold(), &[2_000, 1_000, 500].map(shares), 8 * GIB);
    let first = bed.start_client(0, misses(4096), 32);
    let _others = [bed.start_client(1, misses(4096), 32), bed.start_client(2, misses(4096), 32)];
    let measured_from = bed.run_for(10);
    bed.run_for(20);
    let before = (0..3).map(|vm| bed.count(vm, measured_from, Nanos::from_secs(20))).sum::<u64>() as f64 / 20.0;
    let p99_before = bed.p99(0, measured_from, Nanos::from_secs(20));
    bed.stop_client(first);
    let second_after_stop = bed.run_for(1);
    bed.run_for(9);
    let after = [1, 2].map(|vm| bed.count(vm, second_after_stop, Nanos::from_secs(5))).iter().sum::<u64>() as f64 / 5.0;
    outcome.checks.push(Check::at_least(
        "one volume stops: rate of the other two after 1 s, relative to the rate of all three before",
        after / before,
        0.9,
        "64 outstanding on five spindles against 96; the window is the same",
    ));
    let restarted_at = bed.fixture.seam.now();
    let _first = bed.start_client(0, misses(4096), 32);
    bed.run_for(5);
    let p99_after = bed.p99(0, restarted_at, Nanos::from_secs(2));
    outcome.checks.push(Check::at_most(
        "the stopped volume resumes: p99 of its first 2 s relative to its p99 before",
        p99_after / p99_before,
        1.5,
        SOURCE,
    ));
    outcome.notes.push(format!(
        "one volume stops: {before:.0} reads per second before, {after:.0} after; p99 {p99_before:.0} \
                                ms, {p99_after:.0} ms after it resumes"
    ));
}

fn limits(seed: u64, outcome: &mut Outcome) {
    let cases = [
        ("500 requests per second", Limits { iops: 500, ..Limits::default() }, 4096, 510),
        (
            "500 requests per second, a burst of 1,000",
            Limits { iops: 500, burst_iops: 1_000, ..Limits::default() },
            4096,
            1_510,
        ),
        ("20 MB per second", Limits { bytes: 20_000_000, ..Limits::default() }, 65_536, 20_400_000 / 65_536),
    ];
    for (name, limits, bytes, max) in cases {
        for depth in [1, 64] {
            let bed = ContentionBed::new(seed, 64 * MIB, None, &[Qos::default()], 8 * GIB);
            let hits = Pattern::random(16 * MIB, bytes, 100);
            // Reads all of it into memory first.
            let reader = bed.start_client(0, hits.clone().with_skew(Skew::Sequential), 4);
            bed.run_for(20);
            bed.stop_client(reader);
            let before = bed.vms[0].volume.stats();
            bed.vms[0].completed.borrow_mut().clear();
            bed.vms[0]
                .volume
                .set_qos(Qos { limits, ..Qos::default() })
                .expect("limits without a reservation are accepted");
            let _client = bed.start_client(0, hits, depth);
            bed.run_for(30);
            let after = bed.vms[0].volume.stats();
            let completed_count = bed.vms[0].completed.borrow().len() as f64;
            assert_eq!(
                after.memory_hits - before.memory_hits,
                after.reads - before.reads,
                "every read is a memory hit"
            );
            let name = format!("{name}, hits, {depth} outstanding");
            let allowed = limits.iops.max(limits.bytes / u64::from(bytes)) as f64;
            outcome.checks.push(Check::at_most(
                format!("{name}: most in any second"),
                bed.max_per_second(0) as f64,
                max as f64,
                "the limit, 2 % and the burst",
            ));
            outcome.checks.push(Check::at_least(
                format!("{name}: fraction of the limit"),
                completed_count / 30.0 / allowed,
                0.97,
                SOURCE,
            ));
        }
    }
}

fn reservation(seed: u64, outcome: &mut Outcome) {
    let reserved = Qos { shares: 100, reservation_iops: 300, ..Qos::default() };
    let bed = ContentionBed::new(seed, 64 * MIB, threshold(), &[reserved, shares(2_000), shares(2_000)], 8 * GIB);
    let writes = Pattern { align_bytes: 1 << 20, ..Pattern::random(8 * GIB, 1 << 20, 0) };
    let _neighbours = [bed.start_client(1, misses(4096), 128), bed.start_client(2, writes, 128)];
    bed.run_for(10);
    let _client = bed.start_client(0, misses(4096), 32);
    let measured_from = bed.run_for(5);
    bed.run_for(60);
    let windows = (0..55).map(|second| bed.count(0, measured_from + Nanos::from_secs(second), Nanos::from_secs(5)));
    let min = windows.min().unwrap_or(0) as f64 / 5.0;
    outcome.checks.push(Check::at_least("300 a second reserved: lowest rate in any 5 s", min, 285.0, SOURCE));
    let others = [1, 2].map(|vm| bed.count(vm, measured_from, Nanos::from_secs(60)) as f64 / 60.0);
    outcome.notes.push(format!(
        "beside the reservation: {:.0} reads of 4 KiB, {:.1} writes of 1 MiB per second",
        others[0], others[1]
    ));
}

fn large_blocks(seed: u64, outcome: &mut Outcome) {
    let p99 = |bytes: u32, threshold: Option<Threshold>| {
        let bed = ContentionBed::new(seed, 64 * MIB, threshold, &[shares(1_000), shares(1_000)], 8 * GIB);
        let _clients = [bed.start_client(0, misses(4096), 32), bed.start_client(1, misses(bytes), 32)];
        let measured_from = bed.run_for(10);
        bed.run_for(60);
        bed.p99(0, measured_from, Nanos::from_secs(60))
    };
    let (small, large, without) = (p99(4096, threshold()), p99(256 << 10, threshold()), p99(256 << 10, None));
    outcome.checks.push(Check::at_most(
        "neighbour with 256 KiB reads: p99 of 4 KiB reads relative to a neighbour with 4 KiB reads",
        large / small,
        2.0,
        SOURCE,
    ));
    outcome.notes.push(format!(
        "neighbour with 256 KiB reads: p99 {small:.0} ms beside 4 KiB, {large:.0} ms beside \
                                256 KiB, {without:.0} ms without shares"
    ));
}

/// Three steady volumes, each with a minimum memory quota for its hot set, and a fourth that streams 100 GiB or writes
/// for five minutes.
fn neighbours(seed: u64, writes: bool, outcome: &mut Outcome) {
    let neighbour_load = if writes { "writes at full speed for five minutes" } else { "streams 100 GiB" };
    let run_with = |threshold: Option<Threshold>| {
        let bed = ContentionBed::new(seed, 256 * MIB, threshold, &[Qos::default(); 4], 100 * GIB);
        if threshold.is_some() {
            let quota = MemoryQuota { min_bytes: 60 * MIB, max_bytes: None };
            bed.vms[..3].iter().for_each(|vm| vm.volume.set_memory_quota(quota));
        }
        let hot = Pattern::random(GIB, 4096, 100).with_skew(Skew::HotCold { hot_percent: 5, accesses_percent: 95 });
        let _steady: Vec<_> = (0..3)
            .map(|vm| bed.start_job(vm, Job::closed_loop("vm", hot.clone(), 4).paced(Pace::Rate(250.0))))
            .collect();
        bed.run_for(300);
        let measure = |seconds: u64| {
            let (hits, reads) = bed.hits(0..3);
            let measured_from = bed.fixture.seam.now();
            bed.run_for(seconds);
            let (hits_after, reads_after) = bed.hits(0..3);
            let p99 = (0..3).map(|vm| bed.p99(vm, measured_from, Nanos::from_secs(seconds))).fold(0.0, f64::max);
            ((hits_after - hits) as f64 / (reads_after - reads).max(1) as f64, p99)
        };
        let before = measure(120);
        let pattern = match writes {
            true => Pattern::random(8 * GIB, 65_536, 0),
            false => Pattern::random(100 * GIB, 1 << 20, 100).with_skew(Skew::Sequential),
        };
        let _neighbour = bed.start_client(3, pattern, 16);
        (before, measure(300))
    };
    // A volume with its hot set in memory needs low latency for its few misses, so the threshold allows fewer requests
    // in flight.
    let ((hits_before, p99_before), (hits, p99)) = run_with(Some(Threshold::Latency(Nanos::from_millis(5))));
    let (_, (hits_without, p99_without)) = run_with(None);
    outcome.checks.push(Check::at_most(
        format!("one {neighbour_load}: loss of hit ratio of the three others"),
        hits_before - hits,
        0.02,
        SOURCE,
    ));
    outcome.checks.push(Check::at_most(
        format!("one {neighbour_load}: p99 of the three others relative to before"),
        p99 / p99_before,
        1.5,
        SOURCE,
    ));
    outcome.notes.push(format!(
        "one {neighbour_load}: hits {hits_before:.4} before, {hits:.4} beside it ({hits_without:.4} without shares); \
         p99 {p99_before:.1} ms, {p99:.1} ms ({p99_without:.1} ms without shares)"
    ));
}
