//! Caches of page numbers alone: a trace against a policy, as fast as the machine goes, without disks.
//!
//! One small file a policy, for comparison; what the engine itself uses runs here through its own traits (`own.rs`,
//! `staged.rs`), so that what is measured is what runs. Pages are numbered densely first (`pages.rs`), so every table is a flat
//! array, every queue a list through one, and an access allocates nothing.

pub mod arc;
pub mod belady;
pub mod catalogue;
pub mod gated;
pub mod layers;
pub mod lirs;
pub mod lru;
pub mod own;
pub mod pages;
pub mod recording;
pub mod s3_fifo;
pub mod sieve;
pub mod staged;
pub mod two_q;
pub mod w_tiny_lfu;

#[cfg(test)]
mod tests;

pub use catalogue::Replacement;
pub use layers::{Amount, Layer, Plan, Report, simulate};
pub use pages::{Numbering, Pages};
pub use recording::Recording;

/// A cache of densely numbered pages of one size.
pub trait Cache {
    /// Uses a page; true when it was there. Afterwards it is there, unless the policy admits with care.
    fn access(&mut self, page: u32) -> bool;

    /// Pages that were written into it so far, where that is not simply the misses.
    fn admitted(&self) -> Option<u64> {
        None
    }
}

/// What came of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Pages asked for.
    pub accesses: u64,
    /// Pages that were there.
    pub hits: u64,
    /// Pages written into the cache.
    pub admitted: u64,
}

impl Outcome {
    /// Misses an access; 0 when nothing was asked for.
    pub fn miss_ratio(&self) -> f64 {
        if self.accesses == 0 { 0.0 } else { (self.accesses - self.hits) as f64 / self.accesses as f64 }
    }
}

/// Plays a trace.
pub fn play(cache: &mut dyn Cache, accesses: &[u32]) -> Outcome {
    let mut hits = 0;
    for page in accesses {
        hits += u64::from(cache.access(*page));
    }
    let accesses = accesses.len() as u64;
    Outcome { accesses, hits, admitted: cache.admitted().unwrap_or(accesses - hits) }
}
