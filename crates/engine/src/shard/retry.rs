//! Pauses between attempts on a backing that fails writes, and the count of its errors.

use std::cell::Cell;

use seam::{DiskError, Nanos, Seam};

use super::Shard;

/// True if the error means that the whole backing is unreachable or has been replaced.
pub fn is_backing_gone(error: &DiskError) -> bool {
    matches!(error, DiskError::Gone | DiskError::Open(_) | DiskError::Lost(_))
}

/// Growing pauses between attempts on a backing that refuses every write. Single blocks that fail have pauses of their
/// own.
#[derive(Default)]
pub struct Retry {
    consecutive_failures: Cell<u32>,
    pause: Cell<Nanos>,
    paused_until: Cell<Nanos>,
}

impl Retry {
    /// Pause after the first failures.
    const PAUSE_MIN: Nanos = Nanos::from_millis(100);
    /// Longest pause.
    const PAUSE_MAX: Nanos = Nanos::from_secs(10);
    /// Consecutive failures that are attributed to the backing instead of single blocks.
    const CONSECUTIVE_FAILURES_MIN: u32 = 8;

    /// Records a failed write.
    pub fn record_failure(&self, error: &DiskError, now: Nanos) {
        self.consecutive_failures.set(self.consecutive_failures.get().saturating_add(1));
        if self.is_paused(now)
            || (!is_backing_gone(error) && self.consecutive_failures.get() < Retry::CONSECUTIVE_FAILURES_MIN)
        {
            return;
        }
        let pause = Nanos(self.pause.get().0 * 2).max(Retry::PAUSE_MIN).min(Retry::PAUSE_MAX);
        self.pause.set(pause);
        self.paused_until.set(now + pause);
    }

    /// Records a successful write.
    pub fn record_success(&self) {
        self.consecutive_failures.set(0);
        self.pause.set(Nanos::ZERO);
        self.paused_until.set(Nanos::ZERO);
    }

    /// True if the backing has refused every write since a pause began.
    pub fn has_paused(&self) -> bool {
        self.pause.get() > Nanos::ZERO
    }

    /// True while only writes that a request waits for should be attempted.
    pub fn is_paused(&self, now: Nanos) -> bool {
        now < self.paused_until.get()
    }
}

impl<S: Seam> Shard<S> {
    /// Counts a failed request to the backing. Repetitions of it do not count, and neither do further destage requests
    /// while the backing refuses all writes, unless a client waits for the request.
    pub fn count_backing_error(&self, is_awaited: bool, is_retry: bool) {
        if is_awaited || !(is_retry || self.retry.has_paused()) {
            self.counters.add(&self.counters.backing_errors, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_begin_when_all_writes_fail_and_not_for_one_bad_block() {
        let (retry, mut now) = (Retry::default(), Nanos::from_secs(1));
        let bad = DiskError::Io("bad sector".into());
        for _ in 0..100 {
            retry.record_failure(&bad, now);
            assert!(!retry.is_paused(now));
            retry.record_success();
        }
        let mut pauses = Vec::new();
        for _ in 0..9 {
            (0..Retry::CONSECUTIVE_FAILURES_MIN).for_each(|_| retry.record_failure(&bad, now));
            let started_at = now;
            while retry.is_paused(now) {
                now += Retry::PAUSE_MIN;
            }
            pauses.push(now.since(started_at).as_millis());
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        retry.record_success();
        retry.record_failure(&DiskError::Gone, now);
        assert!(retry.is_paused(now) && !retry.is_paused(now + Retry::PAUSE_MIN));
    }
}
