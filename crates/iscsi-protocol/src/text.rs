//! Negotiation text (6.1): `key=value` pairs, each ended by a zero byte, over one or several PDUs.

use crate::limits::{KEY_BYTES_MAX, PAIRS_MAX, TEXT_BYTES_MAX};

/// One pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair<'a> {
    /// The key.
    pub key: &'a str,
    /// The value; may be empty.
    pub value: &'a str,
}

/// Reason for rejecting a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// The text exceeds a limit.
    #[error("the negotiation text is too long")]
    TooLong,
    /// The text does not consist of pairs.
    #[error("the negotiation text does not consist of key=value pairs")]
    Malformed,
    /// The text contains control characters, which a terminal would execute.
    #[error("the negotiation text contains control characters")]
    Control,
}

/// Collects a text over several PDUs; all but the last have the C bit.
#[derive(Debug, Default)]
pub struct Collector(Vec<u8>);

impl Collector {
    /// Appends the data of one PDU.
    pub fn push(&mut self, data: &[u8]) -> Result<(), TextError> {
        if self.0.len() + data.len() > TEXT_BYTES_MAX {
            return Err(TextError::TooLong);
        }
        self.0.extend_from_slice(data);
        Ok(())
    }

    /// Takes the collected text.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }

    /// True if no text is collected.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Splits a text into its pairs, in order.
pub fn parse_pairs(text: &[u8]) -> Result<Vec<Pair<'_>>, TextError> {
    let text = std::str::from_utf8(text).map_err(|_| TextError::Malformed)?;
    let mut pairs = Vec::new();
    // Initiators end the last pair with several zeroes or with none.
    for pair in text.split('\0').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or(TextError::Malformed)?;
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(TextError::Malformed);
        }
        if pair.chars().any(is_control) {
            return Err(TextError::Control);
        }
        if pairs.len() == PAIRS_MAX {
            return Err(TextError::TooLong);
        }
        pairs.push(Pair { key, value });
    }
    Ok(pairs)
}

/// True for characters that a terminal or a page interprets instead of displaying: controls, line and paragraph
/// separators, and characters that change the text direction or have no width.
pub fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        )
}

/// Appends a pair.
pub fn push(out: &mut Vec<u8>, key: &str, value: &str) {
    out.extend_from_slice(key.as_bytes());
    out.push(b'=');
    out.extend_from_slice(value.as_bytes());
    out.push(0);
}

/// Parses a number: decimal, or hexadecimal after `0x` (6.1).
pub fn parse_number(value: &str) -> Option<u32> {
    match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(hex) if !hex.is_empty() && hex.bytes().all(|c| c.is_ascii_hexdigit()) => u32::from_str_radix(hex, 16).ok(),
        None if !value.is_empty() && value.bytes().all(|c| c.is_ascii_digit()) => value.parse().ok(),
        _ => None,
    }
}

/// Parses a binary value: hexadecimal after `0x`, base64 after `0b` (6.1); at most `len_max` bytes.
pub fn parse_binary(value: &str, len_max: usize) -> Option<Vec<u8>> {
    let bytes = match value.get(..2)? {
        "0x" | "0X" => from_hex(&value.as_bytes()[2..])?,
        "0b" | "0B" => from_base64(&value.as_bytes()[2..])?,
        _ => return None,
    };
    (bytes.len() <= len_max).then_some(bytes)
}

/// Formats a binary value as hexadecimal.
pub fn format_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(2 + 2 * bytes.len());
    text.push_str("0x");
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

fn from_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let value = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    // An odd number of digits has an implied leading zero.
    let (first_digit, digit_pairs) = digits.split_at(digits.len() % 2);
    let mut bytes = Vec::with_capacity(digits.len().div_ceil(2));
    for digit in first_digit {
        bytes.push(value(*digit)?);
    }
    for pair in digit_pairs.chunks_exact(2) {
        bytes.push(value(pair[0])? << 4 | value(pair[1])?);
    }
    (!bytes.is_empty()).then_some(bytes)
}

fn from_base64(digits: &[u8]) -> Option<Vec<u8>> {
    let digits = digits.strip_suffix(b"==").or_else(|| digits.strip_suffix(b"=")).unwrap_or(digits);
    let (mut bytes, mut bits, mut bit_count) = (Vec::with_capacity(digits.len() * 3 / 4), 0_u32, 0);
    for digit in digits {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        bit_count += 6;
        if bit_count >= 8 {
            bit_count -= 8;
            bytes.push((bits >> bit_count) as u8);
            bits &= (1 << bit_count) - 1;
        }
    }
    (!bytes.is_empty() && bit_count < 6).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_round_trip() {
        let mut text = Vec::new();
        push(&mut text, "InitiatorName", "iqn.a");
        push(&mut text, "Empty", "");
        push(&mut text, "Sum", "a=b");
        let pair = |key, value| Pair { key, value };
        let expected = vec![pair("InitiatorName", "iqn.a"), pair("Empty", ""), pair("Sum", "a=b")];
        assert_eq!(parse_pairs(&text), Ok(expected.clone()));
        assert_eq!(parse_pairs(text.trim_ascii_end().strip_suffix(b"\0").expect("a zero")), Ok(expected));
    }

    #[test]
    fn malformed_pairs_are_refused() {
        for bad in [&b"nothing\0"[..], b"=value\0", b"\xff=1\0", &[b'k'; 64]] {
            assert_eq!(parse_pairs(bad), Err(TextError::Malformed), "{bad:?}");
        }
        assert_eq!(parse_pairs(&b"k=v\0".repeat(PAIRS_MAX + 1)), Err(TextError::TooLong));
    }

    #[test]
    fn text_over_several_pdus_is_bounded() {
        let mut collector = Collector::default();
        collector.push(b"InitiatorNa").expect("short");
        collector.push(b"me=iqn.a\0").expect("short");
        assert_eq!(collector.take(), b"InitiatorName=iqn.a\0");
        assert_eq!(collector.push(&[0; TEXT_BYTES_MAX]), Ok(()));
        assert_eq!(collector.push(&[0]), Err(TextError::TooLong));
    }

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        assert_eq!(
            (parse_number("262144"), parse_number("0x40000"), parse_number("0")),
            (Some(262_144), Some(262_144), Some(0))
        );
        for bad in ["", "0x", "-1", "+1", "1 ", "0xg", "4294967296", "0x+1"] {
            assert_eq!(parse_number(bad), None, "{bad}");
        }
    }

    #[test]
    fn binary_values_are_hexadecimal_or_base64() {
        assert_eq!(parse_binary("0x0aFF", 16), Some(vec![0x0a, 0xff]));
        assert_eq!(parse_binary("0xaff", 16), Some(vec![0x0a, 0xff]));
        assert_eq!(parse_binary("0bSGVsbG8=", 16), Some(b"Hello".to_vec()));
        assert_eq!(parse_binary("0bSGVsbG8h", 16), Some(b"Hello!".to_vec()));
        assert_eq!(format_hex(&[0x0a, 0xff]), "0x0aff");
        for bad in ["", "0", "0x", "0b", "0xzz", "0b====", "0bA", "12", "0x0102030405060708090a0b0c0d0e0f1011", "é0"] {
            assert_eq!(parse_binary(bad, 16), None, "{bad}");
        }
    }
}
