//! A bounded table of recently used pages: a fingerprint of each page's address and a note.
//!
//! A bucket is one cache line; a new page replaces the oldest one in its bucket. So a use costs one cache miss, the
//! size is fixed, and no entry ever moves. Two pages with the same fingerprint in the same bucket count as one. With 32
//! bits in eight places that happens to one use in 500 million, and costs one unearned promotion.

const WAYS: usize = 8;
/// Average number of filled places in a bucket at the requested size: at six of eight few buckets overflow.
const FILLED: u64 = 6;

/// The entry of a page.
#[derive(Clone, Copy, Default)]
pub struct Place {
    /// Fingerprint; 0 marks a free place.
    mark: u32,
    /// Note of the policy.
    pub note: u32,
}

impl Place {
    /// Removes the page.
    pub fn forget(&mut self) {
        *self = Place::default();
    }
}

#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket([Place; WAYS]);

/// The table of pages with their notes.
pub struct History {
    buckets: Vec<Bucket>,
}

impl History {
    /// A table for about `pages` pages.
    pub fn new(pages: u64) -> Self {
        let buckets = usize::try_from(pages.div_ceil(FILLED).max(1)).expect("as many pages as memory can hold");
        History { buckets: vec![Bucket::default(); buckets] }
    }

    /// Makes room for more pages; a table that grows starts empty.
    pub fn grow(&mut self, pages: u64) {
        if pages.div_ceil(FILLED) > self.buckets.len() as u64 {
            *self = History::new(pages);
        }
    }

    /// Upper bound of the memory of a page in bytes, the rounding of a tiny table left out.
    pub const fn page_cost_bytes() -> usize {
        std::mem::size_of::<Bucket>().div_ceil(FILLED as usize)
    }

    /// Memory in bytes.
    pub fn bytes(&self) -> u64 {
        (self.buckets.len() * std::mem::size_of::<Bucket>()) as u64
    }

    /// The entry of a page, if it is present.
    pub fn find(&mut self, key: u64) -> Option<&mut Place> {
        let (bucket, mark) = self.place(key);
        self.buckets[bucket].0.iter_mut().find(|place| place.mark == mark)
    }

    /// Adds or updates a page. If its bucket is full, the entry with the greatest `age` of its note is replaced.
    pub fn note(&mut self, key: u64, note: u32, age: impl Fn(u32) -> u32) {
        let (bucket, mark) = self.place(key);
        let bucket = &mut self.buckets[bucket].0;
        let own = bucket.iter().position(|place| place.mark == mark);
        let free = || bucket.iter().position(|place| place.mark == 0);
        let oldest = || (0..WAYS).max_by_key(|place| age(bucket[*place].note)).expect("a bucket has places");
        let chosen = own.or_else(free).unwrap_or_else(oldest);
        bucket[chosen] = Place { mark, note };
    }

    /// Bucket and fingerprint: the high half chooses the bucket, the low half is the fingerprint.
    fn place(&self, key: u64) -> (usize, u32) {
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
        let key = |page: u64| crate::memory::hash(3, crate::memory::PageNo(page));
        for page in 0..60_000u64 {
            history.note(key(page), page as u32, |note| page as u32 - note);
        }
        let known = |pages: std::ops::Range<u64>, history: &mut History| {
            pages.filter(|page| history.find(key(*page)).is_some_and(|place| place.note == *page as u32)).count()
        };
        assert!(known(56_000..60_000, &mut history) >= 3_700);
        assert_eq!(known(0..30_000, &mut history), 0);
        assert_eq!(history.bytes(), 64_000);
    }
}
