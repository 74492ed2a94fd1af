//! Kill anywhere, power cut with a volatile device cache, crash during an orderly stop at each of its steps.

use engine::spec::Sabotage;
use lab::torture::options::End;
use lab::torture::{Options, run};
use seam::sim::{CrashMode, TraceMode};

fn play(options: &Options) {
    run(options, Sabotage::None, TraceMode::Hash).unwrap_or_else(|broken| panic!("{broken}"));
}

/// Writes and flushes of 4 KiB that carry their number, on a healthy backing; crashes at any I/O.
fn draw(seed: u64, mode: CrashMode) -> Options {
    let mut options = Options::draw(seed);
    options.troubles.clear();
    options.crash_mode = Some(mode);
    options.lives = vec![End::CrashAtIo(1 + seed * 37 % 900), End::Crash, End::Orderly];
    options.volumes.iter_mut().for_each(|volume| volume.volatile_cache = true);
    options
}

#[test]
fn case_2_killed_anywhere_every_flushed_write_reads_back_and_no_block_holds_anothers_data() {
    (0..60).for_each(|seed| play(&draw(seed, CrashMode::Kill)));
}

#[test]
fn case_3_a_power_cut_on_a_cache_that_drops_and_reorders_loses_nothing_that_was_flushed() {
    for mode in [CrashMode::LoseAll, CrashMode::Reordered, CrashMode::Torn, CrashMode::Scattered] {
        (0..25).for_each(|seed| play(&draw(seed, mode)));
    }
}

#[test]
fn case_5_a_crash_at_each_step_of_an_orderly_stop_leaves_a_volume_that_loads() {
    for step in 1..60 {
        let mut options = draw(step, CrashMode::Scattered);
        options.operations = 200;
        options.lives = vec![End::CrashInStop(step), End::Orderly];
        play(&options);
    }
}
