//! Moves between tiers: home to where a policy says, out of a reserve, and promotions with the moves that make room.

use std::cmp::Reverse;
use std::collections::VecDeque;

use seam::Nanos;

use super::candidates::{Candidates, difference};
use super::pool_state::{PoolState, Step};
use super::{Reason, Slice, Slices};

/// No slice.
const NONE: u64 = u64::MAX;

/// A promotion with the moves that make room for it, which come first.
pub(super) struct Exchange {
    steps: Vec<Step>,
    net_saved_per_hour: i64,
}

/// A way to make room in a tier: moves, the disk time per hour that they lose, and the time of their copies.
#[derive(Default)]
struct Room {
    steps: Vec<Step>,
    lost_per_hour: i64,
    copy_time: Nanos,
}

/// Moves slices of pinned, `highest` and `lowest` volumes to their tiers, where these have or can make room.
pub(super) fn apply_policies(
    state: &mut PoolState<'_>,
    candidates: &mut Candidates,
    slices: &impl Slices,
    budget: usize,
) {
    // Moves to slower tiers come first: they free slots for the others.
    for index in std::mem::take(&mut candidates.too_high) {
        let tier = usize::from(read(slices, index).place.tier);
        let with_room = |target: &usize| state.free_by_tier()[*target] > state.reserve(*target);
        if let Some(target) = (tier + 1..state.tiers()).rev().find(with_room) {
            move_by_policy(state, candidates, slices, index, target, budget);
        }
    }
    for home in (0..state.tiers()).rev() {
        for index in std::mem::take(&mut candidates.away[home]) {
            move_by_policy(state, candidates, slices, index, home, budget);
        }
    }
    for index in std::mem::take(&mut candidates.too_low) {
        let tier = usize::from(read(slices, index).place.tier);
        let _placed = (0..tier).any(|target| move_by_policy(state, candidates, slices, index, target, budget));
    }
}

/// Moves one slice to `target`, with the moves that make room. Returns true if it moves.
fn move_by_policy(
    state: &mut PoolState<'_>,
    candidates: &mut Candidates,
    slices: &impl Slices,
    index: u64,
    target: usize,
    budget: usize,
) -> bool {
    let slice = read(slices, index);
    let free = state.free_by_tier();
    let Some(room) = make_room(state, candidates, slices, &free, index, &slice, target) else { return false };
    let mut steps = room.steps;
    steps.iter_mut().for_each(|step| step.reason = Reason::MakeRoom { for_slice: index, by_policy: true });
    steps.push(Step { index, slice, to_tier: target, to_group: None, reason: Reason::Policy });
    if state.moves() + steps.len() > budget || !state.place(&steps) {
        return false;
    }
    steps.iter().for_each(|step| candidates.mark_moved(step.index));
    true
}

/// Moves the coldest slices of tiers with less free space than their reserve to the next slower tier with room.
pub(super) fn restore_reserves(
    state: &mut PoolState<'_>,
    candidates: &mut Candidates,
    slices: &impl Slices,
    budget: usize,
) {
    for tier in 0..state.tiers() {
        while state.moves() < budget {
            let free = state.free_by_tier();
            let missing = state.reserve(tier).saturating_sub(free[tier]);
            let target = (tier + 1..state.tiers()).find(|target| free[*target] > state.reserve(*target));
            let (Some(to_tier), Some(index), true) = (target, candidates.coldest(tier, NONE), missing > 0) else {
                break;
            };
            let slice = read(slices, index);
            let step = Step { index, slice, to_tier, to_group: None, reason: Reason::Reserve { missing } };
            if !state.place(&[step]) {
                break;
            }
            candidates.mark_moved(index);
        }
    }
}

/// All promotions that pay, in the order of the disk time that they save for each byte moved. Their number is bounded
/// by the candidates.
pub(super) fn promotions(
    state: &PoolState<'_>,
    candidates: &mut Candidates,
    slices: &impl Slices,
) -> VecDeque<Exchange> {
    let mut free = state.free_by_tier();
    let mut exchanges = Vec::new();
    for target in 0..state.tiers().saturating_sub(1) {
        for index in std::mem::take(&mut candidates.hot[target]) {
            if candidates.is_moved(index) {
                continue;
            }
            let Some(exchange) = exchange(state, candidates, slices, &free, index, target) else { continue };
            for step in &exchange.steps {
                candidates.mark_moved(step.index);
                free[usize::from(step.slice.place.tier)] += 1;
            }
            exchange.steps.iter().for_each(|step| free[step.to_tier] -= 1);
            exchanges.push(exchange);
        }
    }
    // All slices have the same size, so a move stands for its bytes.
    exchanges.sort_by_key(|exchange| Reverse(exchange.net_saved_per_hour / exchange.steps.len() as i64));
    exchanges.into()
}

/// Adds promotions in their order until the plan has `budget` moves; returns those that are left.
pub(super) fn place(state: &mut PoolState<'_>, mut exchanges: VecDeque<Exchange>, budget: usize) -> VecDeque<Exchange> {
    while let Some(exchange) = exchanges.front()
        && state.moves() + exchange.steps.len() <= budget
    {
        state.place(&exchange.steps);
        exchanges.pop_front();
    }
    exchanges
}

/// The promotion of a slice to `target`, if it pays.
fn exchange(
    state: &PoolState<'_>,
    candidates: &mut Candidates,
    slices: &impl Slices,
    free: &[u64],
    index: u64,
    target: usize,
) -> Option<Exchange> {
    let (slice, settings) = (read(slices, index), state.settings);
    let gain = difference(state.price(&slice), state.classes[target].price(slice.demand));
    let room = make_room(state, candidates, slices, free, index, &slice, target)?;
    let net_saved_per_hour = gain.saturating_sub(room.lost_per_hour);
    let cost = room.copy_time + state.copy_time(slice.place.tier.into(), target);
    let with_margin = i128::from(room.lost_per_hour) * i128::from(100 + settings.margin_percent);
    let is_displacing = !room.steps.is_empty();
    if !settings.pays(net_saved_per_hour, cost) || is_displacing && i128::from(gain) * 100 < with_margin {
        return None;
    }
    let payback = settings.payback_time(net_saved_per_hour, cost);
    let reason = Reason::Promote { net_saved_per_hour, payback };
    let mut steps = room.steps;
    steps.push(Step { index, slice, to_tier: target, to_group: None, reason });
    Some(Exchange { steps, net_saved_per_hour })
}

/// The cheapest way to make room in `target` for a slice: nothing if the tier has room; else its coldest slice goes to
/// a slower tier with room, or to the tier of the slice that comes, or each tier between passes its coldest slice on.
fn make_room(
    state: &PoolState<'_>,
    candidates: &mut Candidates,
    slices: &impl Slices,
    free: &[u64],
    for_slice: u64,
    slice: &Slice,
    target: usize,
) -> Option<Room> {
    if free[target] > state.reserve(target) {
        return Some(Room::default());
    }
    let source = usize::from(slice.place.tier);
    let victim = candidates.coldest(target, for_slice)?;
    let victim_slice = read(slices, victim);
    let takes_victim = |tier: usize| {
        let has_room = tier > target && free[tier] > state.reserve(tier);
        (tier == source || has_room) && !would_pass_on(state, candidates, slices, free, &victim_slice, tier)
    };
    let mut rooms: Vec<Room> = Vec::new();
    for tier in (0..state.tiers()).filter(|tier| *tier != target && takes_victim(*tier)) {
        rooms.push(demotions(state, slices, for_slice, &[(victim, target, tier)]));
    }
    if source > target + 1 {
        let coldest = |tier| candidates.coldest(tier, for_slice).map(|cold| (cold, tier, tier + 1));
        let chain: Option<Vec<_>> = (target..source).rev().map(coldest).collect();
        rooms.extend(chain.map(|chain| demotions(state, slices, for_slice, &chain)));
    }
    rooms.into_iter().min_by_key(|room| {
        let payback_hours = (state.settings.payback.0 / 3_600_000_000_000).max(1);
        room.lost_per_hour.saturating_add((room.copy_time.0 / payback_hours) as i64)
    })
}

/// True if `tier` would soon pass a slice on to the next one: others compete for its free slots, and the slice is the
/// coldest there.
fn would_pass_on(
    state: &PoolState<'_>,
    candidates: &Candidates,
    slices: &impl Slices,
    free: &[u64],
    slice: &Slice,
    tier: usize,
) -> bool {
    let Some(slower) = state.classes.get(tier + 1) else { return false };
    let lost = |slice: &Slice| difference(slower.price(slice.demand), state.classes[tier].price(slice.demand));
    let is_contended = candidates.hot[tier].len() as u64 >= free[tier].saturating_sub(state.reserve(tier));
    is_contended && candidates.coldest(tier, NONE).is_some_and(|coldest| lost(slice) <= lost(&read(slices, coldest)))
}

/// Demotions (slice, from tier, to tier) with their losses.
fn demotions(state: &PoolState<'_>, slices: &impl Slices, for_slice: u64, moves: &[(u64, usize, usize)]) -> Room {
    let mut room = Room::default();
    for (index, from, to_tier) in moves.iter().copied() {
        let slice = read(slices, index);
        let lost = difference(state.classes[to_tier].price(slice.demand), state.price(&slice));
        room.lost_per_hour = room.lost_per_hour.saturating_add(lost);
        room.copy_time += state.copy_time(from, to_tier);
        room.steps.push(Step {
            index,
            slice,
            to_tier,
            to_group: None,
            reason: Reason::MakeRoom { for_slice, by_policy: false },
        });
    }
    room
}

fn read(slices: &impl Slices, index: u64) -> Slice {
    slices.slice(index).expect("a candidate is a slice that can move")
}
