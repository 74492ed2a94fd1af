//! Settings of relocation.

use std::cell::Cell;
use std::rc::Rc;

use seam::Nanos;

use crate::planner::{ClassCost, WeekMinute, Windows};

/// The times of the week at which slices may move.
#[derive(Clone)]
pub struct RelocationWindows {
    /// The windows.
    pub windows: Windows,
    /// Returns the present minute of the week in local time.
    pub clock: Rc<dyn Fn() -> WeekMinute>,
}

/// Rate of the copies of all moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveRate {
    /// Bytes a second.
    Bytes(u64),
    /// Percent of the time in which the source and the target serve no request of a client, 1 to 99.
    IdleShare(u32),
}

/// Limits of relocation.
#[derive(Clone)]
pub struct RelocationSettings {
    /// Costs of each tier's groups, the fastest tier first.
    pub classes: Vec<ClassCost>,
    /// Rate of the copies.
    pub rate: MoveRate,
    /// Time after which a plan is outdated, and between the starts of two plans.
    pub valid_for: Nanos,
    /// Time within which a move must save the disk time of its copies.
    pub payback: Nanos,
    /// A promotion that displaces other slices must save this much more than they lose.
    pub margin_percent: u32,
    /// Times at which slices may move; `None`: always.
    pub windows: Option<RelocationWindows>,
    /// Ends relocation when it is set. A move that is copying is cancelled before its next copy.
    pub stop: Rc<Cell<bool>>,
}

impl RelocationSettings {
    /// Defaults: a plan is outdated after 15 minutes, the pay-back time is one day, the margin 50 %, slices may always
    /// move.
    pub fn new(classes: Vec<ClassCost>, rate: MoveRate) -> RelocationSettings {
        RelocationSettings {
            classes,
            rate,
            valid_for: Nanos::from_secs(900),
            payback: Nanos::from_secs(86_400),
            margin_percent: 50,
            windows: None,
            stop: Rc::default(),
        }
    }

    /// True if slices may move at this time.
    pub(super) fn is_window_open(&self) -> bool {
        self.windows.as_ref().is_none_or(|windows| windows.windows.allows((windows.clock)()))
    }

    /// Time for which a plan made now is valid: it does not outlive its window. Outside of the windows it is a preview
    /// of the next one.
    pub(super) fn valid_for(&self) -> Nanos {
        let left = self.windows.as_ref().and_then(|windows| windows.windows.minutes_left((windows.clock)()));
        match left {
            None | Some(0) => self.valid_for,
            Some(minutes) => self.valid_for.min(Nanos::from_secs(u64::from(minutes) * 60)),
        }
    }

    /// Time from the start of one plan to the next.
    pub(super) fn interval(&self) -> Nanos {
        let to_start = self.windows.as_ref().map_or(0, |windows| windows.windows.minutes_to_start((windows.clock)()));
        let interval = if to_start == 0 { self.valid_for } else { Nanos::from_secs(u64::from(to_start) * 60) };
        interval.clamp(Nanos::from_secs(1), self.valid_for.max(Nanos::from_secs(1)))
    }
}
