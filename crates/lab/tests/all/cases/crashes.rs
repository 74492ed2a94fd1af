//! Kill at any point, power cut with a volatile device cache, crash at each step of a clean stop.

use engine::spec::Sabotage;
use lab::torture::options::SessionEnd;
use lab::torture::{Options, run};
use seam::sim::{CrashMode, TraceMode};

fn run_without_violation(options: &Options) {
    run(options, Sabotage::None, TraceMode::Hash).unwrap_or_else(|violation| panic!("{violation}"));
}

/// Draws options for writes and flushes with sequence tags on a healthy backing, with crashes at any I/O.
fn draw(seed: u64, mode: CrashMode) -> Options {
    let mut options = Options::draw(seed);
    options.faults.clear();
    options.crash_mode = Some(mode);
    options.sessions = vec![SessionEnd::CrashAtIo(1 + seed * 37 % 900), SessionEnd::Crash, SessionEnd::CleanStop];
    options.volumes.iter_mut().for_each(|volume| volume.volatile_cache = true);
    options
}

#[test]
fn case_2_kill_anywhere_keeps_flushed_writes() {
    (0..60).for_each(|seed| run_without_violation(&draw(seed, CrashMode::Kill)));
}

#[test]
fn case_3_power_cut_on_a_volatile_cache_keeps_flushed_writes() {
    for mode in [CrashMode::LoseAll, CrashMode::Reordered, CrashMode::Torn, CrashMode::Scattered] {
        (0..25).for_each(|seed| run_without_violation(&draw(seed, mode)));
    }
}

#[test]
fn case_5_crash_at_each_step_of_a_stop_leaves_a_loadable_volume() {
    for step in 1..60 {
        let mut options = draw(step, CrashMode::Scattered);
        options.operations = 200;
        options.sessions = vec![SessionEnd::CrashInStop(step), SessionEnd::CleanStop];
        run_without_violation(&options);
    }
}
