//! The test bed of a scenario: arrays, flash devices, an engine with its volumes, and clients, in virtual time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use engine::{CoreSpec, Histogram, Volume, VolumeStats, WritePolicy};
use seam::model::{ArraySpec, SharedArray};
use seam::sim::{Content, SimSeam, WorldSpec};
use seam::{Nanos, Seam};

use super::series::Point;
use crate::fixture::{Fixture, FlashPlan, Target};
use crate::workload::row::{Layout, Row};
use crate::workload::{Access, Crowd, Door, Ended, Job, Pattern};

/// Size of a page on flash.
const PAGE_BYTES: u64 = flash::PAGE_BLOCKS as u64 * seam::BLOCK_BYTES as u64;
/// Write latency below which a write counts as not having waited for the storage.
pub const QUICK: Nanos = Nanos::from_millis(1);
const MB: f64 = 1e6;

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
    /// Factor by which a minute is shortened. With bytes reduced by the same factor everywhere, the shape of the curves
    /// is kept.
    pub speedup: u64,
}

impl Plan {
    /// The volumes as one address space, as clients see them.
    pub fn row(&self) -> Row {
        Row::new(self.layout, self.arrays.iter().map(|(_, bytes)| *bytes))
    }
}

/// A running test bed.
pub struct TestBed {
    /// The world and the engine.
    pub fixture: Fixture,
    /// One volume per array.
    pub volumes: Vec<Volume<SimSeam>>,
    /// Storage that the clients access.
    door: Storage,
    arrays: Vec<SharedArray<SimSeam>>,
    devices: usize,
    dirty_max: u64,
    slots_max: u64,
    counters: Counters,
    minute: f64,
    speedup: u64,
}

/// Counters at the last sample.
#[derive(Clone, Copy, Default)]
struct Counters {
    busy: u64,
    reads: u64,
    hits: u64,
    backing_read: u64,
    backing_written: u64,
}

/// Counters of the clients.
#[derive(Default)]
struct Meter {
    requests: Cell<u64>,
    waited: Cell<u64>,
    reads: RefCell<Histogram>,
    writes: Cell<u64>,
    quick_writes: Cell<u64>,
    errors: Cell<u64>,
    /// Requests per job.
    jobs: Vec<Cell<u64>>,
}

/// Running clients and their counters.
pub struct Clients {
    crowd: Crowd,
    meter: Rc<Meter>,
}

impl TestBed {
    /// Builds the planned test bed. The disks keep no content.
    pub fn new(plan: &Plan) -> TestBed {
        let blocks = (plan.memory_bytes / seam::BLOCK_BYTES as u64) as usize;
        let time_max = Nanos::from_secs(1 << 20);
        let world = WorldSpec { blocks, time_max, keep: Content::None, ..WorldSpec::new(plan.seed) };
        let core = CoreSpec { readahead_max_bytes: 0, flash_check_blocks: 0, ..CoreSpec::default() };
        let fixture = Fixture::new(world, core);
        if let Some(flash) = &plan.flash {
            fixture.open_flash(flash);
        }
        let (mut arrays, mut volumes, mut targets) = (Vec::new(), Vec::new(), Vec::new());
        for (number, (spec, bytes)) in plan.arrays.iter().enumerate() {
            let array = SharedArray::new(fixture.seam.clone(), *spec).expect("a scenario's array can be built");
            let name = format!("lun{number}");
            let disk = fixture.window(&array, &name, *bytes);
            if plan.cached {
                let volume = fixture.attach_disk(&name, disk, |spec| spec.policy = plan.policy).expect("a new volume");
                targets.push(Target::Volume(volume.clone()));
                volumes.push(volume);
            } else {
                targets.push(Target::Disk(disk));
            }
            arrays.push(array);
        }
        let devices = plan.arrays.iter().map(|(spec, _)| spec.disks).sum();
        let slots_max = fixture.core.pages().map_or(0, |pages| pages.slots_max());
        let dirty_max = plan.memory_bytes + plan.flash.map_or(0, |flash| flash.bytes);
        let counters = Counters::default();
        let door = Storage { targets: targets.into(), row: plan.row() };
        fixture.until_checked(&volumes);
        TestBed {
            fixture,
            volumes,
            door,
            arrays,
            devices,
            dirty_max,
            slots_max,
            counters,
            minute: 0.0,
            speedup: plan.speedup,
        }
    }

    /// Keeps `depth` requests of a pattern in flight for `minutes` and returns a point per minute. With `steady` it
    /// ends once three consecutive minutes differ by less than 1 %.
    pub fn play(&mut self, pattern: &Pattern, depth: u32, minutes: u64, steady: bool, seed: u64) -> Vec<Point> {
        let clients = self.send(&single_job(pattern, depth), seed);
        let mut points: Vec<Point> = Vec::new();
        for _ in 0..minutes {
            points.push(self.minute(&clients, Nanos::from_secs(60 / self.speedup)));
            let last: Vec<f64> = points.iter().rev().take(3).map(|point| point.iops).collect();
            let (least, most) =
                last.iter().fold((f64::MAX, 0.0_f64), |(low, high), iops| (low.min(*iops), high.max(*iops)));
            if steady && last.len() == 3 && most <= least * 1.01 {
                break;
            }
        }
        self.dismiss(clients);
        points
    }

    /// Runs a pattern until 99.5 % of the reads are hits, for at most `minutes`; returns a point every ten seconds. The
    /// published systems were warm when they were measured.
    pub fn warm(&mut self, pattern: &Pattern, depth: u32, minutes: u64, seed: u64) -> Vec<Point> {
        let clients = self.send(&single_job(pattern, depth), seed);
        let mut points: Vec<Point> = Vec::new();
        while points.last().is_none_or(|point| point.read_hit_ratio < 0.995) && points.len() as u64 / 6 < minutes {
            points.push(self.minute(&clients, Nanos::from_secs(10)));
        }
        self.dismiss(clients);
        points
    }

    /// Runs a pattern for some seconds and returns one point: the rate at the present state of the cache.
    pub fn sample(&mut self, pattern: &Pattern, depth: u32, seconds: u64, seed: u64) -> Point {
        let clients = self.send(&single_job(pattern, depth), seed);
        let point = self.minute(&clients, Nanos::from_secs(seconds));
        self.dismiss(clients);
        point
    }

    /// Starts clients for the jobs.
    pub fn send(&mut self, jobs: &[Job], seed: u64) -> Clients {
        let meter = Rc::new(Meter { jobs: vec![Cell::default(); jobs.len()], ..Meter::default() });
        let counted = Rc::clone(&meter);
        let crowd = Crowd::start(&self.fixture.seam, &self.door, jobs, seed, move |ended| counted.record(ended));
        let clients = Clients { crowd, meter };
        self.take_point(&clients, Nanos::from_secs(1));
        clients
    }

    /// Lets `time` pass and returns its point.
    pub fn minute(&mut self, clients: &Clients, time: Nanos) -> Point {
        let end = self.fixture.seam.now() + time;
        self.fixture.world.block_on(self.fixture.seam.sleep_until(end));
        self.minute += time.as_secs_f64() * self.speedup as f64 / 60.0;
        self.take_point(clients, time)
    }

    /// Resets the minute count of the points.
    pub fn restart_clock(&mut self) {
        self.minute = 0.0;
    }

    /// Stops the clients and waits until they have ended.
    pub fn dismiss(&self, clients: Clients) {
        self.fixture.world.block_on(clients.crowd.dismiss(&self.fixture.seam));
    }

    /// Capacity of flash for clean pages, in bytes.
    pub fn clean_bytes(&self) -> u64 {
        self.slots_max * PAGE_BYTES
    }

    fn stats(&self) -> Vec<VolumeStats> {
        self.volumes.iter().map(Volume::stats).collect()
    }

    fn take_point(&mut self, clients: &Clients, time: Nanos) -> Point {
        let stats = self.stats();
        let sum = |of: fn(&VolumeStats) -> u64| stats.iter().map(of).sum::<u64>();
        let counters = Counters {
            busy: self.arrays.iter().map(|array| array.busy().0).sum(),
            reads: sum(|stats| stats.reads),
            hits: sum(|stats| stats.memory_hits + stats.prefetched_hits + stats.flash_hits),
            backing_read: sum(|stats| stats.backing_read_bytes),
            backing_written: sum(|stats| stats.backing_write_bytes),
        };
        let before = std::mem::replace(&mut self.counters, counters);
        let meter = &clients.meter;
        let (requests, waited) = (meter.requests.take(), meter.waited.take());
        let reads = meter.reads.take().summary();
        let (writes, quick) = (meter.writes.take(), meter.quick_writes.take());
        let seconds = time.as_secs_f64();
        let ratio = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let pages = self.fixture.core.pages().map_or(0, |pages| pages.stats().pages);
        Point {
            minute: self.minute,
            iops: requests as f64 / seconds,
            latency_ms: ratio(waited, requests) / 1e6,
            read_p99_ms: reads.p99_us / 1e3,
            read_p999_ms: reads.p999_us / 1e3,
            read_hit_ratio: ratio(counters.hits - before.hits, counters.reads - before.reads),
            write_hit_ratio: ratio(quick, writes),
            flash_fill_ratio: ratio(pages, self.slots_max),
            dirty_ratio: ratio(sum(|stats| stats.dirty_bytes + stats.flash_dirty_bytes), self.dirty_max),
            backing_read_mb_s: (counters.backing_read - before.backing_read) as f64 / MB / seconds,
            backing_write_mb_s: (counters.backing_written - before.backing_written) as f64 / MB / seconds,
            backing_utilization: ratio(counters.busy - before.busy, time.0 * self.devices as u64),
            errors: meter.errors.get(),
        }
    }
}

/// A single job that keeps `depth` requests in flight.
fn single_job(pattern: &Pattern, depth: u32) -> [Job; 1] {
    [Job::eager("all", pattern.clone(), depth)]
}

impl Clients {
    /// Requests per job since the last call.
    pub fn take_jobs(&self) -> Vec<u64> {
        self.meter.jobs.iter().map(Cell::take).collect()
    }
}

impl Meter {
    fn record(&self, ended: Ended) {
        let add = |counter: &Cell<u64>, count: u64| counter.set(counter.get() + count);
        if !ended.ok {
            return add(&self.errors, 1);
        }
        add(&self.requests, 1);
        add(&self.jobs[ended.job], 1);
        add(&self.waited, ended.waited.0);
        if ended.access.write {
            add(&self.writes, 1);
            add(&self.quick_writes, u64::from(ended.waited < QUICK));
        } else {
            self.reads.borrow().add(ended.waited);
        }
    }
}

/// Volumes or bare arrays as one linear address space.
#[derive(Clone)]
struct Storage {
    targets: Rc<[Target]>,
    row: Row,
}

impl Door<SimSeam> for Storage {
    async fn ask(&self, seam: &SimSeam, access: Access) -> bool {
        let (volume, at) = self.row.place(access);
        let result = match access.write {
            true => self.targets[volume].write(seam, at, access.len as usize, 1).await,
            false => self.targets[volume].read(seam, at, access.len as usize).await,
        };
        result.is_ok()
    }
}
