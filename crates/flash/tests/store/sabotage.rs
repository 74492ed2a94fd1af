//! The checkers can fail: each deliberate violation of a rule is detected, by scenarios that pass without it.

use flash::Sabotage;

use crate::{crash_points, seeds};

/// Scenarios that are tried for each sabotage.
const SEEDS: u64 = 6;

fn is_caught_by_a_cut(sabotage: Sabotage) {
    let caught =
        (0..SEEDS).find_map(|seed| Some((seed, crash_points::crash_at_every_io(seed, sabotage, u64::MAX).err()?)));
    let (seed, error) = caught.unwrap_or_else(|| panic!("{sabotage:?} was not detected in {SEEDS} scenarios"));
    println!("{sabotage:?}: seed {seed}, {error}");
    crash_points::crash_at_every_io(seed, Sabotage::None, u64::MAX).expect("the same scenario passes without it");
}

#[test]
fn acknowledgement_before_the_mirror_is_durable_is_caught() {
    is_caught_by_a_cut(Sabotage::AckBeforeMirror);
}

#[test]
fn skipped_flush_is_caught() {
    is_caught_by_a_cut(Sabotage::SkipFlush);
}

#[test]
fn replay_of_a_torn_batch_is_caught() {
    is_caught_by_a_cut(Sabotage::ReplayTorn);
}

#[test]
fn segment_reused_before_its_tail_is_durable_is_caught() {
    is_caught_by_a_cut(Sabotage::ReuseBeforeTail);
}

#[test]
fn acknowledgement_before_the_membership_is_durable_is_caught() {
    is_caught_by_a_cut(Sabotage::AckBeforeMembership);
}

#[test]
fn skipped_checksum_of_a_block_is_caught() {
    let caught = (0..1_000).find_map(|seed| Some((seed, seeds::run_scenario(seed, Sabotage::SkipChecksum).err()?)));
    let (seed, error) = caught.expect("a skipped checksum is detected in a thousand scenarios");
    println!("seed {seed}: {error}");
    seeds::run_scenario(seed, Sabotage::None).expect("the same seed passes without it");
}
