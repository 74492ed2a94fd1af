//! Streams bypass the flash log: a sequential write would take much of it, and with it the space of blocks that are
//! written or read again. Its blocks go from memory to the backing, and background flushes of the log leave them out
//! until they get old. A flush that an operation waits for logs them like all other blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use flash::BlockNo;
use seam::Nanos;

/// Waiting blocks are destaged once there are this many.
const DESTAGED_BLOCKS_MIN: usize = 128;
/// Fewer blocks are destaged this long after the last one was written.
const QUIET_AFTER: Nanos = Nanos::from_millis(100);

/// A volume's blocks that bypass the log. None of them is clean.
#[derive(Default)]
pub struct StreamBypass {
    /// All blocks, each with the time since which it has bypassed the log.
    bypassed_since: BTreeMap<BlockNo, Nanos>,
    /// Blocks whose newest content was not sent to the backing yet.
    waiting_blocks: BTreeSet<BlockNo>,
    /// Time at which a stream last wrote a block.
    last_write_at: Nanos,
}

impl StreamBypass {
    /// Adds a block that was written at `now`, unless it is a new one beside `blocks_max` others. Returns whether it
    /// bypasses the log.
    pub fn add(&mut self, block: BlockNo, now: Nanos, blocks_max: usize) -> bool {
        if self.bypassed_since.len() >= blocks_max && !self.bypassed_since.contains_key(&block) {
            return false;
        }
        self.bypassed_since.entry(block).or_insert(now);
        self.waiting_blocks.insert(block);
        self.last_write_at = now;
        true
    }

    /// Removes a block.
    pub fn remove(&mut self, block: BlockNo) {
        if self.bypassed_since.remove(&block).is_some() {
            self.waiting_blocks.remove(&block);
        }
    }

    /// Removes these blocks, and returns the removed ones.
    pub fn remove_range(&mut self, blocks: &Range<BlockNo>) -> Vec<BlockNo> {
        let removed: Vec<BlockNo> = self.bypassed_since.range(blocks.clone()).map(|(block, _)| *block).collect();
        removed.iter().for_each(|block| self.remove(*block));
        removed
    }

    /// Removes all blocks.
    pub fn clear(&mut self) {
        (self.bypassed_since, self.waiting_blocks) = (BTreeMap::new(), BTreeSet::new());
    }

    /// Removes the blocks that have bypassed the log since `time` or longer.
    pub fn remove_older(&mut self, time: Nanos) {
        let waiting = &mut self.waiting_blocks;
        self.bypassed_since.retain(|block, since| {
            let is_young = *since > time;
            if !is_young {
                waiting.remove(block);
            }
            is_young
        });
    }

    /// Removes the blocks whose newest content was sent to the backing.
    pub fn remove_sent(&mut self) {
        self.bypassed_since.retain(|block, _| self.waiting_blocks.contains(block));
    }

    /// To be called when the newest content of a block is sent to the backing.
    pub fn on_send(&mut self, block: BlockNo) {
        self.waiting_blocks.remove(&block);
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.bypassed_since.len()
    }

    /// All blocks, in order.
    pub fn blocks(&self) -> impl Iterator<Item = BlockNo> {
        self.bypassed_since.keys().copied()
    }

    /// The blocks whose newest content was not sent: those from `first` on, then the others.
    pub fn waiting_from(&self, first: BlockNo) -> impl Iterator<Item = &BlockNo> {
        self.waiting_blocks.range(first..).chain(self.waiting_blocks.range(..first))
    }

    /// True if so many blocks wait that they are destaged while the stream goes on. `blocks_max`: as for
    /// [`StreamBypass::add`].
    pub fn has_many_waiting(&self, blocks_max: usize) -> bool {
        self.waiting_blocks.len() >= DESTAGED_BLOCKS_MIN.min(blocks_max / 2).max(1)
    }

    /// True if waiting blocks are to be destaged: they are many, or the stream has stopped.
    pub fn must_destage_stream(&self, now: Nanos, blocks_max: usize) -> bool {
        let is_quiet = now.since(self.last_write_at) >= QUIET_AFTER;
        self.has_many_waiting(blocks_max) || is_quiet && !self.waiting_blocks.is_empty()
    }

    /// True if so many blocks were sent that a flush of the backing should make them clean.
    pub fn has_many_sent(&self, blocks_max: usize) -> bool {
        self.bypassed_since.len() - self.waiting_blocks.len() > blocks_max / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: Nanos = Nanos(QUIET_AFTER.0 * 2);

    #[test]
    fn blocks_past_the_bound_do_not_bypass_the_log() {
        let mut bypass = StreamBypass::default();
        assert!((0..4).all(|number| bypass.add(BlockNo(number), Nanos::ZERO, 4)));
        assert!(!bypass.add(BlockNo(4), Nanos::ZERO, 4), "the bound is reached");
        assert!(bypass.add(BlockNo(3), Nanos::ZERO, 4), "the block bypasses the log already");
        bypass.on_send(BlockNo(0));
        assert!(!bypass.add(BlockNo(4), Nanos::ZERO, 4), "a sent block counts until it is clean");
        assert_eq!(bypass.remove_range(&(BlockNo(0)..BlockNo(2))), [BlockNo(0), BlockNo(1)]);
        assert!(bypass.add(BlockNo(4), Nanos::ZERO, 4));
    }

    #[test]
    fn few_blocks_are_destaged_once_the_stream_is_quiet() {
        let mut bypass = StreamBypass::default();
        assert!(!bypass.must_destage_stream(LATER, 1_000), "no block waits");
        bypass.add(BlockNo(0), Nanos::ZERO, 1_000);
        assert!(!bypass.must_destage_stream(Nanos(QUIET_AFTER.0 - 1), 1_000));
        assert!(bypass.must_destage_stream(QUIET_AFTER, 1_000));
        (1..DESTAGED_BLOCKS_MIN as u64).for_each(|number| assert!(bypass.add(BlockNo(number), LATER, 1_000)));
        assert!(bypass.must_destage_stream(LATER, 1_000), "many blocks are destaged at once");
    }

    #[test]
    fn old_and_lost_blocks_stop_bypassing_the_log() {
        let mut bypass = StreamBypass::default();
        bypass.add(BlockNo(0), Nanos(10), 8);
        bypass.add(BlockNo(1), Nanos(20), 8);
        bypass.add(BlockNo(2), Nanos(30), 8);
        bypass.add(BlockNo(0), Nanos(40), 8);
        bypass.remove_older(Nanos(10));
        assert_eq!(
            bypass.blocks().collect::<Vec<_>>(),
            [BlockNo(1), BlockNo(2)],
            "a repeated write makes no block young"
        );
        bypass.on_send(BlockNo(1));
        bypass.remove_sent();
        assert_eq!((bypass.blocks().collect::<Vec<_>>(), bypass.waiting_blocks.len()), (vec![BlockNo(2)], 1));
    }
}
