//! Which time old points are let go by: a clock that jumps forward must not wipe what was kept.
//!
//! The time of day moves as far as the monotonic clock does. Where it moves otherwise (it was set, the machine slept, a start found it far
//! from the file's last second), what is past its time is reckoned from before and from the monotonic clock alone. The new time of day is
//! believed once it has run evenly for a day: time enough to see that it is wrong and to set it back.

/// A step within this is no jump, in milliseconds.
const STEP_MS_MAX: u64 = 30_000;
/// For how long a clock that has jumped has to run evenly, in milliseconds.
const BELIEVED_AFTER_MS: u64 = 24 * 3600 * 1000;

/// The time that old points are let go by.
#[derive(Default)]
pub struct TrimClock {
    /// In milliseconds since 1970; none before the first sample.
    trusted_ms: Option<u64>,
    /// The time of day and the monotonic clock at the last sample.
    last: (u64, u64),
    /// Since when, by the monotonic clock, the time of day has run evenly.
    even_since_ms: u64,
}

impl TrimClock {
    /// Takes the two clocks at a sample; `until` is the second up to which the file has everything, 0 for a new one.
    pub fn see(&mut self, now_ms: u64, monotonic_ms: u64, until: u64) {
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
        let is_believed = monotonic_ms.saturating_sub(self.even_since_ms) >= BELIEVED_AFTER_MS;
        // Back is always believed: less is let go then.
        self.trusted_ms = Some(if is_believed { now_ms } else { now_ms.min(trusted_ms + passed_ms) });
    }

    /// The second that points are let go by.
    pub fn trusted(&self) -> u64 {
        self.trusted_ms.unwrap_or(0) / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3600 * 1000;
    const YEAR_MS: u64 = 365 * 24 * HOUR_MS;
    const BEGUN_MS: u64 = 1_700_000_000_000;

    fn seen(samples: &[(u64, u64)], until: u64) -> u64 {
        let mut clock = TrimClock::default();
        samples.iter().for_each(|(now_ms, monotonic_ms)| clock.see(*now_ms, *monotonic_ms, until));
        clock.trusted()
    }

    #[test]
    fn an_even_clock_is_followed() {
        assert_eq!(seen(&[(BEGUN_MS, 5), (BEGUN_MS + HOUR_MS, HOUR_MS + 5)], 0), (BEGUN_MS + HOUR_MS) / 1000);
        let stepped = BEGUN_MS + HOUR_MS + STEP_MS_MAX;
        assert_eq!(seen(&[(BEGUN_MS, 5), (stepped, HOUR_MS + 5)], 0), (BEGUN_MS + HOUR_MS) / 1000);
    }

    #[test]
    fn a_jump_forward_is_believed_after_a_day() {
        let jump = [(BEGUN_MS, 0), (BEGUN_MS + YEAR_MS, 1000)];
        assert_eq!(seen(&jump, 0), BEGUN_MS / 1000 + 1);
        let almost = [jump[0], jump[1], (BEGUN_MS + YEAR_MS + 23 * HOUR_MS, 23 * HOUR_MS + 1000)];
        assert_eq!(seen(&almost, 0), (BEGUN_MS + 23 * HOUR_MS) / 1000 + 1);
        let day = [jump[0], jump[1], (BEGUN_MS + YEAR_MS + 24 * HOUR_MS, 24 * HOUR_MS + 1000)];
        assert_eq!(seen(&day, 0), (BEGUN_MS + YEAR_MS + 24 * HOUR_MS) / 1000);
    }

    #[test]
    fn a_clock_that_is_set_back_is_followed() {
        let there_and_back = [(BEGUN_MS, 0), (BEGUN_MS + YEAR_MS, 1000), (BEGUN_MS + 2000, 2000)];
        assert_eq!(seen(&there_and_back, 0), BEGUN_MS / 1000 + 2);
        assert_eq!(seen(&[(BEGUN_MS, 0), (BEGUN_MS - YEAR_MS, 1000)], 0), (BEGUN_MS - YEAR_MS) / 1000);
    }

    #[test]
    fn a_start_far_after_the_file_s_end_goes_on_from_there() {
        let until = BEGUN_MS / 1000;
        assert_eq!(seen(&[(BEGUN_MS + YEAR_MS, 0), (BEGUN_MS + YEAR_MS + 5000, 5000)], until), until + 5);
        assert_eq!(seen(&[(BEGUN_MS + 20_000, 0)], until), until + 20);
        assert_eq!(seen(&[(BEGUN_MS - YEAR_MS, 0)], until), (BEGUN_MS - YEAR_MS) / 1000);
    }
}
