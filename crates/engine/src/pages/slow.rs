//! The slowest requests of the last hour, with the step in which each waited longest.

use std::cell::{Cell, RefCell};

use seam::Nanos;

/// Number of requests kept.
const REMEMBERED: usize = 100;
/// Time for which they are kept.
const HOUR: Nanos = Nanos::from_secs(3_600);

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
pub enum Asked {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush.
    Flush,
    /// A write of zeroes or a discard.
    Zero,
}

impl Asked {
    /// The operation's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Asked::Read => "read",
            Asked::Write => "write",
            Asked::Flush => "flush",
            Asked::Zero => "zero",
        }
    }
}

/// A slow request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slow {
    /// End of the request.
    pub ended: Nanos,
    /// Its duration.
    pub took: Nanos,
    /// Its operation.
    pub asked: Asked,
    /// First byte.
    pub at: u64,
    /// Length in bytes.
    pub len: u64,
    /// The step in which it waited longest.
    pub step: Step,
    /// Time spent in that step.
    pub waited: Nanos,
}

/// Latency trace: the time that one request spends in each step.
pub struct Steps {
    begun: Nanos,
    last: Cell<Nanos>,
    spent: [Cell<Nanos>; Step::ALL.len()],
}

impl Steps {
    /// Starts the trace of a request.
    pub fn new(now: Nanos) -> Self {
        Steps { begun: now, last: Cell::new(now), spent: Default::default() }
    }

    /// Adds the time since the last call to `step`.
    pub fn passed(&self, step: Step, now: Nanos) {
        let spent = &self.spent[step as usize];
        spent.set(spent.get() + now.since(self.last.replace(now)));
    }

    /// Moves `time` from one step to another: a part of `from` was in fact spent in `to`.
    pub fn moved(&self, from: Step, to: Step, time: Nanos) {
        let (from, to) = (&self.spent[from as usize], &self.spent[to as usize]);
        let time = time.min(from.get());
        from.set(from.get().since(time));
        to.set(to.get() + time);
    }

    /// Leaves the time since the last call out of all steps.
    pub fn skip(&self, now: Nanos) {
        self.last.set(now);
    }
}

/// The slowest requests of one volume.
#[derive(Default)]
pub struct SlowRequests {
    found: RefCell<Vec<Slow>>,
    /// Duration above which a request enters the list.
    least: Cell<Nanos>,
    /// Time at which the oldest entry expires.
    expires: Cell<Nanos>,
}

impl SlowRequests {
    /// Records a request that has ended.
    pub fn ended(&self, steps: &Steps, asked: Asked, at: u64, len: u64, now: Nanos) {
        let took = now.since(steps.begun);
        if took == Nanos::ZERO || (took <= self.least.get() && now < self.expires.get()) {
            return;
        }
        let (waited, step) = Step::ALL
            .iter()
            .map(|(_, step)| (steps.spent[*step as usize].get(), *step))
            .max_by_key(|(spent, _)| *spent)
            .expect("there are steps");
        let mut found = self.found.borrow_mut();
        found.retain(|slow| slow.ended + HOUR > now);
        if found.len() >= REMEMBERED {
            let fastest = (0..found.len()).min_by_key(|index| found[*index].took).expect("there are some");
            if found[fastest].took < took {
                found.swap_remove(fastest);
            }
        }
        if found.len() < REMEMBERED {
            found.push(Slow { ended: now, took, asked, at, len, step, waited });
        }
        let full = found.len() == REMEMBERED;
        let least = found.iter().map(|slow| slow.took).min().filter(|_| full);
        self.least.set(least.unwrap_or(Nanos::ZERO));
        let oldest = found.iter().map(|slow| slow.ended).min();
        self.expires.set(oldest.map_or(now, |oldest| oldest + HOUR));
    }

    /// The slowest requests of the last hour, in descending order of duration.
    pub fn list(&self, now: Nanos) -> Vec<Slow> {
        let mut list: Vec<Slow> = self.found.borrow().iter().filter(|slow| slow.ended + HOUR > now).copied().collect();
        list.sort_by_key(|slow| std::cmp::Reverse((slow.took, slow.ended)));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(slow: &SlowRequests, begun: Nanos, flash_ms: u64, backing_ms: u64) {
        let steps = Steps::new(begun);
        steps.passed(Step::Flash, begun + Nanos::from_millis(flash_ms));
        let end = begun + Nanos::from_millis(flash_ms + backing_ms);
        steps.passed(Step::Backing, end);
        slow.ended(&steps, Asked::Read, 0, 4096, end);
    }

    #[test]
    fn slowest_hundred_of_an_hour_are_kept_with_longest_step() {
        let slow = SlowRequests::default();
        for number in 1..=1_000u64 {
            let begun = Nanos::from_secs(number);
            let (flash, backing) = if number.is_multiple_of(2) { (1, number) } else { (number, 1) };
            request(&slow, begun, flash, backing);
        }
        let list = slow.list(Nanos::from_secs(1_002));
        assert_eq!(list.len(), 100);
        assert_eq!(
            (list[0].took, list[0].step, list[0].waited),
            (Nanos::from_millis(1_001), Step::Backing, Nanos::from_millis(1_000))
        );
        assert_eq!((list[99].took, list[99].step), (Nanos::from_millis(902), Step::Flash));
        // An hour later only newer requests count, however fast they were.
        request(&slow, Nanos::from_secs(4_700), 1, 2);
        let list = slow.list(Nanos::from_secs(4_701));
        assert_eq!(list.len(), 1);
        assert_eq!(list[0].step, Step::Backing);
    }
}
