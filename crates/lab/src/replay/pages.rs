//! Dense page numbers, in the order of first use.

use rustc_hash::FxHashMap;

/// The page numbers assigned so far.
pub struct Numbering {
    page_bytes: u64,
    /// Number by device and page address.
    numbers: FxHashMap<(u32, u64), u32>,
}

impl Numbering {
    /// A numbering for pages of `page_bytes`.
    pub fn new(page_bytes: u64) -> Self {
        assert!(page_bytes > 0, "a page is not empty");
        Numbering { page_bytes, numbers: FxHashMap::default() }
    }

    /// Numbers of the pages that contain the `len` bytes from byte `at` of a device; for an empty request, the page of
    /// `at`.
    ///
    /// # Panics
    /// If the trace has more than 4 billion distinct pages.
    pub fn pages_of(&mut self, device: u32, at: u64, len: u64) -> impl Iterator<Item = u32> {
        let last = at.saturating_add(len.max(1) - 1) / self.page_bytes;
        (at / self.page_bytes..=last).map(move |page| self.number(device, page))
    }

    /// Distinct pages so far.
    pub fn distinct(&self) -> u32 {
        self.numbers.len() as u32
    }

    fn number(&mut self, device: u32, page: u64) -> u32 {
        let next = u32::try_from(self.numbers.len()).expect("a trace has fewer than 4 billion pages");
        *self.numbers.entry((device, page)).or_insert(next)
    }
}

/// All page accesses of a trace.
#[derive(Clone, Debug, Default)]
pub struct PageTrace {
    /// Pages in the order of use, numbered from 0 without gaps.
    pub accesses: Vec<u32>,
    /// Number of distinct pages.
    pub distinct: u32,
}

impl PageTrace {
    /// Converts requests `(device, first byte, bytes)` to page accesses: each page of each request is one access.
    pub fn collect(requests: impl IntoIterator<Item = (u32, u64, u64)>, page_bytes: u64) -> PageTrace {
        let mut numbering = Numbering::new(page_bytes);
        let mut accesses = Vec::new();
        for (device, at, len) in requests {
            accesses.extend(numbering.pages_of(device, at, len));
        }
        PageTrace { accesses, distinct: numbering.distinct() }
    }

    /// `percent` of the footprint in pages, rounded down, at least one.
    pub fn percent_of_footprint(&self, percent: u64) -> usize {
        (u64::from(self.distinct) * percent / 100).max(1) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_accesses_each_of_its_pages_once() {
        let requests = [(0, 8192, 4096), (0, 4095, 2), (1, 8192, 1), (0, 8192, 0)];
        let pages = PageTrace::collect(requests, 4096);
        assert_eq!(pages.accesses, [0, 1, 2, 3, 0], "byte 4095 and 4096 lie in two pages, device 1 is another one");
        assert_eq!(pages.distinct, 4);
    }
}
