//! The planner: moves of slices between tiers, and between the groups of a tier, ranked by the disk time that they save.
//!
//! [`plan`] is a pure function: the same input gives the same plan. It passes over all slices once and keeps a bounded
//! number of candidates, so a pool of any size needs the same memory.

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

pub use cost::ClassCost;
pub use histogram::{HeatBucket, HeatHistogram};
pub use input::{Group, PPM, Place, Policy, Settings, Slice, Slices, Tier};
pub use output::{Move, Plan, Reason, Totals};
pub use windows::{MINUTES_OF_A_WEEK, WeekMinute, WindowError, Windows};

use candidates::Candidates;
use pool_state::PoolState;

/// Most moves of one plan: the bound of the planner's memory. A rate that finishes more of them calls for a plan more
/// often.
pub const MOVES_MAX: u64 = 32_768;

/// Part of a plan that balancing gets at least where a tier's groups are uneven.
const BALANCE_PERCENT: u64 = 25;

/// Moves that bring `slices` closer to the tiers that suit their load, at most as many as the rate can finish while the
/// plan is valid.
///
/// The order of the moves is the order of execution: it never needs a slot that is not free at that point.
pub fn plan(tiers: &[Tier], slices: &impl Slices, settings: &Settings) -> Plan {
    settings.check();
    let budget = settings.moves_max().min(MOVES_MAX) as usize;
    let mut candidates = Candidates::collect(tiers, slices, settings, budget);
    let mut state = PoolState::new(tiers, &candidates.loads, settings);
    exchange::apply_policies(&mut state, &mut candidates, slices, budget);
    exchange::restore_reserves(&mut state, &mut candidates, slices, budget);
    let uneven = (0..tiers.len()).any(|tier| balance::is_uneven(&state, &candidates, tier));
    let balance_moves = if uneven { (budget as u64 * BALANCE_PERCENT / 100) as usize } else { 0 };
    exchange::promote(&mut state, &mut candidates, slices, budget - balance_moves);
    balance::balance(&mut state, &mut candidates, slices, budget);
    state.into_plan()
}
