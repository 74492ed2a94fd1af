//! The harness must be able to fail: each deliberate fault in the engine is caught within a bounded range of seeds, the same
//! seeds that pass without it.

use engine::spec::Sabotage;
use lab::torture::{Options, run};
use seam::sim::TraceMode;

/// Seeds that a sabotage has to be caught in.
const SEEDS: u64 = 200;

fn is_caught(sabotage: Sabotage) {
    for seed in 0..SEEDS {
        let options = Options::draw(seed);
        if let Err(violation) = run(&options, sabotage, TraceMode::Hash) {
            println!("{sabotage:?} is caught by seed {seed}: {}", violation.what);
            run(&options, Sabotage::None, TraceMode::Hash).expect("the same seed passes without the sabotage");
            return;
        }
    }
    panic!("{sabotage:?} was not noticed in {SEEDS} seeds");
}

#[test]
fn a_flush_acknowledged_early_is_caught() {
    is_caught(Sabotage::FlushEarly);
}

#[test]
fn a_flush_acknowledged_before_the_flash_log_has_it_is_caught() {
    is_caught(Sabotage::AckBeforeLog);
}

#[test]
fn a_missing_tombstone_is_caught() {
    is_caught(Sabotage::NoTombstones);
}

#[test]
fn a_lost_partial_write_is_caught() {
    is_caught(Sabotage::LosePartialWrite);
}

#[test]
fn a_stale_block_after_a_discard_is_caught() {
    is_caught(Sabotage::StaleAfterDiscard);
}

#[test]
fn written_data_dropped_at_a_reconnect_is_caught() {
    is_caught(Sabotage::DropWrittenAtReconnect);
}

#[test]
fn an_old_fill_on_newer_data_is_caught() {
    is_caught(Sabotage::NoTickets);
}

#[test]
fn a_buffer_overwritten_in_flight_is_caught() {
    is_caught(Sabotage::OverwriteInFlight);
}

#[test]
fn zero_reported_for_a_dirty_block_is_caught() {
    is_caught(Sabotage::ZeroForDirty);
}
