//! An LRU with one of the engine's admission rules in front, such as promotion on the third access (FAST Cache).

use engine::policy::promotion::{Admission, Verdict};

use super::Cache;
use super::engine_policy::mix_bits;
use super::lru::Lru;

/// An LRU with an admission rule in front.
pub struct AdmissionLru<A> {
    admission: A,
    lru: Lru,
    admitted: u64,
}

impl<A: Admission> AdmissionLru<A> {
    /// A cache of `slots` pages; the trace has `distinct` pages.
    pub fn new(admission: A, slots: usize, distinct: u32) -> Self {
        AdmissionLru { admission, lru: Lru::new(slots, distinct), admitted: 0 }
    }
}

impl<A: Admission> Cache for AdmissionLru<A> {
    fn access(&mut self, page: u32) -> bool {
        if self.lru.contains(page) {
            return self.lru.access(page);
        }
        if self.admission.record_use(mix_bits(page)) == Verdict::Promote {
            self.admitted += 1;
            self.lru.access(page);
        }
        false
    }

    fn admitted(&self) -> Option<u64> {
        Some(self.admitted)
    }
}
