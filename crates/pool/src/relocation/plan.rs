//! Plans of an open pool.

use std::rc::Rc;

use seam::{Disk, Nanos, Seam};

use super::input::PoolSlices;
use super::pace::{BUSY_FACTOR, copy_time};
use super::settings::{MoveRate, RelocationSettings};
use crate::error::PoolError;
use crate::heat::Demand;
use crate::number::{GroupNo, TierNo};
use crate::planner::{ClassCost, HeatHistogram, MoveAllowance, PPM, Planner, Reason, Settings, Slices, Totals};
use crate::policy::GroupRoom;
use crate::relocation_report::PlannedMove;
use crate::state::{Inner, State};

/// Slots that a step of the pass reads; other tasks of the core run between two steps.
pub(super) const SCAN_STEP: u64 = 256;
/// Most moves of one plan. The planner's last step blocks the core for about 2 microseconds a move.
pub(super) const MOVES_MAX: u64 = 4_096;
/// Shortest time over which utilisation is measured.
const MEASURED_MIN: Nanos = Nanos::from_secs(1);

/// Load of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLoad {
    /// The group.
    pub group: GroupNo,
    /// Utilisation by the requests since the last relocation, in millionths.
    pub measured_ppm: u64,
    /// Utilisation by the expected demand of its slices, in millionths. The plan follows from it.
    pub expected_ppm: u64,
}

/// Moves in the order of their execution.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelocationPlan {
    /// The moves.
    pub moves: Vec<PlannedMove>,
    /// Their sums.
    pub totals: Totals,
    /// The groups that take part.
    pub groups: Vec<GroupLoad>,
    /// Time on the seam's clock at which the plan is outdated.
    pub outdated_at: Nanos,
}

/// Plans the moves of a pool. Nothing moves.
pub(crate) async fn plan<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    settings: &RelocationSettings,
) -> Result<RelocationPlan, PoolError> {
    let now = inner.seam.now();
    check_classes(&inner.state.borrow(), &settings.classes)?;
    let limits = {
        let mut state = inner.state.borrow_mut();
        let slice_bytes = state.slice_bytes();
        let rate_bytes = expected_rate(&state, settings, now);
        let allowance = *allowance(&mut state, now);
        Settings {
            slice_bytes,
            rate_bytes_per_second: rate_bytes,
            valid_for: settings.valid_for().min(copy_time(slice_bytes * MOVES_MAX, rate_bytes)),
            payback: settings.payback,
            margin_percent: allowance.raise_margin(settings.margin_percent, now),
            allowance_bytes: allowance.available_bytes(now),
            continues_balance: state.is_balancing,
        }
    };
    let slices = PoolSlices::new(inner, &settings.classes);
    let tiers = slices.tiers();
    let outdated_at = now + limits.valid_for;
    if tiers.is_empty() {
        return Ok(RelocationPlan { outdated_at, ..RelocationPlan::default() });
    }
    let mut planner = Planner::new(&tiers, &limits);
    while planner.scan(&slices, SCAN_STEP) {
        inner.seam.yield_now().await;
    }
    let groups = slices.expected_utilisation();
    let plan = planner.finish(&slices.tiers(), &slices);
    let address = |index| slices.address(index).expect("a plan moves slices that can move");
    let moves = plan.moves.into_iter().map(|details| PlannedMove {
        slice: address(details.slice),
        from: slices.group_at(details.from),
        to: slices.group_at(details.to),
        for_slice: match details.reason {
            Reason::MakeRoom { for_slice, .. } => Some(address(for_slice)),
            _ => None,
        },
        details,
    });
    let moves = moves.collect();
    let state = inner.state.borrow();
    let now = inner.seam.now();
    let load = |(group, class, expected_ppm): (GroupNo, ClassCost, u64)| GroupLoad {
        group,
        measured_ppm: measured_ppm(&state, group, &class, now),
        expected_ppm,
    };
    Ok(RelocationPlan { moves, totals: plan.totals, groups: groups.into_iter().map(load).collect(), outdated_at })
}

/// Slices by the disk time that they would cost on the slowest tier, with their present tiers.
pub(crate) async fn heat_histogram<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    classes: &[ClassCost],
) -> Result<HeatHistogram, PoolError> {
    check_classes(&inner.state.borrow(), classes)?;
    let slowest = classes.last().expect("a pool has a tier");
    let slices = PoolSlices::new(inner, classes);
    let mut histogram = HeatHistogram::empty(classes.len());
    for index in 0..slices.count() {
        if index % SCAN_STEP == SCAN_STEP - 1 {
            inner.seam.yield_now().await;
        }
        if let Some(slice) = slices.slice(index) {
            histogram.add(usize::from(slices.tier_at(slice.place).0), slowest.price(slice.demand));
        }
    }
    Ok(histogram)
}

/// Utilisation of each group that takes slices by the requests of clients since the last relocation, in millionths.
pub(crate) fn utilisation<S: Seam, D: Disk<S>>(
    inner: &Inner<S, D>,
    classes: &[ClassCost],
) -> Result<Vec<(GroupNo, u64)>, PoolError> {
    let (state, now) = (inner.state.borrow(), inner.seam.now());
    check_classes(&state, classes)?;
    let load = |room: GroupRoom| {
        let class = &classes[usize::from(room.tier.0)];
        (room.group, measured_ppm(&state, room.group, class, now))
    };
    Ok(state.rooms().into_iter().map(load).collect())
}

pub(super) fn check_classes<S: Seam, D: Disk<S>>(state: &State<S, D>, classes: &[ClassCost]) -> Result<(), PoolError> {
    let (given, present) = (classes.len(), state.superblock.tiers.len());
    if given != present {
        return Err(PoolError::Refused(format!("{given} tiers have costs, and the pool has {present} tiers")));
    }
    if classes.iter().any(|class| class.parallel == 0) {
        return Err(PoolError::Refused("a group of a tier serves at least one access at once".to_owned()));
    }
    Ok(())
}

/// Bytes a second that moves are expected to copy. A part of the idle time counts on the slowest tier, at its read and
/// its write, with the mean utilisation of the groups.
fn expected_rate<S: Seam, D: Disk<S>>(state: &State<S, D>, settings: &RelocationSettings, now: Nanos) -> u64 {
    let percent = match settings.rate {
        MoveRate::Bytes(bytes) => return bytes,
        MoveRate::IdleShare(percent) => percent,
    };
    let rooms = state.rooms();
    let busy_ppm =
        |room: &GroupRoom| measured_ppm(state, room.group, &settings.classes[usize::from(room.tier.0)], now).min(PPM);
    let mean_ppm = rooms.iter().map(busy_ppm).sum::<u64>() / (rooms.len() as u64).max(1);
    let share_ppm = ((PPM - mean_ppm) * u64::from(percent) / 100).max(PPM / (BUSY_FACTOR + 1));
    let slice_bytes = state.slice_bytes();
    let copy_time = settings.classes.iter().map(|class| class.copy_time(slice_bytes)).max().unwrap_or(Nanos(1));
    let rate = u128::from(slice_bytes) * 1_000 * u128::from(share_ppm) / (2 * u128::from(copy_time.0.max(1)));
    u64::try_from(rate).unwrap_or(u64::MAX).max(1)
}

/// Utilisation of a group by the requests of clients since the last relocation, in millionths.
fn measured_ppm<S: Seam, D: Disk<S>>(state: &State<S, D>, group: GroupNo, class: &ClassCost, now: Nanos) -> u64 {
    let elapsed = now.since(state.demand_since).max(MEASURED_MIN);
    class.utilisation_ppm(class.price(per_hour(state.groups[group.index()].demand, elapsed)))
}

/// Demand per hour of a sum over `elapsed`.
fn per_hour(sum: Demand, elapsed: Nanos) -> Demand {
    let scale = |amount: u64| {
        let per_hour = u128::from(amount) * 3_600_000_000_000 / u128::from(elapsed.0);
        u64::try_from(per_hour).unwrap_or(u64::MAX)
    };
    Demand { reads: scale(sum.reads), writes: scale(sum.writes), bytes: scale(sum.bytes) }
}

/// The pool's allowance of moves by heat and balance. A fast tier of another size begins with a full one.
pub(super) fn allowance<S: Seam, D: Disk<S>>(state: &mut State<S, D>, now: Nanos) -> &mut MoveAllowance {
    let fast = state.rooms().into_iter().filter(|room| room.tier == TierNo(0));
    let fast_bytes = fast.map(|room| u64::from(room.slots)).sum::<u64>() * state.slice_bytes();
    let (of_bytes, allowance) =
        state.allowance.get_or_insert_with(|| (fast_bytes, MoveAllowance::new(fast_bytes, now)));
    if *of_bytes != fast_bytes {
        (*of_bytes, *allowance) = (fast_bytes, MoveAllowance::new(fast_bytes, now));
    }
    allowance
}
