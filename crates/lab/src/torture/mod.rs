//! Torture: the engine in a simulated world with faults and crashes, checked against the promises. One seed determines
//! a whole run.

mod admin;
pub mod campaign;
mod client;
pub mod deployment;
mod faults;
pub mod flash;
pub mod hang;
pub mod history;
pub mod model;
pub mod options;
mod run;
mod session;
mod shrink;

use std::fmt;

use engine::spec::Sabotage;
use seam::Nanos;
use seam::sim::TraceMode;

pub use campaign::{Campaign, Summary, campaign};
pub use options::Options;
pub use run::run;
pub use shrink::shrink;

/// Totals of the runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Seeds run.
    pub seeds: u64,
    /// Sessions run.
    pub sessions: u64,
    /// Client operations.
    pub operations: u64,
    /// Pages that volumes promoted to flash.
    pub promotions: u64,
    /// Blocks that volumes read from flash.
    pub flash_blocks_read: u64,
    /// Blocks of these that were read from kept records of the log.
    pub kept_blocks_read: u64,
    /// Requests that waited for requests of other volumes.
    pub share_waits: u64,
    /// Requests that waited for their volume's limit.
    pub limit_waits: u64,
    /// Volumes refused because of an administrator's action between two sessions.
    pub refusals: u64,
    /// Administrator actions between two sessions.
    pub administrator_actions: u64,
    /// Blocks and zero-ranges recovered from the memory of a killed process.
    pub recovered_from_memory: u64,
    /// Requests to the backings.
    pub backing_requests: u64,
    /// Virtual time that passed.
    pub virtual_time: Nanos,
    /// Hash of everything that happened.
    pub trace_hash: u64,
    /// Full trace, if it was requested.
    pub trace: Vec<u8>,
}

/// A violated promise, with everything needed to reproduce it.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Options of the run.
    pub options: Options,
    /// Built-in fault, if any.
    pub sabotage: Sabotage,
    /// The promise and the observation.
    pub message: String,
    /// History of the affected sector or volume.
    pub history: String,
    /// Requests to the backings in the last session, one per line, if they were recorded.
    pub trace: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.options)?;
        if self.sabotage != Sabotage::None {
            writeln!(f, "  sabotage {:?}", self.sabotage)?;
        }
        writeln!(f, "BROKEN: {}\n{}", self.message, self.history)?;
        let administrator = if self.options.deployment.is_some() { " --administrator" } else { "" };
        writeln!(f, "again: hotset torture --seeds {}..{}{administrator}", self.options.seed, self.options.seed + 1)
    }
}

impl std::error::Error for Violation {}

/// Draws the options of `seed` and runs them.
pub fn run_seed(seed: u64, sabotage: Sabotage) -> Result<Report, Box<Violation>> {
    run(&Options::draw(seed), sabotage, TraceMode::Hash)
}
