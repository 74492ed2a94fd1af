//! Free slots and loads of all groups as the plan's moves would leave them.

use seam::Nanos;

use super::candidates::{difference, mean_class};
use super::{ClassCost, Move, Place, Plan, Reason, Settings, Slice, Tier, Totals};

/// Utilisation up to which a group takes slices from a less utilised one.
const UTILISATION_MAX_PPM: u64 = 800_000;

/// A move whose target group may still be open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) index: u64,
    pub(super) slice: Slice,
    pub(super) to_tier: usize,
    /// Target group; `None`: the least utilised group of the tier.
    pub(super) to_group: Option<usize>,
    pub(super) reason: Reason,
}

/// Projected state of the pool.
///
/// Invariant: no group has more slices than slots after any prefix of the moves, and no tier has less free space than
/// its reserve unless it had less before.
pub(super) struct PoolState<'a> {
    pub(super) settings: &'a Settings,
    /// Mean class of each tier.
    pub(super) classes: Vec<ClassCost>,
    tiers: &'a [Tier],
    reserve: Vec<u64>,
    occupancy: Occupancy,
    moves: Vec<Move>,
}

/// Free slots and disk time per hour, by tier and group.
#[derive(Clone)]
struct Occupancy {
    free: Vec<Vec<u64>>,
    load: Vec<Vec<Nanos>>,
}

impl<'a> PoolState<'a> {
    /// The present state. `loads` is the demand of the slices; measured utilisation above it is load from elsewhere,
    /// which stays.
    pub(super) fn new(tiers: &'a [Tier], loads: &[Vec<Nanos>], settings: &'a Settings) -> PoolState<'a> {
        let shape = |tier: usize| tiers[tier].groups.len() == loads[tier].len();
        assert!(tiers.len() == loads.len() && (0..tiers.len()).all(shape), "tiers changed during a pass");
        let load = tiers.iter().zip(loads).map(|(tier, loads)| {
            let measured = tier.groups.iter().map(|group| {
                Nanos(group.utilisation_ppm.saturating_mul(3_600_000).saturating_mul(group.class.parallel.into()))
            });
            measured.zip(loads).map(|(measured, load)| measured.max(*load)).collect()
        });
        let free = tiers.iter().map(|tier| tier.groups.iter().map(|group| group.free).collect());
        PoolState {
            settings,
            classes: tiers.iter().map(mean_class).collect(),
            tiers,
            reserve: tiers.iter().map(Tier::reserve).collect(),
            occupancy: Occupancy { free: free.collect(), load: load.collect() },
            moves: Vec::new(),
        }
    }

    /// Number of tiers.
    pub(super) fn tiers(&self) -> usize {
        self.tiers.len()
    }

    /// Number of planned moves.
    pub(super) fn moves(&self) -> usize {
        self.moves.len()
    }

    /// Number of groups of a tier.
    pub(super) fn groups(&self, tier: usize) -> usize {
        self.tiers[tier].groups.len()
    }

    /// Costs of a group's class.
    pub(super) fn class(&self, tier: usize, group: usize) -> &ClassCost {
        &self.tiers[tier].groups[group].class
    }

    /// Free slots of each tier.
    pub(super) fn free_by_tier(&self) -> Vec<u64> {
        self.occupancy.free.iter().map(|groups| groups.iter().sum()).collect()
    }

    /// Slots of each tier that stay free.
    pub(super) fn reserve(&self, tier: usize) -> u64 {
        self.reserve[tier]
    }

    /// True if a group has a free slot.
    pub(super) fn has_free_slot(&self, tier: usize, group: usize) -> bool {
        self.occupancy.free[tier][group] > 0
    }

    /// Projected utilisation of a group in millionths.
    pub(super) fn utilisation_ppm(&self, tier: usize, group: usize) -> u64 {
        self.class(tier, group).utilisation_ppm(self.occupancy.load[tier][group])
    }

    /// Disk time per hour that a slice costs at its place.
    pub(super) fn price(&self, slice: &Slice) -> Nanos {
        self.class(slice.place.tier.into(), slice.place.group.into()).price(slice.demand)
    }

    /// Disk time of a copy from the slice's place to a tier.
    pub(super) fn copy_time(&self, from_tier: usize, to_tier: usize) -> Nanos {
        let bytes = self.settings.slice_bytes;
        self.classes[from_tier].copy_time(bytes) + self.classes[to_tier].copy_time(bytes)
    }

    /// Adds moves that belong together, in the given or the reverse order. Returns false, and adds none, if a target
    /// has no slot, would become too busy, or a reserve would shrink.
    pub(super) fn place(&mut self, steps: &[Step]) -> bool {
        self.place_in_order(steps.iter()) || steps.len() > 1 && self.place_in_order(steps.iter().rev())
    }

    fn place_in_order<'s>(&mut self, steps: impl Iterator<Item = &'s Step>) -> bool {
        let (occupancy, moves) = (self.occupancy.clone(), self.moves.len());
        let free_before = self.free_by_tier();
        let mut is_possible = true;
        for step in steps {
            is_possible = is_possible && self.place_step(step);
        }
        let free_after = self.free_by_tier();
        let keeps_reserve = (0..self.tiers()).all(|tier| free_after[tier] >= self.reserve[tier].min(free_before[tier]));
        if !is_possible || !keeps_reserve {
            self.occupancy = occupancy;
            self.moves.truncate(moves);
            return false;
        }
        true
    }

    fn place_step(&mut self, step: &Step) -> bool {
        let from = step.slice.place;
        let (from_tier, from_group) = (usize::from(from.tier), usize::from(from.group));
        let Some(to_group) = step.to_group.or_else(|| self.least_utilised(step.to_tier, &step.slice)) else {
            return false;
        };
        let price = self.price(&step.slice);
        let new_price = self.class(step.to_tier, to_group).price(step.slice.demand);
        let new_load = self.occupancy.load[step.to_tier][to_group] + new_price;
        let new_utilisation = self.class(step.to_tier, to_group).utilisation_ppm(new_load);
        let (from_utilisation_ppm, to_utilisation_ppm) =
            (self.utilisation_ppm(from_tier, from_group), self.utilisation_ppm(step.to_tier, to_group));
        let is_too_busy = new_utilisation > UTILISATION_MAX_PPM.max(from_utilisation_ppm) && new_price > Nanos::ZERO;
        let makes_room = matches!(step.reason, Reason::MakeRoom { .. } | Reason::Reserve { .. } | Reason::Policy);
        if self.occupancy.free[step.to_tier][to_group] == 0 || is_too_busy && !makes_room {
            return false;
        }
        self.occupancy.free[step.to_tier][to_group] -= 1;
        self.occupancy.load[step.to_tier][to_group] = new_load;
        self.occupancy.free[from_tier][from_group] += 1;
        let load = &mut self.occupancy.load[from_tier][from_group];
        *load = load.since(price);
        self.moves.push(Move {
            slice: step.index,
            from,
            to: Place { tier: step.to_tier as u16, group: to_group as u16 },
            saved_per_hour: difference(price, new_price),
            copy_time: self.class(from_tier, from_group).copy_time(self.settings.slice_bytes)
                + self.class(step.to_tier, to_group).copy_time(self.settings.slice_bytes),
            from_utilisation_ppm,
            to_utilisation_ppm,
            reason: step.reason,
        });
        true
    }

    /// The group with a free slot that has the lowest utilisation with the slice.
    fn least_utilised(&self, tier: usize, slice: &Slice) -> Option<usize> {
        let free = (0..self.groups(tier)).filter(|group| self.has_free_slot(tier, *group));
        free.min_by_key(|group| {
            let class = self.class(tier, *group);
            class.utilisation_ppm(self.occupancy.load[tier][*group] + class.price(slice.demand))
        })
    }

    /// The plan of all moves.
    pub(super) fn into_plan(self) -> Plan {
        let bytes = self.settings.slice_bytes.saturating_mul(self.moves.len() as u64);
        let rate = u128::from(self.settings.rate_bytes_per_second.max(1));
        let duration = (u128::from(bytes) * 1_000_000_000).div_ceil(rate);
        let saved = self.moves.iter().fold(0i64, |sum, step| sum.saturating_add(step.saved_per_hour));
        let totals = Totals {
            bytes,
            duration: Nanos(u64::try_from(duration).unwrap_or(u64::MAX)),
            saved_per_hour: saved,
            copy_time: self.moves.iter().fold(Nanos::ZERO, |sum, step| sum + step.copy_time),
        };
        assert!(self.moves.is_empty() || totals.duration <= self.settings.valid_for, "a plan outlives itself");
        Plan { moves: self.moves, totals }
    }
}
