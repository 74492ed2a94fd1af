//! Local time of the machine, for settings that name a time of the day.

use std::time::{SystemTime, UNIX_EPOCH};

/// A time of the week in the time zone of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTime {
    /// Day of the week; 0 is Monday.
    pub day: u32,
    /// Hour of the day.
    pub hour: u32,
    /// Minute of the hour.
    pub minute: u32,
}

impl LocalTime {
    /// The present time. The C library reads the time zone at the first call; in a zone that it cannot read, local time
    /// is UTC.
    pub fn now() -> LocalTime {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = libc::time_t::try_from(since_1970.as_secs()).unwrap_or(libc::time_t::MAX);
        // SAFETY: all fields of `tm` are integers or a pointer, for which zeroes are valid.
        let mut broken_down: libc::tm = unsafe { std::mem::zeroed() };
        // SAFETY: both pointers are valid for the call, which keeps neither.
        let result = unsafe { libc::localtime_r(&raw const seconds, &raw mut broken_down) };
        if result.is_null() {
            return LocalTime::utc(since_1970.as_secs());
        }
        let number = |value: i32| u32::try_from(value).unwrap_or_default();
        // The C library counts from Sunday.
        let day = (number(broken_down.tm_wday) + 6) % 7;
        LocalTime { day, hour: number(broken_down.tm_hour), minute: number(broken_down.tm_min) }
    }

    fn utc(seconds: u64) -> LocalTime {
        let (days, minutes) = (seconds / 86_400, seconds % 86_400 / 60);
        // 1970-01-01 was a Thursday.
        LocalTime { day: ((days + 3) % 7) as u32, hour: (minutes / 60) as u32, minute: (minutes % 60) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_time_differs_from_utc_by_a_time_zone() {
        let minute_of = |time: LocalTime| (time.day * 24 + time.hour) * 60 + time.minute;
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let (local, utc) = (minute_of(LocalTime::now()), minute_of(LocalTime::utc(seconds)));
        let week = 7 * 24 * 60;
        let apart = (local + week - utc) % week;
        assert!(apart <= 15 * 60 || apart >= week - 13 * 60, "{apart} minutes");
        assert_eq!(LocalTime::utc(1_764_370_800), LocalTime { day: 4, hour: 23, minute: 0 });
    }
}
