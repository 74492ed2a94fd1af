//! The checkers can fail: each deliberate violation of a rule is detected, by lives that pass without it.

use std::sync::OnceLock;

use pool::Sabotage;

use crate::crash_points::{Life, crash_at_every_io};
use crate::seeds::run_life;

/// Seeds that are tried for each sabotage.
const SEEDS: u64 = 400;
/// Short lives that crash at every I/O.
const LIVES: usize = 6;

/// Checks that a random life detects the sabotage, and passes without it.
fn assert_caught_by_a_life(sabotage: Sabotage) {
    let caught = (0..SEEDS).find_map(|seed| Some((seed, run_life(seed, sabotage).err()?)));
    let (seed, error) = caught.unwrap_or_else(|| panic!("{sabotage:?} was not detected in {SEEDS} lives"));
    println!("{sabotage:?}: seed {seed}, {error}");
    run_life(seed, Sabotage::None).expect("the same life passes without it");
}

/// The lives of [`assert_caught_by_a_crash`] that pass without a sabotage; such a check takes long.
static PASSED: [OnceLock<()>; LIVES] = [const { OnceLock::new() }; LIVES];

/// Checks that a crash of a short life, from the life `first` on, detects the sabotage, and that the life passes
/// without it.
fn assert_caught_by_a_crash(sabotage: Sabotage, first: usize) {
    let life = |sabotage| Life { sabotage, steps: 18, moves: 6, changes_groups: false };
    let run = |seed: usize, sabotage| crash_at_every_io(seed as u64, life(sabotage), u64::MAX);
    let caught = (first..LIVES).find_map(|seed| Some((seed, run(seed, sabotage).err()?)));
    let (seed, error) = caught.unwrap_or_else(|| panic!("{sabotage:?} was not detected from life {first} on"));
    println!("{sabotage:?}: seed {seed}, {error}");
    PASSED[seed].get_or_init(|| {
        run(seed, Sabotage::None).expect("the same life passes without it");
    });
}

#[test]
fn map_durable_before_its_data_is_caught() {
    assert_caught_by_a_crash(Sabotage::MapBeforeData, 0);
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
    assert_caught_by_a_crash(Sabotage::FlushWithoutJournal, 0);
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
    assert_caught_by_a_crash(Sabotage::CopyBeforeJournal, 3);
}

#[test]
fn slot_freed_while_a_snapshot_refers_to_it_is_caught() {
    assert_caught_by_a_life(Sabotage::FreeShared);
}

#[test]
fn new_slot_with_former_content_is_caught() {
    assert_caught_by_a_life(Sabotage::SkipZeroing);
}
