//! Blocks and ranges whose last write failed. Each waits on its own before it is tried again, longer from time to time, so that a
//! bad sector holds up nobody else.

use std::collections::BTreeMap;
use std::ops::Range;

use seam::Nanos;

/// First pause after a failure, and the longest.
const FIRST: Nanos = Nanos::from_millis(100);
const LONGEST: Nanos = Nanos::from_secs(10);

#[derive(Clone, Copy)]
struct Failure {
    pause: Nanos,
    due: Nanos,
}

/// What failed, by block (of a range: its first).
#[derive(Default)]
pub struct Failures(BTreeMap<u64, Failure>);

impl Failures {
    /// True when nothing has failed that is still to be done.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A write of it failed (again).
    pub fn add(&mut self, block: u64, now: Nanos) {
        let failure = self.0.entry(block).or_insert(Failure { pause: Nanos::ZERO, due: now });
        failure.pause = Nanos(failure.pause.0 * 2).max(FIRST).min(LONGEST);
        failure.due = now + failure.pause;
    }

    /// True when its last write failed.
    pub fn contains(&self, block: u64) -> bool {
        self.0.contains_key(&block)
    }

    /// It was written, or its content is another one.
    pub fn remove(&mut self, block: u64) {
        self.0.remove(&block);
    }

    /// All of these may be tried at once.
    pub fn remove_all(&mut self, blocks: Range<u64>) {
        self.0.retain(|block, _| !blocks.contains(block));
    }

    /// True while it is not to be tried.
    pub fn holds(&self, block: u64, now: impl FnOnce() -> Nanos) -> bool {
        !self.0.is_empty() && self.0.get(&block).is_some_and(|failure| now() < failure.due)
    }

    /// Everything may be tried once more at once: somebody waits.
    pub fn end_pauses(&mut self) {
        self.0.values_mut().for_each(|failure| failure.due = Nanos::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound_for_each_block_alone_and_start_again_after_success() {
        let (mut failures, mut now) = (Failures::default(), Nanos::from_secs(1));
        let mut pauses = Vec::new();
        for _ in 0..9 {
            failures.add(7, now);
            assert!(!failures.holds(8, || now));
            let begun = now;
            while failures.holds(7, || now) {
                now += Nanos::from_millis(100);
            }
            pauses.push(now.since(begun).as_millis());
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        failures.add(7, now);
        failures.end_pauses();
        assert!(!failures.holds(7, || now) && !failures.is_empty());
        failures.remove(7);
        failures.add(7, now);
        assert!(!failures.holds(7, || now + FIRST));
    }
}
