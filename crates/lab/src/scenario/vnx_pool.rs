//! The array of `vnx.rs` with its disks in a pool: a file that lies unevenly on the RAID groups, and an SSD tier beside
//! the flash cache.
//!
//! The published pool had three RAID 5 groups 4+1 of 10k disks. A file of 15 GB lay unevenly on them and reached less
//! than the 1,695 to 2,260 requests per second of 15 disks: 15 spindles gave what eight should. Such a layout comes
//! about when groups are added to a pool that already holds data. With five eighths of uniform requests on one group,
//! the pool is as fast as that group's disks divided by 5/8: eight disks. Balance moves slices until each group has a
//! third, which is 15/8 = 1.875 times that while all disks have work.
//!
//! The planner sees only the heat of the run: a few hundred requests a slice, although all slices are equally hot.
//! Balance moves the hottest slices first, so it moves those whose heat is overestimated by chance, and less load than
//! it expects. The next plan, after further load, sees the rest.
//!
//! The planner does not know where slices lie on a disk. Slices that stay on the group that held most of the file lie
//! on nearly twice the stroke of an even layout. On whole disks this costs little; on disks so small that an even part
//! of the file takes a twelfth, the balanced file reached 0.91 of the even layout's rate at 192 outstanding.
//!
//! Beside a flash cache, each write still costs the RAID group four accesses at its destage, unless the block is
//! written again before. An SSD tier takes this load away with the slices that lie on it. The tier must not take too
//! much: an SSD of twice the size, with two thirds of the file, was itself the limit (3,500 requests per second), and
//! the gain was 1.13 to 1.20.

use std::cell::Cell;
use std::rc::Rc;

use pool::planner::ClassCost;
use pool::{MoveRate, TierNo, TierPolicy};
use seam::model::{ArraySpec, DiskType, RaidLevel, SsdSpec};
use seam::{Nanos, Seam};

use super::Scenario;
use super::pool_bed::{PoolBed, PoolPlan, PoolWorld, TierPlan};
use super::series::{Check, Outcome, Point, mean};
use super::test_bed::Plan;
use super::vnx::{GB, OUTSTANDING, SOURCE, STROKE_PART, database};
use crate::fixture::FlashPlan;
use crate::modelled_pool::GroupPlan;
use crate::workload::Job;
use crate::workload::address_space::Layout;

const MIB: u64 = 1 << 20;
const SLICE_BYTES: u64 = 4 * MIB;
/// The few minutes of `vnx-pool-uneven` give such a slice as many requests as an hour gives one of 4 MiB.
const UNEVEN_SLICE_BYTES: u64 = 16 * MIB;
/// Most plans of the balance.
const ROUNDS_MAX: u64 = 2;
/// Outstanding requests of the load by which the planner learns, and beside the moves.
const DAY_DEPTH: u32 = 96;
const LIGHT_DEPTH: u32 = 4;
/// Source of the bounds of clients beside moves.
const PROMISED: &str = "promised: moves give way to clients";
/// Divisor of bytes and time.
const SPEEDUP: u64 = 3;
/// Divisor of the array in `vnx-flash-and-tier`: one of three RAID groups.
const PARTS: u64 = 3;
/// Divisor of the time in it, and a further divisor of the bytes.
const TIER_SPEEDUP: u64 = 3;
/// Minutes of the run in it, and the last ones that are compared. Data stays in the flash log for five minutes before
/// its destage begins, which are 15 of these.
const TIER_MINUTES: u64 = 24;
const TIER_COMPARED_MINUTES: usize = 9;
/// Outstanding requests in it, of the whole array.
const TIER_DEPTH: u32 = 96;

/// The file on uneven groups.
pub const UNEVEN: Scenario = Scenario {
    name: "vnx-pool-uneven",
    title: "a file of 15 GB that lies unevenly on the three RAID groups of a pool, then balanced",
    source: SOURCE,
    setting: "15 SAS 10k of full size as three RAID 5 groups 4+1 in one tier; the file grew while groups were added: \
              5/8, 2/8 and 1/8 of its slices of 16 MiB; a third of the bytes (a file of 5 GB, 1.33 GB memory, \
              write-through: the rates are those of the disks) and of the time; 96 outstanding for ten minutes, 10 s \
              a step; two minutes without moves and two beside moves at the rate medium, 4 and 24 outstanding; \
              balance at 20 MiB/s at most beside 4 outstanding, and once more after five minutes; the even layout is \
              a pool with three groups from the beginning",
    run: uneven,
    demo: None,
};

/// The file on flash cache and SSD tier.
pub const TIER: Scenario = Scenario {
    name: "vnx-flash-and-tier",
    title: "a file of 150 GB with flash that holds 100 GB of it, and with an SSD tier of 50 GB that takes a part",
    source: SOURCE,
    setting: "one RAID 5 group 4+1 of SAS 10k, 32 outstanding, a third of the published 96; a ninth of the bytes (a \
              file of 16.7 GB, 0.44 GB memory), a third of the time; SSDs of 5.6 GB with 1,166 requests a second each. \
              Flash cache alone: two SSDs, which hold as much of the file as the published FAST Cache of two mirrored \
              SSDs of 100 GB. With the tier: three SSDs, the cache's two and one as tier; the policy start-high puts \
              the file's first slices on it. For comparison a cache of three SSDs; 24 minutes from cold, the last nine \
              are compared",
    run: flash_and_tier,
    demo: None,
};

/// Costs of a RAID 5 group 4+1 of 10k disks.
fn raid_class() -> ClassCost {
    ClassCost::rotating(Nanos::from_micros(6_650), 4, 184_000_000, 5)
}

/// A third of the published file.
fn uneven_file_bytes() -> u64 {
    (15 * GB / SPEEDUP).next_multiple_of(UNEVEN_SLICE_BYTES)
}

fn uneven_plan(seed: u64) -> Plan {
    Plan {
        seed,
        memory_bytes: 4 * GB / SPEEDUP,
        arrays: Vec::new(),
        layout: Layout::Concatenated,
        flash: None,
        policy: engine::WritePolicy::WriteThrough,
        cached: true,
        speedup: SPEEDUP,
    }
}

/// A pool on the first `groups` of the three RAID groups.
fn uneven_pool(groups: usize) -> PoolPlan {
    let tier = TierPlan { name: "sas", groups: vec![raid_group(); groups], class: raid_class() };
    let policy = TierPolicy::Auto;
    PoolPlan { slice_bytes: UNEVEN_SLICE_BYTES, tiers: vec![tier], volume_bytes: uneven_file_bytes(), policy }
}

/// A window of a RAID group of whole disks, with room for two thirds of the file.
fn raid_group() -> GroupPlan {
    let bytes = (uneven_file_bytes() / 3 * 2).next_multiple_of(UNEVEN_SLICE_BYTES) + UNEVEN_SLICE_BYTES;
    GroupPlan::Raid(ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas10k), bytes)
}

/// The pool whose file grew while two groups were added.
fn grown_bed(seed: u64) -> PoolBed {
    let plan = uneven_plan(seed);
    let mut world = PoolWorld::new(&plan, &uneven_pool(1));
    let slices = uneven_file_bytes() / UNEVEN_SLICE_BYTES;
    let ends = [slices * 5 / 8, slices * 7 / 8, slices];
    let mut first = 0;
    for (number, end) in ends.into_iter().enumerate() {
        if number > 0 {
            world.add_group(TierNo(0), &raid_group());
        }
        world.allocate(first * UNEVEN_SLICE_BYTES, (end - first) * UNEVEN_SLICE_BYTES);
        first = end;
    }
    world.into_bed(&plan)
}

/// Half a minute at each number of outstanding requests. Each step draws other requests than the one before.
fn measure_steps(bed: &mut PoolBed, seed: u64) -> Vec<Point> {
    let steps = (1..).zip(OUTSTANDING);
    steps
        .map(|(step, depth)| bed.bed.measure_rate(&database(uneven_file_bytes()), depth, 10, seed * 100 + step))
        .collect()
}

/// A load of so many outstanding requests for two minutes, without moves and then beside moves at the rate `medium`:
/// each as a point.
fn beside_moves(bed: &mut PoolBed, depth: u32, seed: u64) -> [Point; 2] {
    let jobs = [Job::closed_loop("all", database(uneven_file_bytes()), depth)];
    let clients = bed.bed.start_clients(&jobs, seed);
    // In the first minutes the rate falls, until most outstanding requests wait for the fullest group.
    bed.bed.run_for(&clients, Nanos::from_secs(240));
    let without = bed.bed.run_for(&clients, Nanos::from_secs(120));
    let (pool, settings) = (bed.pool.clone(), bed.settings(MoveRate::IdleShare(30)));
    let (stop, has_ended) = (Rc::clone(&settings.stop), Rc::new(Cell::new(false)));
    let ended = Rc::clone(&has_ended);
    bed.bed.fixture.seam.spawn(async move {
        pool.relocate(&settings).await.expect("modelled disks do not fail");
        ended.set(true);
    });
    let beside = bed.bed.run_for(&clients, Nanos::from_secs(120));
    assert!(!has_ended.get(), "slices move all the time");
    stop.set(true);
    while !has_ended.get() {
        bed.bed.run_for(&clients, Nanos::from_secs(1));
    }
    bed.bed.stop_clients(clients);
    [without, beside]
}

/// Balances the groups beside a light load until a plan moves nothing, at most [`ROUNDS_MAX`] times, with five minutes
/// of the full load before each further plan. Returns a point every 20 s of the light load, and the moves of each plan.
fn balance(bed: &mut PoolBed, seed: u64) -> (Vec<Point>, Vec<u64>) {
    let pattern = database(uneven_file_bytes());
    let (mut points, mut moves) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS_MAX {
        let jobs = [Job::closed_loop("all", pattern.clone(), LIGHT_DEPTH)];
        let clients = bed.bed.start_clients(&jobs, seed + round);
        let (pool, settings) = (bed.pool.clone(), bed.settings(MoveRate::Bytes(20 * MIB)));
        let moved = Rc::new(Cell::new(None));
        let result = Rc::clone(&moved);
        bed.bed.fixture.seam.spawn(async move {
            let report = pool.relocate(&settings).await.expect("modelled disks do not fail");
            result.set(Some(report.moved));
        });
        while moved.get().is_none() {
            points.push(bed.bed.run_for(&clients, Nanos::from_secs(60 / SPEEDUP)));
        }
        bed.bed.stop_clients(clients);
        moves.push(moved.get().expect("the relocation has ended"));
        if moves.last() == Some(&0) {
            break;
        }
        bed.bed.run_pattern(&pattern, DAY_DEPTH, 5, false, seed + 100 + round);
    }
    (points, moves)
}

fn uneven(seed: u64) -> Outcome {
    let pattern = database(uneven_file_bytes());
    let even_plan = uneven_plan(seed);
    let world = PoolWorld::new(&even_plan, &uneven_pool(3));
    world.allocate(0, uneven_file_bytes());
    let mut even_bed = world.into_bed(&even_plan);
    even_bed.bed.run_pattern(&pattern, DAY_DEPTH, 10, false, seed);
    even_bed.bed.restart_clock();
    let even = measure_steps(&mut even_bed, seed);
    drop(even_bed);

    let mut bed = grown_bed(seed);
    let shares = |bed: &PoolBed| {
        let shares: Vec<_> = bed.shares().iter().map(|(_, share)| format!("{:.0} %", share * 100.0)).collect();
        shares.join(", ")
    };
    let shares_before = shares(&bed);
    bed.bed.run_pattern(&pattern, DAY_DEPTH, 10, false, seed);
    bed.bed.restart_clock();
    let before = measure_steps(&mut bed, seed);
    let pairs = [LIGHT_DEPTH, OUTSTANDING[1]].map(|depth| (depth, beside_moves(&mut bed, depth, seed + 10)));
    let (meanwhile, moves) = balance(&mut bed, seed);
    let shares_after = shares(&bed);
    bed.bed.restart_clock();
    let after = measure_steps(&mut bed, seed);

    let last = OUTSTANDING.len() - 1;
    let iops = |points: &[Point], step: usize| points[step].iops;
    let mut checks = vec![
        Check::at_least(
            "rate after balance against before, 192 outstanding",
            iops(&after, last) / iops(&before, last),
            1.3,
            SOURCE,
        ),
        Check::at_least(
            "rate after balance against an even layout, 192 outstanding",
            iops(&after, last) / iops(&even, last),
            0.95,
            SOURCE,
        ),
        Check::at_least(
            "rate after balance against before, 24 outstanding",
            iops(&after, 1) / iops(&before, 1),
            1.0,
            SOURCE,
        ),
    ];
    for (depth, [without, beside]) in pairs {
        let name =
            |figure: &str| format!("{figure} beside moves at the rate medium against without, {depth} outstanding");
        checks.push(Check::at_least(name("rate"), beside.iops / without.iops, 0.95, PROMISED));
        let p99 = beside.read_p99_ms / without.read_p99_ms;
        checks.push(Check::at_most(name("99th percentile of reads"), p99, 1.2, PROMISED));
    }
    let rates =
        |points: &[Point]| points.iter().map(|point| format!("{:.0}", point.iops)).collect::<Vec<_>>().join(", ");
    let notes = vec![
        format!("slices by group: {shares_before}; after plans of {moves:?} moves {shares_after}"),
        format!("requests per second at {OUTSTANDING:?} outstanding: uneven {}", rates(&before)),
        format!("balanced {}; even {}", rates(&after), rates(&even)),
        format!(
            "beside the moves, {LIGHT_DEPTH} outstanding: {:.0} per second for {} s",
            mean(&meanwhile, |point| point.iops),
            meanwhile.len() as u64 * 60 / SPEEDUP
        ),
    ];
    let mut outcome = Outcome { checks, notes, ..Outcome::default() };
    outcome.add_run("balanced", after).add_run("even layout", even).add_run("uneven", before);
    outcome
}

fn tier_file_bytes() -> u64 {
    (150 * GB / PARTS / TIER_SPEEDUP).next_multiple_of(SLICE_BYTES)
}

/// The file in a pool, behind a flash cache, and with an SSD as a tier or without.
fn tier_bed(seed: u64, cache: FlashPlan, has_tier: bool) -> PoolBed {
    let plan = Plan {
        seed,
        memory_bytes: 4 * GB / PARTS / TIER_SPEEDUP,
        arrays: Vec::new(),
        layout: Layout::Concatenated,
        flash: Some(cache),
        policy: engine::WritePolicy::WriteBack,
        cached: true,
        speedup: TIER_SPEEDUP,
    };
    let file_bytes = tier_file_bytes();
    let array = ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas10k).fitted(STROKE_PART * file_bytes);
    let sas = GroupPlan::Raid(array, STROKE_PART * file_bytes / SLICE_BYTES * SLICE_BYTES);
    let mut tiers = vec![TierPlan { name: "sas", groups: vec![sas], class: raid_class() }];
    if has_tier {
        let spec: SsdSpec = cache.ssd();
        // As a probe measures it: the ceiling in requests per second, not the channels, limits the device.
        let access = Nanos::from_secs(1).0 / spec.read_iops_max;
        let class = ClassCost {
            read_access: Nanos(access),
            write_access: Nanos(access),
            byte_ps: 1_000_000_000_000 / spec.link_bytes_per_second,
            parallel: 1,
        };
        tiers.insert(0, TierPlan { name: "ssd", groups: vec![GroupPlan::Ssd(spec)], class });
    }
    let policy = TierPolicy::StartHigh;
    let world = PoolWorld::new(&plan, &PoolPlan { slice_bytes: SLICE_BYTES, tiers, volume_bytes: file_bytes, policy });
    world.allocate(0, file_bytes);
    let bed = world.into_bed(&plan);
    bed.pool.start_relocation(bed.settings(MoveRate::IdleShare(30)));
    bed
}

fn flash_and_tier(seed: u64) -> Outcome {
    let run = |cache, has_tier| {
        let mut bed = tier_bed(seed, cache, has_tier);
        let pattern = database(tier_file_bytes());
        let points = bed.bed.run_pattern(&pattern, TIER_DEPTH / PARTS as u32, TIER_MINUTES, false, seed);
        (points, bed.shares().first().map_or(0.0, |(_, share)| *share))
    };
    let bytes = (50 * GB / PARTS / TIER_SPEEDUP).next_multiple_of(MIB);
    let cache = FlashPlan { devices: 2, bytes, iops: 3_500 / PARTS };
    let (alone, _) = run(cache, false);
    let (with_tier, share) = run(cache, true);
    let (larger_cache, _) = run(FlashPlan { devices: 3, ..cache }, false);
    let rate = |points: &[Point]| {
        let last = &points[points.len() - TIER_COMPARED_MINUTES..];
        mean(last, |point| point.iops) * PARTS as f64
    };
    let gain = rate(&with_tier) / rate(&alone);
    let checks =
        vec![Check::at_least("cache of two SSDs and a tier of one, against the cache alone", gain, 1.15, SOURCE)];
    let notes = vec![
        format!("{:.0} % of the file lie on the tier at the end", share * 100.0),
        format!(
            "requests per second: cache of two SSDs {:.0}; and a tier of one {:.0}; cache of three {:.0}",
            rate(&alone),
            rate(&with_tier),
            rate(&larger_cache)
        ),
    ];
    let mut outcome = Outcome { checks, notes, ..Outcome::default() };
    outcome.add_run("cache of two and tier of one", with_tier);
    outcome.add_run("cache of three", larger_cache).add_run("cache of two", alone);
    outcome
}
