//! Text form of memory and flash quotas (a size or a percentage) and of pinned ranges.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use engine::{FlashQuota, MemoryQuota, PAGE_BLOCKS, PageAmount, pool_bytes_for};
use seam::BLOCK_BYTES;

use units::{exact_bytes, parse_size};

/// Bytes of a page on flash.
pub const PAGE_BYTES: u64 = PAGE_BLOCKS as u64 * BLOCK_BYTES as u64;

/// A size, or a percentage of the memory or the flash cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeOrPercent {
    /// Bytes.
    Bytes(u64),
    /// Thousandths of the whole.
    PerMille(u32),
}

impl SizeOrPercent {
    /// Zero bytes.
    pub const ZERO: SizeOrPercent = SizeOrPercent::Bytes(0);

    /// Bytes, if the whole is `whole`.
    pub fn bytes_of(self, whole: u64) -> u64 {
        match self {
            SizeOrPercent::Bytes(bytes) => bytes,
            SizeOrPercent::PerMille(per_mille) => (u128::from(whole) * u128::from(per_mille) / 1000) as u64,
        }
    }

    fn pages(self, rounds_up: bool) -> PageAmount {
        match self {
            SizeOrPercent::Bytes(bytes) if rounds_up => PageAmount::Pages(bytes.div_ceil(PAGE_BYTES)),
            SizeOrPercent::Bytes(bytes) => PageAmount::Pages(bytes / PAGE_BYTES),
            SizeOrPercent::PerMille(per_mille) => PageAmount::PerMille(per_mille),
        }
    }
}

impl FromStr for SizeOrPercent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(number) = text.strip_suffix('%') else { return parse_size(text).map(SizeOrPercent::Bytes) };
        let error = || {
            format!(
                "\"{text}\" is neither a size nor a percentage; write it like \"10%\", \"12.5%\" or \
                                \"20 GiB\""
            )
        };
        let (whole, tenths) = number.trim().split_once('.').unwrap_or((number.trim(), "0"));
        let whole: u32 = whole.parse().map_err(|_| error())?;
        let tenths: u32 = if tenths.len() == 1 { tenths.parse().map_err(|_| error())? } else { return Err(error()) };
        let per_mille = whole.checked_mul(10).map(|per_mille| per_mille + tenths);
        per_mille.filter(|per_mille| *per_mille <= 1000).map(SizeOrPercent::PerMille).ok_or_else(error)
    }
}

impl fmt::Display for SizeOrPercent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SizeOrPercent::Bytes(bytes) => f.write_str(&exact_bytes(*bytes)),
            SizeOrPercent::PerMille(per_mille) if per_mille.is_multiple_of(10) => write!(f, "{}%", per_mille / 10),
            SizeOrPercent::PerMille(per_mille) => write!(f, "{}.{}%", per_mille / 10, per_mille % 10),
        }
    }
}

/// Value of `memory_max` and `flash_max`: a quota, or `none`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ceiling(pub Option<SizeOrPercent>);

impl FromStr for Ceiling {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" { Ok(Ceiling(None)) } else { text.parse().map(|quota| Ceiling(Some(quota))) }
    }
}

impl fmt::Display for Ceiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(quota) => quota.fmt(f),
            None => f.write_str("none"),
        }
    }
}

/// Maximum number of pinned ranges.
const RANGES_MAX: usize = 1_000;

/// Pinned pages of a volume: sorted ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PinnedRanges(Vec<Range<u64>>);

impl PinnedRanges {
    /// The pinned ranges, in page numbers.
    pub fn page_ranges(&self) -> Vec<Range<u64>> {
        self.0.clone()
    }

    /// Adds a range of bytes, rounded outwards to pages.
    pub fn with(&self, bytes: Range<u64>) -> Result<PinnedRanges, String> {
        let mut added = bytes.start / PAGE_BYTES..bytes.end.div_ceil(PAGE_BYTES);
        let mut ranges = Vec::with_capacity(self.0.len() + 1);
        for range in &self.0 {
            if range.end < added.start || added.end < range.start {
                ranges.push(range.clone());
            } else {
                added = added.start.min(range.start)..added.end.max(range.end);
            }
        }
        ranges.push(added);
        ranges.sort_by_key(|range| range.start);
        PinnedRanges::bounded(ranges)
    }

    /// Removes all pages that a range of bytes touches.
    pub fn without(&self, bytes: Range<u64>) -> Result<PinnedRanges, String> {
        let removed = bytes.start / PAGE_BYTES..bytes.end.div_ceil(PAGE_BYTES);
        let remaining = self.0.iter().flat_map(|range| {
            let (before, after) = (range.start..range.end.min(removed.start), range.start.max(removed.end)..range.end);
            [before, after].into_iter().filter(|range| !range.is_empty())
        });
        PinnedRanges::bounded(remaining.collect())
    }

    fn bounded(ranges: Vec<Range<u64>>) -> Result<PinnedRanges, String> {
        if ranges.len() > RANGES_MAX {
            return Err(format!("more than {RANGES_MAX} ranges would be pinned; pin fewer and longer ones"));
        }
        Ok(PinnedRanges(ranges))
    }
}

/// In bytes: `0..65536,1048576..2097152`.
impl fmt::Display for PinnedRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{}..{}", range.start * PAGE_BYTES, range.end * PAGE_BYTES)?;
        }
        Ok(())
    }
}

impl FromStr for PinnedRanges {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range = |text: &str| {
            let (from, to) = text.split_once("..")?;
            let (from, to) = (from.parse::<u64>().ok()?, to.parse::<u64>().ok()?);
            (from < to).then_some(from..to)
        };
        text.split(',').filter(|text| !text.is_empty()).try_fold(PinnedRanges::default(), |pinned, text| {
            pinned
                .with(range(text).ok_or_else(|| format!("\"{text}\" is not a byte range; write it like \"0..65536\""))?)
        })
    }
}

/// The flash quota for the engine.
pub fn flash_quota(enabled: bool, min: SizeOrPercent, max: Ceiling) -> FlashQuota {
    FlashQuota {
        is_enabled: enabled,
        min: min.pages(true),
        max: max.0.map(|max| max.pages(false)),
        ..FlashQuota::default()
    }
}

/// The memory quota for the engine, in bytes of cached blocks. `memory_bytes` and the quota's sizes also cover the
/// blocks' part of the index, which is subtracted.
pub fn memory_quota(memory_bytes: u64, min: SizeOrPercent, max: Ceiling) -> MemoryQuota {
    let block_bytes = |quota: SizeOrPercent| pool_bytes_for(quota.bytes_of(memory_bytes).min(memory_bytes));
    MemoryQuota { min_bytes: block_bytes(min), max_bytes: max.0.map(block_bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_ranges_merge_and_split_and_parse_back() {
        let page = PAGE_BYTES;
        let pinned = PinnedRanges::default().with(1..page).expect("few");
        let pinned = pinned.with(3 * page..5 * page).expect("few").with(page..2 * page).expect("few");
        assert_eq!(pinned.page_ranges(), [0..2, 3..5]);
        assert_eq!(pinned.to_string().parse(), Ok(pinned.clone()));
        assert_eq!(pinned.without(page..4 * page).expect("few").page_ranges(), [0..1, 4..5]);
        assert_eq!(pinned.without(0..u64::MAX).expect("none"), PinnedRanges::default());
        assert_eq!("".parse(), Ok(PinnedRanges::default()));
        "5..3".parse::<PinnedRanges>().expect_err("backwards");
        let many = (0..=RANGES_MAX as u64)
            .try_fold(pinned, |pinned, index| pinned.with(index * 3 * page..index * 3 * page + 1));
        many.expect_err("too many ranges");
    }

    #[test]
    fn displayed_quota_parses_to_the_same_value() {
        for text in ["0", "10%", "12.5%", "20 GiB", "4097 B", "100%"] {
            let quota: SizeOrPercent = text.parse().expect(text);
            assert_eq!(quota.to_string().parse(), Ok(quota), "{text}");
        }
        assert_eq!("12.5%".parse(), Ok(SizeOrPercent::PerMille(125)));
        assert_eq!("none".parse(), Ok(Ceiling(None)));
        for text in ["", "%", "101%", "1.25%", "-1%", "much"] {
            text.parse::<SizeOrPercent>().expect_err(text);
        }
    }
}
