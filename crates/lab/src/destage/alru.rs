//! ALRU, the default cleaning policy of Open CAS (`src/cleaning/alru.c` of its library): the blocks that were written
//! longest ago, from two minutes on, in batches by address.

use std::collections::VecDeque;

use seam::Nanos;

use super::dirty_blocks::{DirtyBlocks, Run};
use super::{DestageState, Order};

/// Blocks of a batch (`flush_max_buffers`).
pub const ALRU_BATCH_BLOCKS: u64 = 100;
/// Age from which a block is written (`stale_buffer_time`).
const STALE_AFTER: Nanos = Nanos::from_secs(120);

/// The batch that is being written.
pub struct Alru {
    stripe_blocks: u64,
    batch: VecDeque<u64>,
}

impl Alru {
    /// No batch; requests end at multiples of `stripe_blocks`.
    pub fn new(stripe_blocks: u64) -> Alru {
        Alru { stripe_blocks, batch: VecDeque::new() }
    }
}

impl Order for Alru {
    fn record_write(&mut self, _: u64, _: bool, _: bool) {}

    fn record_start(&mut self, _: Run) {}

    fn next_run(&mut self, dirty: &DirtyBlocks, state: &DestageState, blocks_max: u64) -> Option<Run> {
        let is_stale = |written_at: Nanos| state.now.since(written_at) >= STALE_AFTER;
        self.batch.retain(|block| dirty.is_writable(*block));
        if self.batch.is_empty() {
            self.batch = dirty.oldest_batch(ALRU_BATCH_BLOCKS as usize, |version| is_stale(version.written_at)).into();
        }
        dirty.take_run(&mut self.batch, self.stripe_blocks, blocks_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_blocks_alone_are_written_oldest_batch_first() {
        let (mut dirty, mut order) = (DirtyBlocks::default(), Alru::new(64));
        // 100 blocks downwards, then two at the front of the volume, then one that is younger.
        for number in 0..ALRU_BATCH_BLOCKS {
            dirty.write(1_000 + 2 * (ALRU_BATCH_BLOCKS - number), Nanos::ZERO);
        }
        for block in [0, 1] {
            dirty.write(block, Nanos::from_secs(1));
        }
        dirty.write(500, Nanos::from_secs(60));
        let mut next = |now| {
            let state = DestageState { now, ..DestageState::default() };
            let run = order.next_run(&dirty, &state, u64::MAX)?;
            dirty.start(run);
            Some(run)
        };
        assert_eq!(next(Nanos::from_secs(119)), None);
        let now = Nanos::from_secs(130);
        let first: Vec<_> =
            (0..ALRU_BATCH_BLOCKS).map(|_| next(now).expect("the first batch is stale").first).collect();
        assert!(first.is_sorted() && first[0] == 1_002, "a batch goes by address: {first:?}");
        assert_eq!(next(now), Some(Run { first: 0, blocks: 2 }), "the next batch");
        assert_eq!(next(now), None, "the last block is 70 s old");
    }
}
