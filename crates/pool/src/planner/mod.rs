//! The planner: moves of slices between tiers, and between the groups of a tier, ranked by the disk time that they
//! save.
//!
//! [`plan`] is a pure function: the same input gives the same plan. It reads all slices once and keeps a bounded number
//! of candidates, so a pool of any size needs the same memory. [`Planner`] does the same in steps.

mod allowance;
mod balance;
mod candidates;
mod cost;
mod exchange;
mod histogram;
mod input;
mod output;
mod pool_state;
mod top;
mod windows;

#[cfg(test)]
mod tests;

pub use allowance::MoveAllowance;
pub use cost::{ClassCost, NAMED_CLASSES};
pub use histogram::{HeatBucket, HeatHistogram};
pub use input::{Group, PPM, Place, Policy, Settings, Slice, Slices, Tier};
pub use output::{Move, Plan, Reason, Totals};
pub use windows::{MINUTES_OF_A_WEEK, WeekMinute, WindowError, Windows};

use candidates::Collector;
use pool_state::PoolState;

/// Most moves of one plan: the bound of the planner's memory. A rate that finishes more of them calls for a plan more
/// often.
pub const MOVES_MAX: u64 = 32_768;

/// Weight of the half-life of one hour in the demand that the planner expects ([`crate::heat::Demand::blend`]); the
/// rest is that of one day. A larger weight follows a shift of the load sooner, a smaller one moves less.
pub const RECENT_PERCENT: u32 = 50;

/// Part of a plan that balancing gets at least where a tier's groups are uneven.
const BALANCE_PERCENT: u64 = 25;

/// A pass over all slices in bounded steps, so that a large pool holds up nothing else, and the plan at its end.
#[derive(Clone, Debug)]
pub struct Planner {
    settings: Settings,
    collector: Collector,
    next: u64,
}

impl Planner {
    /// A pass that has read nothing.
    pub fn new(tiers: &[Tier], settings: &Settings) -> Planner {
        settings.check();
        Planner { settings: *settings, collector: Collector::new(tiers, settings, budget(settings)), next: 0 }
    }

    /// Reads at most `slices_max` further slices; returns true while slices remain.
    pub fn scan(&mut self, slices: &impl Slices, slices_max: u64) -> bool {
        let end = self.next.saturating_add(slices_max).min(slices.count());
        for index in self.next..end {
            if let Some(slice) = slices.slice(index) {
                self.collector.offer(index, &slice);
            }
        }
        self.next = self.next.max(end);
        self.next < slices.count()
    }

    /// Moves that bring the slices closer to the tiers that suit their load, at most as many as the rate can finish
    /// while the plan is valid. `tiers` has the present free slots; its tiers and groups are those of [`Planner::new`].
    ///
    /// The order of the moves is the order of execution: it never needs a slot that is not free at that point.
    pub fn finish(self, tiers: &[Tier], slices: &impl Slices) -> Plan {
        let (settings, budget) = (self.settings, budget(&self.settings));
        let mut candidates = self.collector.finish();
        candidates.retain_present(slices);
        let mut state = PoolState::new(tiers, &candidates.loads, &settings);
        exchange::apply_policies(&mut state, &mut candidates, slices, budget);
        exchange::restore_reserves(&mut state, &mut candidates, slices, budget);
        // Moves up to here are needed; those by heat and balance have an allowance.
        let budget = budget.min(state.moves().saturating_add(settings.allowed_moves()));
        let uneven = (0..tiers.len()).any(|tier| balance::is_uneven(&state, &candidates, tier));
        let optional = budget - state.moves().min(budget);
        let balance_moves = if uneven { (optional as u64 * BALANCE_PERCENT / 100) as usize } else { 0 };
        let exchanges = exchange::promotions(&state, &mut candidates, slices);
        let remaining = exchange::place(&mut state, exchanges, budget - balance_moves);
        balance::balance(&mut state, &mut candidates, slices, budget);
        exchange::place(&mut state, remaining, budget);
        state.into_plan()
    }
}

/// The plan of a pool, in one pass.
pub fn plan(tiers: &[Tier], slices: &impl Slices, settings: &Settings) -> Plan {
    let mut planner = Planner::new(tiers, settings);
    planner.scan(slices, u64::MAX);
    planner.finish(tiers, slices)
}

fn budget(settings: &Settings) -> usize {
    settings.moves_max().min(MOVES_MAX) as usize
}
