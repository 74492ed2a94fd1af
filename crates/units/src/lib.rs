//! Sizes, times and network addresses in human-readable form: `512 MiB`, `1.5 TiB`, `10s`, `8min`, `[::1]:7401`.

use std::time::Duration;

/// Units of size, each with its number of bytes. Output uses the first six, which are powers of 1024.
const SIZE_UNITS: [(&str, u64); 10] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

/// Units of time, each with its number of nanoseconds.
const TIME_UNITS: [(&str, u64); 6] = [
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// A host and a port as one text; an IPv6 address gets brackets.
pub fn show_host_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Bytes in `text`: a number, at most three decimals, and a unit (`B`, `KiB` to `PiB`, `kB` to `TB`; bytes without a
/// unit).
pub fn parse_size(text: &str) -> Result<u64, String> {
    let invalid = || format!("\"{text}\" is not a size; write it like \"512 MiB\", \"10 GiB\" or \"1.5 TiB\"");
    let (number, unit) = split_unit(text);
    let unit = if unit.is_empty() { "B" } else { unit };
    let factor = SIZE_UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(invalid)?.1;
    scale(number, factor).ok_or_else(invalid)
}

/// The time in `text`: a number, at most three decimals, and a unit (`us`, `ms`, `s`, `min`, `h`, `d`).
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let invalid = || format!("\"{text}\" is not a time; write it like \"30ms\", \"10s\" or \"8min\"");
    let (number, unit) = split_unit(text);
    let factor = TIME_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(invalid)?.1;
    scale(number, factor).map(Duration::from_nanos).ok_or_else(invalid)
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

fn scale(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.len() > 3 || (number.contains('.') && fraction.is_empty()) {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(factor)?;
    let thousandths = if fraction.is_empty() { 0 } else { format!("{fraction:0<3}").parse::<u128>().ok()? };
    whole.checked_add(u64::try_from(thousandths * u128::from(factor) / 1000).ok()?)
}

/// Human-readable `bytes`, with three significant digits at least: `1.50 GiB`, `512 MiB`, `12 B`.
pub fn show_bytes(bytes: u64) -> String {
    let (name, factor) = SIZE_UNITS[..6].iter().rev().find(|(_, factor)| bytes >= *factor).unwrap_or(&SIZE_UNITS[0]);
    if bytes.is_multiple_of(*factor) {
        return format!("{} {name}", bytes / factor);
    }
    let value = bytes as f64 / *factor as f64;
    let decimals = if value < 10.0 {
        2
    } else if value < 100.0 {
        1
    } else {
        0
    };
    format!("{value:.decimals$} {name}")
}

/// `bytes` as text that [`parse_size`] reads back exactly, in the largest unit that divides them.
pub fn exact_bytes(bytes: u64) -> String {
    let unit = SIZE_UNITS[..6].iter().rev().find(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor));
    unit.map_or_else(|| bytes.to_string(), |(name, factor)| format!("{} {name}", bytes / factor))
}

/// A count with thousands separators: `1,234,567`.
pub fn show_count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count with its noun in the right number: `1 volume`, `1,234 volumes`.
pub fn show_counted(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", show_count(count), if count == 1 { "" } else { "s" })
}

/// Human-readable microseconds: `85 us`, `1.25 ms`, `3.1 s`.
pub fn show_micros(micros: f64) -> String {
    match micros {
        m if m < 1_000.0 => format!("{m:.0} us"),
        m if m < 10_000.0 => format!("{:.2} ms", m / 1e3),
        m if m < 1_000_000.0 => format!("{:.1} ms", m / 1e3),
        m => format!("{:.1} s", m / 1e6),
    }
}

/// Shortest latency that the histograms resolve, in microseconds; shorter ones share a bucket.
pub const LATENCY_US_MIN: f64 = 16.384;
/// Longest latency that the histograms resolve, in microseconds; longer ones share a bucket.
pub const LATENCY_US_MAX: f64 = 34_359_738.368;

/// A latency of client requests in microseconds: as [`show_micros`], or `< 16 us` and `> 34.4 s` past the resolved
/// range.
pub fn show_latency(micros: f64) -> String {
    match micros {
        m if m <= LATENCY_US_MIN => format!("< {}", show_micros(LATENCY_US_MIN)),
        m if m >= LATENCY_US_MAX => format!("> {}", show_micros(LATENCY_US_MAX)),
        m => show_micros(m),
    }
}

/// A time as the configuration writes it, in the largest unit that divides it: `10s`, `1500ms`.
pub fn show_time(time: Duration) -> String {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let unit = TIME_UNITS.iter().rev().find(|(_, factor)| nanos >= *factor && nanos.is_multiple_of(*factor));
    unit.map_or_else(|| format!("{time:?}"), |(name, factor)| format!("{}{name}", nanos / factor))
}

/// `part` of `whole` in percent; `-` if `whole` is zero.
pub fn show_percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1} %", part as f64 * 100.0 / whole as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_of_one_takes_the_singular() {
        assert_eq!(show_counted(1, "volume"), "1 volume");
        assert_eq!(show_counted(0, "volume"), "0 volumes");
        assert_eq!(show_counted(1_234, "volume"), "1,234 volumes");
    }

    #[test]
    fn human_readable_sizes_are_parsed() {
        for (text, bytes) in [
            ("512 MiB", 512 << 20),
            ("10GiB", 10 << 30),
            ("1.5 TiB", 3 << 39),
            ("0", 0),
            ("4096", 4096),
            ("0.125 KiB", 128),
            ("2 gb", 2_000_000_000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn invalid_size_is_refused_with_an_example() {
        for text in ["", "MiB", "1,5 GiB", "-1 GiB", "12 potatoes", "99999999999 PiB", "1. GiB", "1.2345 GiB"] {
            let error = parse_size(text).expect_err(text);
            assert!(error.contains("512 MiB"), "{error}");
        }
    }

    #[test]
    fn times_need_a_unit() {
        assert_eq!(parse_time("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_time("8min"), Ok(Duration::from_secs(480)));
        assert_eq!(parse_time("1.5 s"), Ok(Duration::from_millis(1500)));
        assert!(parse_time("10").is_err());
        assert_eq!(show_time(Duration::from_secs(480)), "8min");
        assert_eq!(show_time(Duration::from_millis(1500)), "1500ms");
    }

    #[test]
    fn figures_are_shown_with_their_unit() {
        assert_eq!(show_bytes(0), "0 B");
        assert_eq!(show_bytes(1 << 30), "1 GiB");
        assert_eq!(show_bytes(1_610_000_000), "1.50 GiB");
        assert_eq!(show_count(1_234_567), "1,234,567");
        assert_eq!(show_count(999), "999");
        assert_eq!(show_micros(85.4), "85 us");
        assert_eq!(show_micros(1250.0), "1.25 ms");
        assert_eq!((show_latency(1.0), show_latency(16.384)), ("< 16 us".to_owned(), "< 16 us".to_owned()));
        assert_eq!((show_latency(17.2), show_latency(4e7)), ("17 us".to_owned(), "> 34.4 s".to_owned()));
        assert_eq!(show_percent(1, 4), "25.0 %");
        assert_eq!(show_percent(0, 0), "-");
    }
}
