//! The checkers can fail: each deliberate violation of a rule is detected, by lives that pass without it.

use pool::Sabotage;

use crate::crash_points::{Life, crash_at_every_io};
use crate::seeds::run_life;

/// Seeds that are tried for each sabotage.
const SEEDS: u64 = 400;

/// Checks that a random life detects the sabotage, and passes without it.
fn assert_caught_by_a_life(sabotage: Sabotage) {
    let caught = (0..SEEDS).find_map(|seed| Some((seed, run_life(seed, sabotage).err()?)));
    let (seed, error) = caught.unwrap_or_else(|| panic!("{sabotage:?} was not detected in {SEEDS} lives"));
    println!("{sabotage:?}: seed {seed}, {error}");
    run_life(seed, Sabotage::None).expect("the same life passes without it");
}

/// Checks that a crash of a short life detects the sabotage, and that the life passes without it.
fn assert_caught_by_a_crash(sabotage: Sabotage) {
    let life = |sabotage| Life { sabotage, steps: 18, moves: 6, changes_groups: false };
    let caught = (0..6).find_map(|seed| Some((seed, crash_at_every_io(seed, life(sabotage), u64::MAX).err()?)));
    let (seed, error) = caught.unwrap_or_else(|| panic!("{sabotage:?} was not detected in 6 lives"));
    println!("{sabotage:?}: seed {seed}, {error}");
    crash_at_every_io(seed, life(Sabotage::None), u64::MAX).expect("the same life passes without it");
}

#[test]
fn map_durable_before_its_data_is_caught() {
    assert_caught_by_a_crash(Sabotage::MapBeforeData);
}

#[test]
fn source_freed_before_the_map_is_durable_is_caught() {
    assert_caught_by_a_life(Sabotage::FreeBeforeMap);
}

#[test]
fn copy_without_a_second_pass_is_caught() {
    assert_caught_by_a_life(Sabotage::SkipSecondPass);
}

#[test]
fn flush_without_the_journal_is_caught() {
    assert_caught_by_a_crash(Sabotage::FlushWithoutJournal);
}

#[test]
fn freed_slot_reused_before_its_record_is_caught() {
    assert_caught_by_a_life(Sabotage::ReuseFreedEarly);
}

#[test]
fn reservation_acknowledged_before_the_journal_is_caught() {
    assert_caught_by_a_life(Sabotage::ReserveBeforeJournal);
}

#[test]
fn write_in_place_to_a_shared_slice_is_caught() {
    assert_caught_by_a_life(Sabotage::WriteShared);
}

#[test]
fn private_copy_acknowledged_before_it_is_durable_is_caught() {
    assert_caught_by_a_crash(Sabotage::CopyBeforeJournal);
}

#[test]
fn slot_freed_while_a_snapshot_refers_to_it_is_caught() {
    assert_caught_by_a_life(Sabotage::FreeShared);
}

#[test]
fn new_slot_with_former_content_is_caught() {
    assert_caught_by_a_life(Sabotage::SkipZeroing);
}
