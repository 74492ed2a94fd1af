//! Balancing: slices move from the busiest group of a tier to its least utilised one.
//!
//! The hottest slices that do not overshoot move first, so few bytes shift much load. Balancing starts at a larger
//! difference than that at which it ends, so noise moves nothing. The hottest slices are also those whose heat is
//! overestimated by chance, so a plan shifts less load than it expects, and the next one goes on.

use seam::Nanos;

use super::candidates::{Candidates, difference};
use super::pool_state::{PoolState, Step};
use super::{Reason, Slice, Slices};

/// Difference of two groups' utilisations, in percent of the tier's mean, at which balancing starts.
const START_PERCENT: u64 = 10;
/// The same at which it ends.
const END_PERCENT: u64 = 4;
/// Differences below two percent of a group's time start nothing.
const START_MIN_PPM: u64 = 20_000;
/// Between the two differences a move must close at least this part of the rest: cold slices are not worth their bytes.
const FINE_MOVES_MAX: u64 = 64;

/// A busy group, an idle group, and the difference of their utilisations in millionths.
#[derive(Clone, Copy)]
struct Gap {
    busy: usize,
    idle: usize,
    ppm: u64,
    /// Mean utilisation of the tier's groups.
    mean_ppm: u64,
}

impl Gap {
    /// The busiest group of a tier that has candidates, and the least utilised group.
    fn of(state: &PoolState<'_>, candidates: &Candidates, tier: usize) -> Option<Gap> {
        let utilisation = |group: &usize| state.utilisation_ppm(tier, *group);
        let groups = 0..state.groups(tier);
        let with_candidates = groups.clone().rev().filter(|group| !candidates.groups[tier][*group].hot.is_empty());
        let busy = with_candidates.max_by_key(utilisation)?;
        let idle = groups.clone().min_by_key(utilisation)?;
        let mean_ppm = groups.map(|group| utilisation(&group)).sum::<u64>() / state.groups(tier) as u64;
        Some(Gap { busy, idle, ppm: utilisation(&busy) - utilisation(&idle), mean_ppm })
    }

    fn is_above(&self, percent_of_mean: u64) -> bool {
        self.ppm * 100 > self.mean_ppm * percent_of_mean
    }

    /// True if balancing starts, or goes on after the plan before.
    fn is_uneven(&self, continues: bool) -> bool {
        match continues {
            true => self.is_above(END_PERCENT),
            false => self.ppm > START_MIN_PPM && self.is_above(START_PERCENT),
        }
    }
}

/// True if the groups of a tier differ enough to be balanced.
pub(super) fn is_uneven(state: &PoolState<'_>, candidates: &Candidates, tier: usize) -> bool {
    Gap::of(state, candidates, tier).is_some_and(|gap| gap.is_uneven(state.settings.continues_balance))
}

/// Balances all uneven tiers until the plan has `budget` moves.
pub(super) fn balance(state: &mut PoolState<'_>, candidates: &mut Candidates, slices: &impl Slices, budget: usize) {
    for tier in 0..state.tiers() {
        if is_uneven(state, candidates, tier) {
            while state.moves() < budget && move_one(state, candidates, slices, tier, budget) {}
        }
    }
}

/// Moves or swaps one slice. Returns false if the tier is even enough, or no candidate is left.
fn move_one(
    state: &mut PoolState<'_>,
    candidates: &mut Candidates,
    slices: &impl Slices,
    tier: usize,
    budget: usize,
) -> bool {
    while let Some(gap) = Gap::of(state, candidates, tier).filter(|gap| gap.is_above(END_PERCENT)) {
        let Some(index) = candidates.groups[tier][gap.busy].hot.pop_front() else { return false };
        if candidates.is_moved(index) {
            continue;
        }
        let slice = slices.slice(index).expect("a candidate is a slice that can move");
        let shift_ppm = shift_ppm(state, &slice, tier, gap.busy, gap.idle);
        if shift_ppm > gap.ppm {
            continue;
        }
        if !gap.is_uneven(false) && shift_ppm * FINE_MOVES_MAX < gap.ppm {
            return false;
        }
        let Some(steps) = steps(state, candidates, slices, (index, slice), (tier, gap.busy, gap.idle)) else {
            return false;
        };
        if state.moves() + steps.len() > budget {
            return false;
        }
        if state.place(&steps) {
            steps.iter().for_each(|step| candidates.mark_moved(step.index));
            return true;
        }
    }
    false
}

/// Change of the difference of two groups' utilisations when a slice moves between them.
fn shift_ppm(state: &PoolState<'_>, slice: &Slice, tier: usize, from: usize, to: usize) -> u64 {
    let utilisation = |group| {
        let class = state.class(tier, group);
        class.utilisation_ppm(class.price(slice.demand))
    };
    utilisation(from) + utilisation(to)
}

/// The move of a slice from the busiest group to the idlest, after a swap if that has no free slot; `None` if it does
/// not pay: colder slices pay less.
fn steps(
    state: &PoolState<'_>,
    candidates: &mut Candidates,
    slices: &impl Slices,
    (index, slice): (u64, Slice),
    (tier, busy, idle): (usize, usize, usize),
) -> Option<Vec<Step>> {
    let class = state.class(tier, busy);
    let (mut shifted_per_hour, mut cost) = (difference(class.price(slice.demand), Nanos::ZERO), 0);
    let mut steps = Vec::new();
    if !state.has_free_slot(tier, idle) {
        let colds = &mut candidates.groups[tier][idle].cold;
        let cold_index = colds.pop_front()?;
        if candidates.is_moved(cold_index) {
            return None;
        }
        let cold = slices.slice(cold_index).expect("a candidate is a slice that can move");
        shifted_per_hour -= difference(class.price(cold.demand), Nanos::ZERO);
        cost += 1;
        let reason = Reason::MakeRoom { for_slice: index, by_policy: false };
        steps.push(Step { index: cold_index, slice: cold, to_tier: tier, to_group: Some(busy), reason });
    }
    cost += 1;
    let copy_time = Nanos(state.copy_time(tier, tier).0 * cost);
    if !state.settings.pays(shifted_per_hour, copy_time) {
        return None;
    }
    let payback = state.settings.payback_time(shifted_per_hour, copy_time);
    let reason = Reason::Balance { shifted_per_hour, payback };
    steps.push(Step { index, slice, to_tier: tier, to_group: Some(idle), reason });
    Some(steps)
}
