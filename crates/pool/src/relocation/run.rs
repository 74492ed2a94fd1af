//! Execution of plans: two moves at once, in the plan's order, at the pace of the settings.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use seam::{Disk, Nanos, Seam};

use super::pace::Pacer;
use super::plan::{MOVES_MAX, RelocationPlan, allowance, plan};
use super::settings::RelocationSettings;
use crate::error::PoolError;
use crate::heat::Demand;
use crate::mover::{MoveError, MoveOutcome, Pace, count_failed, move_slice};
use crate::planner::Reason;
use crate::relocation_report::{Execution, PlannedMove, RelocationEnd, RelocationReport};
use crate::state::Inner;
use task_sync::{BoxFuture, Waiters, join};

/// Moves of a relocation at once.
const MOVES_AT_ONCE: usize = 2;

/// Shortest pause between two relocations.
const PAUSE_MIN: Nanos = Nanos::from_secs(1);

/// Repeats plan and relocation until the pool is dropped or the stop flag is set.
pub(crate) fn start<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>, settings: RelocationSettings) {
    let (weak, seam) = (Rc::downgrade(inner), inner.seam.clone());
    inner.seam.spawn(async move {
        let mut last_error = None;
        loop {
            // A relocation by command, or the last one of a task that is ending.
            while weak.upgrade().is_some_and(|inner| inner.state.borrow().relocation.is_running) {
                seam.sleep(PAUSE_MIN).await;
            }
            let mut next = seam.now() + settings.interval();
            match relocate(&weak, &seam, &settings).await {
                Ok(report) if matches!(report.end, RelocationEnd::Stopped | RelocationEnd::PoolClosed) => return,
                Ok(report) => {
                    last_error = None;
                    // A plan at the limit of moves leaves more to do.
                    if report.moved >= MOVES_MAX / 2 {
                        next = seam.now() + PAUSE_MIN;
                    }
                }
                Err(error) => {
                    let Some(inner) = weak.upgrade() else { return };
                    if last_error.as_ref() != Some(&error) {
                        inner.state.borrow_mut().notices.push(format!("slices cannot be relocated: {error}"));
                    }
                    last_error = Some(error);
                }
            }
            let next = next.max(seam.now() + PAUSE_MIN);
            // The stop flag is seen without waiting for the next plan.
            while seam.now() < next {
                let Some(inner) = weak.upgrade() else { return };
                let is_stopped = settings.stop.get();
                inner.state.borrow_mut().relocation.next_plan_at = (!is_stopped).then_some(next);
                if is_stopped {
                    return;
                }
                drop(inner);
                seam.sleep_until(next.min(seam.now() + PAUSE_MIN)).await;
            }
            if let Some(inner) = weak.upgrade() {
                inner.state.borrow_mut().relocation.next_plan_at = None;
            }
        }
    });
}

/// Plans once and moves the slices of the plan. Refuses a second relocation at the same time. The pool may be dropped
/// meanwhile.
pub(crate) async fn relocate<S: Seam, D: Disk<S>>(
    weak: &Weak<Inner<S, D>>,
    seam: &S,
    settings: &RelocationSettings,
) -> Result<RelocationReport, PoolError> {
    let Some(_running) = Running::begin(weak)? else { return Ok(ended(RelocationEnd::PoolClosed)) };
    if settings.stop.get() {
        return Ok(ended(RelocationEnd::Stopped));
    }
    if !settings.is_window_open() {
        return Ok(ended(RelocationEnd::WindowClosed));
    }
    let plan = match weak.upgrade() {
        Some(inner) => plan(&inner, settings).await?,
        None => return Ok(ended(RelocationEnd::PoolClosed)),
    };
    if let Some(inner) = weak.upgrade() {
        let is_balance = |planned: &PlannedMove| matches!(planned.details.reason, Reason::Balance { .. });
        inner.state.borrow_mut().is_balancing = plan.moves.iter().any(is_balance);
    }
    let report = RelocationReport { planned: plan.moves.len() as u64, ..RelocationReport::default() };
    let RelocationPlan { moves, totals, outdated_at, groups: _ } = plan;
    let moves: Rc<[PlannedMove]> = moves.into();
    if let Some(inner) = weak.upgrade() {
        let (moves, began) = (Rc::clone(&moves), seam.now());
        let execution = Execution { moves, began, duration: totals.duration, next: 0, moving: Vec::new() };
        inner.state.borrow_mut().execution = Some(execution);
    }
    let run = Run {
        weak,
        seam,
        settings,
        moves,
        outdated_at,
        next: Cell::new(0),
        moving: Cell::new(0),
        ended: RefCell::default(),
        report: Cell::new(report),
    };
    run.update(|_| {});
    let pacer = Pacer::new(weak, seam, settings);
    let worker = |_| {
        let worker: BoxFuture<'_, _> = Box::pin(run.work(pacer.worker()));
        worker
    };
    let results = join((0..MOVES_AT_ONCE).map(worker).collect()).await;
    if let Some(inner) = weak.upgrade() {
        // Load that has moved must not count at its former group.
        let mut state = inner.state.borrow_mut();
        state.groups.iter_mut().for_each(|group| group.demand = Demand::default());
        state.demand_since = seam.now();
    }
    results.into_iter().collect::<Result<(), _>>()?;
    Ok(run.report.get())
}

fn ended(end: RelocationEnd) -> RelocationReport {
    RelocationReport { end, ..RelocationReport::default() }
}

/// Marks the pool as relocating until it is dropped.
struct Running<'a, S: Seam, D: Disk<S>>(&'a Weak<Inner<S, D>>);

impl<'a, S: Seam, D: Disk<S>> Running<'a, S, D> {
    /// Refuses a second relocation; `None` if the pool was dropped.
    fn begin(weak: &'a Weak<Inner<S, D>>) -> Result<Option<Self>, PoolError> {
        let Some(inner) = weak.upgrade() else { return Ok(None) };
        let mut state = inner.state.borrow_mut();
        if state.relocation.is_running {
            return Err(PoolError::Refused("a relocation is running already".to_owned()));
        }
        state.relocation.is_running = true;
        state.relocation.report = RelocationReport::default();
        Ok(Some(Running(weak)))
    }
}

impl<S: Seam, D: Disk<S>> Drop for Running<'_, S, D> {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            let mut state = inner.state.borrow_mut();
            state.relocation.is_running = false;
            state.execution = None;
        }
    }
}

/// A plan in execution.
struct Run<'a, S: Seam, D: Disk<S>> {
    weak: &'a Weak<Inner<S, D>>,
    seam: &'a S,
    settings: &'a RelocationSettings,
    moves: Rc<[PlannedMove]>,
    /// Time at which they are outdated.
    outdated_at: Nanos,
    /// Index of the next move.
    next: Cell<usize>,
    /// Moves in progress.
    moving: Cell<usize>,
    /// Tasks that wait for the end of a move.
    ended: RefCell<Waiters>,
    report: Cell<RelocationReport>,
}

impl<S: Seam, D: Disk<S>> Run<'_, S, D> {
    /// Takes moves of the plan one after the other. Ends with an error if the pool fails.
    async fn work(&self, pace: Pace) -> Result<(), PoolError> {
        while let Some(planned) = self.moves.get(self.next.get()) {
            let Some(inner) = self.weak.upgrade() else {
                self.update(|report| report.end = RelocationEnd::PoolClosed);
                return Ok(());
            };
            if let Some(end) = self.end() {
                self.update(|report| report.end = end);
                return Ok(());
            }
            let index = self.next.replace(self.next.get() + 1);
            self.note_execution(|execution| {
                execution.next = index + 1;
                execution.moving.push(index);
            });
            let result = self.move_planned(&inner, planned, &pace).await;
            self.note_execution(|execution| execution.moving.retain(|moving| *moving != index));
            match result {
                Ok(MoveOutcome::Moved) => self.note_moved(&inner, planned),
                Ok(MoveOutcome::AlreadyThere | MoveOutcome::Unallocated) => {
                    inner.state.borrow_mut().counts.skipped_moves += 1;
                    self.update(|report| report.skipped += 1);
                }
                Err(MoveError::Pool(error)) => {
                    // The other worker takes no further move either.
                    self.next.set(self.moves.len());
                    return Err(error);
                }
                Err(error) => {
                    count_failed(&mut inner.state.borrow_mut().counts, &error);
                    self.update(|report| report.failed += 1);
                }
            }
        }
        Ok(())
    }

    /// The reason to take no further move.
    fn end(&self) -> Option<RelocationEnd> {
        if self.settings.stop.get() {
            return Some(RelocationEnd::Stopped);
        }
        if !self.settings.is_window_open() {
            return Some(RelocationEnd::WindowClosed);
        }
        (self.seam.now() >= self.outdated_at).then_some(RelocationEnd::Outdated)
    }

    /// Moves a slice that still lies where the plan found it. A move without a slot waits for the other one, which may
    /// free it: the order of the plan holds for moves one after the other.
    async fn move_planned(
        &self,
        inner: &Rc<Inner<S, D>>,
        planned: &PlannedMove,
        pace: &Pace,
    ) -> Result<MoveOutcome, MoveError> {
        loop {
            let group = inner.state.borrow().slot_of(planned.slice).map(|slot| slot.group);
            if group != Some(planned.from) {
                return Ok(MoveOutcome::Unallocated);
            }
            self.moving.set(self.moving.get() + 1);
            let result = move_slice(inner, planned.slice, planned.to, Rc::clone(pace)).await;
            self.moving.set(self.moving.get() - 1);
            self.ended.borrow_mut().wake();
            match result {
                Err(MoveError::NoSlot(_) | MoveError::Busy) if self.moving.get() > 0 => {
                    let other = self.ended.borrow_mut().add();
                    other.wait().await;
                }
                result => return result,
            }
        }
    }

    fn note_moved(&self, inner: &Inner<S, D>, planned: &PlannedMove) {
        let mut state = inner.state.borrow_mut();
        let slice_bytes = state.slice_bytes();
        if planned.details.reason.is_optional() {
            let now: Nanos = self.seam.now();
            allowance(&mut state, now).take(slice_bytes, now);
        }
        drop(state);
        self.update(|report| {
            report.moved += 1;
            report.bytes += slice_bytes;
            report.saved_per_hour = report.saved_per_hour.saturating_add(planned.details.saved_per_hour);
        });
    }

    fn note_execution(&self, change: impl FnOnce(&mut Execution)) {
        if let Some(inner) = self.weak.upgrade()
            && let Some(execution) = &mut inner.state.borrow_mut().execution
        {
            change(execution);
        }
    }

    fn update(&self, change: impl FnOnce(&mut RelocationReport)) {
        let mut report = self.report.get();
        change(&mut report);
        self.report.set(report);
        if let Some(inner) = self.weak.upgrade() {
            inner.state.borrow_mut().relocation.report = report;
        }
    }
}
