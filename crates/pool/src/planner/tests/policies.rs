//! Policies of volumes, and the reserve of each tier.

use super::fixture::{TestPool, nl_sas, reads, sas_10k, settings, ssd};
use super::*;

fn three_tiers() -> TestPool {
    TestPool::new(vec![vec![(ssd(), 10)], vec![(sas_10k(), 20)], vec![(nl_sas(), 100)]])
}

/// Applies plans until one is empty; returns the number of moves.
fn settle(pool: &mut TestPool) -> usize {
    let mut moves = 0;
    for _ in 0..10 {
        let plan = pool.plan(&settings());
        if plan.moves.is_empty() {
            return moves;
        }
        moves += plan.moves.len();
        pool.apply(&plan);
    }
    panic!("the tenth plan is not empty");
}

#[test]
fn pinned_slice_stays_whatever_its_heat() {
    let mut pool = three_tiers();
    let cold = pool.add_with_policy(reads(0), 0, 0, Policy::Pinned(0));
    let hot = pool.add_with_policy(reads(50_000), 2, 0, Policy::Pinned(2));
    pool.add_many(30, reads(1_000), 2, 0);
    settle(&mut pool);
    assert_eq!((pool.tier_of(cold), pool.tier_of(hot)), (0, 2));
}

#[test]
fn pinned_slices_come_home_and_displace_the_coldest() {
    let mut pool = three_tiers();
    for number in 0..18 {
        pool.add(reads(100 + number), 1, 0);
    }
    let idle = pool.add_with_policy(reads(0), 2, 0, Policy::Pinned(1));
    let hot = pool.add_with_policy(reads(40_000), 2, 0, Policy::Pinned(1));
    let down = pool.add_with_policy(reads(90_000), 0, 0, Policy::Pinned(2));
    let plan = pool.plan(&settings());
    let policy_moves = plan.moves.iter().filter(|step| step.reason == Reason::Policy);
    let mut slices: Vec<u64> = policy_moves.map(|step| step.slice).collect();
    slices.sort_unstable();
    assert_eq!(slices, [idle, hot, down]);
    let displaced: Vec<u64> = plan
        .moves
        .iter()
        .filter(|step| matches!(step.reason, Reason::MakeRoom { .. }))
        .map(|step| step.slice)
        .collect();
    assert_eq!(displaced, [0, 1]);
    pool.apply(&plan);
    settle(&mut pool);
    assert_eq!([idle, hot, down].map(|slice| pool.tier_of(slice)), [1, 1, 2]);
}

#[test]
fn pinned_slice_waits_while_its_tier_is_full_of_pinned_slices() {
    let mut pool = three_tiers();
    for _ in 0..9 {
        pool.add_with_policy(reads(1), 0, 0, Policy::Pinned(0));
    }
    pool.add_with_policy(reads(9_000), 2, 0, Policy::Pinned(0));
    assert_eq!(pool.plan(&settings()).moves, []);
}

#[test]
fn highest_takes_the_fastest_tier_with_room_hottest_first() {
    let mut pool = three_tiers();
    for _ in 0..5 {
        pool.add_with_policy(reads(0), 0, 0, Policy::Pinned(0));
    }
    pool.add_many(4, reads(100), 0, 0);
    let slices: Vec<u64> = (0..6).map(|number| pool.add_with_policy(reads(number), 2, 0, Policy::Highest)).collect();
    settle(&mut pool);
    let tiers: Vec<u16> = slices.iter().map(|slice| pool.tier_of(*slice)).collect();
    assert_eq!(tiers, [1, 1, 0, 0, 0, 0]);
}

#[test]
fn lowest_leaves_the_faster_tiers() {
    let mut pool = three_tiers();
    let hot = pool.add_with_policy(reads(9_000), 0, 0, Policy::Lowest);
    let other = pool.add_with_policy(reads(0), 1, 0, Policy::Lowest);
    assert_eq!(settle(&mut pool), 2);
    assert_eq!((pool.tier_of(hot), pool.tier_of(other)), (2, 2));
}

#[test]
fn tier_below_its_reserve_gives_its_coldest_to_the_next() {
    let mut pool = three_tiers();
    for number in 0..10 {
        pool.add(reads(100 + number), 0, 0);
    }
    pool.add_many(19, reads(5), 1, 0);
    let plan = pool.plan(&settings());
    let moves: Vec<_> = plan.moves.iter().map(|step| (step.slice, step.to.tier, step.reason)).collect();
    assert_eq!(moves[0], (0, 2, Reason::Reserve { missing: 1 }), "the middle tier has no room either");
    assert!(matches!(moves[1], (10, 2, Reason::Reserve { missing: 1 })));
    settle(&mut pool);
    assert!(pool.tiers.iter().all(|tier| tier.groups[0].free >= tier.reserve()));
}

#[test]
fn tier_with_no_room_below_keeps_its_slices() {
    let mut pool = TestPool::new(vec![vec![(ssd(), 10)], vec![(nl_sas(), 10)]]);
    pool.add_many(10, reads(10), 0, 0);
    pool.add_many(10, reads(10), 1, 0);
    assert_eq!(pool.plan(&settings()).moves, []);
}

#[test]
fn slice_that_cannot_move_is_left_alone() {
    let mut pool = three_tiers();
    let slice = pool.add(reads(90_000), 2, 0);
    pool.slices[slice as usize] = None;
    assert_eq!(pool.plan(&settings()).moves, []);
}
