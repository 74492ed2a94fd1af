//! A bounded table of recently used pages: a fingerprint of each page's address and a time stamp.
//!
//! A bucket is one cache line; a new page replaces the oldest one in its bucket. So a use costs one cache miss, the
//! size is fixed, and no entry ever moves. Two pages with the same fingerprint in the same bucket count as one. With 32
//! bits in eight ways that happens to one use in 500 million, and costs one unearned promotion.

/// Entries of a bucket (its associativity).
const WAYS: usize = 8;
/// Average number of entries in use per bucket at the requested size: at six of eight few buckets overflow.
const WAYS_IN_USE: u64 = 6;

/// The entry of a page.
#[derive(Clone, Copy, Default)]
pub struct HistoryEntry {
    /// Fingerprint; 0 marks a free entry.
    fingerprint: u32,
    /// Time stamp set by the policy.
    pub stamp: u32,
}

impl HistoryEntry {
    /// Removes the page.
    pub fn clear(&mut self) {
        *self = HistoryEntry::default();
    }
}

/// A cache line of entries.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket([HistoryEntry; WAYS]);

/// The table of pages with their time stamps.
pub struct History {
    buckets: Vec<Bucket>,
}

impl History {
    /// A table for about `pages` pages.
    pub fn new(pages: u64) -> Self {
        let buckets = usize::try_from(pages.div_ceil(WAYS_IN_USE).max(1)).expect("as many pages as memory can hold");
        History { buckets: vec![Bucket::default(); buckets] }
    }

    /// Makes room for more pages; a table that grows starts empty.
    pub fn grow(&mut self, pages: u64) {
        if pages.div_ceil(WAYS_IN_USE) > self.buckets.len() as u64 {
            *self = History::new(pages);
        }
    }

    /// Upper bound of the memory of a page in bytes, the rounding of a tiny table left out.
    pub const fn page_cost_bytes() -> usize {
        std::mem::size_of::<Bucket>().div_ceil(WAYS_IN_USE as usize)
    }

    /// Memory in bytes.
    pub fn memory_bytes(&self) -> u64 {
        (self.buckets.len() * std::mem::size_of::<Bucket>()) as u64
    }

    /// The entry of a page, if it is present.
    pub fn find(&mut self, key: u64) -> Option<&mut HistoryEntry> {
        let (bucket, fingerprint) = self.locate(key);
        self.buckets[bucket].0.iter_mut().find(|entry| entry.fingerprint == fingerprint)
    }

    /// Adds or updates a page. If its bucket is full, the entry with the greatest `age` of its stamp is replaced.
    pub fn record(&mut self, key: u64, stamp: u32, age: impl Fn(u32) -> u32) {
        let (bucket, fingerprint) = self.locate(key);
        let bucket = &mut self.buckets[bucket].0;
        let existing = bucket.iter().position(|entry| entry.fingerprint == fingerprint);
        let free = || bucket.iter().position(|entry| entry.fingerprint == 0);
        let oldest = || (0..WAYS).max_by_key(|way| age(bucket[*way].stamp)).expect("a bucket has places");
        let chosen = existing.or_else(free).unwrap_or_else(oldest);
        bucket[chosen] = HistoryEntry { fingerprint, stamp };
    }

    /// Bucket and fingerprint: the high half chooses the bucket, the low half is the fingerprint.
    fn locate(&self, key: u64) -> (usize, u32) {
        let bucket = ((key >> 32) * self.buckets.len() as u64) >> 32;
        (bucket as usize, (key as u32).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_holds_about_requested_pages_and_drops_oldest() {
        let mut history = History::new(6_000);
        let key = |page: u64| crate::page_hash::page_hash(3, flash::PageNo(page));
        for page in 0..60_000u64 {
            history.record(key(page), page as u32, |stamp| page as u32 - stamp);
        }
        let known = |pages: std::ops::Range<u64>, history: &mut History| {
            pages.filter(|page| history.find(key(*page)).is_some_and(|entry| entry.stamp == *page as u32)).count()
        };
        assert!(known(56_000..60_000, &mut history) >= 3_700);
        assert_eq!(known(0..30_000, &mut history), 0);
        assert_eq!(history.memory_bytes(), 64_000);
    }
}
