//! Torture: the engine in a hostile simulated world, checked against the promises. Everything follows from one seed.

mod admin;
mod bench;
pub mod campaign;
mod client;
pub mod content;
mod fate;
pub mod flash;
pub mod hang;
pub mod history;
pub mod model;
pub mod options;
mod run;
mod shrink;
pub mod site;

use std::fmt;

use engine::spec::Sabotage;
use seam::Nanos;
use seam::sim::TraceMode;

pub use campaign::{Campaign, Summary, campaign};
pub use client::tags;
pub use options::Options;
pub use run::run;
pub use shrink::shrink;

/// What runs have done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Seeds that were run.
    pub seeds: u64,
    /// Lives lived.
    pub lives: u64,
    /// Operations of clients.
    pub operations: u64,
    /// Pages that volumes put on flash.
    pub promotions: u64,
    /// Blocks that they read from there.
    pub flash_blocks_read: u64,
    /// Requests that waited for those of other volumes.
    pub share_waits: u64,
    /// Requests that waited for their volume's limit.
    pub limit_waits: u64,
    /// Volumes that were not served for what an administrator had done between two lives.
    pub refusals: u64,
    /// What administrators did between two lives.
    pub mischiefs: u64,
    /// Blocks and zero-ranges that were taken back from the memory of a killed process.
    pub taken_back: u64,
    /// Requests to the backings.
    pub backing_requests: u64,
    /// Virtual time passed.
    pub virtual_time: Nanos,
    /// Differs when anything that happened differs.
    pub trace_hash: u64,
    /// Everything that happened, where it was asked for.
    pub trace: Vec<u8>,
}

/// A broken promise, with everything needed to have it again.
#[derive(Clone, Debug)]
pub struct Violation {
    /// What the run was.
    pub options: Options,
    /// The fault that was built in, if any.
    pub sabotage: Sabotage,
    /// What was promised and what was seen.
    pub what: String,
    /// What had happened to that place.
    pub history: String,
    /// The requests to the backings in the last life, a line each, where they were asked for.
    pub trace: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.options)?;
        if self.sabotage != Sabotage::None {
            writeln!(f, "  sabotage {:?}", self.sabotage)?;
        }
        writeln!(f, "BROKEN: {}\n{}", self.what, self.history)?;
        let administrator = if self.options.site.is_some() { " --administrator" } else { "" };
        writeln!(f, "again: hotset torture --seeds {}..{}{administrator}", self.options.seed, self.options.seed + 1)
    }
}

impl std::error::Error for Violation {}

/// Draws the options of `seed` and runs them.
pub fn run_seed(seed: u64, sabotage: Sabotage) -> Result<Report, Box<Violation>> {
    run(&Options::draw(seed), sabotage, TraceMode::Hash)
}
