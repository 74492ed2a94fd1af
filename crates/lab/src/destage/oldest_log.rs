//! Hotset's order: the oldest part of a log, sorted by address over the volume.
//!
//! Every write of a block takes a record at the head of the log, and the tail moves over segments without a dirty
//! record. A round covers the older half of the segments, or by age those that are five minutes old. Blocks that were
//! written again have a newer record and are left out. A request takes in the dirty neighbours that are in memory.
//! Design: `docs/design/destage.md`.

use std::collections::VecDeque;

use seam::Nanos;

use super::dirty_blocks::{DirtyBlocks, Run, stripe_end};
use super::{DestageState, Order};

/// Records of a segment: 1 MiB.
const SEGMENT_BLOCKS: u64 = 256;
/// Age at which the data of a segment is written.
pub const SEGMENT_AGE_MAX: Nanos = Nanos::from_secs(300);
/// While clients are idle, blocks of this age are written.
const STABLE_AFTER: Nanos = Nanos::from_secs(1);
/// Maximum number of blocks of a round.
const ROUND_BLOCKS_MAX: usize = 65_536;
/// Maximum number of blocks in memory, at the newest end of the log: half of 32 MiB.
const MEMORY_BLOCKS: u64 = 4_096;
/// Percentage of the segments above which rounds begin.
pub const TARGET_PERCENT: u64 = engine::LOG_TARGET_PERCENT as u64;

/// Space that a write takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// A record for each write, until the tail has passed it.
    Log,
    /// One block, in place, as in the caches of the other orders.
    InPlace,
}

/// The blocks of a round, by address.
struct Round {
    blocks: VecDeque<u64>,
    /// Sequence number from which on records are too new.
    end: u64,
}

/// A log and its round.
pub struct OldestLog {
    space: Space,
    stripe_blocks: u64,
    /// Times at which the segments from `tail` on were opened.
    opened: VecDeque<Nanos>,
    tail: u64,
    round: Option<Round>,
    next_round_by_age: Nanos,
    /// Position of the writes while clients are idle.
    idle_position: u64,
}

impl OldestLog {
    /// An empty log; requests end at multiples of `stripe_blocks`.
    pub fn new(space: Space, stripe_blocks: u64) -> OldestLog {
        OldestLog {
            space,
            stripe_blocks,
            opened: VecDeque::new(),
            tail: 0,
            round: None,
            next_round_by_age: Nanos::ZERO,
            idle_position: 0,
        }
    }

    /// Sequence number that ends the segments of the next round; `None` without a reason for one.
    fn round_end(&mut self, state: &DestageState) -> Option<u64> {
        let now = state.now;
        let is_old = |opened: &Nanos| now.since(*opened) >= SEGMENT_AGE_MAX;
        let old = self.opened.iter().take_while(|opened| is_old(opened)).count();
        if state.used_percent() > TARGET_PERCENT {
            return Some(self.first_sequence(old.max(self.opened.len() / 2).max(1)));
        }
        if old == 0 || now < self.next_round_by_age {
            return None;
        }
        self.next_round_by_age = now + Nanos(SEGMENT_AGE_MAX.0 / 2);
        Some(self.first_sequence(old))
    }

    /// Sequence number of the first record that is `segments` behind the tail.
    fn first_sequence(&self, segments: usize) -> u64 {
        (self.tail + segments as u64) * SEGMENT_BLOCKS
    }

    fn start_round(&mut self, dirty: &DirtyBlocks, state: &DestageState) -> Option<Round> {
        let end = self.round_end(state)?;
        let old = dirty.by_age().take_while(|(_, version)| version.sequence < end);
        let mut blocks: Vec<u64> = old.map(|(block, _)| block).take(ROUND_BLOCKS_MAX).collect();
        blocks.sort_unstable();
        (!blocks.is_empty()).then(|| Round { blocks: blocks.into(), end })
    }

    /// The run of dirty blocks around a chosen one.
    fn run_from(&self, dirty: &DirtyBlocks, first: u64, blocks_max: u64, end: u64) -> Run {
        let run_end = stripe_end(first, self.stripe_blocks).min(first.saturating_add(blocks_max));
        let in_memory = dirty.next_sequence().saturating_sub(MEMORY_BLOCKS);
        dirty.run(first, run_end, |_, version| version.sequence < end || version.sequence >= in_memory)
    }

    fn idle_run(&mut self, dirty: &DirtyBlocks, state: &DestageState, blocks_max: u64) -> Option<Run> {
        let is_stable = |at: Nanos| state.now.since(at) >= STABLE_AFTER;
        let find = |position: u64| {
            let mut candidates = dirty.from(position);
            candidates.find(|(block, version)| dirty.is_writable(*block) && is_stable(version.written_at))
        };
        let (first, _) = find(self.idle_position).or_else(|| find(0))?;
        let run = self.run_from(dirty, first, blocks_max, u64::MAX);
        self.idle_position = run.end();
        Some(run)
    }
}

impl Order for OldestLog {
    fn record_write(&mut self, _: u64, _: bool, _: bool) {}

    fn record_start(&mut self, _: Run) {}

    fn advance_tail(&mut self, dirty: &DirtyBlocks, now: Nanos) {
        let head = dirty.next_sequence().div_ceil(SEGMENT_BLOCKS);
        let tail = dirty.oldest_sequence().map_or(head, |sequence| sequence / SEGMENT_BLOCKS);
        while self.tail + (self.opened.len() as u64) < head {
            self.opened.push_back(now);
        }
        while self.tail < tail && self.opened.pop_front().is_some() {
            self.tail += 1;
        }
    }

    fn used_blocks(&self, dirty: &DirtyBlocks) -> u64 {
        match self.space {
            Space::Log => dirty.next_sequence().saturating_sub(self.tail * SEGMENT_BLOCKS),
            Space::InPlace => dirty.occupied(),
        }
    }

    fn blocks_needed(&self, blocks: u64, new: u64) -> u64 {
        if self.space == Space::Log { blocks } else { new }
    }

    fn oldest_since(&self, dirty: &DirtyBlocks) -> Option<Nanos> {
        if dirty.is_empty() { None } else { self.opened.front().copied() }
    }

    fn next_run(&mut self, dirty: &DirtyBlocks, state: &DestageState, blocks_max: u64) -> Option<Run> {
        if self.round.is_none() {
            self.round = self.start_round(dirty, state);
        }
        while let Some(round) = &mut self.round {
            let Some(block) = round.blocks.pop_front() else {
                self.round = None;
                break;
            };
            let end = round.end;
            let is_due = dirty.get(block).is_some_and(|version| version.sequence < end) && dirty.is_writable(block);
            if is_due {
                return Some(self.run_from(dirty, block, blocks_max, end));
            }
        }
        if state.is_idle { self.idle_run(dirty, state, blocks_max) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: u64 = 8 * SEGMENT_BLOCKS;

    fn state_at(log: &OldestLog, dirty: &DirtyBlocks, now: Nanos) -> DestageState {
        DestageState { now, used_blocks: log.used_blocks(dirty), capacity_blocks: CAPACITY, ..DestageState::default() }
    }

    /// Fills four of eight segments with every other block, downwards, and then writes two of the oldest again.
    fn half_full() -> (DirtyBlocks, OldestLog) {
        let (mut dirty, mut log) = (DirtyBlocks::default(), OldestLog::new(Space::Log, 64));
        let blocks = 4 * SEGMENT_BLOCKS;
        let mut write = |block| {
            dirty.write(block, Nanos::ZERO);
            log.advance_tail(&dirty, Nanos::ZERO);
        };
        (0..blocks).for_each(|number| write(2 * (MEMORY_BLOCKS + blocks - number)));
        for number in [0, 1] {
            write(2 * (MEMORY_BLOCKS + blocks - number));
        }
        (dirty, log)
    }

    #[test]
    fn older_half_is_written_by_address_without_rewritten_blocks() {
        let (mut dirty, mut log) = half_full();
        assert_eq!(log.used_blocks(&dirty), 4 * SEGMENT_BLOCKS + 2, "dead records take space");
        let mut written = Vec::new();
        while let Some(run) = log.next_run(&dirty, &state_at(&log, &dirty, Nanos::ZERO), u64::MAX) {
            dirty.start(run);
            dirty.complete(run);
            written.push(run.first);
            if written.len() == 2 * SEGMENT_BLOCKS as usize - 2 {
                break;
            }
        }
        assert_eq!(written.len(), 2 * SEGMENT_BLOCKS as usize - 2, "half of five segments, without two blocks");
        assert!(written.is_sorted(), "{written:?}");
        log.advance_tail(&dirty, Nanos::ZERO);
        assert_eq!(log.used_blocks(&dirty), 2 * SEGMENT_BLOCKS + 2);
    }

    #[test]
    fn little_data_waits_for_its_age_or_for_idle_clients() {
        let (mut dirty, mut log) = (DirtyBlocks::default(), OldestLog::new(Space::Log, 64));
        for block in [7, 8, 300] {
            dirty.write(block, Nanos::ZERO);
        }
        log.advance_tail(&dirty, Nanos::ZERO);
        let now = Nanos::from_secs(200);
        let at = |now| DestageState { now, used_blocks: 3, capacity_blocks: CAPACITY, ..DestageState::default() };
        assert_eq!(log.next_run(&dirty, &at(now), u64::MAX), None);
        let idle = DestageState { is_idle: true, ..at(now) };
        assert_eq!(log.next_run(&dirty, &idle, u64::MAX), Some(Run { first: 7, blocks: 2 }));
        let old = at(SEGMENT_AGE_MAX);
        assert_eq!(log.next_run(&dirty, &old, u64::MAX), Some(Run { first: 7, blocks: 2 }));
    }
}
