//! The disks' clock: it stands still while the processor is stalled, so that time in which nothing could be noticed is not
//! counted as latency of the disks.
//!
//! A timer is due every [`TICK_EVERY`]. How late it fires is how long the event loop was held up: by its own work, by other
//! processes, by a suspended machine. Requests that the disks completed meanwhile were only reaped late.

use seam::Nanos;

/// How often the timer is due.
pub const TICK_EVERY: Nanos = Nanos::from_millis(10);
/// Lateness of a timer that says nothing: timers have a resolution, and the event loop serves other tasks first.
const LATE_MIN: Nanos = Nanos::from_millis(2);

/// A clock without the time in which the processor was stalled.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskClock {
    /// When the timer is to fire; `None`: there is no timer.
    due: Option<Nanos>,
    /// Stalls up to the last tick, together.
    stalled: Nanos,
}

impl DiskClock {
    /// The timer is set now.
    pub fn start(&mut self, now: Nanos) {
        self.due = Some(now + TICK_EVERY);
    }

    /// The timer fires: how late it was, if it was late.
    pub fn tick(&mut self, now: Nanos) -> Option<Nanos> {
        let late = self.late(now);
        self.stalled += late;
        self.due = Some(now + TICK_EVERY);
        (late > Nanos::ZERO).then_some(late)
    }

    /// There is no timer any more.
    pub fn stop(&mut self, now: Nanos) {
        self.stalled += self.late(now);
        self.due = None;
    }

    /// The time of the disks, also for a completion that is reaped before the late timer fires.
    pub fn time(&self, now: Nanos) -> Nanos {
        now.since(self.stalled).since(self.late(now))
    }

    fn late(&self, now: Nanos) -> Nanos {
        self.due.map_or(Nanos::ZERO, |due| now.since(due + LATE_MIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Nanos = Nanos::from_millis;

    #[test]
    fn stall_is_left_out_before_and_after_the_late_tick() {
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
