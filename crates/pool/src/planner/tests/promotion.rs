//! Promotions: which slices move up, which make room, and when nothing moves.

use seam::Nanos;

use super::fixture::{SLICE_BYTES, TestPool, nl_sas, reads, sas_10k, settings, ssd};
use super::*;
use crate::heat::Demand;

fn two_tiers(fast_slots: u64, slow_slots: u64) -> TestPool {
    TestPool::new(vec![vec![(ssd(), fast_slots)], vec![(nl_sas(), slow_slots)]])
}

#[test]
fn hottest_slices_fill_the_fast_tier_up_to_its_reserve() {
    let mut pool = two_tiers(20, 200);
    for number in 0..100 {
        pool.add(reads(10 + number), 1, 0);
    }
    let plan = pool.plan(&settings());
    let slices: Vec<u64> = plan.moves.iter().map(|step| step.slice).collect();
    assert_eq!(slices, (82..100).rev().collect::<Vec<_>>());
    pool.apply(&plan);
    assert_eq!(pool.tiers[0].groups[0].free, 2);
}

#[test]
fn hotter_slice_swaps_with_the_coldest_and_both_moves_count() {
    let mut pool = two_tiers(10, 100);
    for number in 0..9 {
        pool.add(reads(100 + number), 0, 0);
    }
    let hot = pool.add(reads(1_000), 1, 0);
    let plan = pool.plan(&settings());
    assert_eq!(plan.moves.len(), 2);
    let (demotion, promotion) = (plan.moves[0], plan.moves[1]);
    assert_eq!((demotion.slice, demotion.reason), (0, Reason::MakeRoom { for_slice: hot, by_policy: false }));
    let Reason::Promote { net_saved_per_hour, payback } = promotion.reason else { panic!("{promotion:?}") };
    assert_eq!(promotion.slice, hot);
    assert_eq!(net_saved_per_hour, promotion.saved_per_hour + demotion.saved_per_hour);
    assert!(demotion.saved_per_hour < 0 && plan.totals.saved_per_hour == net_saved_per_hour);
    assert_eq!(plan.totals.copy_time, demotion.copy_time + promotion.copy_time);
    let expected = plan.totals.copy_time.0 as f64 * 3.6e12 / net_saved_per_hour as f64;
    assert!((payback.0 as f64 - expected).abs() < 2.0, "{payback} instead of {expected} ns");
    assert_eq!(plan.totals.bytes, 2 * SLICE_BYTES);
    let before = pool.disk_time();
    pool.apply(&plan);
    assert_eq!(before - pool.disk_time(), net_saved_per_hour as u64);
}

#[test]
fn similar_heat_displaces_nothing() {
    let mut pool = two_tiers(10, 100);
    pool.add_many(9, reads(100), 0, 0);
    pool.add_many(9, reads(149), 1, 0);
    assert_eq!(pool.plan(&settings()).moves, []);
    pool.add(reads(151), 1, 0);
    assert_eq!(pool.plan(&settings()).moves.len(), 2);
}

#[test]
fn move_that_does_not_pay_within_the_payback_time_is_not_planned() {
    let mut pool = two_tiers(10, 100);
    // Copies cost 44.5 ms, a read saves 11 ms: 4.03 reads in the pay-back time.
    let slice = pool.add(reads(1), 1, 0);
    let with_payback = |hours: u64| Settings { payback: Nanos::from_secs(hours * 3_600), ..settings() };
    assert_eq!(pool.plan(&with_payback(4)).moves, []);
    let plan = pool.plan(&with_payback(5));
    assert_eq!(plan.moves.len(), 1);
    assert_eq!(plan.moves[0].slice, slice);
    assert!(matches!(plan.moves[0].reason, Reason::Promote { payback, .. } if payback > Nanos::from_secs(4 * 3_600)));
}

#[test]
fn random_load_wins_over_sequential_load_of_the_same_disk_time() {
    let mut pool = two_tiers(2, 100);
    pool.tiers[0].reserve_percent = 50;
    let sequential = Demand { reads: 0, writes: 0, bytes: 2 << 30 };
    let random = reads(900);
    assert!(nl_sas().price(random) < nl_sas().price(sequential));
    pool.add(sequential, 1, 0);
    let hot = pool.add(random, 1, 0);
    let plan = pool.plan(&settings());
    assert_eq!(plan.moves.iter().map(|step| step.slice).collect::<Vec<_>>(), [hot]);
}

#[test]
fn writes_on_parity_weigh_their_penalty() {
    let mut pool = two_tiers(2, 100);
    pool.tiers[0].reserve_percent = 50;
    pool.add(reads(300), 1, 0);
    let written = pool.add(Demand { writes: 100_000, ..Demand::default() }, 1, 0);
    assert_eq!(pool.plan(&settings()).moves[0].slice, written);
}

#[test]
fn room_in_the_fast_tier_passes_the_coldest_down_each_tier() {
    let mut pool = TestPool::new(vec![vec![(ssd(), 10)], vec![(sas_10k(), 20)], vec![(nl_sas(), 100)]]);
    pool.add_many(9, reads(500), 0, 0);
    pool.add_many(17, reads(100), 1, 0);
    let coldest = pool.add(reads(1), 1, 0);
    let hot = pool.add(reads(5_000), 2, 0);
    let plan = pool.plan(&settings());
    let tiers: Vec<_> = plan.moves.iter().map(|step| (step.slice, step.from.tier, step.to.tier)).collect();
    assert_eq!(tiers, [(coldest, 1, 2), (0, 0, 1), (hot, 2, 0)]);
    pool.apply(&plan);
    assert_eq!(pool.plan(&settings()).moves, []);
}

#[test]
fn plan_ends_before_it_is_outdated_and_takes_the_best_moves() {
    let mut pool = two_tiers(1_000, 1_000);
    for number in 0..500 {
        pool.add(reads(100 + number * 7919 % 500), 1, 0);
    }
    // Seven slices and a half.
    let slow = Settings { rate_bytes_per_second: 30 << 20, valid_for: Nanos::from_secs(1), ..settings() };
    let plan = pool.plan(&slow);
    assert_eq!(plan.moves.len(), 7);
    assert!(plan.totals.duration <= slow.valid_for);
    let all: Vec<i64> = pool.plan(&settings()).moves.iter().map(|step| step.saved_per_hour).collect();
    assert!(all.is_sorted_by(|a, b| a >= b));
    assert_eq!(plan.moves.iter().map(|step| step.saved_per_hour).collect::<Vec<_>>(), all[..7]);
    assert_eq!(pool.plan(&Settings { rate_bytes_per_second: 0, ..slow }).moves, []);
}

#[test]
fn busy_group_takes_no_slices_from_a_less_busy_one() {
    let mut pool = two_tiers(100, 100);
    pool.add_many(10, reads(1_000), 1, 0);
    pool.other_ppm[0][0] = 850_000;
    assert_eq!(pool.plan(&settings()).moves, []);
    pool.other_ppm[0][0] = 600_000;
    assert_eq!(pool.plan(&settings()).moves.len(), 10);
}

#[test]
fn promotions_spread_over_the_groups_of_the_fast_tier() {
    let mut pool = TestPool::new(vec![vec![(ssd(), 100), (ssd(), 100)], vec![(nl_sas(), 1_000)]]);
    pool.other_ppm[0][0] = 100;
    pool.add_many(100, reads(2_000), 1, 0);
    let plan = pool.plan(&settings());
    pool.apply(&plan);
    let utilisations = pool.utilisations_ppm();
    assert!(utilisations[0][0].abs_diff(utilisations[0][1]) < 10, "{utilisations:?}");
}

#[test]
fn pool_of_one_tier_or_without_slices_has_an_empty_plan() {
    let mut pool = TestPool::new(vec![vec![(nl_sas(), 10)]]);
    pool.add(reads(10_000), 0, 0);
    assert_eq!(pool.plan(&settings()), Plan::default());
    assert_eq!(two_tiers(10, 10).plan(&settings()), Plan::default());
}
