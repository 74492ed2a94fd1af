//! Unix time: parsing of times and durations as users write them (`2026-11-22T05:51:03Z`, seconds since 1970, `now`,
//! `-90min`), and formatting.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

const UNITS: [(&str, u64); 4] = [("s", 1), ("min", 60), ("h", 3600), ("d", 86_400)];

/// The current time since 1970.
#[expect(clippy::disallowed_methods, reason = "the clock of users, not of the data path")]
pub fn now() -> Duration {
    // A clock before 1970 counts as 1970.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Parses a time relative to `now`; returns seconds since 1970.
pub fn parse(text: &str, now: u64) -> Result<u64, String> {
    let invalid = || {
        format!(
            "\"{text}\" is not a valid time; write it like \"-1h\", \"now\", \"2026-11-22T05:51:03Z\", or as seconds \
             since 1970"
        )
    };
    match text.strip_prefix('-') {
        Some(ago) => parse_duration(ago).map(|ago| now.saturating_sub(ago)).map_err(|_| invalid()),
        None if text == "now" => Ok(now),
        None => text.parse().ok().or_else(|| parse_date(text)).ok_or_else(invalid),
    }
}

/// Parses a duration in whole seconds: a number and a unit (`s`, `min`, `h`, `d`; none = seconds).
pub fn parse_duration(text: &str) -> Result<u64, String> {
    let invalid = || format!("\"{text}\" is not a valid duration; write it like \"10s\", \"5min\", \"1h\" or \"7d\"");
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = if unit.is_empty() { "s" } else { unit };
    let factor = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(invalid)?.1;
    number.parse::<u64>().ok().and_then(|number| number.checked_mul(factor)).ok_or_else(invalid)
}

/// Parses a date in RFC 3339, in UTC or with an offset such as `+01:00`.
fn parse_date(text: &str) -> Option<u64> {
    text.parse::<Timestamp>().ok()?.as_second().try_into().ok()
}

/// Formats a time as `2026-11-22T05:51:03Z`.
pub fn format(since_1970: Duration) -> String {
    // The calendar ends with the year 9999.
    let second = since_1970.as_secs().try_into().ok().and_then(|second| Timestamp::from_second(second).ok());
    format!("{:.0}", second.unwrap_or(Timestamp::MAX))
}

/// The day of a time in seconds since 1970, in UTC, as `2026-11-22`.
pub fn date(seconds: u64) -> String {
    format(Duration::from_secs(seconds))[..10].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calendar_edges_are_formatted_and_parsed() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(format(Duration::from_secs(seconds)), text);
            assert_eq!(parse(text, 7), Ok(seconds));
        }
        assert_eq!(format(Duration::MAX), "9999-12-30T22:00:00Z");
    }

    #[test]
    fn times_are_parsed_only_in_the_documented_formats() {
        assert_eq!((parse("now", 7), parse("1234", 7)), (Ok(7), Ok(1234)));
        assert_eq!((parse("-2min", 500), parse("-1d", 500), parse("-30", 500)), (Ok(380), Ok(0), Ok(470)));
        assert_eq!((parse("1970-01-01T01:00:07+01:00", 0), parse("1970-01-01T00:00:07.9Z", 0)), (Ok(7), Ok(7)));
        assert_eq!((parse_duration("90"), parse_duration("2h")), (Ok(90), Ok(7200)));
        for wrong in [
            "",
            "-",
            "1.5h",
            "2026-02-30T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-01",
            "2026-01-01T24:00:00Z",
            "1969-12-31T23:59:59Z",
            "yesterday",
            "-1y",
        ] {
            assert!(parse(wrong, 7).is_err(), "{wrong}");
        }
        assert!(parse_duration("99999999999999999999s").is_err() && parse_duration("9999999999999999999d").is_err());
    }
}
