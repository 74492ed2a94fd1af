//! Published tests of earlier systems, reproduced in virtual time with Hotset in their place.
//!
//! Each publication has its own file, which states the geometry and the calculation that makes the uncached figure
//! plausible. The checks are the published figures; the engine knows none of them. All draws come from the seed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

mod autocache;
mod consolidation;
mod deferred;
pub mod demo;
mod fast_vp_week;
mod pool_bed;
pub mod report;
pub mod series;

mod sioc;
mod steady_log;
pub mod test_bed;
mod vdi;
mod vnx;
mod vnx_flash;
mod vnx_pool;
pub mod write_tail;

pub use demo::{Demo, Phase, Setup};
pub use series::{Check, Outcome, Point, Series};

/// A published test.
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// One line that describes the test.
    pub title: &'static str,
    /// The publication.
    pub source: &'static str,
    /// The test bed and its differences from the publication: disks, stripe, sizes, scale.
    pub setting: &'static str,
    /// Runs the scenario from a seed.
    pub run: fn(u64) -> Outcome,
    /// The live demonstration, if its volumes can be shown one after the other; otherwise the scenario runs in virtual
    /// time alone.
    pub demo: Option<Demo>,
}

impl Scenario {
    /// The live demonstration of a scenario that has one.
    pub fn demo(&self) -> &Demo {
        self.demo.as_ref().expect("the scenario has a live demonstration")
    }
}

/// All scenarios, in the order of listings.
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
    write_tail::TAIL,
    steady_log::LOG,
    sioc::CONTENTION,
    vnx_pool::UNEVEN,
    vnx_pool::TIER,
    fast_vp_week::WEEK,
];

/// Returns the scenario called `name`.
pub fn find(name: &str) -> Option<&'static Scenario> {
    ALL.iter().find(|scenario| scenario.name == name)
}

/// Runs scenarios on `threads` threads, each in its own world, and calls `report` after each. The results keep the
/// order of `chosen`.
pub fn run_all(
    chosen: &[&'static Scenario],
    seed: u64,
    threads: usize,
    report: impl Fn(&'static Scenario, &Outcome) + Sync,
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
                    report(scenario, &outcome);
                    *outcomes[index].lock().expect("no thread panics with the lock held") = Some(outcome);
                }
            });
        }
    });
    let outcomes =
        outcomes.into_iter().map(|outcome| outcome.into_inner().expect("no thread panics with the lock held"));
    chosen.iter().copied().zip(outcomes.map(|outcome| outcome.expect("every chosen scenario was run"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_names_every_scenario() {
        let page = include_str!("../../../../docs/user/lab.md");
        for scenario in ALL {
            assert!(page.contains(&format!("`{}`", scenario.name)), "docs/user/lab.md lacks {}", scenario.name);
        }
    }
}
