//! A bounded memory of pages: a mark of each page's address and a note about it.
//!
//! Buckets of one cache line; whoever is new takes the place of the oldest in his bucket. So a use costs one wait for memory, the
//! size is fixed, and nothing is ever moved. Two pages with the same mark in the same bucket are taken for one: with 32 bits
//! in eight places that happens to one use in 500 million, and costs a promotion that nobody earned.

const WAYS: usize = 8;
/// Places in a bucket that are filled when as many pages are remembered as asked for: with six of eight on average few buckets overflow.
const FILLED: u64 = 6;

/// A page's place.
#[derive(Clone, Copy, Default)]
pub struct Place {
    /// Never 0: that is a free place.
    mark: u32,
    /// What its policy noted.
    pub note: u32,
}

impl Place {
    /// The page is forgotten.
    pub fn forget(&mut self) {
        *self = Place::default();
    }
}

#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket([Place; WAYS]);

/// Pages and notes about them.
pub struct History {
    buckets: Vec<Bucket>,
}

impl History {
    /// Remembers about `pages` pages.
    pub fn new(pages: u64) -> Self {
        let buckets = usize::try_from(pages.div_ceil(FILLED).max(1)).expect("as many pages as memory can hold");
        History { buckets: vec![Bucket::default(); buckets] }
    }

    /// Makes room for more pages, and begins anew then.
    pub fn grow(&mut self, pages: u64) {
        if pages.div_ceil(FILLED) > self.buckets.len() as u64 {
            *self = History::new(pages);
        }
    }

    /// Bytes that a page costs at most, the rounding of a tiny history left out.
    pub const fn page_cost_bytes() -> usize {
        std::mem::size_of::<Bucket>().div_ceil(FILLED as usize)
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> u64 {
        (self.buckets.len() * std::mem::size_of::<Bucket>()) as u64
    }

    /// The place of a page that is remembered.
    pub fn find(&mut self, key: u64) -> Option<&mut Place> {
        let (bucket, mark) = self.place(key);
        self.buckets[bucket].0.iter_mut().find(|place| place.mark == mark)
    }

    /// Remembers a page; `age` of a note says who leaves when its bucket is full.
    pub fn note(&mut self, key: u64, note: u32, age: impl Fn(u32) -> u32) {
        let (bucket, mark) = self.place(key);
        let bucket = &mut self.buckets[bucket].0;
        let own = bucket.iter().position(|place| place.mark == mark);
        let free = || bucket.iter().position(|place| place.mark == 0);
        let oldest = || (0..WAYS).max_by_key(|place| age(bucket[*place].note)).expect("a bucket has places");
        let chosen = own.or_else(free).unwrap_or_else(oldest);
        bucket[chosen] = Place { mark, note };
    }

    /// The high half chooses the bucket, the low half is the mark.
    fn place(&self, key: u64) -> (usize, u32) {
        let bucket = ((key >> 32) * self.buckets.len() as u64) >> 32;
        (bucket as usize, (key as u32).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_remembers_about_as_many_as_it_was_asked_to_and_drops_the_oldest() {
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
