//! Disks that hang: who goes on, how long others wait, and that nothing is lost.

use lab::torture::hang::{HangOptions, Hung, run};
use seam::Nanos;

fn options(hung: Hung, segments: Option<u64>) -> HangOptions {
    HangOptions { seed: 1, volumes: 3, segments, hung, reads_alone: false, lasts: Nanos::from_secs(60), crashes: false }
}

fn holds(options: &HangOptions) {
    if let Err(what) = run(options) {
        panic!("{what}");
    }
}

#[test]
fn a_backing_that_hangs_delays_its_own_volume_alone() {
    for crashes in [false, true] {
        holds(&HangOptions { crashes, ..options(Hung::Backing, None) });
        holds(&HangOptions { crashes, ..options(Hung::Backing, Some(400)) });
    }
}

#[test]
fn a_small_log_does_not_fill_with_data_of_a_backing_that_hangs() {
    holds(&HangOptions { lasts: Nanos::from_secs(120), ..options(Hung::Backing, Some(60)) });
}

#[test]
fn a_mirror_that_hangs_is_out_within_three_seconds() {
    for (reads_alone, crashes) in [(false, false), (false, true), (true, false)] {
        holds(&HangOptions { reads_alone, crashes, ..options(Hung::Mirror, Some(200)) });
    }
}

#[test]
fn requests_end_when_both_mirrors_hang() {
    for crashes in [false, true] {
        holds(&HangOptions { crashes, ..options(Hung::BothMirrors, Some(200)) });
    }
}
