//! Points in time and spans as users write them (`2026-11-22T05:51:03Z`, seconds since 1970, `now`, `-90min`), and back
//! to text.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const UNITS: [(&str, u64); 4] = [("s", 1), ("min", 60), ("h", 3600), ("d", 86_400)];
const DAY: u64 = 86_400;

/// Time since 1970.
pub fn since_1970() -> Duration {
    // A clock before 1970 is none.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The second since 1970 that `text` names, given that it is `now`.
pub fn parse(text: &str, now: u64) -> Result<u64, String> {
    let wrong = || {
        format!(
            "\"{text}\" is no point in time; write it like \"-1h\", \"now\", \"2026-11-22T05:51:03Z\" or as seconds since 1970"
        )
    };
    match text.strip_prefix('-') {
        Some(ago) => parse_span(ago).map(|ago| now.saturating_sub(ago)).map_err(|_| wrong()),
        None if text == "now" => Ok(now),
        None => text.parse().ok().or_else(|| parse_date(text)).ok_or_else(wrong),
    }
}

/// Whole seconds in `text`: a number and a unit (`s`, `min`, `h`, `d`; none = seconds).
pub fn parse_span(text: &str) -> Result<u64, String> {
    let wrong = || format!("\"{text}\" is no span of time; write it like \"10s\", \"5min\", \"1h\" or \"7d\"");
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = if unit.is_empty() { "s" } else { unit };
    let factor = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?.1;
    number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)).ok_or_else(wrong)
}

/// RFC 3339 in UTC.
fn parse_date(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let three = |text: &str, mark: char| -> Option<[u64; 3]> {
        let mut parts = text.split(mark).map(|part| part.parse::<u64>().ok());
        let three = [parts.next()??, parts.next()??, parts.next()??];
        parts.next().is_none().then_some(three)
    };
    let ([year, month, day], [hour, minute, second]) = (three(date, '-')?, three(time, ':')?);
    if !(1970..=9999).contains(&year) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let days = days_of(year, month, day)?;
    Some(days * DAY + hour * 3600 + minute * 60 + second)
}

/// Days from 1970 to an existing date (H. Hinnant, chrono-compatible low-level date algorithms, `days_from_civil`).
fn days_of(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let counted = year - u64::from(month <= 2);
    let (era, of_era) = (counted / 400, counted % 400);
    let shifted = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * shifted + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    let days = days.checked_sub(719_468)?;
    // The 31st of a month that has 30 days is another date.
    (date(days) == (year, month, day)).then_some(days)
}

/// `2026-11-22T05:51:03Z`.
pub fn show(since_1970: Duration) -> String {
    let seconds = since_1970.as_secs();
    let (days, second) = (seconds / DAY, seconds % DAY);
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

/// The Gregorian date of a day counted from 1970 (H. Hinnant, chrono-compatible low-level date algorithms,
/// `civil_from_days`).
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_of_the_calendar_have_their_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(show(Duration::from_secs(seconds)), text);
            assert_eq!(parse(text, 7), Ok(seconds));
        }
    }

    #[test]
    fn points_in_time_are_parsed_in_all_formats_and_no_other() {
        assert_eq!((parse("now", 7), parse("1234", 7)), (Ok(7), Ok(1234)));
        assert_eq!((parse("-2min", 500), parse("-1d", 500), parse("-30", 500)), (Ok(380), Ok(0), Ok(470)));
        assert_eq!((parse_span("90"), parse_span("2h")), (Ok(90), Ok(7200)));
        for wrong in [
            "",
            "-",
            "1.5h",
            "2026-02-30T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-01",
            "2026-01-01T24:00:00Z",
            "yesterday",
            "-1y",
        ] {
            assert!(parse(wrong, 7).is_err(), "{wrong}");
        }
        assert!(parse_span("99999999999999999999s").is_err() && parse_span("9999999999999999999d").is_err());
    }
}
