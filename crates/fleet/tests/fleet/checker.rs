//! Checks that the history of each block is that of one disk with a volatile cache.
//!
//! Linearizability is compositional (Herlihy and Wing 1990), so each block is checked alone. The algorithm is
//! just-in-time linearization (Lowe, "Testing for linearizability", 2017): a set of configurations follows the history,
//! and an operation is linearized at the latest when it completes. The sequential specification is buffered durable
//! linearizability (Izraelevitz, Mendes and Scott 2016) for one block: a crash may undo writes since the last flush.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::{History, HistoryOp, OpKind};
use crate::storage::BLOCKS;

/// Operations that are open at once, at most.
const OPEN_MAX: usize = 64;

/// A block of a disk.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Block {
    /// The durable value is one of these, each of which no read has excluded yet.
    durable: BTreeSet<u32>,
    /// Writes since the last flush, in order. A write has several possible values if a machine went back in time: it is
    /// as if the value of then were written again.
    unflushed: Vec<Value>,
}

/// A value of an unflushed write.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Value {
    Known(u32),
    OneOf(BTreeSet<u32>),
}

impl Block {
    /// Executes an operation; `None` if its result is impossible.
    fn execute(&self, op: Step) -> Option<Block> {
        let mut next = self.clone();
        match op {
            Step::Write(value) => next.unflushed.push(Value::Known(value)),
            Step::Read(value) => match next.unflushed.last_mut() {
                Some(Value::Known(last)) if *last == value => {}
                Some(Value::Known(_)) => return None,
                Some(last) => {
                    let Value::OneOf(values) = &*last else { unreachable!("the other kind is above") };
                    if !values.contains(&value) {
                        return None;
                    }
                    *last = Value::Known(value);
                }
                None if self.durable.contains(&value) => next.durable = BTreeSet::from([value]),
                None => return None,
            },
            Step::Flush => {
                if let Some(last) = next.unflushed.pop() {
                    next.durable = match last {
                        Value::Known(value) => BTreeSet::from([value]),
                        Value::OneOf(values) => values,
                    };
                    next.unflushed.clear();
                }
            }
            Step::Crash => {
                next.durable = self.values();
                next.unflushed.clear();
            }
            Step::Rewind => next.unflushed.push(Value::OneOf(self.values())),
        }
        Some(next)
    }

    /// Every value that the block may have after a crash.
    fn values(&self) -> BTreeSet<u32> {
        let mut values = self.durable.clone();
        for value in &self.unflushed {
            match value {
                Value::Known(value) => {
                    values.insert(*value);
                }
                Value::OneOf(others) => values.extend(others),
            }
        }
        values
    }
}

/// An operation on one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Write(u32),
    Read(u32),
    Flush,
    Crash,
    Rewind,
}

/// An operation with its interval.
#[derive(Clone, Copy, Debug)]
pub struct Interval {
    pub step: Step,
    pub invoked: u64,
    pub completed: u64,
}

/// Checks every block; the error names the first operation that fits no order.
pub fn check(history: &History) -> Result<(), String> {
    for block in 0..BLOCKS {
        let intervals = intervals(history, block);
        check_block(&intervals).map_err(|error| format!("block {block}: {error}"))?;
    }
    Ok(())
}

/// The operations of a block. One without a known outcome is left out if no read proves its effect: it may never have
/// happened. Otherwise the effect came before the end of that read.
fn intervals(history: &History, block: usize) -> Vec<Interval> {
    let mut first_reads = BTreeMap::<u32, u64>::new();
    let is_read = |op: &HistoryOp| op.kind == OpKind::Read { block };
    for (completed, value) in history.ops.iter().filter(|op| is_read(op)).filter_map(|op| op.completed) {
        let first = first_reads.entry(value).or_insert(completed);
        *first = completed.min(*first);
    }
    let interval = |op: &HistoryOp| {
        let (step, completed) = match (op.kind, op.completed) {
            (OpKind::Write { block: at, value }, completed) if at == block => {
                (Step::Write(value), completed.map(|(at, _)| at).or(first_reads.get(&value).copied())?)
            }
            (OpKind::Read { block: at }, Some((completed, value))) if at == block => (Step::Read(value), completed),
            (OpKind::Flush, Some((completed, _))) => (Step::Flush, completed),
            (OpKind::Crash, Some((completed, _))) => (Step::Crash, completed),
            (OpKind::Rewind, Some((completed, _))) => (Step::Rewind, completed),
            _ => return None,
        };
        Some(Interval { step, invoked: op.invoked, completed })
    };
    history.ops.iter().filter_map(interval).collect()
}

/// A possible state: the open operations that have taken effect (a bit each), and the block.
type Configuration = (u64, Block);

/// Checks the operations of one block, which begins as zero.
pub fn check_block(intervals: &[Interval]) -> Result<(), String> {
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    for (index, interval) in intervals.iter().enumerate() {
        events.push((interval.invoked, false, index));
        events.push((interval.completed, true, index));
    }
    events.sort_unstable();
    let mut slots: [Option<usize>; OPEN_MAX] = [None; OPEN_MAX];
    let start = Block { durable: BTreeSet::from([0]), unflushed: Vec::new() };
    let mut configurations = BTreeSet::<Configuration>::from([(0, start)]);
    for (event, is_completion, index) in events {
        if !is_completion {
            let free = slots.iter().position(Option::is_none).expect("few operations are open at once");
            slots[free] = Some(index);
            continue;
        }
        let slot = slots.iter().position(|slot| *slot == Some(index)).expect("the operation is open");
        configurations = linearize(configurations, slot, &slots, intervals);
        slots[slot] = None;
        if configurations.is_empty() {
            let step = intervals[index].step;
            return Err(format!("{step:?}, completed at event {event}, fits no order of the operations"));
        }
    }
    Ok(())
}

/// The configurations in which the operation of `slot` has taken effect, with its bit cleared.
fn linearize(
    configurations: BTreeSet<Configuration>,
    slot: usize,
    slots: &[Option<usize>; OPEN_MAX],
    intervals: &[Interval],
) -> BTreeSet<Configuration> {
    let (bit, mut done) = (1_u64 << slot, BTreeSet::new());
    let mut visited = BTreeSet::<Configuration>::new();
    let mut stack: Vec<Configuration> = configurations.into_iter().collect();
    while let Some((effective, block)) = stack.pop() {
        if effective & bit != 0 {
            done.insert((effective & !bit, block));
            continue;
        }
        for (other, index) in slots.iter().enumerate().filter_map(|(other, index)| Some((other, (*index)?))) {
            if effective & (1 << other) == 0
                && let Some(next) = block.execute(intervals[index].step)
            {
                let next = (effective | 1 << other, next);
                if visited.insert(next.clone()) {
                    stack.push(next);
                }
            }
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operations one after the other.
    fn in_order(steps: &[Step]) -> Vec<Interval> {
        let interval = |(index, step): (usize, &Step)| Interval {
            step: *step,
            invoked: 2 * index as u64,
            completed: 2 * index as u64 + 1,
        };
        steps.iter().enumerate().map(interval).collect()
    }

    #[test]
    fn flushed_write_survives_a_crash() {
        use Step::{Crash, Flush, Read, Write};
        assert!(check_block(&in_order(&[Write(1), Flush, Write(2), Crash, Read(1)])).is_ok());
        assert!(check_block(&in_order(&[Write(1), Flush, Write(2), Crash, Read(2)])).is_ok());
        assert!(check_block(&in_order(&[Write(1), Flush, Write(2), Crash, Read(0)])).is_err());
        assert!(check_block(&in_order(&[Write(1), Crash, Read(1), Crash, Read(0)])).is_err());
    }

    #[test]
    fn rewound_value_is_volatile() {
        use Step::{Crash, Flush, Read, Rewind, Write};
        assert!(check_block(&in_order(&[Write(1), Rewind, Read(1), Crash, Read(0)])).is_ok());
        assert!(check_block(&in_order(&[Write(1), Rewind, Read(1), Flush, Crash, Read(0)])).is_err());
        assert!(check_block(&in_order(&[Write(1), Flush, Rewind, Read(0)])).is_err());
    }

    #[test]
    fn read_returns_no_older_value() {
        use Step::{Read, Write};
        assert!(check_block(&in_order(&[Write(1), Write(2), Read(1)])).is_err());
        assert!(check_block(&in_order(&[Write(1), Read(1), Read(0)])).is_err());
        let overlapping = |first, second| {
            [
                Interval { step: Write(1), invoked: 0, completed: 9 },
                Interval { step: Read(first), invoked: 1, completed: 2 },
                Interval { step: Read(second), invoked: 3, completed: 4 },
            ]
        };
        assert!(check_block(&overlapping(0, 1)).is_ok());
        assert!(check_block(&overlapping(1, 0)).is_err());
    }

    /// Compares with a search through every order, for all histories of four operations with few values.
    #[test]
    fn verdict_is_that_of_a_search_through_every_order() {
        let steps =
            [Step::Write(1), Step::Write(2), Step::Read(0), Step::Read(1), Step::Read(2), Step::Flush, Step::Crash];
        let rng = seam::sim::Rng::new(7, 0);
        let (mut valid, mut invalid) = (0, 0);
        for _ in 0..20_000 {
            let mut times: Vec<u64> = (0..10).collect();
            for index in (1..times.len()).rev() {
                times.swap(index, rng.below(index as u64 + 1) as usize);
            }
            let interval = |pair: &[u64], step| Interval {
                step,
                invoked: *pair.iter().min().expect("two times"),
                completed: *pair.iter().max().expect("two times"),
            };
            let intervals: Vec<_> =
                times.chunks(2).map(|pair| interval(pair, steps[rng.below(steps.len() as u64) as usize])).collect();
            let start = Block { durable: BTreeSet::from([0]), unflushed: Vec::new() };
            let expected = has_order(&start, &intervals);
            assert_eq!(check_block(&intervals).is_ok(), expected, "{intervals:?}");
            *(if expected { &mut valid } else { &mut invalid }) += 1;
        }
        assert!(valid > 1_000 && invalid > 1_000, "both verdicts occur: {valid} and {invalid}");
    }

    /// True if some order that respects the intervals is possible.
    fn has_order(block: &Block, rest: &[Interval]) -> bool {
        rest.is_empty()
            || (0..rest.len()).any(|index| {
                let is_first = rest.iter().all(|other| other.completed > rest[index].invoked);
                let mut others = rest.to_vec();
                let next = others.remove(index).step;
                is_first && block.execute(next).is_some_and(|block| has_order(&block, &others))
            })
    }
}
