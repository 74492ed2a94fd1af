//! Live demonstration of a scenario by `hotset demo --scenario`, in real time. The set-up is the scenario's with bytes
//! and time reduced further; the figures are checked against the published ones.

use seam::BLOCK_BYTES;

use super::test_bed::Plan;
use super::{Check, Point};
use crate::workload::Job;

/// The live demonstration of a scenario.
pub struct Demo {
    /// The part of the scenario that is shown, or how it differs; empty when nothing is left out.
    pub part: &'static str,
    /// True when the publication gives durations; time is then reduced by the same factor as bytes.
    pub timed: bool,
    /// Smallest divisor of all bytes, so that the demonstration fits in a small machine's memory and disk.
    pub byte_divisor_min: u64,
    /// Builds the set-up with bytes divided by the argument.
    pub setup: fn(u64) -> Setup,
    /// Checks of the result against the published figures.
    pub checks: Checks,
}

/// Checks the minutes of each phase, with the cache and without. All phases have run to their end.
pub type Checks = fn(&[Vec<Point>], &[Vec<Point>]) -> Vec<Check>;

/// The two test beds of a demonstration and their load.
pub struct Setup {
    /// The published set-up.
    pub with: Plan,
    /// The comparison: bare arrays, or memory without flash.
    pub without: Plan,
    /// Phases, run in order.
    pub phases: Vec<Phase>,
}

impl Setup {
    /// A set-up with plans whose bytes were divided by `byte_divisor`. The buffers of their disks are reduced too;
    /// otherwise they would hold much of the reduced data.
    pub fn new(with: Plan, without: Plan, phases: Vec<Phase>, byte_divisor: u64) -> Setup {
        let scale_buffers = |mut plan: Plan| {
            for (array, _) in &mut plan.arrays {
                let read_ahead_bytes = array.disk.spindle().map(|spindle| spindle.read_ahead_bytes);
                array.read_ahead_bytes =
                    read_ahead_bytes.map(|bytes| (bytes / byte_divisor).next_multiple_of(BLOCK_BYTES as u64));
            }
            plan
        };
        Setup { with: scale_buffers(with), without: scale_buffers(without), phases }
    }

    /// Total minutes in the publication's time.
    pub fn minutes(&self) -> u64 {
        self.phases.iter().map(|phase| phase.minutes).sum()
    }
}

/// A part of a demonstration: jobs that run for a time.
pub struct Phase {
    /// Name of the phase.
    pub name: String,
    /// Duration in minutes of the publication.
    pub minutes: u64,
    /// The jobs.
    pub jobs: Vec<Job>,
}

impl Phase {
    /// A phase of this name, duration and jobs.
    pub fn new(name: impl Into<String>, minutes: u64, jobs: Vec<Job>) -> Phase {
        Phase { name: name.into(), minutes, jobs }
    }
}

#[cfg(test)]
mod tests {
    use crate::scenario::ALL;
    use crate::workload::Spec;

    #[test]
    fn every_setup_scales_all_sizes_alike() {
        for (scenario, demo) in ALL.iter().filter_map(|scenario| Some((scenario, scenario.demo.as_ref()?))) {
            let [once, more] = [1, 2].map(|times| (demo.setup)(demo.byte_divisor_min * times));
            assert_eq!(once.minutes(), more.minutes(), "{}: minutes are those of the publication", scenario.name);
            for (once, more) in [(&once.with, &more.with), (&once.without, &more.without)] {
                let half = |name: &str, once: u64, more: u64| {
                    let ratio = once as f64 / more as f64;
                    assert!(
                        (1.8..2.2).contains(&ratio),
                        "{}: {name} {once} and reduced twice as much {more}",
                        scenario.name
                    );
                };
                half("memory", once.memory_bytes, more.memory_bytes);
                for ((array, bytes), (small, fewer)) in once.arrays.iter().zip(&more.arrays) {
                    half("volume", *bytes, *fewer);
                    half("array", array.size_bytes(), small.size_bytes());
                    assert_eq!((array.level, array.disks, array.disk), (small.level, small.disks, small.disk));
                }
                let flash = |plan: &super::Plan| plan.flash.map(|flash| (flash.devices, flash.iops));
                assert_eq!((flash(once), once.policy), (flash(more), more.policy), "{}", scenario.name);
                if let (Some(once), Some(more)) = (once.flash, more.flash) {
                    half("flash", once.bytes, more.bytes);
                }
            }
        }
    }

    #[test]
    fn every_phase_fits_the_volumes_of_both_sides() {
        for (scenario, demo) in ALL.iter().filter_map(|scenario| Some((scenario, scenario.demo.as_ref()?))) {
            for byte_divisor in [demo.byte_divisor_min, demo.byte_divisor_min * 5] {
                let setup = (demo.setup)(byte_divisor);
                assert_eq!(
                    setup.with.address_space().size_bytes(),
                    setup.without.address_space().size_bytes(),
                    "{}",
                    scenario.name
                );
                for phase in setup.phases {
                    let checked =
                        Spec::single(&phase.name, phase.jobs).check(setup.with.address_space().size_bytes(), 512);
                    checked
                        .unwrap_or_else(|error| panic!("{} with byte divisor {byte_divisor}: {error}", scenario.name));
                }
            }
        }
    }
}
