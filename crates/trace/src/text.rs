//! Fields of text lines: exact numbers, and errors that name the field.

use crate::request_sink::RecordError;

/// Bytes of a sector, for formats that count in sectors.
pub const SECTOR_BYTES: u64 = 512;

/// Splits a line at commas into exactly `N` fields.
pub fn split_fields<const N: usize>(line: &[u8]) -> Result<[&[u8]; N], RecordError> {
    collect_columns(line.split(|byte| *byte == b','), false)
}

/// Splits a line at commas into at least `N` fields, of which it returns the first `N`.
pub fn split_leading_fields<const N: usize>(line: &[u8]) -> Result<[&[u8]; N], RecordError> {
    collect_columns(line.split(|byte| *byte == b','), true)
}

/// Splits a line at blanks into exactly `N` words.
pub fn split_words<const N: usize>(line: &[u8]) -> Result<[&[u8]; N], RecordError> {
    collect_columns(line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()), false)
}

/// Splits a line at blanks into at least `N` words, of which it returns the first `N`.
pub fn split_leading_words<const N: usize>(line: &[u8]) -> Result<[&[u8]; N], RecordError> {
    collect_columns(line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()), true)
}

fn collect_columns<'a, const N: usize>(
    parts: impl Iterator<Item = &'a [u8]>,
    allow_extra: bool,
) -> Result<[&'a [u8]; N], RecordError> {
    let mut columns = [&b""[..]; N];
    let mut count = 0;
    for part in parts {
        if let Some(column) = columns.get_mut(count) {
            *column = part.trim_ascii();
        } else if allow_extra {
            break;
        }
        count += 1;
    }
    if count < N || (count > N && !allow_extra) {
        return Err(format!("has {count} fields where {N} are expected").into());
    }
    Ok(columns)
}

/// Parses a whole number.
pub fn parse_u64(field: &[u8], name: &str) -> Result<u64, RecordError> {
    let mut value = 0u64;
    for byte in field {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return Err(format!("{name} is {}, which is not a whole number", quote(field)).into());
        }
        let longer = value.checked_mul(10).and_then(|value| value.checked_add(u64::from(digit)));
        value = longer.ok_or_else(|| format!("{name} is {}, which is too large", quote(field)))?;
    }
    if field.is_empty() {
        return Err(format!("{name} is missing").into());
    }
    Ok(value)
}

/// Parses a whole number below 2^32.
pub fn parse_u32(field: &[u8], name: &str) -> Result<u32, RecordError> {
    u32::try_from(parse_u64(field, name)?).map_err(|_| format!("{name} is {}, which is too large", quote(field)).into())
}

/// Parses seconds with an optional fraction into nanoseconds; digits beyond the ninth are dropped.
pub fn parse_seconds_as_ns(field: &[u8], name: &str) -> Result<u64, RecordError> {
    let point = field.iter().position(|byte| *byte == b'.');
    let (whole, fraction) = point.map_or((field, &b""[..]), |point| (&field[..point], &field[point + 1..]));
    let seconds = parse_u64(whole, name)?;
    if !fraction.iter().all(u8::is_ascii_digit) {
        return Err(format!("{name} is {}, which is not a number of seconds", quote(field)).into());
    }
    let digits = &fraction[..fraction.len().min(9)];
    let ns =
        digits.iter().fold(0u64, |ns, digit| ns * 10 + u64::from(digit - b'0')) * 10u64.pow(9 - digits.len() as u32);
    let time = seconds.checked_mul(1_000_000_000).and_then(|time| time.checked_add(ns));
    time.ok_or_else(|| format!("{name} is {}, which is too large", quote(field)).into())
}

/// Converts a count of units of `unit_bytes` to bytes.
pub fn to_bytes(count: u64, unit_bytes: u64) -> Result<u64, RecordError> {
    count
        .checked_mul(unit_bytes)
        .ok_or_else(|| format!("{count} times {unit_bytes} bytes exceed the size of any disk").into())
}

/// Quotes a field for a message: short and printable.
pub fn quote(field: &[u8]) -> String {
    const SHOWN_MAX: usize = 40;
    let short = field
        .get(..SHOWN_MAX)
        .map_or_else(|| field.escape_ascii().to_string(), |cut| format!("{}…", cut.escape_ascii()));
    format!("\"{short}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_convert_exactly_to_nanoseconds() {
        for (text, ns) in [
            ("0", 0),
            ("12.5", 12_500_000_000),
            ("0.026214", 26_214_000),
            ("3.", 3_000_000_000),
            ("1.0000000019", 1_000_000_001),
        ] {
            assert_eq!(parse_seconds_as_ns(text.as_bytes(), "the time"), Ok(ns), "{text}");
        }
        for text in ["", ".5", "-1", "1e3", "1.x", "99999999999999"] {
            assert!(parse_seconds_as_ns(text.as_bytes(), "the time").is_err(), "{text}");
        }
    }

    #[test]
    fn out_of_range_numbers_are_named_in_the_error() {
        assert_eq!(parse_u64(b"18446744073709551615", "the offset"), Ok(u64::MAX));
        let error = parse_u64(b"18446744073709551616", "the offset").expect_err("the number is too large");
        assert_eq!(error.0, "the offset is \"18446744073709551616\", which is too large");
        let error = parse_u32(b"a\x07b", "the disk").expect_err("not a number");
        assert_eq!(error.0, "the disk is \"a\\x07b\", which is not a whole number");
    }
}
