//! Latency trace of a request: the time that it spends in each step.

use std::cell::Cell;

use seam::Nanos;

/// A step of a request's latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The volume's limit.
    Limit,
    /// An administrator's hold on the volume.
    Gate,
    /// Dirty data at its limit.
    Throttle,
    /// A read of flash.
    Flash,
    /// Another request's read of the same blocks.
    Joined,
    /// An I/O slot of a congested datastore, or of flash.
    Shares,
    /// A read of the backing, its queue included.
    Backing,
    /// A write or a flush of the backing.
    Destage,
    /// The flash log.
    Log,
}

impl Step {
    /// All steps with their names in reports.
    pub const ALL: [(&'static str, Step); 9] = [
        ("limit", Step::Limit),
        ("gate", Step::Gate),
        ("throttle", Step::Throttle),
        ("flash", Step::Flash),
        ("joined", Step::Joined),
        ("shares", Step::Shares),
        ("backing", Step::Backing),
        ("destage", Step::Destage),
        ("log", Step::Log),
    ];

    /// The step's name in reports.
    pub fn name(self) -> &'static str {
        Step::ALL[self as usize].0
    }
}

/// Kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush.
    Flush,
    /// A write of zeroes or a discard.
    Zero,
}

impl OpKind {
    /// The operation's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            OpKind::Read => "read",
            OpKind::Write => "write",
            OpKind::Flush => "flush",
            OpKind::Zero => "zero",
        }
    }
}

/// The time that one request spends in each step.
pub struct LatencyTrace {
    started_at: Nanos,
    last_recorded_at: Cell<Nanos>,
    time_spent: [Cell<Nanos>; Step::ALL.len()],
}

impl LatencyTrace {
    /// Starts the trace of a request.
    pub fn new(now: Nanos) -> Self {
        LatencyTrace { started_at: now, last_recorded_at: Cell::new(now), time_spent: Default::default() }
    }

    /// Adds the time since the last call to `step`.
    pub fn record(&self, step: Step, now: Nanos) {
        let spent = &self.time_spent[step as usize];
        spent.set(spent.get() + now.since(self.last_recorded_at.replace(now)));
    }

    /// Moves `time` from one step to another: a part of `from` was in fact spent in `to`.
    pub fn move_time(&self, from: Step, to: Step, time: Nanos) {
        let (from, to) = (&self.time_spent[from as usize], &self.time_spent[to as usize]);
        let time = time.min(from.get());
        from.set(from.get().since(time));
        to.set(to.get() + time);
    }

    /// Leaves the time since the last call out of all steps.
    pub fn skip(&self, now: Nanos) {
        self.last_recorded_at.set(now);
    }

    /// Time for which the volume's limit and requests of other volumes held the request.
    pub fn held_time(&self) -> Nanos {
        self.time_spent[Step::Limit as usize].get() + self.time_spent[Step::Shares as usize].get()
    }

    /// Time since the start of the trace.
    pub fn elapsed(&self, now: Nanos) -> Nanos {
        now.since(self.started_at)
    }

    /// The step in which the request waited longest, and the time spent in it.
    pub(super) fn longest(&self) -> (Step, Nanos) {
        let spent = Step::ALL.iter().map(|(_, step)| (*step, self.time_spent[*step as usize].get()));
        spent.max_by_key(|(_, spent)| *spent).expect("the list of steps is not empty")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_and_shares_are_held_time() {
        let at = Nanos::from_millis;
        let trace = LatencyTrace::new(at(0));
        trace.record(Step::Limit, at(5));
        trace.record(Step::Gate, at(6));
        trace.record(Step::Backing, at(16));
        trace.move_time(Step::Backing, Step::Shares, at(3));
        assert_eq!((trace.held_time(), trace.elapsed(at(17))), (at(8), at(17)));
    }
}
