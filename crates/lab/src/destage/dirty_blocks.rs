//! The dirty blocks of a write cache: by address, by age, and those that are being written to the array.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rustc_hash::FxHashMap;
use seam::Nanos;

/// Consecutive blocks that one request writes to the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First block.
    pub first: u64,
    /// Number of blocks.
    pub blocks: u64,
}

impl Run {
    /// The block after the run.
    pub fn end(self) -> u64 {
        self.first + self.blocks
    }
}

/// The end of the stripe that `block` lies in: the first block of the next stripe.
pub fn stripe_end(block: u64, stripe_blocks: u64) -> u64 {
    (block / stripe_blocks + 1) * stripe_blocks
}

/// The newest version of a dirty block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyBlock {
    /// Position of its write among all writes of blocks, which is also its position in a log.
    pub sequence: u64,
    /// Time of its write.
    pub written_at: Nanos,
}

/// The dirty blocks. A block in flight that is written again is dirty as well, and waits for the end of its write.
#[derive(Debug, Default)]
pub struct DirtyBlocks {
    blocks: BTreeMap<u64, DirtyBlock>,
    /// Block by sequence number, for the dirty blocks.
    by_sequence: BTreeMap<u64, u64>,
    /// Sequence number by block, for the blocks in flight.
    in_flight: FxHashMap<u64, u64>,
    in_flight_sequences: BTreeSet<u64>,
    /// Number of blocks in flight that are dirty as well.
    rewritten: u64,
    next_sequence: u64,
}

impl DirtyBlocks {
    /// Records a write of a client; returns true if the cache already held the block.
    pub fn write(&mut self, block: u64, now: Nanos) -> bool {
        let version = DirtyBlock { sequence: self.next_sequence, written_at: now };
        self.next_sequence += 1;
        let former = self.blocks.insert(block, version);
        if let Some(former) = former {
            self.by_sequence.remove(&former.sequence);
        }
        self.by_sequence.insert(version.sequence, block);
        let is_in_flight = self.in_flight.contains_key(&block);
        self.rewritten += u64::from(former.is_none() && is_in_flight);
        former.is_some() || is_in_flight
    }

    /// Moves the blocks of a run into flight.
    pub fn start(&mut self, run: Run) {
        for block in run.first..run.end() {
            let version = self.blocks.remove(&block).expect("an order chooses dirty blocks");
            self.by_sequence.remove(&version.sequence);
            let former = self.in_flight.insert(block, version.sequence);
            assert!(former.is_none(), "block {block} is written twice at once");
            self.in_flight_sequences.insert(version.sequence);
        }
    }

    /// Records that the write of a run has ended.
    pub fn complete(&mut self, run: Run) {
        for block in run.first..run.end() {
            let sequence = self.in_flight.remove(&block).expect("a completed run was started");
            self.in_flight_sequences.remove(&sequence);
            self.rewritten -= u64::from(self.blocks.contains_key(&block));
        }
    }

    /// True if the cache holds the block.
    pub fn contains(&self, block: u64) -> bool {
        self.blocks.contains_key(&block) || self.in_flight.contains_key(&block)
    }

    /// The newest version of a dirty block.
    pub fn get(&self, block: u64) -> Option<DirtyBlock> {
        self.blocks.get(&block).copied()
    }

    /// True if a dirty block may be written to the array now: no earlier version is in flight.
    pub fn is_writable(&self, block: u64) -> bool {
        self.blocks.contains_key(&block) && !self.in_flight.contains_key(&block)
    }

    /// True without dirty blocks; some may still be in flight.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Blocks that take space, each with one version.
    pub fn occupied(&self) -> u64 {
        (self.blocks.len() + self.in_flight.len()) as u64 - self.rewritten
    }

    /// Sequence number of the next write.
    pub fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// The oldest version that is not on the array yet.
    pub fn oldest_sequence(&self) -> Option<u64> {
        let (dirty, in_flight) = (self.by_sequence.keys().next(), self.in_flight_sequences.first());
        dirty.into_iter().chain(in_flight).min().copied()
    }

    /// The dirty blocks from the longest unwritten one on.
    pub fn by_age(&self) -> impl Iterator<Item = (u64, DirtyBlock)> + '_ {
        self.by_sequence.values().map(|block| (*block, self.blocks[block]))
    }

    /// The dirty blocks from `first` on, by address.
    pub fn from(&self, first: u64) -> impl Iterator<Item = (u64, DirtyBlock)> + '_ {
        self.blocks.range(first..).map(|(block, version)| (*block, *version))
    }

    /// The run of writable blocks from `first` on that match `may`, up to the block `end`.
    pub fn run(&self, first: u64, end: u64, may: impl Fn(u64, DirtyBlock) -> bool) -> Run {
        let neighbours = (first..end).zip(self.from(first));
        let matching = neighbours.take_while(|(expected, (block, version))| {
            expected == block && self.is_writable(*block) && may(*block, *version)
        });
        Run { first, blocks: matching.count() as u64 }
    }

    /// The first writable block in `first..end`.
    pub fn first_writable(&self, first: u64, end: u64) -> Option<u64> {
        let mut within = self.blocks.range(first..end);
        within.find(|(block, _)| self.is_writable(**block)).map(|(block, _)| *block)
    }

    /// Up to `count` writable blocks that were written longest ago and match `may`, by address.
    pub fn oldest_batch(&self, count: usize, may: impl Fn(DirtyBlock) -> bool) -> Vec<u64> {
        let old = self.by_age().take_while(|(_, version)| may(*version));
        let mut batch: Vec<u64> =
            old.map(|(block, _)| block).filter(|block| self.is_writable(*block)).take(count).collect();
        batch.sort_unstable();
        batch
    }

    /// Takes the first block of a batch by address, with the blocks of the batch that follow it, up to the end of its
    /// stripe and at most `blocks_max` in all.
    pub fn take_run(&self, batch: &mut VecDeque<u64>, stripe_blocks: u64, blocks_max: u64) -> Option<Run> {
        let first = batch.pop_front()?;
        let end = stripe_end(first, stripe_blocks).min(first.saturating_add(blocks_max));
        let run = self.run(first, end, |block, _| block == first || batch.contains(&block));
        batch.drain(..run.blocks as usize - 1);
        Some(run)
    }
}
