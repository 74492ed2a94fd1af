//! Faults of a simulated disk and their times.
//!
//! | fault | operation | effect |
//! |---|---|---|
//! | `Error` | any | input/output error; part of a write may have landed. A change of the mark has not |
//! | `NoSpace` | write, zero | no space left; nothing landed |
//! | `Torn` | write | acknowledged, but only some leading sectors landed |
//! | `Lost` | write, zero | acknowledged, nothing landed |
//! | `BitFlip` | read, write | one bit of one sector differs, in the returned or in the stored data |
//! | `Misdirected` | write | acknowledged, landed one logical block further |
//! | `Stall` | any | completes later by this time |
//! | `Hang` | any | not answered until [`super::DiskControl::complete_hung`], or never; a change of the mark never |
//! | `Vanish` | any | the disk is gone until [`super::DiskControl::come_back`]; operations in flight fail |
//! | `Reconnect` | any | new connection epoch at once; unflushed data may be lost, operations in flight fail or end |
//! | `FlushLies` | flush | acknowledged, nothing became durable |
//!
//! A failed flush is `Error` on flushes; a medium error is `Error` with `When::Always` on a range. [`super::CrashMode`]
//! describes the state after a crash.

use std::ops::Range;

use crate::Nanos;
use crate::rng::Rng;

/// Kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Input/output error.
    Error,
    /// No space left.
    NoSpace,
    /// Reports success, but only some leading sectors land.
    Torn,
    /// Reports success, but nothing lands.
    Lost,
    /// One bit of one sector differs.
    BitFlip,
    /// Reports success, but the data lands one logical block further.
    Misdirected,
    /// Completes later by this time.
    Stall(Nanos),
    /// Is not answered.
    Hang,
    /// The disk is gone.
    Vanish,
    /// The connection is lost and restored.
    Reconnect,
    /// Reports success, but nothing becomes durable.
    FlushLies,
}

/// Kinds of operations that a rule covers.
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
    /// All operations that change content.
    pub const CHANGE: Ops = Ops(2 | 8);
    /// Changes of the mark ([`Disk::mark_undestaged`](crate::Disk::mark_undestaged)): only [`Fault::Error`] and
    /// [`Fault::Hang`].
    pub const MARK: Ops = Ops(16);
    /// All operations but changes of the mark.
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

/// The matching operations to which a rule applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// All of them.
    Always,
    /// Only this one, counted from 0 since the rule was added.
    Nth(u64),
    /// This many in a million, drawn from the seed.
    PerMillion(u32),
    /// All between two points in time.
    Between(Nanos, Nanos),
}

/// One rule of a disk's fault plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The injected fault.
    pub fault: Fault,
    /// Kinds of operations.
    pub ops: Ops,
    /// Selection among the matching operations.
    pub when: When,
    /// Only operations that touch these bytes; `None`: any. A flush touches no bytes and matches only `None`.
    pub range: Option<Range<u64>>,
}

impl Rule {
    /// A rule without a range.
    pub fn new(fault: Fault, ops: Ops, when: When) -> Rule {
        Rule { fault, ops, when, range: None }
    }

    /// A medium error: reads and writes that touch `range` (bytes) fail.
    pub fn medium_error(range: Range<u64>) -> Rule {
        Rule { fault: Fault::Error, ops: Ops::READ | Ops::WRITE, when: When::Always, range: Some(range) }
    }

    fn matches(&self, op: Ops, at: u64, len: u64) -> bool {
        let touches_range = self.range.as_ref().is_none_or(|range| at < range.end && at + len > range.start);
        self.ops.has(op) && touches_range
    }
}

/// A disk's rules, each with the number of operations it has matched.
#[derive(Clone, Debug, Default)]
pub(super) struct FaultPlan(Vec<(Rule, u64)>);

impl FaultPlan {
    pub(super) fn add(&mut self, rule: Rule) {
        self.0.push((rule, 0));
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The fault of this operation, from the first rule that applies.
    pub(super) fn draw_fault(&mut self, op: Ops, at: u64, len: u64, now: Nanos, rng: &Rng) -> Option<Fault> {
        let mut drawn = None;
        for (rule, seen) in self.0.iter_mut().filter(|(rule, _)| rule.matches(op, at, len)) {
            let fires = match rule.when {
                When::Always => true,
                When::Nth(number) => *seen == number,
                When::PerMillion(per_million) => rng.chance(per_million),
                When::Between(from, to) => (from..to).contains(&now),
            };
            *seen += 1;
            if fires && drawn.is_none() {
                drawn = Some(rule.fault);
            }
        }
        drawn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nth_rule_fires_once_and_range_rule_only_in_its_range() {
        let rng = Rng::new(1, 1);
        let mut plan = FaultPlan::default();
        plan.add(Rule::new(Fault::Lost, Ops::WRITE, When::Nth(1)));
        plan.add(Rule::medium_error(4096..8192));
        let mut draw_fault = |op, at, len| plan.draw_fault(op, at, len, Nanos::ZERO, &rng);
        assert_eq!(draw_fault(Ops::WRITE, 0, 4096), None);
        assert_eq!(draw_fault(Ops::READ, 0, 4097), Some(Fault::Error));
        assert_eq!(draw_fault(Ops::WRITE, 0, 4096), Some(Fault::Lost));
        assert_eq!(draw_fault(Ops::WRITE, 8192, 512), None);
        assert_eq!(draw_fault(Ops::FLUSH, 0, 0), None);
    }
}
