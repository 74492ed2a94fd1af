//! The slowest requests of the last hour, and which step each waited in longest.

use std::cell::{Cell, RefCell};

use seam::Nanos;

/// Requests that are remembered.
const REMEMBERED: usize = 100;
/// For how long.
const HOUR: Nanos = Nanos::from_secs(3_600);

/// What a request may wait in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The volume's limit.
    Limit,
    /// An administrator held the volume.
    Gate,
    /// Dirty data was at its bound.
    Throttle,
    /// A read of flash.
    Flash,
    /// Another request's read of the same blocks.
    Joined,
    /// Its turn at a congested datastore, or at flash.
    Shares,
    /// A read of the backing, its queue included.
    Backing,
    /// A write or a flush of the backing.
    Destage,
    /// The flash log.
    Log,
}

impl Step {
    /// All of them, by their names in reports.
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

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        Step::ALL[self as usize].0
    }
}

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// To read.
    Read,
    /// To write.
    Write,
    /// To flush.
    Flush,
    /// To zero or discard.
    Zero,
}

impl Asked {
    /// Its name in reports.
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
    /// When it ended.
    pub ended: Nanos,
    /// How long it took.
    pub took: Nanos,
    /// What was asked.
    pub asked: Asked,
    /// First byte.
    pub at: u64,
    /// Bytes.
    pub len: u64,
    /// Where it waited longest.
    pub step: Step,
    /// How long there.
    pub waited: Nanos,
}

/// Times that one request spends in its steps.
pub struct Steps {
    begun: Nanos,
    last: Cell<Nanos>,
    spent: [Cell<Nanos>; Step::ALL.len()],
}

impl Steps {
    /// A request begins.
    pub fn new(now: Nanos) -> Self {
        Steps { begun: now, last: Cell::new(now), spent: Default::default() }
    }

    /// What passed since the last call went into `step`.
    pub fn passed(&self, step: Step, now: Nanos) {
        let spent = &self.spent[step as usize];
        spent.set(spent.get() + now.since(self.last.replace(now)));
    }

    /// So much of what went into `from` was `to` in truth.
    pub fn moved(&self, from: Step, to: Step, time: Nanos) {
        let (from, to) = (&self.spent[from as usize], &self.spent[to as usize]);
        let time = time.min(from.get());
        from.set(from.get().since(time));
        to.set(to.get() + time);
    }

    /// What passed since the last call went into nothing of interest.
    pub fn skip(&self, now: Nanos) {
        self.last.set(now);
    }
}

/// The slowest requests of one volume.
#[derive(Default)]
pub struct SlowRequests {
    found: RefCell<Vec<Slow>>,
    /// What a request must take at least to be among them.
    least: Cell<Nanos>,
    /// When the first of them is too old.
    expires: Cell<Nanos>,
}

impl SlowRequests {
    /// A request has ended.
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

    /// The slowest requests of the last hour, the slowest first.
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
    fn the_slowest_hundred_of_an_hour_are_kept_with_the_step_they_waited_in() {
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
        // An hour later only what came since counts, however fast it was.
        request(&slow, Nanos::from_secs(4_700), 1, 2);
        let list = slow.list(Nanos::from_secs(4_701));
        assert_eq!(list.len(), 1);
        assert_eq!(list[0].step, Step::Backing);
    }
}
