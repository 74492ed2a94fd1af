//! Watchdog timer. Other threads read how long a thread's current operation has run, because a thread that is blocked
//! in disk I/O cannot report it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time after which a disk counts as hung.
const HUNG_AFTER: Duration = Duration::from_secs(10);

/// The timer of one thread, shared with its observers.
#[derive(Clone, Debug, Default)]
pub struct WorkTimer {
    started_at: Arc<Mutex<Option<Instant>>>,
}

impl WorkTimer {
    /// Runs `work` and times it.
    pub fn time<T>(&self, work: impl FnOnce() -> T) -> T {
        self.set(Some(Instant::now()));
        let result = work();
        self.set(None);
        result
    }

    fn set(&self, started_at: Option<Instant>) {
        // A panic cannot leave an `Option<Instant>` half-written, so the value under a poisoned lock is valid.
        *self.started_at.lock().unwrap_or_else(PoisonError::into_inner) = started_at;
    }

    /// Returns an error text if the operation has run for ten seconds or longer at `now`.
    pub fn hung(&self, now: Instant) -> Option<String> {
        let started_at = (*self.started_at.lock().unwrap_or_else(PoisonError::into_inner))?;
        let elapsed = now.saturating_duration_since(started_at);
        (elapsed >= HUNG_AFTER).then(|| format!("the disk has not answered for {} s", elapsed.as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_hung_after_ten_seconds_and_until_it_ends() {
        let timer = WorkTimer::default();
        let observer = timer.clone();
        let now = timer.time(|| {
            let now = Instant::now();
            assert_eq!(observer.hung(now), None);
            assert_eq!(observer.hung(now + HUNG_AFTER).as_deref(), Some("the disk has not answered for 10 s"));
            now
        });
        assert_eq!(timer.hung(now + 2 * HUNG_AFTER), None);
    }
}
