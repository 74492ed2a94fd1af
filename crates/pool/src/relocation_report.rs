//! Results and progress of relocation.

use seam::Nanos;

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
