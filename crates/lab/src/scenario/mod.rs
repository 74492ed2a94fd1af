//! Scenarios: published tests of the systems that came before, reproduced in virtual time with Hotset in their place.
//!
//! One file a publication. Each states its geometry and the sum that makes the uncached figure plausible; the checks are the published
//! figures, and none of them is known to the engine. Everything is drawn from the seed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

mod autocache;
pub mod bed;
mod consolidation;
mod deferred;
pub mod report;
pub mod series;
pub mod show;
mod sioc;
mod vdi;
mod vnx;
mod vnx_flash;

pub use series::{Check, Outcome, Point, Series};
pub use show::{Act, Setup, Show};

/// A published test.
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// What is tested, in a line.
    pub title: &'static str,
    /// Who published it.
    pub source: &'static str,
    /// What is built and how it differs from the publication: disks, stripe, sizes, scale.
    pub setting: &'static str,
    /// Runs it.
    pub run: fn(u64) -> Outcome,
    /// How it is shown live, where one volume after the other can be looked at; else it is run in virtual time alone.
    pub show: Option<Show>,
}

/// All of them, in the order in which they are listed.
pub const ALL: &[Scenario] = &[
    autocache::HOUR,
    vnx::DRAM,
    vnx::SPILL,
    vnx_flash::FITS,
    vnx_flash::SPILLS,
    vnx_flash::JUST_FITS,
    vdi::DESKTOPS,
    consolidation::TILES,
    deferred::WRITES,
    sioc::CONTENTION,
];

/// The scenario of that name.
pub fn find(name: &str) -> Option<&'static Scenario> {
    ALL.iter().find(|scenario| scenario.name == name)
}

/// Runs scenarios on so many threads, each in a world of its own, and says when one is done; the result is in their order.
pub fn run_all(
    chosen: &[&'static Scenario],
    seed: u64,
    threads: usize,
    done: impl Fn(&'static Scenario, &Outcome) + Sync,
) -> Vec<(&'static Scenario, Outcome)> {
    let next = AtomicUsize::new(0);
    let outcomes: Vec<Mutex<Option<Outcome>>> = chosen.iter().map(|_| Mutex::default()).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads.min(chosen.len()) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(scenario) = chosen.get(index) else { break };
                    let outcome = (scenario.run)(seed);
                    done(scenario, &outcome);
                    *outcomes[index].lock().expect("nobody panics with it") = Some(outcome);
                }
            });
        }
    });
    let outcomes = outcomes.into_iter().map(|outcome| outcome.into_inner().expect("nobody panics with it"));
    chosen.iter().copied().zip(outcomes.map(|outcome| outcome.expect("each was run"))).collect()
}
