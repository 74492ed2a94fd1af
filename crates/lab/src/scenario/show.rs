//! What `hotset demo --scenario` plays of a scenario in real time: the set-up of its run with bytes and time cut further, and the figures
//! that are held against what was published.

use seam::BLOCK_BYTES;

use super::bed::Plan;
use super::{Check, Point};
use crate::workload::Job;

/// How a scenario is shown live.
pub struct Show {
    /// What stands for the whole, or is left out; empty: nothing.
    pub part: &'static str,
    /// The publication tells how long things took, and so time is cut as often as bytes are.
    pub timed: bool,
    /// Bytes are cut so many times at least, however much time there is: for the memory and the disk of a machine that looks on.
    pub cut_min: u64,
    /// The set-up, with bytes cut so many times.
    pub setup: fn(u64) -> Setup,
    /// What came of it, against what was published.
    pub checks: Checks,
}

/// Holds the minutes of each act, with the cache and without, against what was published. All acts were played to their end.
pub type Checks = fn(&[Vec<Point>], &[Vec<Point>]) -> Vec<Check>;

/// What is built twice, and who is at work.
pub struct Setup {
    /// What was published.
    pub with: Plan,
    /// What it is held against: bare arrays, or memory without flash.
    pub without: Plan,
    /// One after the other.
    pub acts: Vec<Act>,
}

impl Setup {
    /// Plans whose bytes were cut so many times. So are the buffers of their disks, or they would hold much of what is cut.
    pub fn new(with: Plan, without: Plan, acts: Vec<Act>, cut: u64) -> Setup {
        let cut_buffers = |mut plan: Plan| {
            for (array, _) in &mut plan.arrays {
                let whole = array.disk.spindle().map(|spindle| spindle.ahead_bytes);
                array.ahead_bytes = whole.map(|bytes| (bytes / cut).next_multiple_of(BLOCK_BYTES as u64));
            }
            plan
        };
        Setup { with: cut_buffers(with), without: cut_buffers(without), acts }
    }

    /// Minutes of the publication that it takes.
    pub fn minutes(&self) -> u64 {
        self.acts.iter().map(|act| act.minutes).sum()
    }
}

/// Jobs that are at work for a while.
pub struct Act {
    /// What it is called.
    pub name: String,
    /// How long, in minutes of the publication.
    pub minutes: u64,
    /// All that is at work.
    pub jobs: Vec<Job>,
}

impl Act {
    /// A name, a time, and who is at work.
    pub fn new(name: impl Into<String>, minutes: u64, jobs: Vec<Job>) -> Act {
        Act { name: name.into(), minutes, jobs }
    }
}

#[cfg(test)]
mod tests {
    use crate::scenario::ALL;
    use crate::workload::Spec;

    #[test]
    fn every_setup_is_the_published_one_cut_alike() {
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
    fn every_act_fits_on_both_sides_volumes() {
        for (scenario, show) in ALL.iter().filter_map(|scenario| Some((scenario, scenario.show.as_ref()?))) {
            for cut in [show.cut_min, show.cut_min * 5] {
                let setup = (show.setup)(cut);
                assert_eq!(setup.with.row().size_bytes(), setup.without.row().size_bytes(), "{}", scenario.name);
                for act in setup.acts {
                    let checked = Spec::single(&act.name, act.jobs).check(setup.with.row().size_bytes(), 512);
                    checked.unwrap_or_else(|error| panic!("{} cut {cut} times: {error}", scenario.name));
                }
            }
        }
    }
}
