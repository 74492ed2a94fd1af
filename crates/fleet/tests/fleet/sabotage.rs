//! The checkers can fail: random lives detect each deliberate violation, and pass without it.

use fleet::Sabotage;

use crate::faults::Focus;
use crate::world::run;

/// Checks that one of the first `seeds` lives detects the sabotage, and passes without it.
fn assert_caught(sabotage: Sabotage, seeds: u64) {
    assert_caught_in(sabotage, None, seeds);
}

/// The same, among lives with certain faults.
fn assert_caught_in(sabotage: Sabotage, focus: Option<Focus>, seeds: u64) {
    let caught = (0..seeds).find_map(|seed| Some((seed, run(seed, sabotage, focus, false).failure?)));
    let (seed, failure) = caught.unwrap_or_else(|| panic!("{sabotage:?} was not detected in {seeds} lives"));
    println!("{sabotage:?}: seed {seed}, {failure}");
    assert_eq!(run(seed, Sabotage::None, focus, false).failure, None, "the same life passes without the sabotage");
}

#[test]
fn serving_before_fencing_is_caught() {
    assert_caught(Sabotage::ServeBeforeFencing, 1_000);
}

#[test]
fn epoch_written_after_serving_is_caught() {
    assert_caught(Sabotage::EpochAfterServing, 1_000);
}

#[test]
fn ownership_by_the_automatic_lock_is_caught() {
    assert_caught(Sabotage::AutomaticLock, 1_000);
}

#[test]
fn hand_over_on_a_flush_is_caught() {
    assert_caught(Sabotage::HandOverOnFlush, 1_000);
}

#[test]
fn acknowledging_without_a_lease_is_caught() {
    assert_caught(Sabotage::AcknowledgeWithoutLease, 1_000);
}

#[test]
fn late_results_of_an_abandoned_attempt_are_caught() {
    assert_caught_in(Sabotage::BelieveLateResults, Some(Focus::LateResults), 3_000);
}

#[test]
fn take_over_within_the_old_lease_is_caught() {
    assert_caught(Sabotage::SkipLeaseWait, 1_000);
}

#[test]
fn serving_new_connections_unconfirmed_is_caught() {
    assert_caught(Sabotage::SkipConfirmation, 1_000);
}

#[test]
fn renewal_without_a_look_at_the_log_is_caught() {
    assert_caught(Sabotage::IgnoreLogEnd, 1_000);
}

#[test]
fn destage_without_a_mark_is_caught() {
    assert_caught(Sabotage::DestageWithoutMark, 1_000);
}

#[test]
fn release_before_the_log_is_complete_is_caught() {
    assert_caught(Sabotage::ReleaseBeforeQuiesce, 1_000);
}

#[test]
fn flush_answered_by_a_standby_is_caught() {
    assert_caught(Sabotage::AnswerFlushAtStandby, 1_000);
}

#[test]
fn connection_that_outlives_a_lost_owner_is_caught() {
    assert_caught(Sabotage::KeepOldConnections, 1_000);
}

#[test]
fn session_of_an_earlier_claim_is_caught() {
    assert_caught_in(Sabotage::ReuseSession, Some(Focus::Rewinds), 2_000);
}

#[test]
fn trust_in_an_expired_watch_is_caught() {
    assert_caught_in(Sabotage::TrustExpiredWatch, Some(Focus::ExpiredWatch), 2_000);
}
