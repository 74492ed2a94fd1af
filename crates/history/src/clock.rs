//! The clock for expiry of old points: a jump of the wall clock must not expire the whole history.
//!
//! The wall clock normally advances as the monotonic clock does. After a jump (the clock was set, the machine slept, or
//! a start is far from the file's last second), expiry continues from the time before, advanced by the monotonic clock.
//! The new wall-clock time is trusted once it has advanced evenly for a day, which leaves time to correct a wrong
//! clock.

/// Largest step of the wall clock that does not count as a jump, in milliseconds.
const STEP_MS_MAX: u64 = 30_000;
/// Time of even advance after which a clock that has jumped is trusted, in milliseconds.
const TRUSTED_AFTER_MS: u64 = 24 * 3600 * 1000;

/// The clock for expiry of old points.
#[derive(Default)]
pub struct TrimClock {
    /// Trusted time in milliseconds since 1970; `None` before the first sample.
    trusted_ms: Option<u64>,
    /// Wall clock and monotonic clock at the last sample.
    last: (u64, u64),
    /// Monotonic time since which the wall clock has advanced evenly.
    even_since_ms: u64,
}

impl TrimClock {
    /// Records both clocks at a sample; `until` is the second up to which the file is complete, 0 for a new file.
    pub fn add_sample(&mut self, now_ms: u64, monotonic_ms: u64, until: u64) {
        let Some(trusted_ms) = self.trusted_ms else {
            let until_ms = until * 1000;
            let is_near = until == 0 || now_ms.abs_diff(until_ms) <= STEP_MS_MAX;
            self.trusted_ms = Some(if is_near { now_ms } else { until_ms.min(now_ms) });
            (self.last, self.even_since_ms) = ((now_ms, monotonic_ms), monotonic_ms);
            return;
        };
        let passed_ms = monotonic_ms.saturating_sub(self.last.1);
        let expected_ms = self.last.0 + passed_ms;
        self.last = (now_ms, monotonic_ms);
        if now_ms.abs_diff(expected_ms) > STEP_MS_MAX {
            self.even_since_ms = monotonic_ms;
        }
        let is_trusted = monotonic_ms.saturating_sub(self.even_since_ms) >= TRUSTED_AFTER_MS;
        // A step back is trusted at once, because it expires fewer points.
        self.trusted_ms = Some(if is_trusted { now_ms } else { now_ms.min(trusted_ms + passed_ms) });
    }

    /// The second by which points expire.
    pub fn trusted(&self) -> u64 {
        self.trusted_ms.unwrap_or(0) / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3600 * 1000;
    const YEAR_MS: u64 = 365 * 24 * HOUR_MS;
    const START_MS: u64 = 1_700_000_000_000;

    fn trusted_after(samples: &[(u64, u64)], until: u64) -> u64 {
        let mut clock = TrimClock::default();
        samples.iter().for_each(|(now_ms, monotonic_ms)| clock.add_sample(*now_ms, *monotonic_ms, until));
        clock.trusted()
    }

    #[test]
    fn even_clock_is_followed() {
        assert_eq!(trusted_after(&[(START_MS, 5), (START_MS + HOUR_MS, HOUR_MS + 5)], 0), (START_MS + HOUR_MS) / 1000);
        let stepped = START_MS + HOUR_MS + STEP_MS_MAX;
        assert_eq!(trusted_after(&[(START_MS, 5), (stepped, HOUR_MS + 5)], 0), (START_MS + HOUR_MS) / 1000);
    }

    #[test]
    fn jump_forward_is_trusted_after_a_day() {
        let jump = [(START_MS, 0), (START_MS + YEAR_MS, 1000)];
        assert_eq!(trusted_after(&jump, 0), START_MS / 1000 + 1);
        let almost = [jump[0], jump[1], (START_MS + YEAR_MS + 23 * HOUR_MS, 23 * HOUR_MS + 1000)];
        assert_eq!(trusted_after(&almost, 0), (START_MS + 23 * HOUR_MS) / 1000 + 1);
        let day = [jump[0], jump[1], (START_MS + YEAR_MS + 24 * HOUR_MS, 24 * HOUR_MS + 1000)];
        assert_eq!(trusted_after(&day, 0), (START_MS + YEAR_MS + 24 * HOUR_MS) / 1000);
    }

    #[test]
    fn clock_set_back_is_followed_at_once() {
        let there_and_back = [(START_MS, 0), (START_MS + YEAR_MS, 1000), (START_MS + 2000, 2000)];
        assert_eq!(trusted_after(&there_and_back, 0), START_MS / 1000 + 2);
        assert_eq!(trusted_after(&[(START_MS, 0), (START_MS - YEAR_MS, 1000)], 0), (START_MS - YEAR_MS) / 1000);
    }

    #[test]
    fn start_far_after_the_end_of_the_file_continues_from_there() {
        let until = START_MS / 1000;
        assert_eq!(trusted_after(&[(START_MS + YEAR_MS, 0), (START_MS + YEAR_MS + 5000, 5000)], until), until + 5);
        assert_eq!(trusted_after(&[(START_MS + 20_000, 0)], until), until + 20);
        assert_eq!(trusted_after(&[(START_MS - YEAR_MS, 0)], until), (START_MS - YEAR_MS) / 1000);
    }
}
