//! A week of three shifting working sets on a pool of flash, 10k and NL-SAS: what its moves save.
//!
//! The production code records the heat, plans and moves: `crates/pool` behind the engine. The disks of the groups have
//! no latency. The scenario prices each request, and each copy, by the class of the group that holds the slice, as the
//! planner does.
//!
//! A pool of 30,000 slices of 64 MiB with 90,000 requests a minute would take a thousand million requests and nine
//! million copies. This one has a tenth of the slices, and of the requests and bytes of a slice a 64th part, at the
//! same rate of moves relative to both (40 MiB/s by 640). Only the positioning of a copy does not shrink: a move costs
//! twice its part of disk time here, so the savings are on the low side. Time is not compressed.

mod load;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use pool::heat::{Demand, PER_ACCESS};
use pool::planner::ClassCost;
use pool::{GroupNo, MoveRate, SliceAddress, SliceNo, TierPolicy};
use seam::{Nanos, Seam};

use self::load::{HOURS, Load, SLICES, STEP_SECS, STEPS_PER_HOUR, WeekRequest};
use super::Scenario;
use super::pool_bed::{PoolBed, PoolPlan, PoolWorld, TierPlan};
use super::series::{Check, Outcome, Point};
use super::test_bed::Plan;
use crate::fixture::Target;
use crate::modelled_pool::GroupPlan;
use crate::random::Random;
use crate::workload::address_space::Layout;

const MIB: u64 = 1 << 20;
const SLICE_BYTES: u64 = MIB;
/// Part of each tier that the pool keeps free, in percent.
const RESERVE_PERCENT: u64 = 10;
const SOURCE: &str = "EMC FAST VP: nightly moves of 1 GB slices by counts of requests; the bounds are this project's";

/// The week.
pub const WEEK: Scenario = Scenario {
    name: "fast-vp-week",
    title: "seven days of three shifting working sets on flash, 10k and NL-SAS: disk time saved by the pool's moves",
    source: SOURCE,
    setting: "a pool of 3,700 slices of 1 MiB, 3,000 of them used: one flash device (4 %), two RAID 5 groups 4+1 of \
              10k disks (20 %), two RAID 6 groups 6+2 of NL-SAS; office hours, nights, a set that drifts around the \
              clock and a nightly backup, 8 KiB at random, on average three requests a second below 4 MiB of memory, \
              write-through; moves at 64 KiB/s; a 640th of the load and the bytes of a pool of 30,000 slices of 64 \
              MiB, in real time; requests and copies are priced by the class of their group",
    run: week,
    demo: None,
};

/// Groups of each tier, with their class and slots.
fn tiers() -> [(&'static str, ClassCost, usize, u64); 3] {
    let ssd = ClassCost {
        read_access: Nanos::from_micros(90),
        write_access: Nanos::from_micros(120),
        byte_ps: 1_818,
        parallel: 12,
    };
    let sas_10k = ClassCost::rotating(Nanos::from_micros(6_650), 4, 184_000_000, 5);
    let nl_sas = ClassCost::rotating(Nanos::from_micros(11_100), 6, 164_000_000, 8);
    [("ssd", ssd, 1, 150), ("10k", sas_10k, 2, 375), ("nl-sas", nl_sas, 2, 1_400)]
}

fn pool_plan() -> PoolPlan {
    let tier = |(name, class, groups, slots): (&'static str, ClassCost, usize, u64)| {
        // The metadata of the first three groups takes 3 MiB, and the superblocks one.
        let group = GroupPlan::Instant(slots * SLICE_BYTES + 3 * MIB);
        TierPlan { name, groups: vec![group; groups], class }
    };
    PoolPlan {
        slice_bytes: SLICE_BYTES,
        tiers: tiers().map(tier).into(),
        volume_bytes: SLICES * SLICE_BYTES,
        policy: TierPolicy::Auto,
    }
}

/// Disk time of each hour, in nanoseconds, and the slices that moved.
#[derive(Default)]
struct Hours {
    requests: Vec<u64>,
    still: Vec<u64>,
    moved: Vec<u64>,
    oracle: Vec<u64>,
    moves: Vec<u64>,
    /// Disk time of the copies; part of `moved`.
    copies: u64,
}

/// The slices' groups, and what they cost.
struct Prices {
    tier_of: BTreeMap<GroupNo, usize>,
    slots: [u64; 3],
}

impl Prices {
    fn class(&self, group: GroupNo) -> ClassCost {
        tiers()[self.tier_of[&group]].1
    }

    /// Disk time of an hour with its hottest slices in the fastest tier and the next in the second, within the
    /// reserves; its moves are free.
    fn oracle(&self, hour: &[Demand]) -> u64 {
        let price = |demand: &Demand, tier: usize| tiers()[tier].1.price(*demand).0;
        let mut left: Vec<Demand> = hour.to_vec();
        let mut sum = 0;
        for tier in 0..2 {
            left.sort_by_key(|demand| Reverse(price(demand, tier + 1).saturating_sub(price(demand, tier))));
            let room = self.slots[tier] - (self.slots[tier] * RESERVE_PERCENT).div_ceil(100);
            sum += left.drain(..room as usize).map(|demand| price(&demand, tier)).sum::<u64>();
        }
        sum + left.iter().map(|demand| price(demand, 2)).sum::<u64>()
    }
}

/// A run of the week.
struct Week {
    bed: PoolBed,
    target: Target,
    prices: Prices,
    /// Groups of the slices before the first move.
    still_places: Vec<GroupNo>,
    places: Vec<GroupNo>,
    /// Demand of the running hour.
    hour: Vec<Demand>,
    moved_price: u64,
    hours: Hours,
}

impl Week {
    fn new(seed: u64) -> Week {
        let plan = Plan {
            seed,
            memory_bytes: 4 * MIB,
            arrays: Vec::new(),
            layout: Layout::Concatenated,
            flash: None,
            policy: engine::WritePolicy::WriteThrough,
            cached: true,
            speedup: 1,
        };
        let world = PoolWorld::new(&plan, &pool_plan());
        // Files are as old as they happen to be: neighbouring slices were not written one after the other.
        let mut order: Vec<u64> = (0..SLICES).collect();
        let mut random = Random::new(seed, 11);
        (1..order.len()).rev().for_each(|index| order.swap(index, random.below(index as u64 + 1) as usize));
        order.into_iter().for_each(|slice| world.allocate(slice * SLICE_BYTES, SLICE_BYTES));
        let bed = world.into_bed(&plan);
        let groups = bed.pool.groups();
        let tier_of = groups.iter().map(|group| (group.group, usize::from(group.tier.0))).collect();
        let slots = std::array::from_fn(|tier| {
            let of_tier = groups.iter().filter(|group| usize::from(group.tier.0) == tier);
            of_tier.map(|group| u64::from(group.slots)).sum()
        });
        let target = Target::Volume(bed.bed.volumes[0].clone());
        let mut week = Week {
            bed,
            target,
            prices: Prices { tier_of, slots },
            still_places: Vec::new(),
            places: Vec::new(),
            hour: vec![Demand::default(); SLICES as usize],
            moved_price: 0,
            hours: Hours::default(),
        };
        week.places = week.present_places();
        week.still_places = week.places.clone();
        week
    }

    fn present_places(&self) -> Vec<GroupNo> {
        let place = |slice: u64| {
            let address = SliceAddress { volume: self.bed.volume, slice: SliceNo(slice as u32) };
            self.bed.pool.group_of(address).expect("all slices are allocated")
        };
        (0..SLICES).map(place).collect()
    }

    fn run(mut self, seed: u64) -> Hours {
        let mut load = Load::new(seed);
        self.bed.pool.start_relocation(self.bed.settings(MoveRate::Bytes((40 * MIB) / 640)));
        for step in 0..HOURS * STEPS_PER_HOUR {
            let requests = load.step(step);
            self.execute(step, &requests);
            self.price_copies();
            if (step + 1) % STEPS_PER_HOUR == 0 {
                self.end_hour();
            }
        }
        self.hours
    }

    /// Sends the requests of a step, spread over its time.
    fn execute(&mut self, step: u64, requests: &[WeekRequest]) {
        let fixture = &self.bed.bed.fixture;
        let (seam, begin) = (&fixture.seam, Nanos::from_secs(step * STEP_SECS));
        let start = seam.now().max(begin);
        let gap = Nanos::from_secs(STEP_SECS).0 / (requests.len() as u64 + 1);
        fixture.world.block_on(async {
            for (number, request) in (1..).zip(requests) {
                seam.sleep_until(start + Nanos(gap * number)).await;
                let address = SliceAddress { volume: self.bed.volume, slice: SliceNo(request.slice as u32) };
                let group = self.bed.pool.group_of(address).expect("all slices are allocated");
                let (at, len) = (request.slice * SLICE_BYTES + request.offset, request.len as usize);
                let done = match request.is_write {
                    true => self.target.write(seam, at, len, 1).await,
                    false => self.target.read(seam, at, len).await,
                };
                done.expect("healthy disks serve every request");
                let accesses = if request.is_sequential { 0 } else { PER_ACCESS };
                let demand = match request.is_write {
                    true => Demand { reads: 0, writes: accesses, bytes: request.len },
                    false => Demand { reads: accesses, writes: 0, bytes: request.len },
                };
                self.hour[request.slice as usize] += demand;
                self.moved_price += self.prices.class(group).price(demand).0;
            }
            seam.sleep_until(begin + Nanos::from_secs(STEP_SECS)).await;
        });
        if self.hours.requests.len() as u64 <= step / STEPS_PER_HOUR {
            self.hours.requests.push(0);
        }
        *self.hours.requests.last_mut().expect("the hour has begun") += requests.len() as u64;
    }

    /// Adds the disk time of the copies since the last call. A slice that moved twice within a step counts once.
    fn price_copies(&mut self) {
        let places = self.present_places();
        for (before, now) in self.places.iter().zip(&places).filter(|(before, now)| before != now) {
            let copy_time = |group: &GroupNo| self.prices.class(*group).copy_time(SLICE_BYTES).0;
            let copy = copy_time(before) + copy_time(now);
            self.moved_price += copy;
            self.hours.copies += copy;
        }
        self.places = places;
    }

    fn end_hour(&mut self) {
        let hour = std::mem::replace(&mut self.hour, vec![Demand::default(); SLICES as usize]);
        let still = hour.iter().zip(&self.still_places);
        self.hours.still.push(still.map(|(demand, group)| self.prices.class(*group).price(*demand).0).sum());
        self.hours.oracle.push(self.prices.oracle(&hour));
        self.hours.moved.push(std::mem::take(&mut self.moved_price));
        let moved_before: u64 = self.hours.moves.iter().sum();
        self.hours.moves.push(self.bed.pool.counts().moves - moved_before);
    }
}

impl Hours {
    /// Disk time saved, as a fraction of what the oracle saves.
    fn share_of_oracle(&self, hours: std::ops::Range<usize>) -> f64 {
        let sum = |list: &[u64]| list[hours.clone()].iter().sum::<u64>() as f64;
        (sum(&self.still) - sum(&self.moved)) / (sum(&self.still) - sum(&self.oracle))
    }

    /// Slices moved in the 24 hours with the most moves.
    fn moves_in_busiest_day(&self) -> u64 {
        self.moves.windows(24).map(|day| day.iter().sum()).max().expect("a week has days")
    }

    /// Least quotient of the disk times of an hour without moves and with them.
    fn worst_hour(&self) -> f64 {
        let hours = self.still.iter().zip(&self.moved);
        hours.map(|(still, moved)| *still as f64 / *moved as f64).fold(f64::MAX, f64::min)
    }

    fn points(&self, disk_time: &[u64]) -> Vec<Point> {
        let point = |(hour, (time, requests)): (usize, (&u64, &u64))| Point {
            minute: (hour + 1) as f64 * 60.0,
            iops: *requests as f64 / 3_600.0,
            latency_ms: *time as f64 / 1e6 / (*requests).max(1) as f64,
            ..Point::default()
        };
        disk_time.iter().zip(&self.requests).enumerate().map(point).collect()
    }
}

fn week(seed: u64) -> Outcome {
    let week = Week::new(seed);
    let fast_slots = week.prices.slots[0] as f64;
    let slots = week.prices.slots;
    let hours = week.run(seed);
    let days = HOURS as usize / 24;
    let by_day: Vec<_> =
        (0..days).map(|day| format!("{:.2}", hours.share_of_oracle(24 * day..24 * day + 24))).collect();
    let moves: u64 = hours.moves.iter().sum();
    let saved = hours.still.iter().sum::<u64>() as f64 - hours.moved.iter().sum::<u64>() as f64;
    let checks = vec![
        Check::at_least(
            "disk time saved, against an oracle that places each hour's slices with hindsight",
            hours.share_of_oracle(0..HOURS as usize),
            0.9,
            SOURCE,
        ),
        Check::at_most(
            "bytes moved in the busiest 24 hours, in sizes of the fast tier",
            hours.moves_in_busiest_day() as f64 / fast_slots,
            3.0,
            SOURCE,
        ),
        Check::at_least("disk time without moves against with them, the worst hour", hours.worst_hour(), 0.98, SOURCE),
    ];
    let notes = vec![
        format!("by day: {} of the oracle's saving", by_day.join(", ")),
        format!(
            "{moves} slices moved, {:.2} fast tiers a day; their copies took {:.1} % of the saved disk time, which is \
             part of the figures",
            moves as f64 / fast_slots / days as f64,
            100.0 * hours.copies as f64 / saved
        ),
        format!("{} requests; slots by tier: {slots:?}; latency is disk time per request", {
            hours.requests.iter().sum::<u64>()
        }),
    ];
    let mut outcome = Outcome { checks, notes, ..Outcome::default() };
    outcome.add_run("with moves", hours.points(&hours.moved));
    outcome.add_run("placed by the oracle", hours.points(&hours.oracle));
    outcome.add_run("without", hours.points(&hours.still));
    outcome
}
