//! Relocation windows: the times of the week at which slices may move.
//!
//! ```text
//! windows = window { "," window }
//! window  = [ days " " ] time "-" time         22:00-06:00   mon-fri 20:00-23:30   sat,sun 00:00-24:00
//! days    = day [ "-" day ] { "," day [ "-" day ] }
//! ```
//!
//! A window that ends at or before its start ends on the next day; its days are those on which it starts.

use std::fmt;
use std::str::FromStr;

/// Minutes of a week.
pub const MINUTES_OF_A_WEEK: u32 = 7 * MINUTES_OF_A_DAY;

const MINUTES_OF_A_DAY: u32 = 24 * 60;
const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// A minute of the week in local time; 0 is Monday, 00:00.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WeekMinute(u32);

impl WeekMinute {
    /// `day` 0 is Monday. `None` past the end of the week, the day or the hour.
    pub fn new(day: u32, hour: u32, minute: u32) -> Option<WeekMinute> {
        (day < 7 && hour < 24 && minute < 60).then(|| WeekMinute(day * MINUTES_OF_A_DAY + hour * 60 + minute))
    }
}

/// Windows that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// A day is unknown.
    #[error("\"{0}\" is no day; use mon, tue, wed, thu, fri, sat, sun or a range such as mon-fri")]
    Day(String),
    /// A time is malformed.
    #[error("\"{0}\" is no window; use 22:00-06:00 or sat,sun 00:00-24:00")]
    Time(String),
    /// A window starts when it ends.
    #[error("the window \"{0}\" starts when it ends; use 00:00-24:00 for the whole day")]
    Empty(String),
}

/// Windows of a week. They may overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    /// (first minute of the week, minutes).
    spans: Vec<(u32, u32)>,
    text: String,
}

impl Windows {
    /// True if slices may move at this time.
    pub fn allows(&self, at: WeekMinute) -> bool {
        self.spans.iter().any(|span| minutes_into(*span, at.0).is_some())
    }

    /// Minutes until slices may move; 0 if they may now.
    pub fn minutes_to_start(&self, at: WeekMinute) -> u32 {
        if self.allows(at) {
            return 0;
        }
        let until = |(start, _): &(u32, u32)| (start + MINUTES_OF_A_WEEK - at.0) % MINUTES_OF_A_WEEK;
        self.spans.iter().map(until).min().expect("windows are not empty")
    }

    /// Minutes for which slices may move from now on; 0 outside of the windows, `None` if they always may.
    pub fn minutes_left(&self, at: WeekMinute) -> Option<u32> {
        let mut left = 0;
        while left < MINUTES_OF_A_WEEK {
            let now = (at.0 + left) % MINUTES_OF_A_WEEK;
            let longest = self.spans.iter().filter_map(|span| Some(span.1 - minutes_into(*span, now)?)).max();
            match longest {
                Some(more) => left += more,
                None => return Some(left),
            }
        }
        None
    }
}

/// Minutes since the start of a span, within it.
fn minutes_into((start, minutes): (u32, u32), at: u32) -> Option<u32> {
    let into = (at + MINUTES_OF_A_WEEK - start) % MINUTES_OF_A_WEEK;
    (into < minutes).then_some(into)
}

impl FromStr for Windows {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<Windows, WindowError> {
        let mut spans = Vec::new();
        let mut days = Vec::new();
        let mut is_open = true;
        for item in text.split(',').map(str::trim) {
            is_open = !item.contains(':');
            if is_open {
                days.extend(parse_days(item)?);
                continue;
            }
            let (last_days, times) = item.rsplit_once(' ').map_or(("", item), |(days, times)| (days.trim(), times));
            if !last_days.is_empty() {
                days.extend(parse_days(last_days)?);
            } else if !days.is_empty() {
                return Err(WindowError::Time(text.to_owned()));
            }
            let (start, minutes) = parse_times(times)?;
            let days = std::mem::take(&mut days);
            let days = if days.is_empty() { (0..7).collect() } else { days };
            spans.extend(days.into_iter().map(|day| (day * MINUTES_OF_A_DAY + start, minutes)));
        }
        if is_open {
            return Err(WindowError::Time(text.to_owned()));
        }
        Ok(Windows { spans, text: text.to_owned() })
    }
}

impl fmt::Display for Windows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Numbers of the days of `mon` or `fri-mon`.
fn parse_days(text: &str) -> Result<Vec<u32>, WindowError> {
    let number = |name: &str| {
        let found = DAYS.iter().position(|day| *day == name.trim());
        found.map(|day| day as u32).ok_or_else(|| WindowError::Day(name.trim().to_owned()))
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (number(first)?, number(last)?);
    Ok((0..=(last + 7 - first) % 7).map(|offset| (first + offset) % 7).collect())
}

/// First minute of the day and length of `22:00-06:00`.
fn parse_times(text: &str) -> Result<(u32, u32), WindowError> {
    let malformed = || WindowError::Time(text.to_owned());
    let (start, end) = text.split_once('-').ok_or_else(malformed)?;
    let start = parse_time(start).filter(|start| *start < MINUTES_OF_A_DAY).ok_or_else(malformed)?;
    let end = parse_time(end).ok_or_else(malformed)?;
    if start == end {
        return Err(WindowError::Empty(text.to_owned()));
    }
    Ok((start, if end > start { end - start } else { end + MINUTES_OF_A_DAY - start }))
}

/// Minute of the day of `06:00`; 24:00 is the end of the day.
fn parse_time(text: &str) -> Option<u32> {
    let (hour, minute) = text.split_once(':')?;
    let digits = |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(hour) || !digits(minute) {
        return None;
    }
    let (hour, minute) = (hour.parse::<u32>().ok()?, minute.parse::<u32>().ok()?);
    let time = hour * 60 + minute;
    (minute < 60 && time <= MINUTES_OF_A_DAY).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(day: u32, hour: u32, minute: u32) -> WeekMinute {
        WeekMinute::new(day, hour, minute).unwrap()
    }

    #[test]
    fn window_across_midnight_is_open_on_both_sides() {
        let windows: Windows = "22:00-06:00".parse().unwrap();
        for day in 0..7 {
            assert!(windows.allows(at(day, 22, 0)) && windows.allows(at(day, 0, 0)) && windows.allows(at(day, 5, 59)));
            assert!(!windows.allows(at(day, 6, 0)) && !windows.allows(at(day, 21, 59)));
            assert_eq!(windows.minutes_to_start(at(day, 6, 0)), 16 * 60);
            assert_eq!(windows.minutes_left(at(day, 23, 0)), Some(7 * 60));
            assert_eq!(windows.minutes_left(at(day, 12, 0)), Some(0));
        }
    }

    #[test]
    fn days_are_those_on_which_a_window_starts() {
        let windows: Windows = "fri-sat 22:00-06:00".parse().unwrap();
        assert!(windows.allows(at(4, 23, 0)) && windows.allows(at(5, 3, 0)) && windows.allows(at(6, 5, 0)));
        assert!(!windows.allows(at(4, 3, 0)) && !windows.allows(at(6, 22, 0)));
        assert_eq!(windows.minutes_to_start(at(6, 6, 0)), (4 * 24 + 22 + 18) * 60);
        let sunday: Windows = "sun 23:00-01:00".parse().unwrap();
        assert!(sunday.allows(at(0, 0, 30)) && !sunday.allows(at(0, 1, 0)));
    }

    #[test]
    fn several_windows_join_where_they_meet() {
        let windows: Windows = "mon-fri 20:00-24:00, 00:00-02:00, sat,sun 00:00-24:00".parse().unwrap();
        assert_eq!(windows.minutes_left(at(0, 20, 0)), Some(6 * 60));
        assert_eq!(windows.minutes_left(at(4, 20, 0)), Some((4 + 48 + 2) * 60));
        assert_eq!(windows.minutes_to_start(at(2, 10, 30)), 9 * 60 + 30);
        let always: Windows = "00:00-24:00".parse().unwrap();
        assert_eq!((always.minutes_left(at(3, 3, 3)), always.minutes_to_start(at(3, 3, 3))), (None, 0));
        assert_eq!(windows.to_string(), "mon-fri 20:00-24:00, 00:00-02:00, sat,sun 00:00-24:00");
    }

    #[test]
    fn malformed_windows_are_refused_with_an_example() {
        let error = |text: &str| text.parse::<Windows>().unwrap_err().to_string();
        let times =
            ["", "mon", "22-06", "22:00", "24:00-06:00", "22:60-06:00", "2:00-06:00", "+2:00-06:00", "22:00-25:00"];
        for text in times {
            let message = error(text);
            assert!(message.contains("is no window; use") || message.contains("is no day; use"), "{text}: {message}");
        }
        assert!(error("mo 22:00-06:00").starts_with("\"mo\" is no day"));
        assert!(error("mon, 22:00-06:00").contains("is no window"));
        assert!(error("06:00-06:00").contains("use 00:00-24:00"));
        assert!(WeekMinute::new(7, 0, 0).is_none() && WeekMinute::new(0, 24, 0).is_none());
    }

    #[test]
    fn every_minute_agrees_with_a_search_minute_by_minute() {
        let windows: Windows = "mon,wed 21:15-03:45, fri-sun 12:00-13:00, 13:00-13:30".parse().unwrap();
        let allowed: Vec<bool> = (0..MINUTES_OF_A_WEEK).map(|minute| windows.allows(WeekMinute(minute))).collect();
        let search = |from: u32, wanted: bool| {
            let is_wanted = |after: &u32| allowed[((from + after) % MINUTES_OF_A_WEEK) as usize] == wanted;
            (0..MINUTES_OF_A_WEEK).find(is_wanted).unwrap()
        };
        for minute in 0..MINUTES_OF_A_WEEK {
            assert_eq!(windows.minutes_to_start(WeekMinute(minute)), search(minute, true), "{minute}");
            assert_eq!(windows.minutes_left(WeekMinute(minute)), Some(search(minute, false)), "{minute}");
        }
    }
}
