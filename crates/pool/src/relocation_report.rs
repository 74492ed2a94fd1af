//! Planned moves, and the results and progress of relocation.

use std::rc::Rc;

use seam::Nanos;

use crate::number::{GroupNo, SliceAddress};
use crate::planner::Move;

/// Ended moves from which the rate of a relocation is measured.
const MEASURED_MIN: u64 = 4;

/// A move of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedMove {
    /// The slice.
    pub slice: SliceAddress,
    /// The group that holds it.
    pub from: GroupNo,
    /// The group that it moves to.
    pub to: GroupNo,
    /// The slice for which it makes room.
    pub for_slice: Option<SliceAddress>,
    /// Saving, costs and reason. Its indices of slices and places have no meaning outside of the planner.
    pub details: Move,
}

/// Reason why a relocation ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RelocationEnd {
    /// Every move of the plan was tried.
    #[default]
    Completed,
    /// The plan was outdated before its last move.
    Outdated,
    /// The stop flag was set.
    Stopped,
    /// The time lies outside of the windows.
    WindowClosed,
    /// The pool was dropped.
    PoolClosed,
}

/// Result of a relocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelocationReport {
    /// Moves of the plan.
    pub planned: u64,
    /// Slices moved.
    pub moved: u64,
    /// Slices that had been freed or moved since the plan.
    pub skipped: u64,
    /// Moves that failed or were cancelled; their slices stay.
    pub failed: u64,
    /// Bytes of the moved slices.
    pub bytes: u64,
    /// Disk time saved per hour by the moves, in nanoseconds; negative if slices got slower.
    pub saved_per_hour: i64,
    /// Reason of the end.
    pub end: RelocationEnd,
}

/// The present relocation, or the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelocationProgress {
    /// A relocation is running.
    pub is_running: bool,
    /// Its result so far; its end counts once it is not running any more.
    pub report: RelocationReport,
    /// Time on the seam's clock at which the background task plans again; `None` without such a task, and while it
    /// relocates.
    pub next_plan_at: Option<Nanos>,
}

/// The moves of the present relocation that have not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelocationQueue {
    /// Moves in progress.
    pub moving: Vec<PlannedMove>,
    /// The next moves, in their order.
    pub waiting: Vec<PlannedMove>,
    /// Number of all moves that have not begun.
    pub waiting_count: u64,
    /// Expected time for each of them.
    pub time_per_move: Nanos,
}

/// The plan in execution.
#[derive(Debug)]
pub(crate) struct Execution {
    /// Its moves.
    pub moves: Rc<[PlannedMove]>,
    /// Start of the first one.
    pub began: Nanos,
    /// Time for which all of them were planned.
    pub duration: Nanos,
    /// Index of the next move.
    pub next: usize,
    /// Indices of the moves in progress.
    pub moving: Vec<usize>,
}

impl Execution {
    /// The moves that have not ended, at most `waiting_max` of those that have not begun.
    pub fn queue(&self, now: Nanos, waiting_max: usize) -> RelocationQueue {
        let waiting = &self.moves[self.next.min(self.moves.len())..];
        let ended = (self.next - self.moving.len()) as u64;
        // The first moves say little about the rate.
        let (time, moves) = match ended {
            0..MEASURED_MIN => (self.duration, self.moves.len() as u64),
            _ => (now.since(self.began), ended),
        };
        RelocationQueue {
            moving: self.moving.iter().map(|index| self.moves[*index].clone()).collect(),
            waiting: waiting.iter().take(waiting_max).cloned().collect(),
            waiting_count: waiting.len() as u64,
            time_per_move: Nanos(time.0 / moves.max(1)),
        }
    }
}
