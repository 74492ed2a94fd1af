//! A checker must be able to fail: every deliberate fault in the engine is caught within a bounded number of seeds.

use engine::spec::Sabotage;
use lab::torture::run_seed;

/// Seeds within which a fault has to be noticed.
const SEEDS: u64 = 200;

/// The seed that notices `sabotage`; the same seed is clean without it.
fn caught(sabotage: Sabotage) -> String {
    let found = (0..SEEDS).find_map(|seed| run_seed(seed, sabotage).err());
    let violation = found.unwrap_or_else(|| panic!("{sabotage:?} was not noticed in {SEEDS} seeds"));
    let seed = violation.options.seed;
    run_seed(seed, Sabotage::None).unwrap_or_else(|broken| panic!("seed {seed} fails without sabotage too:\n{broken}"));
    violation.what
}

#[test]
fn a_flush_acknowledged_early_is_caught() {
    let what = caught(Sabotage::FlushEarly);
    assert!(what.contains("sector"), "{what}");
}

#[test]
fn a_lost_partial_write_is_caught() {
    let what = caught(Sabotage::LosePartialWrite);
    assert!(what.contains("sector"), "{what}");
}

#[test]
fn a_stale_block_after_a_discard_is_caught() {
    let what = caught(Sabotage::StaleAfterDiscard);
    assert!(what.contains("sector"), "{what}");
}

#[test]
fn written_data_dropped_at_a_reconnect_is_caught() {
    let what = caught(Sabotage::DropWrittenAtReconnect);
    assert!(what.contains("sector"), "{what}");
}

#[test]
fn an_old_fill_on_newer_data_is_caught() {
    let what = caught(Sabotage::NoTickets);
    assert!(what.contains("sector"), "{what}");
}

#[test]
fn a_buffer_overwritten_in_flight_is_caught() {
    let what = caught(Sabotage::OverwriteInFlight);
    assert!(what.contains("R1"), "{what}");
}

#[test]
fn zero_reported_for_a_dirty_block_is_caught() {
    let what = caught(Sabotage::ZeroForDirty);
    assert!(what.contains("allocation status said"), "{what}");
}
