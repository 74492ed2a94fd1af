//! An uncongested datastore costs nothing: the same clients with it and without it, in virtual time.

use std::cell::RefCell;
use std::rc::Rc;

use engine::{CoreSpec, DatastoreSpec, DatastoreStats, VolumeSpec};
use lab::fixture::{Fixture, FlashPlan, Target};
use lab::workload::{Access, Job, Pace, Pattern, RequestTarget, RunningJobs, Skew, quantile};
use seam::model::{ArraySpec, DiskType, RaidLevel};
use seam::sim::{SimSeam, StoredContent, WorldSpec};
use seam::{Nanos, Seam};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const DATASTORE: &str = "spindles";
const SECONDS: usize = 60;

/// Executes requests on one volume.
#[derive(Clone)]
struct Client(Target);

impl RequestTarget<SimSeam> for Client {
    async fn execute(&self, seam: &SimSeam, Access { write, at, len }: Access) -> bool {
        let result = match write {
            true => self.0.write(seam, at, len as usize, 1).await,
            false => self.0.read(seam, at, len as usize).await,
        };
        result.is_ok()
    }
}

/// Figures of a run.
#[derive(Default)]
struct RunResult {
    /// Completed requests of both volumes per second.
    per_second: Vec<u64>,
    /// Sorted read latencies.
    reads_us: Vec<u32>,
    datastore: Option<DatastoreStats>,
}

impl RunResult {
    fn p999_us(&self) -> u32 {
        quantile(&self.reads_us, 999)
    }

    /// Lowest ratio of a second's requests to those of the same second of `other`, and that second.
    fn worst_second(&self, other: &RunResult) -> (f64, usize) {
        let pairs = self.per_second.iter().zip(&other.per_second).enumerate();
        let ratios = pairs.map(|(second, (own, other))| (*own as f64 / (*other).max(1) as f64, second));
        ratios.min_by(|a, b| a.0.total_cmp(&b.0)).expect("a run lasts several seconds")
    }
}

/// Stalls of the CPU: their interval and length.
#[derive(Clone, Copy)]
struct Stalls {
    every_ms: u64,
    length_ms: u64,
}

/// Two volumes of 2 GiB on five spindles; clients at 400 reads and 100 writes per second, and at 150 and 40.
fn run(seed: u64, with_datastore: bool, zipf: f64, stalls: Option<Stalls>) -> RunResult {
    let blocks = (256 * MIB / seam::BLOCK_BYTES as u64) as usize;
    let world = WorldSpec { blocks, content: StoredContent::MetadataOnly, ..WorldSpec::new(seed) };
    let fixture = Fixture::new(world, CoreSpec::default());
    fixture.open_flash(&FlashPlan { devices: 2, bytes: GIB, iops: 20_000 });
    if with_datastore {
        fixture.core.set_datastore(&DatastoreSpec::new(DATASTORE));
    }
    let array = ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas10k);
    let disks = fixture.add_disks_on_array(array, &[2 * GIB; 2]);
    let volumes: Vec<_> = disks
        .into_iter()
        .enumerate()
        .map(|(number, disk)| {
            let edit = |spec: &mut VolumeSpec| {
                if with_datastore {
                    spec.datastore = DATASTORE.to_owned();
                }
            };
            fixture.attach_disk(&format!("volume{number}"), disk, edit).expect("volume names are unique")
        })
        .collect();
    fixture.wait_until_checked(&volumes);
    let result_so_far = Rc::new(RefCell::new(RunResult { per_second: vec![0; SECONDS], ..RunResult::default() }));
    let start = fixture.seam.now();
    for (number, (volume, rates)) in volumes.iter().zip([[400.0, 100.0], [150.0, 40.0]]).enumerate() {
        let pattern = |read_percent| {
            Pattern { align_bytes: 8192, ..Pattern::random(256 * MIB, 8192, read_percent) }.with_skew(Skew::Zipf(zipf))
        };
        let jobs = [100, 0].map(|reads| Job::closed_loop("client", pattern(reads), 4)).into_iter().zip(rates);
        let jobs: Vec<_> = jobs.map(|(job, rate)| job.paced(Pace::Rate(rate))).collect();
        let (result_so_far, seam) = (Rc::clone(&result_so_far), fixture.seam.clone());
        RunningJobs::start(
            &fixture.seam,
            &Client(Target::Volume(volume.clone())),
            &jobs,
            seed * 10 + number as u64,
            move |completion| {
                assert!(completion.ok, "a healthy array fails no request");
                let mut result_so_far = result_so_far.borrow_mut();
                let second = (seam.now().since(start).as_secs_f64()) as usize;
                if let Some(count) = result_so_far.per_second.get_mut(second) {
                    *count += 1;
                }
                if !completion.access.write {
                    result_so_far.reads_us.push(completion.latency.as_micros() as u32);
                }
            },
        );
    }
    if let Some(Stalls { every_ms, length_ms }) = stalls {
        let seam = fixture.seam.clone();
        fixture.seam.spawn(async move {
            loop {
                seam.sleep(Nanos::from_millis(every_ms)).await;
                seam.spend(Nanos::from_millis(length_ms));
            }
        });
    }
    fixture.world.block_on(fixture.seam.sleep(Nanos::from_secs(SECONDS as u64)));
    let mut result = result_so_far.take();
    result.reads_us.sort_unstable();
    result.datastore = fixture.core.datastores().into_iter().next();
    result
}

fn assert_costs_nothing(seed: u64, zipf: f64, stalls: Option<Stalls>) {
    let (without, with) = (run(seed, false, zipf, stalls), run(seed, true, zipf, stalls));
    let (worst, second) = with.worst_second(&without);
    let (with_us, without_us) = (with.p999_us(), without.p999_us());
    let congested = with.datastore.as_ref().expect("the run has a datastore").congested_time;
    println!(
        "seed {seed}, zipf {zipf}: second {second} at {worst:.2}, p99.9 of reads {with_us} us, {without_us} us without"
    );
    assert!(worst >= 0.9, "second {second} has {worst:.2} of its requests; congested for {congested}");
    assert!(
        u64::from(with_us) * 10 <= u64::from(without_us) * 11,
        "p99.9 of reads: {with_us} us, {without_us} us without"
    );
}

#[test]
fn uncongested_datastore_slows_no_second_of_its_volumes() {
    for (seed, zipf) in [(1, 1.2), (2, 1.2), (1, 0.99), (2, 0.99)] {
        assert_costs_nothing(seed, zipf, None);
    }
}

#[test]
fn cpu_stalls_slow_a_datastore_no_more_than_its_disks() {
    for (seed, length_ms) in [(1, 50), (1, 200), (2, 200), (3, 500)] {
        assert_costs_nothing(seed, 1.2, Some(Stalls { every_ms: 3 * length_ms, length_ms }));
    }
}
