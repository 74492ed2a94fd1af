//! Properties of plans on random pools, and a comparison with an exhaustive oracle.

use std::collections::BTreeMap;

use seam::Nanos;
use seam::sim::Rng;

use super::fixture::{SLICE_BYTES, TestPool, nl_sas, reads, sas_10k, settings, ssd};
use super::*;
use crate::heat::{Demand, PER_ACCESS};

const SEEDS: u64 = 300;

fn random_demand(rng: &Rng) -> Demand {
    // Heat spreads over many orders of magnitude.
    let scale = 1 << rng.below(14);
    match rng.below(4) {
        0 => Demand::default(),
        1 => Demand { reads: 0, writes: 0, bytes: scale << 22 },
        2 => Demand { reads: 0, writes: scale * PER_ACCESS, bytes: scale * 4096 },
        _ => reads(scale),
    }
}

fn random_policy(rng: &Rng, tiers: u64) -> Policy {
    match rng.below(12) {
        0 => Policy::Highest,
        1 => Policy::Lowest,
        2 => Policy::Pinned(rng.below(tiers) as u16),
        _ => Policy::Auto,
    }
}

fn random_pool(rng: &Rng) -> TestPool {
    let classes = [ssd(), sas_10k(), nl_sas()];
    let tiers = 1 + rng.below(3);
    let groups = |class| (0..1 + rng.below(3)).map(|_| (class, 1 + rng.below(60))).collect();
    let mut pool = TestPool::new(classes[3 - tiers as usize..].iter().map(|class| groups(*class)).collect());
    for tier in 0..tiers as usize {
        pool.tiers[tier].reserve_percent = rng.below(30) as u32;
        for group in 0..pool.tiers[tier].groups.len() {
            pool.other_ppm[tier][group] = if rng.coin() { 0 } else { rng.below(900_000) };
            let slots = pool.tiers[tier].groups[group].slots;
            let fill = if rng.coin() { rng.below(slots + 1) } else { slots - rng.below(slots / 8 + 1) };
            for _ in 0..fill {
                pool.add_with_policy(random_demand(rng), tier as u16, group as u16, random_policy(rng, tiers));
            }
        }
    }
    pool
}

fn random_settings(rng: &Rng) -> Settings {
    let moves = 1 + rng.below(200);
    Settings {
        continues_balance: rng.coin(),
        slice_bytes: SLICE_BYTES,
        rate_bytes_per_second: moves * SLICE_BYTES,
        valid_for: Nanos::from_secs(1),
        payback: Nanos::from_secs(600 << rng.below(10)),
        margin_percent: rng.below(101) as u32,
        allowance_bytes: if rng.coin() { u64::MAX } else { rng.below(100) * SLICE_BYTES },
    }
}

/// Checks what holds for the moves of any plan.
fn check(pool: &TestPool, plan: &Plan, settings: &Settings, seed: u64) {
    assert!(plan.totals.duration <= settings.valid_for, "seed {seed}");
    assert_eq!(plan.totals.bytes, plan.moves.len() as u64 * SLICE_BYTES, "seed {seed}");
    let optional = plan.moves.iter().filter(|step| step.reason.is_optional()).count() as u64;
    assert!(optional <= settings.allowance_bytes / SLICE_BYTES, "seed {seed}: {optional} moves");
    // Net saving and cost of each promotion or balancing move, with the moves that make room for it.
    let mut sums: BTreeMap<u64, (i64, u64)> = BTreeMap::new();
    let mut targets = Vec::new();
    for step in &plan.moves {
        let policy = pool.slices[step.slice as usize].unwrap().policy;
        let leads_home = match policy {
            Policy::Pinned(home) => step.to.tier == home || step.to.tier == step.from.tier,
            Policy::Highest => step.to.tier <= step.from.tier,
            Policy::Lowest => step.to.tier >= step.from.tier,
            Policy::Auto => true,
        };
        assert!(leads_home, "seed {seed}: {step:?} of {policy:?}");
        let key = if let Reason::MakeRoom { for_slice, .. } = step.reason { for_slice } else { step.slice };
        let sum = sums.entry(key).or_default();
        *sum = (sum.0 + step.saved_per_hour, sum.1 + step.copy_time.0);
        targets.push(step.slice);
    }
    for step in &plan.moves {
        let key = step.slice;
        if let Reason::Promote { net_saved_per_hour, payback } = step.reason {
            assert!(net_saved_per_hour > 0 && payback <= settings.payback, "seed {seed}: {step:?}");
            // Groups of a tier have the same class here, so the estimate is exact.
            assert_eq!(sums[&key].0, net_saved_per_hour, "seed {seed}: {step:?}");
            let earned = i128::from(net_saved_per_hour) * i128::from(settings.payback.0) / 3_600_000_000_000;
            assert!(i128::from(sums[&key].1) <= earned, "seed {seed}: {step:?} does not pay");
        }
    }
    targets.sort_unstable();
    targets.dedup();
    assert_eq!(targets.len(), plan.moves.len(), "seed {seed}: a slice moves twice");
}

#[test]
fn random_plans_keep_capacity_reserve_policies_and_pay() {
    let (mut moves, mut kinds) = (0, [0; 5]);
    for seed in 0..SEEDS {
        let rng = Rng::new(seed, 0);
        let mut pool = random_pool(&rng);
        let settings = random_settings(&rng);
        let plan = pool.plan(&settings);
        assert_eq!(plan, pool.plan(&settings), "seed {seed}: the same input has two plans");
        check(&pool, &plan, &settings, seed);
        pool.apply(&plan);
        moves += plan.moves.len();
        for step in &plan.moves {
            kinds[match step.reason {
                Reason::Promote { .. } => 0,
                Reason::MakeRoom { .. } => 1,
                Reason::Policy => 2,
                Reason::Reserve { .. } => 3,
                Reason::Balance { .. } => 4,
            }] += 1;
        }
    }
    assert!(kinds.iter().all(|count| *count > 50), "the pools miss a kind of move: {kinds:?} of {moves}");
}

#[test]
fn plans_converge_and_do_not_ping_pong() {
    let mut late_moves = 0;
    for seed in 0..SEEDS {
        let rng = Rng::new(seed, 1);
        let mut pool = random_pool(&rng);
        let slices = pool.slices.len();
        let mut visits: BTreeMap<(u64, Place), u32> = BTreeMap::new();
        let mut last = 0;
        for round in 0..12 {
            let plan = pool.plan(&settings());
            check(&pool, &plan, &settings(), seed);
            pool.apply(&plan);
            last = plan.moves.len();
            late_moves += if round >= 3 { last } else { 0 };
            for step in &plan.moves {
                let visits = visits.entry((step.slice, step.to)).or_default();
                *visits += 1;
                assert!(*visits <= 2, "seed {seed}: slice {} returns to {:?}", step.slice, step.to);
            }
        }
        assert_eq!(last, 0, "seed {seed}: {slices} slices still move");
    }
    assert!(late_moves < SEEDS as usize / 4, "{late_moves} moves after the third plan of {SEEDS} pools");
}

#[test]
fn second_plan_is_almost_empty() {
    let (mut first, mut second) = (0, 0);
    for seed in 0..SEEDS {
        let rng = Rng::new(seed, 3);
        let mut pool = TestPool::new(vec![vec![(ssd(), 20)], vec![(sas_10k(), 60)], vec![(nl_sas(), 200)]]);
        for (tier, count) in [15, 50, 150].into_iter().enumerate() {
            for _ in 0..rng.below(count) {
                pool.add_with_policy(random_demand(&rng), tier as u16, 0, random_policy(&rng, 3));
            }
        }
        let plan = pool.plan(&settings());
        first += plan.moves.len();
        pool.apply(&plan);
        second += pool.plan(&settings()).moves.len();
    }
    println!("{first} moves in the first plans, {second} in the second");
    assert!(second * 100 < first * 4, "{first}, then {second}");
}

#[test]
fn pass_in_steps_gives_the_same_plan_and_tolerates_changes() {
    for seed in 0..SEEDS / 3 {
        let rng = Rng::new(seed, 4);
        let mut pool = random_pool(&rng);
        let whole = pool.plan(&settings());
        let mut planner = Planner::new(&pool.tiers, &settings());
        while planner.scan(&pool, 1 + rng.below(20)) {}
        assert_eq!(planner.clone().finish(&pool.tiers, &pool), whole, "seed {seed}");
        // Slices freed, given another policy and moved between the pass and the plan.
        for _ in 0..rng.below(30).min(pool.slices.len() as u64) {
            let index = rng.below(pool.slices.len() as u64) as usize;
            let Some(slice) = &mut pool.slices[index] else { continue };
            let (old, last) = (slice.place, pool.tiers.len() as u16 - 1);
            if rng.coin() {
                slice.policy = random_policy(&rng, u64::from(last) + 1);
            } else if pool.tiers[usize::from(last)].groups[0].free > 0 && rng.coin() {
                slice.place = Place { tier: last, group: 0 };
                pool.tiers[usize::from(last)].groups[0].free -= 1;
                pool.tiers[usize::from(old.tier)].groups[usize::from(old.group)].free += 1;
            } else {
                pool.slices[index] = None;
                pool.tiers[usize::from(old.tier)].groups[usize::from(old.group)].free += 1;
            }
        }
        let plan = planner.finish(&pool.tiers, &pool);
        check(&pool, &plan, &settings(), seed);
        pool.apply(&plan);
    }
}

/// Least disk time of all placements within the reserves, by exhaustion.
fn oracle(pool: &TestPool) -> u64 {
    let room: Vec<u64> = pool.tiers.iter().map(|tier| tier.groups[0].slots - tier.reserve()).collect();
    let prices: Vec<Vec<u64>> = pool
        .slices
        .iter()
        .flatten()
        .map(|slice| pool.tiers.iter().map(|tier| tier.groups[0].class.price(slice.demand).0).collect())
        .collect();
    fn best(prices: &[Vec<u64>], room: &mut Vec<u64>) -> u64 {
        let Some((first, others)) = prices.split_first() else { return 0 };
        let mut least = u64::MAX;
        for tier in 0..room.len() {
            if room[tier] > 0 {
                room[tier] -= 1;
                least = least.min(best(others, room).saturating_add(first[tier]));
                room[tier] += 1;
            }
        }
        least
    }
    best(&prices, &mut room.clone())
}

#[test]
fn settled_small_pools_save_nearly_as_much_as_the_best_placement() {
    let unlimited = Settings { payback: Nanos::from_secs(86_400 * 365 * 100), margin_percent: 0, ..settings() };
    let (mut saved, mut possible, mut worst) = (0, 0, 100);
    for seed in 0..SEEDS {
        let rng = Rng::new(seed, 2);
        let mut pool = TestPool::new(vec![vec![(ssd(), 4)], vec![(sas_10k(), 5)], vec![(nl_sas(), 10)]]);
        let places = [3, 4, 2];
        for (tier, count) in places.into_iter().enumerate() {
            for _ in 0..count {
                pool.add(random_demand(&rng), tier as u16, 0);
            }
        }
        let (before, best) = (pool.disk_time(), oracle(&pool));
        for _ in 0..8 {
            let plan = pool.plan(&unlimited);
            pool.apply(&plan);
        }
        let after = pool.disk_time();
        assert!(after <= before && after >= best, "seed {seed}: {before}, {after}, {best}");
        saved += u128::from(before - after);
        possible += u128::from(before - best);
        if before > best {
            worst = worst.min((before - after) * 100 / (before - best));
        }
    }
    println!("saved {} % of the exhaustive oracle, {worst} % in the worst pool", saved * 100 / possible);
    assert!(saved * 100 >= possible * 98, "{saved} of {possible}");
    assert!(worst >= 80, "{worst} %");
}
