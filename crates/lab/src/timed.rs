//! A trace through the real engine in virtual time, on a modelled array: as the requests once arrived, or so many at once; with the
//! cache, and on the bare array to compare with.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use engine::{CoreSpec, Volume, VolumeStats, WritePolicy};
use seam::model::{ArraySpec, SharedArray};
use seam::sim::{Content, SimSeam, WorldSpec};
use seam::{Nanos, SECTOR_BYTES, Seam};
use trace::{Op, Request};

use crate::rig::{FlashPlan, Rig, Target};
use crate::workload::play::{Figures, REQUEST_COST};

/// Requests under way at most, where arrival times are kept: what a host's queues hold. More than that wait, and their latency says so.
const UNDER_WAY_MAX: usize = 1_024;
/// Disks of a trace at most, each a volume.
const DEVICES_MAX: usize = 256;
/// Volumes begin at multiples of so much.
const ALIGN_BYTES: u64 = 1 << 20;
/// What requests pass through where no memory cache is wanted.
const TRANSIT_BYTES: u64 = 64 << 20;
/// What requests of some size need at least.
const POOL_BYTES_MIN: u64 = 4 << 20;
/// Buffers of a world without a cache, which keep nothing: enough for everything under way.
const BARE_BLOCKS: usize = 1 << 24;

/// When a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// At the time at which it was sent when it was recorded.
    Arrivals,
    /// As soon as one of so many before it has ended.
    Depth(u32),
}

/// What a trace is played on.
#[derive(Clone, Debug)]
pub struct Bench {
    /// The slow storage. Volumes lie side by side at its beginning.
    pub array: ArraySpec,
    /// All memory that caching may take, its index included; 0: 64 MiB for requests to pass through. Never less than 4 MiB of buffers.
    pub memory_bytes: u64,
    /// Clean pages that two mirrored devices have room for.
    pub flash_bytes: u64,
    /// When writes are acknowledged.
    pub policy: WritePolicy,
    /// When requests are sent.
    pub pace: Pace,
    /// Where all draws come from.
    pub seed: u64,
}

/// Why a trace cannot be played.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimedError {
    /// Nothing says when requests came.
    #[error("the trace has no times; say how many requests are to be under way with --depth, like --depth 32")]
    NoTimes,
    /// More disks than can be played.
    #[error("the trace is of more than {DEVICES_MAX} disks; convert a part of it")]
    Devices,
    /// The storage is too small.
    #[error("the trace reaches over {needed} bytes, and the array holds {there}; take more or larger disks")]
    TooSmall {
        /// What the volumes take.
        needed: u64,
        /// What the array has.
        there: u64,
    },
}

/// What came of a trace.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Latencies, errors, time.
    pub figures: Figures,
    /// What the engine counted, all volumes together; nothing on the bare array.
    pub stats: Option<Counts>,
    /// Part of the time that a disk of the array was busy, on average.
    pub utilization: f64,
    /// How long it took, after the last request, until everything was on the array.
    pub drained: Nanos,
}

/// What the engine counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads.
    pub reads: u64,
    /// Reads served whole from memory.
    pub memory_hits: u64,
    /// Reads served whole from memory and flash.
    pub flash_hits: u64,
    /// Reads served in part.
    pub partial_hits: u64,
    /// Reads served from neither.
    pub misses: u64,
    /// Requests to the array.
    pub backing_reads: u64,
    /// Requests to the array.
    pub backing_writes: u64,
    /// Bytes put on flash for reads to come.
    pub promoted_bytes: u64,
}

impl Counts {
    fn of(stats: &[VolumeStats]) -> Counts {
        let sum = |of: fn(&VolumeStats) -> u64| stats.iter().map(of).sum::<u64>();
        Counts {
            reads: sum(|stats| stats.reads),
            memory_hits: sum(|stats| stats.memory_hits),
            flash_hits: sum(|stats| stats.flash_hits),
            partial_hits: sum(|stats| stats.partial_hits),
            misses: sum(|stats| stats.misses),
            backing_reads: sum(|stats| stats.backing_reads),
            backing_writes: sum(|stats| stats.backing_writes),
            promoted_bytes: sum(|stats| stats.flash.promoted_bytes),
        }
    }

    /// Reads served whole by the cache, a read.
    pub fn read_hit_ratio(&self) -> f64 {
        (self.memory_hits + self.flash_hits) as f64 / self.reads.max(1) as f64
    }
}

/// A request as it is played: whole sectors of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ask {
    time: Nanos,
    op: Op,
    volume: u32,
    at: u64,
    len: usize,
}

/// A trace, ready to be played: 40 bytes a request. Discards are passed over.
#[derive(Clone, Debug)]
pub struct Script {
    asks: Vec<Ask>,
    volumes: Vec<u64>,
    timed: bool,
}

impl Script {
    /// Finds out which volumes `requests` need.
    pub fn new(requests: &[Request]) -> Result<Script, TimedError> {
        let sector = SECTOR_BYTES as u64;
        let (mut asks, mut volumes, mut numbers) = (Vec::with_capacity(requests.len()), Vec::new(), BTreeMap::new());
        let mut timed = false;
        for request in requests.iter().filter(|request| request.op != Op::Discard) {
            let volume = *numbers.entry(request.device).or_insert_with(|| {
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
            asks.push(Ask { time, op: request.op, volume: volume as u32, at, len: (end - at) as usize });
        }
        volumes.iter_mut().for_each(|bytes| *bytes = (*bytes).max(1).next_multiple_of(ALIGN_BYTES));
        Ok(Script { asks, volumes, timed })
    }

    /// True when it says when requests came.
    pub fn is_timed(&self) -> bool {
        self.timed
    }

    /// Plays it with the cache, or on the bare array.
    pub fn play(&self, bench: &Bench, cached: bool) -> Result<Outcome, TimedError> {
        if bench.pace == Pace::Arrivals && !self.timed {
            return Err(TimedError::NoTimes);
        }
        let (needed, there) = (self.volumes.iter().sum(), bench.array.size_bytes());
        if needed > there {
            return Err(TimedError::TooSmall { needed, there });
        }
        Ok(Stage::new(self, bench, cached).play(self, bench.pace))
    }
}

/// Everything at work.
struct Stage {
    rig: Rig,
    array: SharedArray<SimSeam>,
    disks: usize,
    volumes: Vec<Volume<SimSeam>>,
    targets: Vec<Target>,
}

impl Stage {
    fn new(script: &Script, bench: &Bench, cached: bool) -> Stage {
        let memory = if bench.memory_bytes == 0 { TRANSIT_BYTES } else { bench.memory_bytes };
        let pool = engine::pool_bytes_for(memory).max(POOL_BYTES_MIN);
        let blocks = if cached { (pool / seam::BLOCK_BYTES as u64) as usize } else { BARE_BLOCKS };
        let time_max = Nanos(u64::MAX / 2);
        let world = WorldSpec { blocks, time_max, keep: Content::None, ..WorldSpec::new(bench.seed) };
        let core = CoreSpec { readahead_max_bytes: 0, flash_check_blocks: 0, ..CoreSpec::default() };
        let rig = Rig::new(world, core);
        if cached && bench.flash_bytes > 0 {
            rig.open_flash(&FlashPlan::for_pages(bench.flash_bytes));
        }
        let array = SharedArray::new(rig.seam.clone(), bench.array).expect("it was checked when it was named");
        let (mut volumes, mut targets) = (Vec::new(), Vec::new());
        for (number, bytes) in script.volumes.iter().enumerate() {
            let name = format!("volume{number}");
            let disk = rig.window(&array, &name, *bytes);
            if cached {
                let volume = rig.attach_disk(&name, disk, |spec| spec.policy = bench.policy).expect("a new volume");
                targets.push(Target::Volume(volume.clone()));
                volumes.push(volume);
            } else {
                targets.push(Target::Disk(disk));
            }
        }
        rig.until_checked(&volumes);
        Stage { rig, array, disks: bench.array.disks, volumes, targets }
    }

    fn play(self, script: &Script, pace: Pace) -> Outcome {
        let seam = self.rig.seam.clone();
        let (begun, busy) = (seam.now(), self.array.busy());
        let figures = Rc::new(RefCell::new(Figures::starting(begun)));
        self.rig.world.block_on(async {
            match pace {
                Pace::Arrivals => self.arrive(script, &figures).await,
                Pace::Depth(depth) => self.queue(script, depth, &figures).await,
            }
        });
        let elapsed = seam.now().since(begun);
        let utilization = (self.array.busy().0 - busy.0) as f64 / (elapsed.0 * self.disks as u64).max(1) as f64;
        let stats: Vec<VolumeStats> = self.volumes.iter().map(Volume::stats).collect();
        let ended = seam.now();
        for volume in &self.volumes {
            self.rig.world.block_on(volume.destage_all()).expect("a modelled array does not fail");
        }
        let drained = seam.now().since(ended);
        let mut figures = Rc::try_unwrap(figures).expect("all requests have ended").into_inner();
        figures.finish(begun);
        Outcome { figures, stats: (!stats.is_empty()).then(|| Counts::of(&stats)), utilization, drained }
    }

    /// Requests go out when they once did.
    async fn arrive(&self, script: &Script, figures: &Rc<RefCell<Figures>>) {
        let seam = &self.rig.seam;
        let begun = seam.now();
        let under_way = Rc::new(Cell::new(0));
        for ask in &script.asks {
            let due = begun + ask.time;
            seam.sleep_until(due).await;
            while under_way.get() >= UNDER_WAY_MAX {
                seam.sleep(Nanos::from_micros(100)).await;
            }
            under_way.set(under_way.get() + 1);
            let (seam, target, ask) = (seam.clone(), self.targets[ask.volume as usize].clone(), *ask);
            let (figures, under_way) = (Rc::clone(figures), Rc::clone(&under_way));
            self.rig.seam.spawn(async move {
                // A request that had to wait for its turn is as late as its client saw it.
                serve(&seam, &target, ask, due, &figures).await;
                under_way.set(under_way.get() - 1);
            });
        }
        while under_way.get() > 0 {
            seam.sleep(Nanos::from_millis(1)).await;
        }
    }

    /// So many requests are under way, as long as there are any.
    async fn queue(&self, script: &Script, depth: u32, figures: &Rc<RefCell<Figures>>) {
        let seam = &self.rig.seam;
        let (next, left) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(depth)));
        let asks: Rc<[Ask]> = script.asks.as_slice().into();
        for _ in 0..depth {
            let (seam, targets, asks) = (seam.clone(), self.targets.clone(), Rc::clone(&asks));
            let (figures, next, left) = (Rc::clone(figures), Rc::clone(&next), Rc::clone(&left));
            self.rig.seam.spawn(async move {
                while let Some(ask) = asks.get(next.replace(next.get() + 1)) {
                    let began = seam.now();
                    serve(&seam, &targets[ask.volume as usize], *ask, began, &figures).await;
                    // A client on a socket lets others have the core between two of its requests.
                    seam.yield_now().await;
                }
                left.set(left.get() - 1);
            });
        }
        while left.get() > 0 {
            seam.sleep(Nanos::from_millis(1)).await;
        }
    }
}

async fn serve(seam: &SimSeam, target: &Target, ask: Ask, began: Nanos, figures: &Rc<RefCell<Figures>>) {
    seam.spend(REQUEST_COST);
    let result = match ask.op {
        Op::Read => target.read(seam, ask.at, ask.len).await,
        Op::Write => target.write(seam, ask.at, ask.len, 1).await,
        // It is no answer to a client's read or write: it costs time and is not counted.
        Op::Flush => return drop(target.flush().await),
        Op::Discard => unreachable!("passed over when the script was written"),
    };
    figures.borrow_mut().note(ask.op == Op::Write, began, seam.now(), &result);
}

#[cfg(test)]
mod tests {
    use super::*;
    use seam::model::{DiskType, RaidLevel};

    fn bench(pace: Pace) -> Bench {
        Bench {
            array: ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas15k),
            memory_bytes: 64 << 20,
            flash_bytes: 0,
            policy: WritePolicy::WriteBack,
            pace,
            seed: 1,
        }
    }

    fn requests(count: u64, gap: Option<Nanos>) -> Vec<Request> {
        let one = |number: u64| Request {
            time_ns: gap.map(|gap| number * gap.0),
            op: if number % 4 == 3 { Op::Write } else { Op::Read },
            // Eight MiB of each disk, each block again and again.
            at: number * 7919 % 2048 * 4096 + 100,
            len: 4096,
            device: (number % 2) as u32 * 1000,
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn arrival_times_are_kept_and_the_cache_helps() {
        let script = Script::new(&requests(8_000, Some(Nanos::from_millis(2)))).unwrap();
        let with = script.play(&bench(Pace::Arrivals), true).unwrap();
        let without = script.play(&bench(Pace::Arrivals), false).unwrap();
        for outcome in [&with, &without] {
            assert_eq!((outcome.figures.requests(), outcome.figures.errors), (8_000, 0));
            let seconds = outcome.figures.elapsed.as_secs_f64();
            assert!((15.9..16.2).contains(&seconds), "{seconds}");
        }
        let counts = with.stats.expect("there is an engine");
        assert_eq!(counts.reads, 6_000);
        assert!(counts.read_hit_ratio() > 0.5, "{counts:?}");
        assert!(counts.reads == counts.memory_hits + counts.partial_hits + counts.misses, "{counts:?}");
        assert!(with.figures.read_us[3_000] * 10 < without.figures.read_us[3_000]);
        assert!(without.stats.is_none());
        // The same again gives the same.
        assert_eq!(script.play(&bench(Pace::Arrivals), true).unwrap().stats, Some(counts));
    }

    #[test]
    fn so_many_at_once_end_as_soon_as_the_array_lets_them() {
        let script = Script::new(&requests(2_000, None)).unwrap();
        assert_eq!(script.play(&bench(Pace::Arrivals), true).unwrap_err(), TimedError::NoTimes);
        let alone = script.play(&bench(Pace::Depth(1)), false).unwrap();
        let many = script.play(&bench(Pace::Depth(16)), false).unwrap();
        assert_eq!((alone.figures.requests(), many.figures.requests()), (2_000, 2_000));
        assert!(many.figures.iops() > 2.0 * alone.figures.iops());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let far = Request { time_ns: None, op: Op::Read, at: 1 << 50, len: 4096, device: 0 };
        let script = Script::new(&[far]).unwrap();
        assert!(matches!(script.play(&bench(Pace::Depth(1)), true), Err(TimedError::TooSmall { .. })));
        let many: Vec<_> = (0..300).map(|device| Request { at: 0, device, ..far }).collect();
        assert_eq!(Script::new(&many).unwrap_err(), TimedError::Devices);
    }
}
