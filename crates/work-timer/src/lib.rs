//! How long a thread has been busy with its present work: a thread that a disk holds cannot report it itself.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time after which a disk counts as hung.
const HUNG_AFTER: Duration = Duration::from_secs(10);

/// The timer of one thread, shared with its observers.
#[derive(Clone, Debug, Default)]
pub struct WorkTimer {
    begun: Arc<Mutex<Option<Instant>>>,
}

impl WorkTimer {
    /// Does `work`, timed.
    pub fn time<T>(&self, work: impl FnOnce() -> T) -> T {
        self.set(Some(Instant::now()));
        let result = work();
        self.set(None);
        result
    }

    fn set(&self, begun: Option<Instant>) {
        // A lone value: a poisoned lock holds a valid one.
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = begun;
    }

    /// The failure of work that has taken ten seconds or more at `now`.
    pub fn hung(&self, now: Instant) -> Option<String> {
        let begun = (*self.begun.lock().unwrap_or_else(PoisonError::into_inner))?;
        let time = now.saturating_duration_since(begun);
        (time >= HUNG_AFTER).then(|| format!("the disk has not answered for {} s", time.as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_hung_after_ten_seconds_and_until_it_ends() {
        let timer = WorkTimer::default();
        let seen = timer.clone();
        let now = timer.time(|| {
            let now = Instant::now();
            assert_eq!(seen.hung(now), None);
            assert_eq!(seen.hung(now + HUNG_AFTER).as_deref(), Some("the disk has not answered for 10 s"));
            now
        });
        assert_eq!(timer.hung(now + 2 * HUNG_AFTER), None);
    }
}
