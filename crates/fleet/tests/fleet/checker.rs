//! Checks that the history of each block is that of one disk with a volatile cache.
//!
//! Linearizability is compositional (Herlihy and Wing 1990), so each block is checked alone. The algorithm is just-in-time
//! linearization (Lowe, "Testing for linearizability", 2017): a set of configurations follows the history, and an
//! operation is linearized at the latest when it completes. The sequential specification is buffered durable
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
    /// Writes since the last flush, in order.
    unflushed: Vec<u32>,
}

impl Block {
    /// Executes an operation; `None` if its result is impossible.
    fn execute(&self, op: Step) -> Option<Block> {
        let mut next = self.clone();
        match op {
            Step::Write(value) => next.unflushed.push(value),
            Step::Read(value) => match self.unflushed.last() {
                Some(last) if *last != value => return None,
                Some(_) => {}
                None if self.durable.contains(&value) => next.durable = BTreeSet::from([value]),
                None => return None,
            },
            Step::Flush => {
                if let Some(last) = next.unflushed.pop() {
                    next.durable = BTreeSet::from([last]);
                    next.unflushed.clear();
                }
            }
            Step::Crash => next.durable.extend(next.unflushed.drain(..)),
        }
        Some(next)
    }
}

/// An operation on one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Write(u32),
    Read(u32),
    Flush,
    Crash,
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
