//! A part of the flash as people write it: a size, or percent of what the devices can hold.

use std::fmt;
use std::str::FromStr;

use engine::{Amount, FlashShare, PAGE_BLOCKS};
use seam::BLOCK_BYTES;

use crate::units::{exact_bytes, parse_size};

/// Bytes of a page on flash.
pub const PAGE_BYTES: u64 = PAGE_BLOCKS as u64 * BLOCK_BYTES as u64;

/// A part of the flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// So many bytes.
    Bytes(u64),
    /// So many thousandths of what there is.
    PerMille(u32),
}

impl Part {
    /// Nothing.
    pub const NOTHING: Part = Part::Bytes(0);

    /// Bytes, where there are `all`.
    pub fn of(self, all: u64) -> u64 {
        match self {
            Part::Bytes(bytes) => bytes,
            Part::PerMille(part) => (u128::from(all) * u128::from(part) / 1000) as u64,
        }
    }

    fn pages(self, up: bool) -> Amount {
        match self {
            Part::Bytes(bytes) if up => Amount::Pages(bytes.div_ceil(PAGE_BYTES)),
            Part::Bytes(bytes) => Amount::Pages(bytes / PAGE_BYTES),
            Part::PerMille(part) => Amount::PerMille(part),
        }
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(number) = text.strip_suffix('%') else { return parse_size(text).map(Part::Bytes) };
        let wrong = || format!("\"{text}\" is no part of the flash; write it like \"10%\", \"12.5%\" or \"20 GiB\"");
        let (whole, tenths) = number.trim().split_once('.').unwrap_or((number.trim(), "0"));
        let whole: u32 = whole.parse().map_err(|_| wrong())?;
        let tenths: u32 = if tenths.len() == 1 { tenths.parse().map_err(|_| wrong())? } else { return Err(wrong()) };
        let part = whole.checked_mul(10).map(|part| part + tenths);
        part.filter(|part| *part <= 1000).map(Part::PerMille).ok_or_else(wrong)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Bytes(bytes) => f.write_str(&exact_bytes(*bytes)),
            Part::PerMille(part) if part.is_multiple_of(10) => write!(f, "{}%", part / 10),
            Part::PerMille(part) => write!(f, "{}.{}%", part / 10, part % 10),
        }
    }
}

/// What `flash_max` says: a part of the flash, or `none`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Most(pub Option<Part>);

impl FromStr for Most {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" { Ok(Most(None)) } else { text.parse().map(|part| Most(Some(part))) }
    }
}

impl fmt::Display for Most {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(part) => part.fmt(f),
            None => f.write_str("none"),
        }
    }
}

/// What the engine is told.
pub fn flash_share(enabled: bool, min: Part, max: Most) -> FlashShare {
    FlashShare { enabled, min: min.pages(true), max: max.0.map(|max| max.pages(false)), ..FlashShare::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_read_back_as_they_are_shown() {
        for text in ["0", "10%", "12.5%", "20 GiB", "4097 B", "100%"] {
            let part: Part = text.parse().expect(text);
            assert_eq!(part.to_string().parse(), Ok(part), "{text}");
        }
        assert_eq!("12.5%".parse(), Ok(Part::PerMille(125)));
        assert_eq!("none".parse(), Ok(Most(None)));
        for text in ["", "%", "101%", "1.25%", "-1%", "much"] {
            text.parse::<Part>().expect_err(text);
        }
    }
}
