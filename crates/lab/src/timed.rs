//! Replay of a trace through the real engine in virtual time, on a modelled array. Requests arrive at their recorded
//! times or at a fixed queue depth. The bare array serves as the comparison.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use engine::{CoreSpec, Volume, VolumeStats, WritePolicy};
use seam::model::{ArraySpec, SharedArray};
use seam::sim::{SimSeam, StoredContent, WorldSpec};
use seam::{Nanos, SECTOR_BYTES, Seam};
use trace::{Op, Request};

use crate::fixture::{Fixture, FlashPlan, Target};
use crate::workload::load::{Figures, REQUEST_COST};

/// Upper limit of requests in flight when arrival times are kept, as in a host's queues. Further requests wait, and
/// their latency includes the wait.
const IN_FLIGHT_MAX: usize = 1_024;
/// Upper limit of devices in a trace; each becomes a volume.
const DEVICES_MAX: usize = 256;
/// Volume sizes are multiples of this.
const ALIGN_BYTES: u64 = 1 << 20;
/// Buffer memory for requests when there is no memory cache.
const TRANSIT_BYTES: u64 = 64 << 20;
/// Smallest buffer pool that serves requests of any size.
const POOL_BYTES_MIN: u64 = 4 << 20;
/// Buffers of a world without a cache. They keep no content, so there are enough for all requests in flight.
const BARE_BLOCKS: usize = 1 << 24;

/// Time at which each request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// At its recorded time.
    Arrivals,
    /// As soon as one of the `n` requests in flight ends.
    Depth(u32),
}

/// The simulated storage for a replay.
#[derive(Clone, Debug)]
pub struct ReplaySetup {
    /// The backing array. Volumes lie side by side from its beginning.
    pub array: ArraySpec,
    /// Cache memory including its index. 0 means 64 MiB of buffers for requests in flight. There are at least 4 MiB of
    /// buffers.
    pub memory_bytes: u64,
    /// Capacity for clean pages of two mirrored flash devices; 0 means no flash.
    pub flash_bytes: u64,
    /// Write policy of every volume.
    pub policy: WritePolicy,
    /// Pace of the requests.
    pub pace: Pace,
    /// Seed of all random draws.
    pub seed: u64,
}

/// Reasons why a trace cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimedError {
    /// The trace has no arrival times.
    #[error("the trace has no times: pass the number of requests in flight, for example --depth 32")]
    NoTimes,
    /// The trace has too many devices.
    #[error("the trace has more than {DEVICES_MAX} disks: convert a part of it")]
    Devices,
    /// The array is too small.
    #[error("the trace needs {needed} bytes, but the array has {array_bytes}: use more or larger disks")]
    TooSmall {
        /// Bytes that the volumes need.
        needed: u64,
        /// Bytes of the array.
        array_bytes: u64,
    },
}

/// Result of a replay.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Latencies, errors, time.
    pub figures: Figures,
    /// Engine counters summed over all volumes; `None` on the bare array.
    pub stats: Option<Counts>,
    /// Mean fraction of the time that a disk of the array was busy.
    pub utilization: f64,
    /// Time after the last request until all data was on the array.
    pub drained: Nanos,
}

/// Engine counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Reads served completely from memory.
    pub memory_hits: u64,
    /// Reads served completely from memory and flash.
    pub flash_hits: u64,
    /// Reads served in part.
    pub partial_hits: u64,
    /// Reads served by the array alone.
    pub misses: u64,
    /// Reads from the array.
    pub backing_reads: u64,
    /// Writes to the array.
    pub backing_writes: u64,
    /// Bytes that clients wrote.
    pub written_bytes: u64,
    /// Bytes written to the array.
    pub backing_write_bytes: u64,
    /// Bytes written to the flash log, on each of its devices.
    pub logged_bytes: u64,
    /// Bytes written to flash as clean pages, on one device.
    pub promoted_bytes: u64,
}

impl Counts {
    fn of(stats: &[VolumeStats]) -> Counts {
        let sum = |value_of: fn(&VolumeStats) -> u64| stats.iter().map(value_of).sum::<u64>();
        Counts {
            reads: sum(|stats| stats.reads),
            memory_hits: sum(|stats| stats.memory_hits),
            flash_hits: sum(|stats| stats.flash_hits),
            partial_hits: sum(|stats| stats.partial_hits),
            misses: sum(|stats| stats.misses),
            backing_reads: sum(|stats| stats.backing_reads),
            backing_writes: sum(|stats| stats.backing_writes),
            written_bytes: sum(|stats| stats.write_bytes),
            backing_write_bytes: sum(|stats| stats.backing_write_bytes),
            logged_bytes: sum(|stats| stats.flash.logged_bytes),
            promoted_bytes: sum(|stats| stats.flash.promoted_bytes),
        }
    }

    /// Reads served entirely by the cache, as a fraction of all reads.
    pub fn read_hit_ratio(&self) -> f64 {
        (self.memory_hits + self.flash_hits) as f64 / self.reads.max(1) as f64
    }
}

/// A request of the replay: whole sectors of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SectorRequest {
    time: Nanos,
    op: Op,
    volume: u32,
    at: u64,
    len: usize,
}

/// A prepared trace, 40 bytes per request. Discards are skipped.
#[derive(Clone, Debug)]
pub struct PreparedTrace {
    prepared: Vec<SectorRequest>,
    /// Size of each volume in bytes.
    volumes: Vec<u64>,
    /// True if at least one request has an arrival time.
    timed: bool,
}

impl PreparedTrace {
    /// Prepares `requests` and derives the volumes that they need.
    pub fn new(requests: &[Request]) -> Result<PreparedTrace, TimedError> {
        let sector = SECTOR_BYTES as u64;
        let (mut prepared, mut volumes, mut volume_of_device) =
            (Vec::with_capacity(requests.len()), Vec::new(), BTreeMap::new());
        let mut timed = false;
        for request in requests.iter().filter(|request| request.op != Op::Discard) {
            let volume = *volume_of_device.entry(request.device).or_insert_with(|| {
                volumes.push(0);
                volumes.len() - 1
            });
            if volumes.len() > DEVICES_MAX {
                return Err(TimedError::Devices);
            }
            let (at, end) = (request.at / sector * sector, (request.at + request.len).next_multiple_of(sector));
            volumes[volume] = u64::max(volumes[volume], end);
            timed |= request.time_ns.is_some();
            let time = Nanos(request.time_ns.unwrap_or(0));
            prepared.push(SectorRequest { time, op: request.op, volume: volume as u32, at, len: (end - at) as usize });
        }
        volumes.iter_mut().for_each(|bytes| *bytes = (*bytes).max(1).next_multiple_of(ALIGN_BYTES));
        Ok(PreparedTrace { prepared, volumes, timed })
    }

    /// True when the trace has arrival times.
    pub fn is_timed(&self) -> bool {
        self.timed
    }

    /// Replays the trace with the cache or on the bare array.
    pub fn replay(&self, setup: &ReplaySetup, cached: bool) -> Result<Outcome, TimedError> {
        if setup.pace == Pace::Arrivals && !self.timed {
            return Err(TimedError::NoTimes);
        }
        let (needed, array_bytes) = (self.volumes.iter().sum(), setup.array.size_bytes());
        if needed > array_bytes {
            return Err(TimedError::TooSmall { needed, array_bytes });
        }
        Ok(Playback::new(self, setup, cached).run(self, setup.pace))
    }
}

/// The engine, the array and the targets of a replay.
struct Playback {
    fixture: Fixture,
    array: SharedArray<SimSeam>,
    disk_count: usize,
    volumes: Vec<Volume<SimSeam>>,
    targets: Vec<Target>,
}

impl Playback {
    fn new(trace: &PreparedTrace, setup: &ReplaySetup, cached: bool) -> Playback {
        let memory = if setup.memory_bytes == 0 { TRANSIT_BYTES } else { setup.memory_bytes };
        let pool = engine::pool_bytes_for(memory).max(POOL_BYTES_MIN);
        let blocks = if cached { (pool / seam::BLOCK_BYTES as u64) as usize } else { BARE_BLOCKS };
        let time_max = Nanos(u64::MAX / 2);
        let world = WorldSpec { blocks, time_max, content: StoredContent::MetadataOnly, ..WorldSpec::new(setup.seed) };
        let core = CoreSpec { readahead_max_bytes: 0, flash_check_blocks: 0, ..CoreSpec::default() };
        let fixture = Fixture::new(world, core);
        if cached && setup.flash_bytes > 0 {
            fixture.open_flash(&FlashPlan::for_pages(setup.flash_bytes));
        }
        let array = SharedArray::new(fixture.seam.clone(), setup.array).expect("the array was checked before");
        let (mut volumes, mut targets) = (Vec::new(), Vec::new());
        for (number, bytes) in trace.volumes.iter().enumerate() {
            let name = format!("volume{number}");
            let disk = fixture.add_array_disk(&array, &name, *bytes);
            if cached {
                let volume = fixture
                    .attach_disk(&name, disk, |spec| spec.policy = setup.policy)
                    .expect("volume names are unique");
                targets.push(Target::Volume(volume.clone()));
                volumes.push(volume);
            } else {
                targets.push(Target::Disk(disk));
            }
        }
        fixture.wait_until_checked(&volumes);
        Playback { fixture, array, disk_count: setup.array.disks, volumes, targets }
    }

    fn run(self, trace: &PreparedTrace, pace: Pace) -> Outcome {
        let seam = self.fixture.seam.clone();
        let (start, busy) = (seam.now(), self.array.busy());
        let figures = Rc::new(RefCell::new(Figures::starting(start)));
        self.fixture.world.block_on(async {
            match pace {
                Pace::Arrivals => self.send_at_arrival_times(trace, &figures).await,
                Pace::Depth(depth) => self.send_at_depth(trace, depth, &figures).await,
            }
        });
        let elapsed = seam.now().since(start);
        let utilization = (self.array.busy().0 - busy.0) as f64 / (elapsed.0 * self.disk_count as u64).max(1) as f64;
        let stats: Vec<VolumeStats> = self.volumes.iter().map(Volume::stats).collect();
        let end = seam.now();
        for volume in &self.volumes {
            self.fixture.world.block_on(volume.destage_all()).expect("a modelled array does not fail");
        }
        let drained = seam.now().since(end);
        let mut figures = Rc::try_unwrap(figures).expect("all requests have ended").into_inner();
        figures.finish(start);
        Outcome { figures, stats: (!stats.is_empty()).then(|| Counts::of(&stats)), utilization, drained }
    }

    /// Sends requests at their recorded times.
    async fn send_at_arrival_times(&self, trace: &PreparedTrace, figures: &Rc<RefCell<Figures>>) {
        let seam = &self.fixture.seam;
        let start = seam.now();
        let in_flight = Rc::new(Cell::new(0));
        for request in &trace.prepared {
            let due = start + request.time;
            seam.sleep_until(due).await;
            while in_flight.get() >= IN_FLIGHT_MAX {
                seam.sleep(Nanos::from_micros(100)).await;
            }
            in_flight.set(in_flight.get() + 1);
            let (seam, target, request) = (seam.clone(), self.targets[request.volume as usize].clone(), *request);
            let (figures, in_flight) = (Rc::clone(figures), Rc::clone(&in_flight));
            self.fixture.seam.spawn(async move {
                // The latency of a delayed request counts from its arrival time, as its client sees it.
                run_request(&seam, &target, request, due, &figures).await;
                in_flight.set(in_flight.get() - 1);
            });
        }
        while in_flight.get() > 0 {
            seam.sleep(Nanos::from_millis(1)).await;
        }
    }

    /// Keeps `depth` requests in flight until the trace ends.
    async fn send_at_depth(&self, trace: &PreparedTrace, depth: u32, figures: &Rc<RefCell<Figures>>) {
        let seam = &self.fixture.seam;
        let (next, clients_left) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(depth)));
        let prepared: Rc<[SectorRequest]> = trace.prepared.as_slice().into();
        for _ in 0..depth {
            let (seam, targets, prepared) = (seam.clone(), self.targets.clone(), Rc::clone(&prepared));
            let (figures, next, clients_left) = (Rc::clone(figures), Rc::clone(&next), Rc::clone(&clients_left));
            self.fixture.seam.spawn(async move {
                while let Some(request) = prepared.get(next.replace(next.get() + 1)) {
                    let began = seam.now();
                    run_request(&seam, &targets[request.volume as usize], *request, began, &figures).await;
                    // A client on a socket yields the core between two requests.
                    seam.yield_now().await;
                }
                clients_left.set(clients_left.get() - 1);
            });
        }
        while clients_left.get() > 0 {
            seam.sleep(Nanos::from_millis(1)).await;
        }
    }
}

async fn run_request(
    seam: &SimSeam,
    target: &Target,
    request: SectorRequest,
    began: Nanos,
    figures: &Rc<RefCell<Figures>>,
) {
    seam.spend(REQUEST_COST);
    let result = match request.op {
        Op::Read => target.read(seam, request.at, request.len).await,
        Op::Write => target.write(seam, request.at, request.len, 1).await,
        // A flush costs time but is not counted: the figures cover reads and writes.
        Op::Flush => return drop(target.flush().await),
        Op::Discard => unreachable!("discards are skipped when the trace is prepared"),
    };
    figures.borrow_mut().record(request.op == Op::Write, began, seam.now(), &result);
}

#[cfg(test)]
mod tests {
    use super::*;
    use seam::model::{DiskType, RaidLevel};

    fn setup(pace: Pace) -> ReplaySetup {
        ReplaySetup {
            array: ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas15k),
            memory_bytes: 64 << 20,
            flash_bytes: 0,
            policy: WritePolicy::WriteBack,
            pace,
            seed: 1,
        }
    }

    fn requests(count: u64, gap: Option<Nanos>) -> Vec<Request> {
        let request = |number: u64| Request {
            time_ns: gap.map(|gap| number * gap.0),
            op: if number % 4 == 3 { Op::Write } else { Op::Read },
            // 8 MiB of each disk, each block repeatedly.
            at: number * 7919 % 2048 * 4096 + 100,
            len: 4096,
            device: (number % 2) as u32 * 1000,
        };
        (0..count).map(request).collect()
    }

    #[test]
    fn arrival_times_are_kept_and_the_cache_reduces_latency() {
        let trace = PreparedTrace::new(&requests(8_000, Some(Nanos::from_millis(2)))).unwrap();
        let with = trace.replay(&setup(Pace::Arrivals), true).unwrap();
        let without = trace.replay(&setup(Pace::Arrivals), false).unwrap();
        for outcome in [&with, &without] {
            assert_eq!((outcome.figures.requests(), outcome.figures.errors), (8_000, 0));
            let seconds = outcome.figures.elapsed.as_secs_f64();
            assert!((15.9..16.2).contains(&seconds), "{seconds}");
        }
        let counts = with.stats.expect("a replay with the cache has engine counters");
        assert_eq!(counts.reads, 6_000);
        assert!(counts.read_hit_ratio() > 0.5, "{counts:?}");
        assert!(counts.reads == counts.memory_hits + counts.partial_hits + counts.misses, "{counts:?}");
        assert!(with.figures.read_us[3_000] * 10 < without.figures.read_us[3_000]);
        assert!(without.stats.is_none());
        // A second replay gives the same result.
        assert_eq!(trace.replay(&setup(Pace::Arrivals), true).unwrap().stats, Some(counts));
    }

    #[test]
    fn higher_queue_depth_raises_the_array_rate() {
        let trace = PreparedTrace::new(&requests(2_000, None)).unwrap();
        assert_eq!(trace.replay(&setup(Pace::Arrivals), true).unwrap_err(), TimedError::NoTimes);
        let alone = trace.replay(&setup(Pace::Depth(1)), false).unwrap();
        let many = trace.replay(&setup(Pace::Depth(16)), false).unwrap();
        assert_eq!((alone.figures.requests(), many.figures.requests()), (2_000, 2_000));
        assert!(many.figures.iops() > 2.0 * alone.figures.iops());
    }

    #[test]
    fn oversized_traces_are_rejected() {
        let far = Request { time_ns: None, op: Op::Read, at: 1 << 50, len: 4096, device: 0 };
        let trace = PreparedTrace::new(&[far]).unwrap();
        assert!(matches!(trace.replay(&setup(Pace::Depth(1)), true), Err(TimedError::TooSmall { .. })));
        let many: Vec<_> = (0..300).map(|device| Request { at: 0, device, ..far }).collect();
        assert_eq!(PreparedTrace::new(&many).unwrap_err(), TimedError::Devices);
    }
}
