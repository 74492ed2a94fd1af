//! When a certificate ends: all that is read of its inside besides what rustls does. X.509 (RFC 5280, 4.1) in DER (X.690).

use super::Certificate;

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
/// The version, which one of the first version lacks.
const VERSION: u8 = 0xa0;
/// Bytes of a length at most; certificates are far shorter than what they can say.
const LENGTH_BYTES_MAX: usize = 4;
const DAY_SECONDS: i64 = 86_400;

/// When the first of `chain` ends, in seconds since 1970; none where none of them says so as it should.
pub fn ends(chain: &[Certificate]) -> Option<u64> {
    chain.iter().filter_map(|certificate| not_after(certificate)).min()
}

fn not_after(certificate: &[u8]) -> Option<u64> {
    let (signed, _) = of(SEQUENCE, certificate)?;
    let (body, _) = of(SEQUENCE, signed)?;
    let body = of(VERSION, body).map_or(body, |(_, rest)| rest);
    let (_serial, rest) = of(INTEGER, body)?;
    let (_algorithm, rest) = of(SEQUENCE, rest)?;
    let (_issuer, rest) = of(SEQUENCE, rest)?;
    let (validity, _) = of(SEQUENCE, rest)?;
    let (_, _not_before, rest) = element(validity)?;
    let (kind, text, _) = element(rest)?;
    seconds(kind, text)
}

/// What the first element holds, if it is of that kind, and what stands behind it.
fn of(kind: u8, der: &[u8]) -> Option<(&[u8], &[u8])> {
    element(der).filter(|(found, _, _)| *found == kind).map(|(_, content, rest)| (content, rest))
}

/// Kind and content of the first element, and what stands behind it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&kind, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..0x80 => (usize::from(first), rest),
        _ => {
            let count = usize::from(first & 0x7f);
            let (bytes, rest) = rest.split_at_checked(count).filter(|_| count <= LENGTH_BYTES_MAX)?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((kind, content, rest))
}

/// `YYMMDDHHMMSSZ`, of the years 1950 to 2049, or `YYYYMMDDHHMMSSZ`, in seconds since 1970; 0 before.
fn seconds(kind: u8, text: &[u8]) -> Option<u64> {
    let digits = text.strip_suffix(b"Z").filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    let number = |digits: &[u8]| digits.iter().fold(0, |number, digit| number * 10 + i64::from(digit - b'0'));
    let (year, rest) = match (kind, digits.len()) {
        (UTC_TIME, 12) => {
            let short = number(&digits[..2]);
            (if short < 50 { 2000 + short } else { 1900 + short }, &digits[2..])
        }
        (GENERALIZED_TIME, 14) => (number(&digits[..4]), &digits[4..]),
        _ => return None,
    };
    let [month, day, hour, minute, second] = [0, 2, 4, 6, 8].map(|at| number(&rest[at..at + 2]));
    let is_time = (1..=12).contains(&month) && (1..=31).contains(&day) && hour < 24 && minute < 60 && second < 61;
    let since_1970 = days(year, month, day) * DAY_SECONDS + hour * 3600 + minute * 60 + second;
    is_time.then(|| u64::try_from(since_1970).unwrap_or(0))
}

/// Days since 1970 in the Gregorian calendar, whose years begin in March here, so that a leap day is a year's last (H. Hinnant,
/// "chrono-Compatible Low-Level Date Algorithms", `days_from_civil`).
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn certificate(ends: u64) -> Certificate {
        let key = KeyPair::generate().expect("random");
        let mut params = CertificateParams::new(["localhost".to_owned()]).expect("a plain name");
        params.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(ends);
        params.self_signed(&key).expect("a sound key").der().clone()
    }

    #[test]
    fn the_end_of_a_certificate_is_told_to_the_second_and_of_a_chain_the_first_one() {
        // 2024-02-29, 2049-12-31 and 2050-01-01, where another way to write it begins; 2100-03-01, after no leap day.
        for ends_at in [1_709_251_199, 2_524_607_999, 2_524_608_000, 4_107_542_400] {
            assert_eq!(ends(&[certificate(ends_at)]), Some(ends_at));
        }
        let chain = [certificate(2_000_000_000), certificate(1_900_000_000), certificate(2_100_000_000)];
        assert_eq!(ends(&chain), Some(1_900_000_000));
        assert_eq!(ends(&[]), None);
    }

    #[test]
    fn what_is_cut_off_or_damaged_tells_nothing_or_another_time_and_does_no_harm() {
        let whole = certificate(2_000_000_000);
        for length in 0..whole.len() {
            assert_eq!(not_after(&whole[..length]), None, "{length} bytes");
        }
        for at in 0..whole.len() {
            for value in [0, 0x7f, 0x80, 0x84, 0xff] {
                let mut damaged = whole.to_vec();
                damaged[at] = value;
                let _ = not_after(&damaged);
            }
        }
        for (kind, text) in [
            (UTC_TIME, "330230235959"),
            (UTC_TIME, "331301000000Z"),
            (UTC_TIME, "33050100000-Z"),
            (GENERALIZED_TIME, "330501000000Z"),
            (SEQUENCE, "330501000000Z"),
        ] {
            assert_eq!(seconds(kind, text.as_bytes()), None, "{text}");
        }
        assert_eq!(seconds(UTC_TIME, b"500101000000Z"), Some(0));
    }
}
