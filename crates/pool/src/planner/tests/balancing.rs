//! Balancing of a tier's groups by utilisation.

use super::fixture::{TestPool, reads, sas_10k, settings};
use super::*;

/// Three groups of five 10k disks, as in the published test.
fn three_groups(slots: u64) -> TestPool {
    TestPool::new(vec![vec![(sas_10k(), slots); 3]])
}

/// Difference of the most and the least utilised group in percent of the mean.
fn gap_percent(pool: &TestPool) -> u64 {
    let utilisations = &pool.utilisations_ppm()[0];
    let gap = utilisations.iter().max().unwrap() - utilisations.iter().min().unwrap();
    gap * 100 / (utilisations.iter().sum::<u64>() / utilisations.len() as u64)
}

/// Applies plans until one is empty; returns the number of moves.
fn settle(pool: &mut TestPool) -> usize {
    let mut moves = 0;
    for _ in 0..10 {
        let plan = pool.plan(&settings());
        if plan.moves.is_empty() {
            return moves;
        }
        assert!(plan.moves.iter().all(|step| step.from.tier == step.to.tier));
        moves += plan.moves.len();
        pool.apply(&plan);
    }
    panic!("the tenth plan is not empty");
}

#[test]
fn uneven_groups_are_balanced_within_ten_percent() {
    let mut pool = three_groups(10_000);
    // 15 GB: 2,600 slices on the first group, 900 and 250 on the others.
    for (group, count) in [(0, 2_600), (1, 900), (2, 250)] {
        pool.add_many(count, reads(1_600), 0, group);
    }
    assert!(gap_percent(&pool) > 100);
    let moves = settle(&mut pool);
    assert!(gap_percent(&pool) <= 10, "{} %", gap_percent(&pool));
    assert!(moves < 1_500, "{moves} moves; 1,350 are the least");
}

#[test]
fn few_hot_slices_move_instead_of_many_cold_ones() {
    let mut pool = three_groups(10_000);
    pool.add_many(3_000, reads(10), 0, 0);
    pool.add_many(30, reads(30_000), 0, 0);
    let moves = settle(&mut pool);
    assert!(gap_percent(&pool) <= 10, "{} %", gap_percent(&pool));
    assert!(moves <= 60, "{moves} moves");
}

#[test]
fn groups_within_the_tolerance_stay_as_they_are() {
    let mut pool = three_groups(1_000);
    for (group, count) in [(0, 104), (1, 100), (2, 96)] {
        pool.add_many(count, reads(10_000), 0, group);
    }
    assert_eq!(pool.plan(&settings()).moves, []);
}

#[test]
fn balance_of_the_plan_before_goes_on_within_the_tolerance() {
    let mut pool = three_groups(1_000);
    for (group, count) in [(0, 104), (1, 100), (2, 96)] {
        pool.add_many(count, reads(10_000), 0, group);
    }
    let continued = Settings { continues_balance: true, ..settings() };
    let plan = pool.plan(&continued);
    assert!(!plan.moves.is_empty());
    pool.apply(&plan);
    assert!(gap_percent(&pool) <= 4, "{} %", gap_percent(&pool));
    assert_eq!(pool.plan(&continued).moves, []);
}

#[test]
fn full_group_swaps_its_coldest_slices() {
    let mut pool = three_groups(100);
    pool.tiers[0].reserve_percent = 1;
    pool.add_many(90, reads(20_000), 0, 0);
    pool.add_many(100, reads(1), 0, 1);
    pool.add_many(100, reads(1), 0, 2);
    let plan = pool.plan(&settings());
    assert!(plan.moves.iter().any(|step| matches!(step.reason, Reason::MakeRoom { .. })));
    pool.apply(&plan);
    settle(&mut pool);
    assert!(gap_percent(&pool) <= 10, "{} %", gap_percent(&pool));
}

#[test]
fn load_from_elsewhere_counts_and_stays() {
    let mut pool = three_groups(1_000);
    pool.add_many(300, reads(4_000), 0, 0);
    pool.other_ppm[0] = vec![0, 0, 400_000];
    settle(&mut pool);
    let utilisations = &pool.utilisations_ppm()[0];
    assert!(utilisations[2] - 400_000 < utilisations[0] / 2, "{utilisations:?}");
    assert!(utilisations[0].abs_diff(utilisations[1]) * 10 < utilisations[0], "{utilisations:?}");
}

#[test]
fn idle_imbalance_moves_nothing() {
    let mut pool = three_groups(1_000);
    pool.add_many(900, reads(0), 0, 0);
    pool.add(reads(20), 0, 0);
    assert_eq!(pool.plan(&settings()).moves, []);
}

#[test]
fn larger_group_takes_a_larger_part() {
    let big = ClassCost { parallel: 15, ..sas_10k() };
    let mut pool = TestPool::new(vec![vec![(sas_10k(), 10_000), (big, 10_000)]]);
    pool.add_many(2_000, reads(1_000), 0, 0);
    settle(&mut pool);
    let held = |group: u16| pool.slices.iter().flatten().filter(|slice| slice.place.group == group).count();
    assert!(held(1) > held(0) * 5 / 2 && gap_percent(&pool) <= 10, "{} and {}", held(0), held(1));
}

#[test]
fn slice_hotter_than_half_of_the_difference_stays() {
    let mut pool = three_groups(1_000);
    // Its group would be the idle one afterwards.
    pool.add(reads(400_000), 0, 0);
    assert_eq!(pool.plan(&settings()).moves, []);
    // Two of them: one moves.
    pool.add(reads(400_000), 0, 0);
    assert_eq!(pool.plan(&settings()).moves.len(), 1);
}
