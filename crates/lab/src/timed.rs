//! Replay of a trace through the real engine in virtual time, on a modelled array. Requests arrive at their recorded
//! times or at a fixed queue depth. The bare array serves as the comparison.

mod clients;
pub mod pool;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use ::pool::PoolError;
use engine::{AnyDisk, CoreSpec, Volume, VolumeStats, WritePolicy};
use seam::model::{ArraySpec, SharedArray};
use seam::sim::{SimSeam, StoredContent, WorldSpec};
use seam::{Nanos, SECTOR_BYTES, Seam};
use trace::{Op, Request};

use crate::fixture::{Fixture, FlashPlan, Target};
use crate::workload::load::Figures;

use clients::Clients;

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

impl ReplaySetup {
    /// The world and the engine, with the flash devices of the cache; `cached` is false for clients without a cache.
    fn fixture(&self, cached: bool) -> Fixture {
        let memory = if self.memory_bytes == 0 { TRANSIT_BYTES } else { self.memory_bytes };
        let pool = engine::pool_bytes_for(memory).max(POOL_BYTES_MIN);
        let blocks = if cached { (pool / seam::BLOCK_BYTES as u64) as usize } else { BARE_BLOCKS };
        let time_max = Nanos(u64::MAX / 2);
        let world = WorldSpec { blocks, time_max, content: StoredContent::MetadataOnly, ..WorldSpec::new(self.seed) };
        let core = CoreSpec { readahead_max_bytes: 0, flash_check_blocks: 0, ..CoreSpec::default() };
        let fixture = Fixture::new(world, core);
        if cached && self.flash_bytes > 0 {
            fixture.open_flash(&FlashPlan::for_pages(self.flash_bytes));
        }
        fixture
    }
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
    /// The pool is too small.
    #[error("the trace uses {needed} bytes in slices, and the pool has {pool_bytes}: use more or larger disks")]
    PoolTooSmall {
        /// Bytes of the slices that the trace uses.
        needed: u64,
        /// Bytes of the pool's slots.
        pool_bytes: u64,
    },
    /// The pool cannot be created.
    #[error("the pool cannot be created: {0}")]
    Pool(#[from] PoolError),
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

    /// Replays the trace with the cache or on the bare array. Volumes lie side by side from the array's beginning.
    pub fn replay(&self, array: ArraySpec, setup: &ReplaySetup, cached: bool) -> Result<Outcome, TimedError> {
        self.check_pace(setup.pace)?;
        let (needed, array_bytes) = (self.volumes.iter().sum(), array.size_bytes());
        if needed > array_bytes {
            return Err(TimedError::TooSmall { needed, array_bytes });
        }
        let fixture = setup.fixture(cached);
        let shared = SharedArray::new(fixture.seam.clone(), array).expect("the array was checked before");
        let names = (0..).map(|number| format!("volume{number}"));
        let disks = names.zip(&self.volumes).map(|(name, bytes)| fixture.add_array_disk(&shared, &name, *bytes));
        let disks = disks.collect();
        let playback = Playback::new(fixture, disks, setup.policy, cached);
        let seam = &playback.fixture.seam;
        let (start, busy) = (seam.now(), shared.busy());
        let figures = Rc::new(RefCell::new(Figures::starting(start)));
        playback.send(self, setup.pace, &figures);
        let elapsed = seam.now().since(start);
        let utilization = (shared.busy().0 - busy.0) as f64 / (elapsed.0 * array.disks as u64).max(1) as f64;
        let stats = playback.counts();
        let drained = playback.drain();
        Ok(Outcome { figures: finished(figures, start), stats, utilization, drained })
    }

    fn check_pace(&self, pace: Pace) -> Result<(), TimedError> {
        if pace == Pace::Arrivals && !self.timed { Err(TimedError::NoTimes) } else { Ok(()) }
    }
}

/// The engine and the targets of a replay.
struct Playback {
    fixture: Fixture,
    volumes: Vec<Volume<SimSeam>>,
    targets: Vec<Target>,
}

impl Playback {
    /// Puts the clients on the disks, or on volumes whose backings these are.
    fn new(fixture: Fixture, disks: Vec<AnyDisk<SimSeam>>, policy: WritePolicy, cached: bool) -> Playback {
        let (mut volumes, mut targets) = (Vec::new(), Vec::new());
        for (number, disk) in disks.into_iter().enumerate() {
            if cached {
                let volume = fixture.attach_disk(&format!("volume{number}"), disk, |spec| spec.policy = policy);
                let volume = volume.expect("volume names are unique");
                targets.push(Target::Volume(volume.clone()));
                volumes.push(volume);
            } else {
                targets.push(Target::Disk(disk));
            }
        }
        fixture.wait_until_checked(&volumes);
        Playback { fixture, volumes, targets }
    }

    /// Sends the requests of a trace. The latencies are in the order of the completions.
    fn send(&self, trace: &PreparedTrace, pace: Pace, figures: &Rc<RefCell<Figures>>) {
        Clients { fixture: &self.fixture, targets: &self.targets, trace, figures }.run(pace);
    }

    /// Engine counters; `None` without volumes.
    fn counts(&self) -> Option<Counts> {
        let stats: Vec<VolumeStats> = self.volumes.iter().map(Volume::stats).collect();
        (!stats.is_empty()).then(|| Counts::of(&stats))
    }

    /// Writes all dirty data to the backings and returns the time that this took.
    fn drain(&self) -> Nanos {
        let start = self.fixture.seam.now();
        for volume in &self.volumes {
            self.fixture.world.block_on(volume.destage_all()).expect("a modelled array does not fail");
        }
        self.fixture.seam.now().since(start)
    }
}

/// Figures that no client uses any more, complete and sorted.
fn finished(figures: Rc<RefCell<Figures>>, start: Nanos) -> Figures {
    let mut figures = Rc::try_unwrap(figures).expect("all requests have ended").into_inner();
    figures.finish(start);
    figures
}

#[cfg(test)]
mod tests {
    use super::*;
    use seam::model::{DiskType, RaidLevel};

    fn setup(pace: Pace) -> ReplaySetup {
        ReplaySetup { memory_bytes: 64 << 20, flash_bytes: 0, policy: WritePolicy::WriteBack, pace, seed: 1 }
    }

    fn array() -> ArraySpec {
        ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas15k)
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
        let with = trace.replay(array(), &setup(Pace::Arrivals), true).unwrap();
        let without = trace.replay(array(), &setup(Pace::Arrivals), false).unwrap();
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
        assert_eq!(trace.replay(array(), &setup(Pace::Arrivals), true).unwrap().stats, Some(counts));
    }

    #[test]
    fn higher_queue_depth_raises_the_array_rate() {
        let trace = PreparedTrace::new(&requests(2_000, None)).unwrap();
        assert_eq!(trace.replay(array(), &setup(Pace::Arrivals), true).unwrap_err(), TimedError::NoTimes);
        let alone = trace.replay(array(), &setup(Pace::Depth(1)), false).unwrap();
        let many = trace.replay(array(), &setup(Pace::Depth(16)), false).unwrap();
        assert_eq!((alone.figures.requests(), many.figures.requests()), (2_000, 2_000));
        assert!(many.figures.iops() > 2.0 * alone.figures.iops());
    }

    #[test]
    fn oversized_traces_are_rejected() {
        let far = Request { time_ns: None, op: Op::Read, at: 1 << 50, len: 4096, device: 0 };
        let trace = PreparedTrace::new(&[far]).unwrap();
        assert!(matches!(trace.replay(array(), &setup(Pace::Depth(1)), true), Err(TimedError::TooSmall { .. })));
        let many: Vec<_> = (0..300).map(|device| Request { at: 0, device, ..far }).collect();
        assert_eq!(PreparedTrace::new(&many).unwrap_err(), TimedError::Devices);
    }
}
