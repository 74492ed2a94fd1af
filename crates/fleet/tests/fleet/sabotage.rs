//! The checkers can fail: random lives detect each deliberate violation, and pass without it.

use fleet::Sabotage;

use crate::failure::Check;
use crate::faults::Focus;
use crate::world::run;

/// Checks that one of the first `seeds` lives, with the faults of `focus`, detects the sabotage by the check that
/// watches over the violated rule, and passes without it.
fn assert_caught(sabotage: Sabotage, check: Check, focus: Option<Focus>, seeds: u64) {
    let fails = |seed: &u64| {
        let failure = run(*seed, sabotage, focus, false).failure;
        failure.is_some_and(|failure| failure.check == check)
    };
    let seed = (0..seeds).find(fails);
    let seed = seed.unwrap_or_else(|| panic!("{sabotage:?} failed no {check:?} in {seeds} lives"));
    println!("{sabotage:?}: seed {seed}");
    assert_eq!(run(seed, Sabotage::None, focus, false).failure, None, "the same life passes without the sabotage");
}

#[test]
fn serving_before_fencing_is_caught() {
    assert_caught(Sabotage::ServeBeforeFencing, Check::History, None, 1_000);
}

#[test]
fn epoch_written_after_serving_is_caught() {
    assert_caught(Sabotage::EpochAfterServing, Check::History, None, 1_000);
}

#[test]
fn ownership_by_the_automatic_lock_is_caught() {
    assert_caught(Sabotage::AutomaticLock, Check::Writers, None, 1_000);
}

#[test]
fn hand_over_on_a_flush_is_caught() {
    assert_caught(Sabotage::HandOverOnFlush, Check::Moves, None, 1_000);
}

#[test]
fn acknowledging_without_a_lease_is_caught() {
    assert_caught(Sabotage::AcknowledgeWithoutLease, Check::History, Some(Focus::Isolated), 1_000);
}

#[test]
fn late_results_of_an_abandoned_attempt_are_caught() {
    assert_caught(Sabotage::BelieveLateResults, Check::History, Some(Focus::LateResults), 3_000);
}

#[test]
fn take_over_within_the_old_lease_is_caught() {
    assert_caught(Sabotage::SkipLeaseWait, Check::History, None, 1_000);
}

#[test]
fn serving_new_connections_unconfirmed_is_caught() {
    assert_caught(Sabotage::SkipConfirmation, Check::History, None, 1_000);
}

#[test]
fn renewal_without_a_look_at_the_log_is_caught() {
    assert_caught(Sabotage::IgnoreLogEnd, Check::History, Some(Focus::SameOwner), 1_000);
}

#[test]
fn destage_without_a_mark_is_caught() {
    assert_caught(Sabotage::DestageWithoutMark, Check::History, Some(Focus::SameOwner), 1_000);
}

#[test]
fn release_before_the_log_is_complete_is_caught() {
    assert_caught(Sabotage::ReleaseBeforeQuiesce, Check::History, None, 1_000);
}

#[test]
fn flush_answered_by_a_standby_is_caught() {
    assert_caught(Sabotage::AnswerFlushAtStandby, Check::History, None, 1_000);
}

#[test]
fn connection_that_outlives_a_lost_owner_is_caught() {
    assert_caught(Sabotage::KeepOldConnections, Check::OldConnection, None, 1_000);
}

#[test]
fn session_of_an_earlier_claim_is_caught() {
    assert_caught(Sabotage::ReuseSession, Check::History, Some(Focus::Rewinds), 4_000);
}

#[test]
fn trust_in_an_expired_watch_is_caught() {
    assert_caught(Sabotage::TrustExpiredWatch, Check::History, Some(Focus::ExpiredWatch), 2_000);
}

#[test]
fn restored_machine_that_stays_the_owner_is_caught() {
    assert_caught(Sabotage::IgnoreGeneration, Check::History, Some(Focus::Destage), 2_000);
}

#[test]
fn released_session_that_is_not_fenced_is_caught() {
    assert_caught(Sabotage::TrustReleased, Check::Writers, Some(Focus::Released), 2_000);
}

#[test]
fn short_blocklist_entry_taken_for_a_fence_is_caught() {
    assert_caught(Sabotage::BelieveShortFence, Check::Writers, Some(Focus::ShortBlock), 2_000);
}

#[test]
fn record_copied_with_its_image_is_caught() {
    assert_caught(Sabotage::TrustCopiedRecord, Check::Bystander, None, 1_000);
}

#[test]
fn hand_over_with_a_full_log_that_does_not_end_is_caught() {
    assert_caught(Sabotage::HandOverWithoutDestage, Check::Requests, None, 2_000);
}

#[test]
fn reader_that_keeps_the_volume_from_its_writer_is_caught() {
    assert_caught(Sabotage::FavourReaders, Check::Liveness, None, 2_000);
}

#[test]
fn second_process_of_a_node_that_takes_the_first_for_ended_is_caught() {
    assert_caught(Sabotage::TrustNode, Check::History, Some(Focus::TwoProcesses), 2_000);
}

#[test]
fn target_of_a_migration_taken_for_its_source_is_caught() {
    assert_caught(Sabotage::TargetDeparts, Check::History, None, 2_000);
}
