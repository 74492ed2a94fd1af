//! Replay of a trace on a pool of modelled RAID groups: with the moves of its planner, or with every slice at the place
//! of its first access.
//!
//! The production pool records the heat of the trace's requests, plans and moves. Classes of the tiers are measured as
//! the daemon does it. Slices that the trace uses are allocated before the first request, in the order of their first
//! accesses: the data existed before the trace began.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use engine::{AnyDisk, GroupDisk};
use pool::planner::{ClassCost, Reason};
use pool::{MoveRate, RelocationPlan, RelocationSettings, TierNo, VolumeId, VolumeSpec, probe};
use rustc_hash::FxHashSet;
use seam::model::{ArraySpec, SharedArray};
use seam::sim::SimSeam;
use seam::{Nanos, Seam};
use trace::Op;

use super::{Counts, Pace, Playback, PreparedTrace, ReplaySetup, TimedError, finished};
use crate::fixture::Fixture;
use crate::modelled_pool::{CreatedPool, GroupPlan, ModelledPool, create_pool};
use crate::workload::load::Figures;

/// A tier of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierSetup {
    /// Its name.
    pub name: String,
    /// Its groups; the whole of each array belongs to the pool.
    pub groups: Vec<ArraySpec>,
}

/// The pool of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSetup {
    /// The tiers, the fastest first.
    pub tiers: Vec<TierSetup>,
    /// Bytes of a slice.
    pub slice_bytes: u64,
    /// Rate of the moves; `None`: no slice moves.
    pub rate: Option<MoveRate>,
}

/// Result of a replay on a pool.
#[derive(Clone, Debug, Default)]
pub struct PoolOutcome {
    /// Latencies, errors, time.
    pub figures: Figures,
    /// The same of requests that ended in the second half of the trace's time; `None` at a fixed queue depth.
    pub second_half: Option<HalfOutcome>,
    /// Engine counters; `None` without a cache.
    pub stats: Option<Counts>,
    /// Time after the last request until all data was on the pool.
    pub drained: Nanos,
    /// The tiers, the fastest first.
    pub tiers: Vec<TierOutcome>,
    /// Slices moved.
    pub moves: u64,
    /// Moves that failed.
    pub failed_moves: u64,
    /// Moves that the pool would make at the end.
    pub plan: PlanOutcome,
}

/// Figures of the second half of a replay.
#[derive(Clone, Debug, Default)]
pub struct HalfOutcome {
    /// Read latencies in microseconds, sorted.
    pub read_us: Vec<u32>,
    /// Write latencies, likewise.
    pub write_us: Vec<u32>,
    /// Busy time of all disks.
    pub disk_time: Nanos,
}

/// Result of one tier.
#[derive(Clone, Debug)]
pub struct TierOutcome {
    /// Its name.
    pub name: String,
    /// Measured costs of its groups.
    pub class: ClassCost,
    /// Number of its disks.
    pub disks: usize,
    /// Bytes of its slots.
    pub size_bytes: u64,
    /// Bytes of the slices on it at the end.
    pub used_bytes: u64,
    /// Requests that reached it, copies of moves left out. A request over several slices counts in each.
    pub requests: u64,
    /// Busy time of its disks, copies of moves included.
    pub disk_time: Nanos,
}

/// Sums over a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanOutcome {
    /// Slices that move for their heat.
    pub promotions: u64,
    /// Slices that make room.
    pub make_room: u64,
    /// Slices that move for the reserve of a tier.
    pub reserve: u64,
    /// Slices that move between groups of a tier.
    pub balance: u64,
    /// Bytes to copy.
    pub bytes: u64,
    /// Time to copy them.
    pub duration: Nanos,
    /// Disk time saved per hour, in nanoseconds.
    pub saved_per_hour: i64,
    /// Disk time of the copies.
    pub copy_time: Nanos,
}

impl PlanOutcome {
    fn of(plan: &RelocationPlan) -> PlanOutcome {
        let totals = plan.totals;
        let mut outcome = PlanOutcome {
            bytes: totals.bytes,
            duration: totals.duration,
            saved_per_hour: totals.saved_per_hour,
            copy_time: totals.copy_time,
            ..PlanOutcome::default()
        };
        for planned in &plan.moves {
            match planned.details.reason {
                Reason::Promote { .. } => outcome.promotions += 1,
                Reason::MakeRoom { .. } => outcome.make_room += 1,
                Reason::Reserve { .. } => outcome.reserve += 1,
                Reason::Balance { .. } => outcome.balance += 1,
                Reason::Policy => unreachable!("the volumes of a replay have no policy"),
            }
        }
        outcome
    }

    /// Number of moves.
    pub fn moves(&self) -> u64 {
        self.promotions + self.make_room + self.reserve + self.balance
    }
}

impl PreparedTrace {
    /// Replays the trace on a pool: behind the cache of the setup, or without one if that has neither memory nor flash.
    pub fn replay_on_pool(&self, pool: &PoolSetup, setup: &ReplaySetup) -> Result<PoolOutcome, TimedError> {
        self.check_pace(setup.pace)?;
        let cached = setup.memory_bytes > 0 || setup.flash_bytes > 0;
        let fixture = setup.fixture(cached);
        let bed = PoolBed::new(&fixture, pool, self)?;
        let disks = bed
            .volumes
            .iter()
            .map(|volume| AnyDisk::ModelledPool(bed.pool.volume(*volume).expect("the volume was created")));
        let playback = Playback::new(fixture, disks.collect(), setup.policy, cached);
        Ok(bed.run(&playback, self, pool.rate, setup.pace))
    }

    /// Time of the last request.
    fn span(&self) -> Nanos {
        self.prepared.iter().map(|request| request.time).max().unwrap_or_default()
    }

    /// First bytes of the slices of all volumes that the trace uses, in the order of their first accesses: index of the
    /// volume, offset.
    fn slices_by_first_access(&self, slice_bytes: u64) -> Vec<(usize, u64)> {
        let (mut seen, mut slices) = (FxHashSet::default(), Vec::new());
        for request in self.prepared.iter().filter(|request| request.op != Op::Flush && request.len > 0) {
            let last = (request.at + request.len as u64 - 1) / slice_bytes;
            for slice in request.at / slice_bytes..=last {
                if seen.insert((request.volume, slice)) {
                    slices.push((request.volume as usize, slice * slice_bytes));
                }
            }
        }
        slices
    }
}

/// The open pool with the allocated volumes of a trace.
struct PoolBed {
    pool: ModelledPool,
    volumes: Vec<VolumeId>,
    /// Arrays of the groups, in the order of their numbers.
    arrays: Vec<SharedArray<SimSeam>>,
    /// Measured costs of each tier.
    classes: Vec<ClassCost>,
}

impl PoolBed {
    fn new(fixture: &Fixture, setup: &PoolSetup, trace: &PreparedTrace) -> Result<PoolBed, TimedError> {
        let group = |array: &ArraySpec| GroupPlan::Raid(*array, array.size_bytes());
        let groups: Vec<Vec<GroupPlan>> =
            setup.tiers.iter().map(|tier| tier.groups.iter().map(group).collect()).collect();
        let tiers: Vec<_> =
            setup.tiers.iter().zip(&groups).map(|(tier, groups)| (tier.name.as_str(), groups.as_slice())).collect();
        let CreatedPool { pool, arrays, disks } = create_pool(fixture, setup.slice_bytes, &tiers)?;
        let slices = trace.slices_by_first_access(setup.slice_bytes);
        let needed = slices.len() as u64 * setup.slice_bytes;
        let pool_bytes = pool.groups().iter().map(|group| u64::from(group.slots)).sum::<u64>() * setup.slice_bytes;
        if needed > pool_bytes {
            return Err(TimedError::PoolTooSmall { needed, pool_bytes });
        }
        let mut disks = disks.into_iter();
        let classes = setup.tiers.iter().map(|tier| {
            let of_tier: Vec<_> = disks.by_ref().take(tier.groups.len()).collect();
            measure_class(fixture, &of_tier)
        });
        let classes = classes.collect();
        let mut volumes = Vec::new();
        for (number, bytes) in trace.volumes.iter().enumerate() {
            let spec = VolumeSpec::thin(&format!("volume{number}"), *bytes);
            volumes.push(fixture.world.block_on(pool.create_volume(spec))?);
        }
        let bed = PoolBed { pool, volumes, arrays, classes };
        for (volume, at) in slices {
            let disk = bed.pool.volume(bed.volumes[volume]).expect("the volume was created");
            let len = setup.slice_bytes.min(trace.volumes[volume] - at);
            fixture.world.block_on(disk.reserve(at, len)).expect("the pool has room for the trace");
        }
        Ok(bed)
    }

    fn run(&self, playback: &Playback, trace: &PreparedTrace, rate: Option<MoveRate>, pace: Pace) -> PoolOutcome {
        let (world, seam) = (&playback.fixture.world, &playback.fixture.seam);
        let settings = RelocationSettings::new(self.classes.clone(), rate.unwrap_or(MoveRate::IdleShare(30)));
        if rate.is_some() {
            self.pool.start_relocation(settings.clone());
        }
        let (start, disk_time_before, requests_before) = (seam.now(), self.disk_times(), self.requests());
        let figures = Rc::new(RefCell::new(Figures::starting(start)));
        let half = Rc::<Cell<Option<HalfMark>>>::default();
        if pace == Pace::Arrivals {
            self.mark_at(seam, start + Nanos(trace.span().0 / 2), &figures, &half);
        }
        playback.send(trace, pace, &figures);
        settings.stop.set(true);
        let drained = playback.drain();
        world.block_on(async {
            while self.pool.is_moving() {
                seam.sleep(Nanos::from_millis(100)).await;
            }
        });
        let disk_time: Vec<_> =
            self.disk_times().iter().zip(&disk_time_before).map(|(after, before)| after.since(*before)).collect();
        let second_half = half.get().map(|mark| {
            let figures = figures.borrow();
            let sorted = |latencies: &[u32]| {
                let mut latencies = latencies.to_vec();
                latencies.sort_unstable();
                latencies
            };
            HalfOutcome {
                read_us: sorted(&figures.read_us[mark.reads..]),
                write_us: sorted(&figures.write_us[mark.writes..]),
                disk_time: sum(&self.disk_times()).since(mark.disk_time),
            }
        });
        // The plan is the one that follows from the heat at the end of the trace. Nothing moves any more.
        let plan = world.block_on(self.pool.plan(&settings)).expect("a plan needs no disk");
        let requests = self.requests().iter().zip(&requests_before).map(|(after, before)| after - before).collect();
        PoolOutcome {
            figures: finished(figures, start),
            second_half,
            stats: playback.counts(),
            drained,
            tiers: self.tier_outcomes(&disk_time, requests),
            moves: self.pool.counts().moves,
            failed_moves: self.pool.counts().failed_moves,
            plan: PlanOutcome::of(&plan),
        }
    }

    /// Marks the position in the figures, and the disk time, at a time.
    fn mark_at(&self, seam: &SimSeam, time: Nanos, figures: &Rc<RefCell<Figures>>, mark: &Rc<Cell<Option<HalfMark>>>) {
        let (figures, mark) = (Rc::downgrade(figures), Rc::clone(mark));
        let (arrays, task_seam) = (self.arrays.clone(), seam.clone());
        seam.spawn(async move {
            task_seam.sleep_until(time).await;
            let Some(figures) = figures.upgrade() else { return };
            let figures = figures.borrow();
            let disk_time = Nanos(arrays.iter().map(|array| array.busy().0).sum());
            mark.set(Some(HalfMark { reads: figures.read_us.len(), writes: figures.write_us.len(), disk_time }));
        });
    }

    /// Busy time of the disks of each group.
    fn disk_times(&self) -> Vec<Nanos> {
        self.arrays.iter().map(SharedArray::busy).collect()
    }

    /// Requests that each group has served.
    fn requests(&self) -> Vec<u64> {
        self.pool.served().iter().map(|(_, served)| served.reads + served.writes).collect()
    }

    fn tier_outcomes(&self, disk_time: &[Nanos], requests: Vec<u64>) -> Vec<TierOutcome> {
        let slice_bytes = self.pool.slice_bytes();
        let groups = self.pool.groups();
        let outcome = |(number, (name, class)): (u8, (String, &ClassCost))| {
            let mut tier = TierOutcome {
                name,
                class: *class,
                disks: 0,
                size_bytes: 0,
                used_bytes: 0,
                requests: 0,
                disk_time: Nanos::ZERO,
            };
            let of_tier = groups.iter().zip(&self.arrays).zip(disk_time.iter().zip(&requests));
            for ((group, array), (disk_time, requests)) in
                of_tier.filter(|((group, _), _)| group.tier == TierNo(number))
            {
                tier.disks += array.spec().disks;
                tier.size_bytes += u64::from(group.slots) * slice_bytes;
                tier.used_bytes += u64::from(group.slots - group.free) * slice_bytes;
                tier.requests += requests;
                tier.disk_time += *disk_time;
            }
            tier
        };
        (0..).zip(self.pool.tiers().into_iter().zip(&self.classes)).map(outcome).collect()
    }
}

/// The state at half of the trace's time.
#[derive(Clone, Copy)]
struct HalfMark {
    reads: usize,
    writes: usize,
    disk_time: Nanos,
}

fn sum(times: &[Nanos]) -> Nanos {
    Nanos(times.iter().map(|time| time.0).sum())
}

/// The class of a tier: the slowest of its groups by a probe, as in the daemon.
fn measure_class(fixture: &Fixture, disks: &[GroupDisk<SimSeam>]) -> ClassCost {
    let probes = disks.iter().map(|disk| fixture.world.block_on(probe(&fixture.seam, disk)));
    let slowest =
        probes.map(|result| result.expect("a modelled disk answers").cost).max_by_key(|cost| cost.read_access);
    slowest.expect("a tier has a group")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use engine::WritePolicy;
    use seam::model::{DiskType, RaidLevel};
    use trace::Request;

    const MIB: u64 = 1 << 20;
    const SLICES: u64 = 80;
    const HOT: u64 = 8;

    fn tier(name: &str, disk: DiskType, bytes: u64) -> TierSetup {
        let array = ArraySpec::new(RaidLevel::Raid0, 1, disk).fitted(bytes);
        TierSetup { name: name.to_owned(), groups: vec![array] }
    }

    /// Flash for a fifth of the slices.
    fn pool(rate: Option<MoveRate>) -> PoolSetup {
        let tiers = vec![tier("ssd", DiskType::Ssd, 20 * MIB), tier("nl", DiskType::NlSas, 100 * MIB)];
        PoolSetup { tiers, slice_bytes: MIB, rate }
    }

    fn setup(memory_bytes: u64, pace: Pace) -> ReplaySetup {
        ReplaySetup { memory_bytes, flash_bytes: 0, policy: WritePolicy::WriteBack, pace, seed: 1 }
    }

    /// Two hours of five requests a second on two disks, nine of ten of them to a tenth of the slices. Every slice is
    /// used once at the begin, so the first placement knows nothing of the hot ones.
    fn requests() -> Vec<Request> {
        let mut random = Random::new(5, 0);
        let request = |number: u64| {
            let slice = match number {
                ..SLICES => number,
                _ if random.percent(90) => random.below(HOT) * (SLICES / HOT),
                _ => random.below(SLICES),
            };
            Request {
                time_ns: Some(number * 200_000_000),
                op: if random.percent(20) { Op::Write } else { Op::Read },
                at: slice / 2 * MIB + random.below(256) * 4096,
                len: 4096,
                device: (slice % 2) as u32,
            }
        };
        (0..2 * 3_600 * 5).map(request).collect()
    }

    fn mean(latencies: &[u32]) -> f64 {
        latencies.iter().map(|micros| f64::from(*micros)).sum::<f64>() / latencies.len() as f64
    }

    #[test]
    fn moves_bring_the_hot_slices_of_a_trace_to_flash() {
        let trace = PreparedTrace::new(&requests()).unwrap();
        let setup = setup(0, Pace::Arrivals);
        let still = trace.replay_on_pool(&pool(None), &setup).unwrap();
        let moved = trace.replay_on_pool(&pool(Some(MoveRate::IdleShare(30))), &setup).unwrap();
        for outcome in [&still, &moved] {
            assert_eq!((outcome.figures.requests(), outcome.figures.errors), (36_000, 0));
            // No request of this trace lies in two slices.
            assert_eq!(outcome.tiers.iter().map(|tier| tier.requests).sum::<u64>(), 36_000);
            assert_eq!(outcome.tiers.iter().map(|tier| tier.used_bytes).sum::<u64>(), SLICES * MIB);
            assert_eq!((outcome.failed_moves, outcome.stats), (0, None));
        }
        assert_eq!(still.moves, 0);
        assert!(still.plan.promotions > 0, "the plan without moves still has them: {:?}", still.plan);
        assert!(moved.moves >= 2 && moved.moves < SLICES, "{}", moved.moves);
        assert!(moved.plan.promotions < still.plan.promotions, "{:?} and {:?}", moved.plan, still.plan);
        let halves = [&still, &moved].map(|outcome| outcome.second_half.as_ref().unwrap());
        assert!(mean(&halves[1].read_us) * 2.0 < mean(&halves[0].read_us));
        assert!(halves[1].disk_time.0 * 2 < halves[0].disk_time.0, "{:?}", halves.map(|half| half.disk_time));
        // Nine of ten requests are hot, and all hot slices fit on flash.
        let on_flash = moved.tiers[0].requests as f64 / 36_000.0;
        assert!(on_flash > 0.75 && still.tiers[0].requests as f64 / 36_000.0 < 0.6, "{on_flash}");
        let again = trace.replay_on_pool(&pool(Some(MoveRate::IdleShare(30))), &setup).unwrap();
        assert_eq!(again.figures.read_us, moved.figures.read_us, "the same seed gives the same figures");
    }

    #[test]
    fn pool_behind_a_cache_gets_fewer_requests() {
        let requests = &requests()[..5_000];
        let trace = PreparedTrace::new(requests).unwrap();
        let bare = trace.replay_on_pool(&pool(None), &setup(0, Pace::Depth(4))).unwrap();
        let cached = trace.replay_on_pool(&pool(None), &setup(64 * MIB, Pace::Depth(4))).unwrap();
        let requests = |outcome: &PoolOutcome| outcome.tiers.iter().map(|tier| tier.requests).sum::<u64>();
        assert!(requests(&cached) < requests(&bare), "{} and {}", requests(&cached), requests(&bare));
        assert!(cached.stats.is_some_and(|stats| stats.memory_hits > 0) && cached.second_half.is_none());
    }

    #[test]
    fn pool_that_is_too_small_is_refused_with_its_size() {
        let trace = PreparedTrace::new(&requests()).unwrap();
        let small = PoolSetup { tiers: vec![tier("ssd", DiskType::Ssd, 20 * MIB)], ..pool(None) };
        let error = trace.replay_on_pool(&small, &setup(0, Pace::Arrivals)).unwrap_err();
        assert!(matches!(error, TimedError::PoolTooSmall { needed, .. } if needed == SLICES * MIB), "{error}");
        let tiny = PoolSetup { tiers: vec![tier("ssd", DiskType::Ssd, MIB)], ..pool(None) };
        let error = trace.replay_on_pool(&tiny, &setup(0, Pace::Arrivals)).unwrap_err();
        assert!(matches!(error, TimedError::Pool(_)), "{error}");
    }

    #[test]
    fn slices_are_counted_once_in_the_order_of_their_first_access() {
        let request = |at: u64, len: u64, device| Request { time_ns: None, op: Op::Read, at, len, device };
        let requests = [request(3 * MIB - 512, 1024, 7), request(0, MIB, 8), request(2 * MIB, 512, 7)];
        let slices = PreparedTrace::new(&requests).unwrap().slices_by_first_access(MIB);
        assert_eq!(slices, [(0, 2 * MIB), (0, 3 * MIB), (1, 0)]);
    }
}
