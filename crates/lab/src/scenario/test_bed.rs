//! The test bed of a scenario: arrays, flash devices, an engine with its volumes, and clients, in virtual time.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

use engine::{AnyDisk, CoreSpec, FineLatencyHistogram, Volume, VolumeStats, WritePolicy};
use seam::model::{ArraySpec, SharedArray};
use seam::sim::{SimSeam, StoredContent, WorldSpec};
use seam::{Disk, Nanos, Seam};

use super::series::{Point, WriteCosts};
use crate::fixture::{Fixture, FlashPlan, Target};
use crate::workload::address_space::{AddressSpace, Layout};
use crate::workload::{Access, Completion, Job, Pattern, RequestTarget, RunningJobs};

/// Size of a page on flash.
const PAGE_BYTES: u64 = flash::PAGE_BLOCKS as u64 * seam::BLOCK_BYTES as u64;
/// Write latency below which a write counts as acknowledged without a wait for the storage.
pub const FAST_WRITE: Nanos = Nanos::from_millis(1);
const MB: f64 = 1e6;
/// Number of the slowest reads of a run that are kept, for percentiles over its whole time.
const SLOWEST_MAX: usize = 1 << 16;

/// Specification of a test bed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed of all random draws.
    pub seed: u64,
    /// Size of the memory cache.
    pub memory_bytes: u64,
    /// Arrays, each with one volume of the given bytes at its beginning.
    pub arrays: Vec<(ArraySpec, u64)>,
    /// Mapping of client addresses to volumes.
    pub layout: Layout,
    /// Flash devices.
    pub flash: Option<FlashPlan>,
    /// Write policy of every volume.
    pub policy: WritePolicy,
    /// False: clients use the bare arrays.
    pub cached: bool,
    /// Factor by which a minute is shortened. With bytes reduced by the same factor everywhere, the curves keep their
    /// shape.
    pub speedup: u64,
}

impl Plan {
    /// The volumes as one address space, as clients see them.
    pub fn address_space(&self) -> AddressSpace {
        AddressSpace::new(self.layout, self.arrays.iter().map(|(_, bytes)| *bytes))
    }

    /// The world and the engine, with the flash devices.
    pub fn fixture(&self) -> Fixture {
        let blocks = (self.memory_bytes / seam::BLOCK_BYTES as u64) as usize;
        let time_max = Nanos::from_secs(1 << 20);
        let world = WorldSpec { blocks, time_max, content: StoredContent::MetadataOnly, ..WorldSpec::new(self.seed) };
        let core = CoreSpec { readahead_max_bytes: 0, flash_check_blocks: 0, ..CoreSpec::default() };
        let fixture = Fixture::new(world, core);
        if let Some(flash) = &self.flash {
            fixture.open_flash(flash);
        }
        fixture
    }
}

/// A running test bed.
pub struct TestBed {
    /// The world and the engine.
    pub fixture: Fixture,
    /// One volume per array.
    pub volumes: Vec<Volume<SimSeam>>,
    /// Storage that the clients access.
    storage: Storage,
    arrays: Vec<SharedArray<SimSeam>>,
    /// Number of disks of all arrays.
    disk_count: usize,
    /// Size of memory and of one flash device.
    dirty_max_bytes: u64,
    /// Capacity of flash in pages.
    slots_max: u64,
    counters: Counters,
    /// Time since the start, in minutes of the publication.
    minute: f64,
    speedup: u64,
}

/// Counters at the last sample.
#[derive(Clone, Copy, Default)]
struct Counters {
    busy_ns: u64,
    reads: u64,
    hits: u64,
    backing_read_bytes: u64,
    costs: WriteCosts,
}

/// Counters of the clients.
#[derive(Default)]
struct Meter {
    requests: Cell<u64>,
    latency_sum_ns: Cell<u64>,
    reads: RefCell<FineLatencyHistogram>,
    /// Reads since the start of the clients.
    all_reads: Cell<u64>,
    /// Highest read latencies, at most [`SLOWEST_MAX`].
    slowest_reads: RefCell<BinaryHeap<Reverse<Nanos>>>,
    writes: Cell<u64>,
    fast_writes: Cell<u64>,
    errors: Cell<u64>,
    /// Requests per job.
    job_requests: Vec<Cell<u64>>,
}

/// Running clients and their counters.
pub struct Clients {
    jobs: RunningJobs,
    meter: Rc<Meter>,
}

impl TestBed {
    /// Builds the planned test bed. The disks keep no content.
    pub fn new(plan: &Plan) -> TestBed {
        let fixture = plan.fixture();
        let (mut arrays, mut disks) = (Vec::new(), Vec::new());
        for (number, (spec, bytes)) in plan.arrays.iter().enumerate() {
            let array = SharedArray::new(fixture.seam.clone(), *spec).expect("a scenario's array can be built");
            disks.push(fixture.add_array_disk(&array, &format!("lun{number}"), *bytes));
            arrays.push(array);
        }
        TestBed::on_disks(plan, fixture, arrays, disks)
    }

    /// Builds the test bed on disks, each the backing of a volume; `arrays` are the arrays under them.
    pub fn on_disks(
        plan: &Plan,
        fixture: Fixture,
        arrays: Vec<SharedArray<SimSeam>>,
        disks: Vec<AnyDisk<SimSeam>>,
    ) -> TestBed {
        let (mut volumes, mut targets) = (Vec::new(), Vec::new());
        let addresses = AddressSpace::new(plan.layout, disks.iter().map(|disk| disk.geometry().size_bytes));
        for (number, disk) in disks.into_iter().enumerate() {
            if plan.cached {
                let volume = fixture
                    .attach_disk(&format!("lun{number}"), disk, |spec| spec.policy = plan.policy)
                    .expect("volume names are unique");
                targets.push(Target::Volume(volume.clone()));
                volumes.push(volume);
            } else {
                targets.push(Target::Disk(disk));
            }
        }
        let disk_count = arrays.iter().map(|array| array.spec().disks).sum();
        let slots_max = fixture.core.pages().map_or(0, |pages| pages.slots_max());
        let dirty_max_bytes = plan.memory_bytes + plan.flash.map_or(0, |flash| flash.bytes);
        let counters = Counters::default();
        let storage = Storage { targets: targets.into(), addresses };
        fixture.wait_until_checked(&volumes);
        TestBed {
            fixture,
            volumes,
            storage,
            arrays,
            disk_count,
            dirty_max_bytes,
            slots_max,
            counters,
            minute: 0.0,
            speedup: plan.speedup,
        }
    }

    /// Keeps `depth` requests of a pattern in flight for `published_minutes`, in minutes of the publication, and
    /// returns a point for each. With `steady` it ends once three consecutive minutes differ by less than 1 %.
    pub fn run_pattern(
        &mut self,
        pattern: &Pattern,
        depth: u32,
        published_minutes: u64,
        steady: bool,
        seed: u64,
    ) -> Vec<Point> {
        let clients = self.start_clients(&single_job(pattern, depth), seed);
        let mut points: Vec<Point> = Vec::new();
        for _ in 0..published_minutes {
            points.push(self.run_for(&clients, Nanos::from_secs(60 / self.speedup)));
            let recent: Vec<f64> = points.iter().rev().take(3).map(|point| point.iops).collect();
            let (min, max) =
                recent.iter().fold((f64::MAX, 0.0_f64), |(low, high), iops| (low.min(*iops), high.max(*iops)));
            if steady && recent.len() == 3 && max <= min * 1.01 {
                break;
            }
        }
        self.stop_clients(clients);
        points
    }

    /// Runs a pattern until 99.5 % of the reads are hits, for at most `virtual_minutes`, which are not shortened;
    /// returns a point every ten seconds of virtual time. The published systems were warm when they were measured.
    pub fn warm_up(&mut self, pattern: &Pattern, depth: u32, virtual_minutes: u64, seed: u64) -> Vec<Point> {
        let clients = self.start_clients(&single_job(pattern, depth), seed);
        let mut points: Vec<Point> = Vec::new();
        while points.last().is_none_or(|point| point.read_hit_ratio < 0.995)
            && points.len() as u64 / 6 < virtual_minutes
        {
            points.push(self.run_for(&clients, Nanos::from_secs(10)));
        }
        self.stop_clients(clients);
        points
    }

    /// Runs a pattern for some seconds and returns one point: the rate at the present state of the cache.
    pub fn measure_rate(&mut self, pattern: &Pattern, depth: u32, seconds: u64, seed: u64) -> Point {
        let clients = self.start_clients(&single_job(pattern, depth), seed);
        let point = self.run_for(&clients, Nanos::from_secs(seconds));
        self.stop_clients(clients);
        point
    }

    /// Starts clients for the jobs.
    pub fn start_clients(&mut self, jobs: &[Job], seed: u64) -> Clients {
        let meter = Rc::new(Meter { job_requests: vec![Cell::default(); jobs.len()], ..Meter::default() });
        let job_meter = Rc::clone(&meter);
        let record = move |completion| job_meter.record(completion);
        let jobs = RunningJobs::start(&self.fixture.seam, &self.storage, jobs, seed, record);
        let clients = Clients { jobs, meter };
        self.take_sample(&clients, Nanos::from_secs(1));
        clients
    }

    /// Runs the clients for `time` and returns its point.
    pub fn run_for(&mut self, clients: &Clients, time: Nanos) -> Point {
        let end = self.fixture.seam.now() + time;
        self.fixture.world.block_on(self.fixture.seam.sleep_until(end));
        self.minute += time.as_secs_f64() * self.speedup as f64 / 60.0;
        self.take_sample(clients, time)
    }

    /// Sets the time of the points to zero.
    pub fn restart_clock(&mut self) {
        self.minute = 0.0;
    }

    /// Stops the clients and waits until they have ended.
    pub fn stop_clients(&self, clients: Clients) {
        self.fixture.world.block_on(clients.jobs.stop(&self.fixture.seam));
    }

    /// Client reads that the cache did not serve completely, as of the last sample.
    pub fn misses(&self) -> u64 {
        self.counters.reads - self.counters.hits
    }

    /// Capacity of flash for clean pages, in bytes.
    pub fn page_capacity_bytes(&self) -> u64 {
        self.slots_max * PAGE_BYTES
    }

    fn stats(&self) -> Vec<VolumeStats> {
        self.volumes.iter().map(Volume::stats).collect()
    }

    /// Costs of the client writes since the start.
    fn write_costs(&self, stats: &[VolumeStats]) -> WriteCosts {
        let sum = |value_of: fn(&VolumeStats) -> u64| stats.iter().map(value_of).sum::<u64>();
        let devices = (0..).map_while(|number| self.fixture.world.disk(format!("flash{number}")));
        let (flash_requests, flash_bytes) =
            devices.map(|device| device.counts()).fold((0, 0), |(requests, bytes), counts| {
                (requests + counts.reads + counts.writes, bytes + counts.write_bytes)
            });
        WriteCosts {
            client_writes: sum(|stats| stats.writes),
            client_bytes: sum(|stats| stats.write_bytes),
            backing_writes: sum(|stats| stats.backing_writes),
            backing_bytes: sum(|stats| stats.backing_write_bytes),
            flash_requests,
            flash_bytes,
        }
    }

    fn take_sample(&mut self, clients: &Clients, time: Nanos) -> Point {
        let stats = self.stats();
        let sum = |value_of: fn(&VolumeStats) -> u64| stats.iter().map(value_of).sum::<u64>();
        let counters = Counters {
            busy_ns: self.arrays.iter().map(|array| array.busy().0).sum(),
            reads: sum(|stats| stats.reads),
            hits: sum(|stats| stats.memory_hits + stats.prefetched_hits + stats.flash_hits),
            backing_read_bytes: sum(|stats| stats.backing_read_bytes),
            costs: self.write_costs(&stats),
        };
        let before = std::mem::replace(&mut self.counters, counters);
        let costs = counters.costs - before.costs;
        let meter = &clients.meter;
        let (requests, latency_sum_ns) = (meter.requests.take(), meter.latency_sum_ns.take());
        let reads = meter.reads.take().summary();
        let (writes, fast_writes) = (meter.writes.take(), meter.fast_writes.take());
        let seconds = time.as_secs_f64();
        let ratio = |count: u64, total: u64| if total == 0 { 0.0 } else { count as f64 / total as f64 };
        let pages = self.fixture.core.pages().map_or(0, |pages| pages.stats().pages);
        Point {
            minute: self.minute,
            iops: requests as f64 / seconds,
            latency_ms: ratio(latency_sum_ns, requests) / 1e6,
            read_p99_ms: reads.p99_us / 1e3,
            read_p999_ms: reads.p999_us / 1e3,
            read_hit_ratio: ratio(counters.hits - before.hits, counters.reads - before.reads),
            fast_write_ratio: ratio(fast_writes, writes),
            flash_fill_ratio: ratio(pages, self.slots_max),
            dirty_ratio: ratio(sum(|stats| stats.dirty_bytes + stats.flash_dirty_bytes), self.dirty_max_bytes),
            backing_read_mb_s: (counters.backing_read_bytes - before.backing_read_bytes) as f64 / MB / seconds,
            backing_write_mb_s: costs.backing_bytes as f64 / MB / seconds,
            backing_utilization: ratio(counters.busy_ns - before.busy_ns, time.0 * self.disk_count as u64),
            errors: meter.errors.get(),
            costs,
        }
    }
}

/// A single job that keeps `depth` requests in flight.
fn single_job(pattern: &Pattern, depth: u32) -> [Job; 1] {
    [Job::closed_loop("all", pattern.clone(), depth)]
}

impl Clients {
    /// Requests per job since the last call.
    pub fn take_job_requests(&self) -> Vec<u64> {
        self.meter.job_requests.iter().map(Cell::take).collect()
    }

    /// Number of reads since the start.
    pub fn reads(&self) -> u64 {
        self.meter.all_reads.get()
    }

    /// Latency exceeded by at most the fraction `above` of the `count` slowest reads. Its rank must lie within the
    /// recorded slowest reads.
    pub fn percentile_of_slowest(&self, count: u64, above: f64) -> Nanos {
        let slowest = self.meter.slowest_reads.borrow().clone().into_sorted_vec();
        let rank = (count as f64 * above) as usize;
        assert!(rank < SLOWEST_MAX, "rank {rank} exceeds the {SLOWEST_MAX} recorded slowest reads");
        slowest.get(rank).map_or(Nanos::ZERO, |latency| latency.0)
    }
}

impl Meter {
    fn record(&self, completion: Completion) {
        let add = |counter: &Cell<u64>, count: u64| counter.set(counter.get() + count);
        if !completion.ok {
            return add(&self.errors, 1);
        }
        add(&self.requests, 1);
        add(&self.job_requests[completion.job], 1);
        add(&self.latency_sum_ns, completion.latency.0);
        if completion.access.write {
            add(&self.writes, 1);
            add(&self.fast_writes, u64::from(completion.latency < FAST_WRITE));
        } else {
            self.reads.borrow().add(completion.latency);
            add(&self.all_reads, 1);
            let mut slowest = self.slowest_reads.borrow_mut();
            if slowest.len() < SLOWEST_MAX {
                slowest.push(Reverse(completion.latency));
            } else if let Some(mut fastest) = slowest.peek_mut()
                && fastest.0 < completion.latency
            {
                *fastest = Reverse(completion.latency);
            }
        }
    }
}

/// Volumes or bare arrays as one linear address space.
#[derive(Clone)]
struct Storage {
    targets: Rc<[Target]>,
    addresses: AddressSpace,
}

impl RequestTarget<SimSeam> for Storage {
    async fn execute(&self, seam: &SimSeam, access: Access) -> bool {
        let (volume, at) = self.addresses.locate(access);
        let result = match access.write {
            true => self.targets[volume].write(seam, at, access.len as usize, 1).await,
            false => self.targets[volume].read(seam, at, access.len as usize).await,
        };
        result.is_ok()
    }
}
