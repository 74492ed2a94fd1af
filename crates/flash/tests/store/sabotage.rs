//! The checkers can fail: each deliberate violation of a rule is detected, by scenarios that pass without it.

use flash::Sabotage;

use crate::world::SMALL;
use crate::{crash_points, seeds};

/// Scenarios that are tried for each sabotage.
const SEEDS: u64 = 6;

/// Checks that a crash of a scenario detects the sabotage, and that the scenario passes without it.
fn assert_caught_by_a_crash(sabotage: Sabotage) {
    let caught = (0..SEEDS)
        .find_map(|seed| Some((seed, crash_points::crash_at_every_io(seed, SMALL, sabotage, u64::MAX).err()?)));
    let (seed, error) = caught.unwrap_or_else(|| panic!("{sabotage:?} was not detected in {SEEDS} scenarios"));
    println!("{sabotage:?}: seed {seed}, {error}");
    crash_points::crash_at_every_io(seed, SMALL, Sabotage::None, u64::MAX)
        .expect("the same scenario passes without it");
}

#[test]
fn acknowledgement_before_the_mirror_is_durable_is_caught() {
    assert_caught_by_a_crash(Sabotage::AckBeforeMirror);
}

#[test]
fn skipped_flush_is_caught() {
    assert_caught_by_a_crash(Sabotage::SkipFlush);
}

#[test]
fn replay_of_a_torn_batch_is_caught() {
    assert_caught_by_a_crash(Sabotage::ReplayTorn);
}

#[test]
fn segment_reused_before_its_tail_is_durable_is_caught() {
    assert_caught_by_a_crash(Sabotage::ReuseBeforeTail);
}

#[test]
fn acknowledgement_before_the_membership_is_durable_is_caught() {
    assert_caught_by_a_crash(Sabotage::AckBeforeMembership);
}

#[test]
fn skipped_checksum_of_a_block_is_caught() {
    let caught = (0..1_000).find_map(|seed| Some((seed, seeds::run_scenario(seed, Sabotage::SkipChecksum).err()?)));
    let (seed, error) = caught.expect("a skipped checksum is detected in a thousand scenarios");
    println!("seed {seed}: {error}");
    seeds::run_scenario(seed, Sabotage::None).expect("the same seed passes without it");
}
