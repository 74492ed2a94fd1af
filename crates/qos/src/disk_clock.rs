//! A clock of disk time: it stands still while the processor is stalled, so that latency of the disks excludes stalls.
//!
//! A timer fires every [`TICK_EVERY`]. Its lateness is the time for which the event loop was held up: by its own work,
//! by other processes, by a suspended machine. Completions of disk requests in that time are reaped late.

use seam::Nanos;

/// Period of the timer.
pub const TICK_EVERY: Nanos = Nanos::from_millis(10);
/// Lateness that is not counted as a stall: timers have a resolution, and the event loop serves other tasks first.
const LATENESS_MIN: Nanos = Nanos::from_millis(2);

/// A clock that excludes the time in which the processor was stalled.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskClock {
    /// When the timer is due; `None` while the timer is stopped.
    due: Option<Nanos>,
    /// Total time of the stalls up to the last tick.
    stalled: Nanos,
}

impl DiskClock {
    /// Starts the clock: the caller sets the timer now.
    pub fn start(&mut self, now: Nanos) {
        self.due = Some(now + TICK_EVERY);
    }

    /// Records that the timer fired; returns its lateness if it was late.
    pub fn tick(&mut self, now: Nanos) -> Option<Nanos> {
        let lateness = self.lateness(now);
        self.stalled += lateness;
        self.due = Some(now + TICK_EVERY);
        (lateness > Nanos::ZERO).then_some(lateness)
    }

    /// Stops the clock: the caller cancels the timer.
    pub fn stop(&mut self, now: Nanos) {
        self.stalled += self.lateness(now);
        self.due = None;
    }

    /// Disk time at `now`, also for a completion that is reaped before the late timer fires.
    pub fn time(&self, now: Nanos) -> Nanos {
        now.since(self.stalled).since(self.lateness(now))
    }

    fn lateness(&self, now: Nanos) -> Nanos {
        self.due.map_or(Nanos::ZERO, |due| now.since(due + LATENESS_MIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Nanos = Nanos::from_millis;

    #[test]
    fn disk_time_excludes_stall_before_and_after_late_tick() {
        let mut clock = DiskClock::default();
        assert_eq!(clock.time(MS(100)), MS(100));
        clock.start(MS(100));
        assert_eq!((clock.time(MS(105)), clock.time(MS(111))), (MS(105), MS(111)));
        // The event loop is held up from some time before 110 ms until 300 ms.
        assert_eq!(clock.time(MS(300)), MS(112));
        assert_eq!(clock.tick(MS(301)), Some(MS(189)));
        assert_eq!((clock.time(MS(301)), clock.time(MS(306))), (MS(112), MS(117)));
        assert_eq!(clock.tick(MS(311)), None);
        clock.stop(MS(400));
        assert_eq!(clock.time(MS(500)), MS(234));
    }
}
