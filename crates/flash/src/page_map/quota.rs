//! A volume's quota of pages, and its value in pages of the current devices.

use std::ops::Range;

use super::table::SlotId;
use crate::number::PageNo;

/// A number of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageAmount {
    /// This many pages.
    Pages(u64),
    /// Thousandths of the maximum number of pages.
    PerMille(u32),
}

impl PageAmount {
    /// The number of pages, if `slots` is the maximum.
    pub fn pages_of(self, slots: u64) -> u64 {
        match self {
            PageAmount::Pages(pages) => pages,
            PageAmount::PerMille(part) => (u128::from(slots) * u128::from(part) / 1000) as u64,
        }
    }
}

/// A volume's quota of pages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PageQuota {
    /// Number of the volume's pages up to which none of them is evicted for others.
    pub min: PageAmount,
    /// At this many pages, a new one replaces one of the volume's own.
    pub max: Option<PageAmount>,
    /// Pages that are not evicted once they are present: sorted, disjoint ranges.
    pub pinned: Vec<Range<PageNo>>,
}

impl Default for PageQuota {
    fn default() -> Self {
        PageQuota { min: PageAmount::Pages(0), max: None, pinned: Vec::new() }
    }
}

impl PageQuota {
    /// The number of pinned pages.
    pub fn pinned_pages(&self) -> u64 {
        self.pinned.iter().map(PageNo::count).sum()
    }

    /// True when this page is pinned.
    pub fn is_pinned(&self, page: PageNo) -> bool {
        let index = self.pinned.partition_point(|range| range.end <= page);
        self.pinned.get(index).is_some_and(|range| range.contains(&page))
    }

    /// The number of pages that are reserved for the volume, if `slots` is the maximum.
    pub fn reserved_pages(&self, slots: u64) -> u64 {
        self.min.pages_of(slots).max(self.pinned_pages())
    }
}

/// A quota in pages of the current devices, and the CLOCK hand of the volume.
#[derive(Clone, Debug, Default)]
pub struct PageLimits {
    /// Number of the volume's pages up to which none of them is evicted for others.
    pub min_pages: u64,
    /// Maximum number of pages.
    pub max_pages: u64,
    /// The quota.
    pub quota: PageQuota,
    /// The hand of the volume's CLOCK replacement.
    pub clock_hand: SlotId,
}
