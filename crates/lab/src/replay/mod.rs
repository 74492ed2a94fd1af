//! Replacement policies over page numbers, without disks: runs a trace at the speed of the machine.
//!
//! Each policy has its own file. The engine's policies run here through their own traits (`engine_policy.rs`,
//! `staged.rs`), so the measurement covers the production code. Pages are numbered densely first (`pages.rs`). Every
//! table is therefore a flat array and every queue a list through one, and an access allocates nothing.

pub mod admission_lru;
pub mod arc;
pub mod belady;
pub mod catalogue;
pub mod engine_policy;
pub mod layers;
pub mod lirs;
pub mod lru;
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
pub use layers::{Layer, LayerSize, Plan, Report, simulate};
pub use pages::{Numbering, PageTrace};
pub use recording::Recording;

/// A cache of densely numbered pages of one size.
pub trait Cache {
    /// Uses a page; returns true on a hit. Afterwards the page is cached, unless an admission rule refused it.
    fn access(&mut self, page: u32) -> bool;

    /// Pages written into the cache so far, if that differs from the misses.
    fn admitted(&self) -> Option<u64> {
        None
    }
}

/// Counters of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Page accesses.
    pub accesses: u64,
    /// Accesses to cached pages.
    pub hits: u64,
    /// Pages written into the cache.
    pub admitted: u64,
}

impl Outcome {
    /// Misses per access; 0 without accesses.
    pub fn miss_ratio(&self) -> f64 {
        if self.accesses == 0 { 0.0 } else { (self.accesses - self.hits) as f64 / self.accesses as f64 }
    }
}

/// Runs all accesses through a cache.
pub fn run_accesses(cache: &mut dyn Cache, accesses: &[u32]) -> Outcome {
    let mut hits = 0;
    for page in accesses {
        hits += u64::from(cache.access(*page));
    }
    let accesses = accesses.len() as u64;
    Outcome { accesses, hits, admitted: cache.admitted().unwrap_or(accesses - hits) }
}
