//! Live demonstration of a scenario by `hotset demo --scenario`, in real time. The set-up is the scenario's with bytes
//! and time reduced further; the figures are checked against the published ones.

use seam::BLOCK_BYTES;

use super::test_bed::Plan;
use super::{Check, Point};
use crate::workload::Job;

/// The live demonstration of a scenario.
pub struct Show {
    /// The part of the scenario that is shown, or how it differs; empty when nothing is left out.
    pub part: &'static str,
    /// True when the publication gives durations; time is then reduced by the same factor as bytes.
    pub timed: bool,
    /// Smallest factor by which bytes are reduced, so that the demonstration fits in a small machine's memory and disk.
    pub cut_min: u64,
    /// Builds the set-up with bytes reduced by the given factor.
    pub setup: fn(u64) -> Setup,
    /// Checks of the result against the published figures.
    pub checks: Checks,
}

/// Checks the minutes of each act, with the cache and without. All acts have run to their end.
pub type Checks = fn(&[Vec<Point>], &[Vec<Point>]) -> Vec<Check>;

/// The two test beds of a demonstration and their load.
pub struct Setup {
    /// The published set-up.
    pub with: Plan,
    /// The comparison: bare arrays, or memory without flash.
    pub without: Plan,
    /// Acts, run in order.
    pub acts: Vec<Act>,
}

impl Setup {
    /// A set-up with plans whose bytes were reduced by `cut`. The buffers of their disks are reduced too; otherwise
    /// they would hold much of the reduced data.
    pub fn new(with: Plan, without: Plan, acts: Vec<Act>, cut: u64) -> Setup {
        let cut_buffers = |mut plan: Plan| {
            for (array, _) in &mut plan.arrays {
                let read_ahead_bytes = array.disk.spindle().map(|spindle| spindle.read_ahead_bytes);
                array.read_ahead_bytes =
                    read_ahead_bytes.map(|bytes| (bytes / cut).next_multiple_of(BLOCK_BYTES as u64));
            }
            plan
        };
        Setup { with: cut_buffers(with), without: cut_buffers(without), acts }
    }

    /// Total minutes in the publication's time.
    pub fn minutes(&self) -> u64 {
        self.acts.iter().map(|act| act.minutes).sum()
    }
}

/// A part of a demonstration: jobs that run for a time.
pub struct Act {
    /// Name of the act.
    pub name: String,
    /// Duration in minutes of the publication.
    pub minutes: u64,
    /// The jobs.
    pub jobs: Vec<Job>,
}

impl Act {
    /// An act of this name, duration and jobs.
    pub fn new(name: impl Into<String>, minutes: u64, jobs: Vec<Job>) -> Act {
        Act { name: name.into(), minutes, jobs }
    }
}

#[cfg(test)]
mod tests {
    use crate::scenario::ALL;
    use crate::workload::Spec;

    #[test]
    fn every_setup_scales_all_sizes_alike() {
        for (scenario, show) in ALL.iter().filter_map(|scenario| Some((scenario, scenario.show.as_ref()?))) {
            let [once, more] = [1, 2].map(|times| (show.setup)(show.cut_min * times));
            assert_eq!(once.minutes(), more.minutes(), "{}: minutes are those of the publication", scenario.name);
            for (once, more) in [(&once.with, &more.with), (&once.without, &more.without)] {
                let half = |name: &str, once: u64, more: u64| {
                    let ratio = once as f64 / more as f64;
                    assert!((1.8..2.2).contains(&ratio), "{}: {name} {once} and cut twice {more}", scenario.name);
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
    fn every_act_fits_the_volumes_of_both_sides() {
        for (scenario, show) in ALL.iter().filter_map(|scenario| Some((scenario, scenario.show.as_ref()?))) {
            for cut in [show.cut_min, show.cut_min * 5] {
                let setup = (show.setup)(cut);
                assert_eq!(
                    setup.with.address_space().size_bytes(),
                    setup.without.address_space().size_bytes(),
                    "{}",
                    scenario.name
                );
                for act in setup.acts {
                    let checked = Spec::single(&act.name, act.jobs).check(setup.with.address_space().size_bytes(), 512);
                    checked.unwrap_or_else(|error| panic!("{} cut {cut} times: {error}", scenario.name));
                }
            }
        }
    }
}
