//! What can go wrong with a simulated disk, and when.
//!
//! | fault | on | what happens |
//! |---|---|---|
//! | `Error` | any | input/output error; a write may have landed in part |
//! | `NoSpace` | write, zero | no space left; nothing landed |
//! | `Torn` | write | acknowledged, yet only some leading sectors landed |
//! | `Lost` | write, zero | acknowledged, nothing landed |
//! | `BitFlip` | read, write | one bit of one sector differs: returned so, or stored so |
//! | `Misdirected` | write | acknowledged, landed one block further |
//! | `Stall` | any | takes that much longer |
//! | `Hang` | any | it is not answered before [`super::DiskControl::answer_hung`], be that never |
//! | `Vanish` | any | the disk is gone, for everything in flight too, until [`super::DiskControl::come_back`] |
//! | `Reconnect` | any | the disk comes back at once with another incarnation; what was not flushed may be lost, what is in flight fails or is done |
//! | `FlushLies` | flush | acknowledged, nothing became durable |
//!
//! A failed flush is `Error` on flushes, a medium error is `Error` with `When::Always` on a range, and what a crash leaves is
//! [`super::CrashMode`].

use std::ops::Range;

use crate::Nanos;
use crate::rng::Rng;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Input/output error.
    Error,
    /// No space left.
    NoSpace,
    /// Only some leading sectors land, success is said.
    Torn,
    /// Nothing lands, success is said.
    Lost,
    /// One bit differs.
    BitFlip,
    /// It lands one logical block further, success is said.
    Misdirected,
    /// It takes that much longer.
    Stall(Nanos),
    /// It is not answered.
    Hang,
    /// The disk is gone.
    Vanish,
    /// The connection was lost and is back.
    Reconnect,
    /// Success is said, nothing became durable.
    FlushLies,
}

/// Kinds of operation that a rule is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ops(u8);

impl Ops {
    /// Reads.
    pub const READ: Ops = Ops(1);
    /// Writes.
    pub const WRITE: Ops = Ops(2);
    /// Flushes.
    pub const FLUSH: Ops = Ops(4);
    /// Zero-ranges.
    pub const ZERO: Ops = Ops(8);
    /// Everything that changes content.
    pub const CHANGE: Ops = Ops(2 | 8);
    /// Everything.
    pub const ALL: Ops = Ops(15);

    pub(super) fn has(self, other: Ops) -> bool {
        self.0 & other.0 != 0
    }
}

impl std::ops::BitOr for Ops {
    type Output = Ops;
    fn bitor(self, other: Ops) -> Ops {
        Ops(self.0 | other.0)
    }
}

/// Which of the matching operations a rule strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// All.
    Always,
    /// That one alone, counted from 0 since the rule was added.
    Nth(u64),
    /// That many in a million, drawn from the seed.
    PerMillion(u32),
    /// All between two times.
    Between(Nanos, Nanos),
}

/// One line of a disk's fault plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What happens.
    pub fault: Fault,
    /// To which operations.
    pub ops: Ops,
    /// To which of them.
    pub when: When,
    /// Only to those that touch these bytes; `None`: wherever they are. A flush has no place and matches `None` alone.
    pub range: Option<Range<u64>>,
}

impl Rule {
    /// A rule without regard to the place.
    pub fn new(fault: Fault, ops: Ops, when: When) -> Rule {
        Rule { fault, ops, when, range: None }
    }

    /// A medium error: reads and writes that touch `range` (bytes) fail.
    pub fn medium_error(range: Range<u64>) -> Rule {
        Rule { fault: Fault::Error, ops: Ops::READ | Ops::WRITE, when: When::Always, range: Some(range) }
    }

    fn matches(&self, op: Ops, at: u64, len: u64) -> bool {
        let place = self.range.as_ref().is_none_or(|range| at < range.end && at + len > range.start);
        self.ops.has(op) && place
    }
}

/// A disk's rules, each with the number of operations that it has matched.
#[derive(Clone, Debug, Default)]
pub(super) struct FaultPlan(Vec<(Rule, u64)>);

impl FaultPlan {
    pub(super) fn add(&mut self, rule: Rule) {
        self.0.push((rule, 0));
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// What happens to this operation; the first rule that strikes counts.
    pub(super) fn strike(&mut self, op: Ops, at: u64, len: u64, now: Nanos, rng: &Rng) -> Option<Fault> {
        let mut struck = None;
        for (rule, seen) in self.0.iter_mut().filter(|(rule, _)| rule.matches(op, at, len)) {
            let strikes = match rule.when {
                When::Always => true,
                When::Nth(number) => *seen == number,
                When::PerMillion(share) => rng.chance(share),
                When::Between(from, to) => (from..to).contains(&now),
            };
            *seen += 1;
            if strikes && struck.is_none() {
                struck = Some(rule.fault);
            }
        }
        struck
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_rule_strikes_once_and_a_range_only_where_it_lies() {
        let rng = Rng::new(1, 1);
        let mut plan = FaultPlan::default();
        plan.add(Rule::new(Fault::Lost, Ops::WRITE, When::Nth(1)));
        plan.add(Rule::medium_error(4096..8192));
        let mut strike = |op, at, len| plan.strike(op, at, len, Nanos::ZERO, &rng);
        assert_eq!(strike(Ops::WRITE, 0, 4096), None);
        assert_eq!(strike(Ops::READ, 0, 4097), Some(Fault::Error));
        assert_eq!(strike(Ops::WRITE, 0, 4096), Some(Fault::Lost));
        assert_eq!(strike(Ops::WRITE, 8192, 512), None);
        assert_eq!(strike(Ops::FLUSH, 0, 0), None);
    }
}
