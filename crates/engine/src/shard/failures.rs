//! Blocks and ranges whose last write failed. Each has its own pause before the next attempt, which grows with each
//! failure, so that a bad sector delays no other block.

use std::collections::BTreeMap;
use std::ops::Range;

use flash::BlockNo;
use seam::Nanos;

/// Pause after the first failure.
const PAUSE_MIN: Nanos = Nanos::from_millis(100);
/// Longest pause.
const PAUSE_MAX: Nanos = Nanos::from_secs(10);

/// The failure of a block or range.
#[derive(Clone, Copy)]
struct Failure {
    /// Length of the present pause.
    retry_pause: Nanos,
    /// End of the present pause.
    retry_at: Nanos,
}

/// The failures by block, or by the first block of a range.
#[derive(Default)]
pub struct Failures(BTreeMap<BlockNo, Failure>);

impl Failures {
    /// True if no failed block waits to be written again.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Records a failed write of the block.
    pub fn add(&mut self, block: BlockNo, now: Nanos) {
        let failure = self.0.entry(block).or_insert(Failure { retry_pause: Nanos::ZERO, retry_at: now });
        failure.retry_pause = Nanos(failure.retry_pause.0 * 2).max(PAUSE_MIN).min(PAUSE_MAX);
        failure.retry_at = now + failure.retry_pause;
    }

    /// True if the last write of the block failed.
    pub fn contains(&self, block: BlockNo) -> bool {
        self.0.contains_key(&block)
    }

    /// Removes a block that was written or has new content.
    pub fn remove(&mut self, block: BlockNo) {
        self.0.remove(&block);
    }

    /// Removes these blocks, so that they may be tried at once.
    pub fn remove_all(&mut self, blocks: Range<BlockNo>) {
        self.0.retain(|block, _| !blocks.contains(block));
    }

    /// True while the block's pause lasts.
    pub fn is_paused(&self, block: BlockNo, now: impl FnOnce() -> Nanos) -> bool {
        !self.0.is_empty() && self.0.get(&block).is_some_and(|failure| now() < failure.retry_at)
    }

    /// Ends all pauses because a request waits: every block may be tried once more at once.
    pub fn end_pauses(&mut self) {
        self.0.values_mut().for_each(|failure| failure.retry_at = Nanos::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_of_each_block_grows_to_a_bound_and_resets_on_success() {
        let (mut failures, mut now) = (Failures::default(), Nanos::from_secs(1));
        let mut pauses = Vec::new();
        for _ in 0..9 {
            failures.add(BlockNo(7), now);
            assert!(!failures.is_paused(BlockNo(8), || now));
            let started_at = now;
            while failures.is_paused(BlockNo(7), || now) {
                now += Nanos::from_millis(100);
            }
            pauses.push(now.since(started_at).as_millis());
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        failures.add(BlockNo(7), now);
        failures.end_pauses();
        assert!(!failures.is_paused(BlockNo(7), || now) && !failures.is_empty());
        failures.remove(BlockNo(7));
        failures.add(BlockNo(7), now);
        assert!(!failures.is_paused(BlockNo(7), || now + PAUSE_MIN));
    }
}
