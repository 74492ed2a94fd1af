//! ACP, the aggressive cleaning policy of Open CAS (`src/cleaning/acp.c` of its library): the volume in chunks of 100
//! MiB, in buckets by their number of dirty blocks.
//!
//! The chunk at the head of the fullest bucket is written from its first to its last block. A chunk enters a fuller
//! bucket at the tail and an emptier one at the head.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::dirty_blocks::{DirtyBlocks, Run, stripe_end};
use super::{BLOCK_BYTES, DestageState, Order};

/// Blocks of a chunk.
const CHUNK_BLOCKS: u64 = (100 << 20) / BLOCK_BYTES;
/// Number of buckets; the first one holds the clean chunks, and each next one 10 % more dirty blocks.
const BUCKETS: usize = 11;

/// A chunk that has been dirty.
#[derive(Debug, Default)]
struct Chunk {
    dirty: u64,
    bucket: usize,
    /// Position in its bucket.
    position: i64,
}

/// The chunks in their buckets.
pub struct Acp {
    stripe_blocks: u64,
    /// True if the end of a chunk ends a batch of its own pace.
    ends_batches: bool,
    chunks: FxHashMap<u64, Chunk>,
    /// Chunk by position, for each bucket.
    buckets: [BTreeMap<i64, u64>; BUCKETS],
    next_position: i64,
    /// The chunk that is being written, and the next block to look at.
    current: Option<(u64, u64)>,
}

/// Most dirty blocks of a chunk in a bucket.
fn threshold(bucket: usize) -> u64 {
    CHUNK_BLOCKS * bucket as u64 / (BUCKETS as u64 - 1)
}

impl Acp {
    /// Buckets without a chunk; requests end at multiples of `stripe_blocks`.
    pub fn new(stripe_blocks: u64, ends_batches: bool) -> Acp {
        Acp {
            stripe_blocks,
            ends_batches,
            chunks: FxHashMap::default(),
            buckets: Default::default(),
            next_position: 1,
            current: None,
        }
    }

    /// Moves a chunk to the bucket of its number of dirty blocks.
    fn update_bucket(&mut self, number: u64) {
        let chunk = self.chunks.get_mut(&number).expect("a chunk with dirty blocks is known");
        loop {
            let (bucket, position) = (chunk.bucket, chunk.position);
            if chunk.dirty > threshold(bucket) {
                (chunk.bucket, chunk.position) = (bucket + 1, self.next_position);
            } else if bucket > 0 && chunk.dirty <= threshold(bucket - 1) {
                (chunk.bucket, chunk.position) = (bucket - 1, -self.next_position);
            } else {
                return;
            }
            self.next_position += 1;
            self.buckets[bucket].remove(&position);
            if chunk.bucket > 0 {
                self.buckets[chunk.bucket].insert(chunk.position, number);
            }
        }
    }

    /// The chunk at the head of the fullest bucket.
    fn fullest(&self) -> Option<u64> {
        self.buckets.iter().skip(1).rev().find_map(|bucket| bucket.values().next()).copied()
    }
}

impl Order for Acp {
    fn record_write(&mut self, block: u64, _: bool, was_dirty: bool) {
        let number = block / CHUNK_BLOCKS;
        self.chunks.entry(number).or_default().dirty += u64::from(!was_dirty);
        self.update_bucket(number);
    }

    fn record_start(&mut self, run: Run) {
        for block in run.first..run.end() {
            let number = block / CHUNK_BLOCKS;
            self.chunks.get_mut(&number).expect("a dirty block lies in a known chunk").dirty -= 1;
            self.update_bucket(number);
        }
    }

    fn next_run(&mut self, dirty: &DirtyBlocks, _: &DestageState, blocks_max: u64) -> Option<Run> {
        for _ in 0..2 {
            let (number, next) = match self.current {
                Some(current) => current,
                None => {
                    let number = self.fullest()?;
                    (number, number * CHUNK_BLOCKS)
                }
            };
            let end = (number + 1) * CHUNK_BLOCKS;
            let Some(first) = dirty.first_writable(next, end) else {
                self.current = None;
                if self.ends_batches {
                    return None;
                }
                continue;
            };
            let run_end = end.min(stripe_end(first, self.stripe_blocks)).min(first.saturating_add(blocks_max));
            let run = dirty.run(first, run_end, |_, _| true);
            self.current = Some((number, run.end()));
            return Some(run);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use seam::Nanos;

    use super::*;

    fn write(dirty: &mut DirtyBlocks, order: &mut Acp, blocks: impl IntoIterator<Item = u64>) {
        for block in blocks {
            let was_dirty = dirty.get(block).is_some();
            let was_held = dirty.write(block, Nanos::ZERO);
            order.record_write(block, was_held, was_dirty);
        }
    }

    fn next(dirty: &mut DirtyBlocks, order: &mut Acp, blocks_max: u64) -> Option<Run> {
        let run = order.next_run(dirty, &DestageState::default(), blocks_max)?;
        order.record_start(run);
        dirty.start(run);
        dirty.complete(run);
        Some(run)
    }

    #[test]
    fn fullest_chunk_is_written_first_and_to_its_end() {
        let (mut dirty, mut order) = (DirtyBlocks::default(), Acp::new(64, false));
        let tenth = CHUNK_BLOCKS / 10;
        write(&mut dirty, &mut order, 0..10);
        write(&mut dirty, &mut order, (CHUNK_BLOCKS..).take(tenth as usize + 1));
        let first = next(&mut dirty, &mut order, u64::MAX).expect("blocks are dirty");
        assert_eq!(first, Run { first: CHUNK_BLOCKS, blocks: 64 }, "the second bucket, up to the end of a stripe");
        // The chunk is now in the first bucket behind the other one, but it is written to its end.
        let second = next(&mut dirty, &mut order, 16).expect("blocks are dirty");
        assert_eq!(second, Run { first: CHUNK_BLOCKS + 64, blocks: 16 });
        let rest: u64 = std::iter::from_fn(|| next(&mut dirty, &mut order, u64::MAX)).map(|run| run.blocks).sum();
        assert_eq!(rest, tenth + 1 - 80 + 10);
        assert!(dirty.is_empty());
    }

    #[test]
    fn overwrites_do_not_fill_a_bucket() {
        let (mut dirty, mut order) = (DirtyBlocks::default(), Acp::new(64, false));
        write(&mut dirty, &mut order, [0, 5 * CHUNK_BLOCKS]);
        (0..CHUNK_BLOCKS).for_each(|_| write(&mut dirty, &mut order, [5 * CHUNK_BLOCKS]));
        assert_eq!(next(&mut dirty, &mut order, u64::MAX), Some(Run { first: 0, blocks: 1 }), "first in its bucket");
    }

    #[test]
    fn end_of_a_chunk_ends_the_batch_of_its_own_pace() {
        let (mut dirty, mut order) = (DirtyBlocks::default(), Acp::new(64, true));
        write(&mut dirty, &mut order, [3, CHUNK_BLOCKS + 3]);
        assert!(next(&mut dirty, &mut order, 128).is_some());
        assert_eq!(next(&mut dirty, &mut order, 127), None);
        assert!(next(&mut dirty, &mut order, 128).is_some());
    }
}
