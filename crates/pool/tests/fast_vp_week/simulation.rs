//! The week in virtual time: heat, plans, moves at a limited rate, and the oracle.

use std::cmp::Reverse;
use std::collections::VecDeque;

use pool::heat::{Demand, HeatTable, RequestDemand};
use pool::planner::{
    ClassCost, Group, Move, MoveAllowance, Place, RECENT_PERCENT, Settings, Slice, Slices, Tier, plan,
};
use seam::Nanos;
use seam::sim::Rng;

use super::load::{DAY, HOUR, Load, SLICES, STEP};

const SLICE_BYTES: u64 = 64 << 20;
/// A tenth of a second per slice: 40 minutes for the fast tier.
const RATE_BYTES_PER_SECOND: u64 = 40 << 20;
const FAST_SLOTS: u64 = 1_500;
const PLAN_EVERY: u64 = 15;

/// Parameters under test.
#[derive(Clone, Copy)]
pub struct Policy {
    /// Weight of the demand by the half-life of one hour.
    pub recent_percent: u32,
    pub margin_percent: u32,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy { recent_percent: RECENT_PERCENT, margin_percent: Settings::new(1, 1).margin_percent }
    }
}

/// Disk time by hour without moves, with the planner and with the oracle, and slices moved.
#[derive(Default)]
pub struct Outcome {
    still: Vec<u64>,
    planned: Vec<u64>,
    oracle: Vec<u64>,
    /// Slices moved by hour.
    moves: Vec<u64>,
    /// Disk time of the week with the one placement that is best for all of it.
    best_still: u64,
}

impl Outcome {
    /// Saving of the best placement without moves, as a share of the oracle's.
    pub fn share_of_best_still(&self) -> f64 {
        let sum = |list: &[u64]| list.iter().sum::<u64>() as f64;
        (sum(&self.still) - self.best_still as f64) / (sum(&self.still) - sum(&self.oracle))
    }

    pub fn share_of_oracle(&self) -> f64 {
        self.share(0..self.still.len())
    }

    pub fn shares_by_day(&self) -> Vec<f64> {
        (0..self.still.len() / 24).map(|day| self.share(24 * day..24 * day + 24)).collect()
    }

    /// Bytes moved a day relative to the fast tier's size.
    pub fn moved_per_day(&self) -> f64 {
        self.moves.iter().sum::<u64>() as f64 / FAST_SLOTS as f64 / (self.moves.len() as f64 / 24.0)
    }

    /// The same in the 24 hours with the most moves.
    pub fn moved_in_busiest_day(&self) -> f64 {
        let days = self.moves.windows(24).map(|day| day.iter().sum::<u64>());
        days.max().expect("a week has days") as f64 / FAST_SLOTS as f64
    }

    /// Least quotient of the disk time without moves and with the planner.
    pub fn worst_hour(&self) -> f64 {
        self.still.iter().zip(&self.planned).map(|(still, planned)| *still as f64 / *planned as f64).fold(9.0, f64::min)
    }

    fn share(&self, hours: std::ops::Range<usize>) -> f64 {
        let sum = |list: &[u64]| list[hours.clone()].iter().sum::<u64>() as f64;
        (sum(&self.still) - sum(&self.planned)) / (sum(&self.still) - sum(&self.oracle))
    }
}

pub struct Simulation {
    policy: Policy,
    tiers: Vec<Tier>,
    places: Vec<Place>,
    still_places: Vec<Place>,
    heat: HeatTable,
    load: Load,
    queue: VecDeque<Move>,
    /// Demand of the running hour.
    hour: Vec<Demand>,
    /// Demand of all hours before.
    week: Vec<Demand>,
    credit: u64,
    allowance: MoveAllowance,
    copy_time: u64,
    planned: u64,
    moves: u64,
    outcome: Outcome,
}

/// The slices with their heat at one time.
struct View<'a> {
    simulation: &'a Simulation,
    now: Nanos,
}

impl Slices for View<'_> {
    fn count(&self) -> u64 {
        SLICES
    }

    fn slice(&self, index: u64) -> Option<Slice> {
        let (slice, heat) = (index as usize, &self.simulation.heat);
        let (recent, daily) = (heat.recent(slice, self.now), heat.daily(slice, self.now));
        let demand = Demand::blend(recent, daily, self.simulation.policy.recent_percent);
        Some(Slice { demand, place: self.simulation.places[slice], policy: pool::planner::Policy::Auto })
    }
}

fn at(minute: u64) -> Nanos {
    Nanos::from_secs(60 * minute)
}

fn tiers() -> Vec<Tier> {
    let ssd = ClassCost {
        read_access: Nanos::from_micros(90),
        write_access: Nanos::from_micros(120),
        byte_ps: 1_818,
        parallel: 12,
    };
    let sas_10k = ClassCost::rotating(Nanos::from_micros(6_650), 4, 184_000_000, 5);
    let nl_sas = ClassCost::rotating(Nanos::from_micros(11_100), 6, 164_000_000, 8);
    let tier = |class, slots, groups| {
        let group = Group { class, slots, free: slots, utilisation_ppm: 0 };
        Tier { groups: vec![group; groups], reserve_percent: 10 }
    };
    vec![tier(ssd, FAST_SLOTS, 1), tier(sas_10k, 3_750, 2), tier(nl_sas, 14_000, 2)]
}

impl Simulation {
    pub fn new(seed: u64, policy: Policy) -> Simulation {
        let mut tiers = tiers();
        // New slices fill the tiers from the fastest on, in random order.
        let mut order: Vec<usize> = (0..SLICES as usize).collect();
        Rng::new(seed, 11).shuffle(&mut order);
        let mut places = vec![Place { tier: 0, group: 0 }; SLICES as usize];
        for slice in order {
            let has_room =
                |tier: &usize| tiers[*tier].groups.iter().map(|group| group.free).sum::<u64>() > tiers[*tier].reserve();
            let tier = (0..3).find(has_room).expect("the pool has room");
            let group = (0..tiers[tier].groups.len()).max_by_key(|group| tiers[tier].groups[*group].free).unwrap();
            tiers[tier].groups[group].free -= 1;
            places[slice] = Place { tier: tier as u16, group: group as u16 };
        }
        Simulation {
            policy,
            tiers,
            still_places: places.clone(),
            places,
            heat: HeatTable::new(SLICES as usize, Nanos::ZERO, seed),
            load: Load::new(seed),
            queue: VecDeque::new(),
            hour: vec![Demand::default(); SLICES as usize],
            week: vec![Demand::default(); SLICES as usize],
            credit: 0,
            allowance: MoveAllowance::new(FAST_SLOTS * SLICE_BYTES, Nanos::ZERO),
            copy_time: 0,
            planned: 0,
            moves: 0,
            outcome: Outcome::default(),
        }
    }

    pub fn run(mut self) -> Outcome {
        for minute in (0..7 * DAY).step_by(STEP as usize) {
            self.requests(minute);
            self.heat.tick(at(minute), 10_000);
            if minute.is_multiple_of(PLAN_EVERY) && minute > 0 {
                let settings = Settings {
                    margin_percent: self.allowance.raise_margin(self.policy.margin_percent, at(minute)),
                    allowance_bytes: self.allowance.available_bytes(at(minute)),
                    ..Settings::new(SLICE_BYTES, RATE_BYTES_PER_SECOND)
                };
                self.queue = plan(&self.tiers, &View { simulation: &self, now: at(minute) }, &settings).moves.into();
            }
            self.copy(at(minute));
            if (minute + STEP).is_multiple_of(HOUR) {
                self.end_hour();
            }
        }
        self.outcome.best_still = self.oracle(&self.week);
        self.outcome
    }

    fn requests(&mut self, minute: u64) {
        let mut requests: Vec<(usize, RequestDemand)> = Vec::new();
        self.load.step(minute, |slice, request| requests.push((slice, request)));
        for (slice, request) in requests {
            self.heat.record(slice, at(minute), &request);
            let demand = Demand::from(request);
            self.hour[slice] += demand;
            self.planned += self.class(self.places[slice]).price(demand).0;
        }
    }

    /// Moves of one step at the rate.
    fn copy(&mut self, now: Nanos) {
        self.credit =
            (self.credit + STEP * 60 * RATE_BYTES_PER_SECOND).min(STEP * 60 * RATE_BYTES_PER_SECOND + SLICE_BYTES);
        while self.credit >= SLICE_BYTES
            && let Some(step) = self.queue.pop_front()
        {
            self.credit -= SLICE_BYTES;
            let group = |place: Place| (usize::from(place.tier), usize::from(place.group));
            let ((from, from_group), (to, to_group)) = (group(step.from), group(step.to));
            self.tiers[to].groups[to_group].free -= 1;
            self.tiers[from].groups[from_group].free += 1;
            self.places[step.slice as usize] = step.to;
            self.copy_time += step.copy_time.0;
            self.moves += 1;
            self.allowance.take(SLICE_BYTES, now);
        }
    }

    fn end_hour(&mut self) {
        let hour = std::mem::replace(&mut self.hour, vec![Demand::default(); SLICES as usize]);
        self.week.iter_mut().zip(&hour).for_each(|(sum, demand)| *sum += *demand);
        let prices = |places: &[Place]| -> u64 {
            hour.iter().zip(places).map(|(demand, place)| self.class(*place).price(*demand).0).sum()
        };
        let still = prices(&self.still_places);
        let oracle = self.oracle(&hour);
        self.outcome.still.push(still);
        self.outcome.oracle.push(oracle);
        self.outcome.moves.push(std::mem::take(&mut self.moves));
        self.outcome.planned.push(std::mem::take(&mut self.planned) + std::mem::take(&mut self.copy_time));
    }

    /// Disk time of an hour with its hottest slices in the fastest tier and the next in the second, within the
    /// reserves; its moves are free.
    fn oracle(&self, hour: &[Demand]) -> u64 {
        let class = |tier: usize| self.tiers[tier].groups[0].class;
        let room = |tier: usize| {
            self.tiers[tier].groups.iter().map(|group| group.slots).sum::<u64>() - self.tiers[tier].reserve()
        };
        let gain = |demand: &Demand, tier: usize| {
            class(tier + 1).price(*demand).0.saturating_sub(class(tier).price(*demand).0)
        };
        let mut left: Vec<Demand> = hour.to_vec();
        let mut sum = 0;
        for tier in 0..2 {
            left.sort_by_key(|demand| Reverse(gain(demand, tier)));
            sum += left.drain(..room(tier) as usize).map(|demand| class(tier).price(demand).0).sum::<u64>();
        }
        sum + left.into_iter().map(|demand| class(2).price(demand).0).sum::<u64>()
    }

    fn class(&self, place: Place) -> &ClassCost {
        &self.tiers[usize::from(place.tier)].groups[usize::from(place.group)].class
    }
}
