//! Relocation: slices settle where their demand belongs, content stays intact, and a crash loses no flushed write.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use pool::planner::{ClassCost, Reason, WeekMinute};
use pool::{
    CreateOptions, GroupNo, MoveOutcome, MoveRate, OpenOptions, PoolDisk, PoolError, RelocationEnd, RelocationQueue,
    RelocationReport, RelocationSettings, RelocationWindows, SliceAddress, SliceNo, TierNo, TierPolicy, TierSpec,
    VolumeId, VolumeSpec, unpaced,
};
use seam::sim::{CrashMode, Latency, Rng, SimDisk, SimDiskSpec, SimSeam, Stop, Timing, World, WorldSpec};
use seam::{BlockMut, Disk, Nanos, Piece, Seam};

use crate::model::{Model, read_sectors, recover};
use crate::workload::Workload;
use crate::world::{SLICE, SLICE_SECTORS, SMALL, SimPool, disks, open, with_pool, world_after_crash};

/// Slots of each group.
const SLOTS: u64 = 40;
/// Time for which clients load the pool before it is relocated.
const LOAD: Nanos = Nanos::from_secs(600);

/// Costs of the tiers: flash, rotating disks.
fn classes() -> Vec<ClassCost> {
    let flash = ClassCost {
        read_access: Nanos::from_micros(100),
        write_access: Nanos::from_micros(100),
        byte_ps: 1_000,
        parallel: 8,
    };
    vec![flash, ClassCost::rotating(Nanos::from_millis(8), 1, 200_000_000, 2)]
}

fn settings() -> RelocationSettings {
    RelocationSettings::new(classes(), MoveRate::Bytes(100 << 20))
}

/// A pool of one fast group and two slow ones.
async fn new_pool(world: &World, seam: &SimSeam, slots: u64) -> SimPool {
    for (name, latency_us) in [("fast-0", 100), ("slow-0", 5_000), ("slow-1", 5_000)] {
        let latency = Latency::fixed(Nanos::from_micros(latency_us));
        let timing = Timing { read: latency, write: latency, flush: latency, ssd: None };
        world.add_disk(name, SimDiskSpec { timing, ..SimDiskSpec::new((4 << 20) + slots * SLICE) });
    }
    let disks = disks(seam, &["fast-0", "slow-0", "slow-1"]).await;
    let tiers = [
        TierSpec { name: "fast".to_owned(), disks: disks[..1].to_vec() },
        TierSpec { name: "slow".to_owned(), disks: disks[1..].to_vec() },
    ];
    let options = CreateOptions { slice_bytes: SLICE, ..CreateOptions::default() };
    SimPool::create(seam, &tiers, options).await.expect("empty disks become a pool");
    SimPool::open(seam, &disks, OpenOptions::default()).await.expect("the pool opens")
}

/// Runs a test on a new pool.
fn with_new_pool<F: Future<Output = ()>>(seed: u64, test: impl FnOnce(SimSeam, SimPool) -> F) {
    let world = World::new(WorldSpec { time_max: Nanos::from_secs(7 * 86_400), ..WorldSpec::new(seed) });
    let seam = world.seam();
    world.block_on(async {
        let pool = new_pool(&world, &seam, SLOTS).await;
        test(seam.clone(), pool).await;
    });
}

/// A volume with content in every sector: the number of the sector from 1 on.
async fn filled_volume(
    seam: &SimSeam,
    pool: &SimPool,
    policy: TierPolicy,
    slices: u64,
) -> (VolumeId, PoolDisk<SimSeam, SimDisk>) {
    let spec = VolumeSpec { policy, ..VolumeSpec::thin("a", slices * SLICE) };
    let id = pool.create_volume(spec).await.expect("the volume is created");
    let disk = pool.volume(id).expect("the volume exists");
    for block in 0..slices * SLICE / 4096 {
        let mut buffer = seam.alloc().expect("a buffer is free");
        (0..8).for_each(|sector| buffer.set_tag(sector, block * 8 + sector as u64 + 1));
        disk.write(block * 4096, vec![Piece::whole(buffer.freeze())]).await.expect("sound disks");
    }
    disk.flush().await.expect("sound disks");
    (id, disk)
}

/// Checks the content of [`filled_volume`].
async fn check_content(seam: &SimSeam, disk: &PoolDisk<SimSeam, SimDisk>, slices: u64) {
    for slice in 0..slices {
        let first = slice * SLICE_SECTORS;
        let read = read_sectors(seam, disk, first, SLICE_SECTORS).await.expect("sound disks");
        assert_eq!(read, (first + 1..=first + SLICE_SECTORS).collect::<Vec<_>>(), "slice {slice}");
    }
}

/// A client that reads random blocks of some slices, one after the other with a pause, until `ends` is set.
async fn read_blocks(
    seam: SimSeam,
    disk: PoolDisk<SimSeam, SimDisk>,
    slices: Vec<u64>,
    pause: Nanos,
    ends: Rc<Cell<bool>>,
    seed: u64,
) {
    let rng = Rng::new(seed, 7);
    while !ends.get() {
        let sector = slices[rng.below(slices.len() as u64) as usize] * SLICE_SECTORS + rng.below(SLICE_SECTORS / 8) * 8;
        let read = read_sectors(&seam, &disk, sector, 8).await.expect("sound disks");
        assert_eq!(read, (sector + 1..=sector + 8).collect::<Vec<_>>());
        seam.sleep(pause).await;
    }
}

/// Starts a reader of some slices and lets it run for [`LOAD`]. It goes on until the flag is set.
async fn load(seam: &SimSeam, disk: &PoolDisk<SimSeam, SimDisk>, slices: Vec<u64>) -> Rc<Cell<bool>> {
    let ends = Rc::new(Cell::new(false));
    let pause = Nanos::from_millis(15);
    seam.spawn(read_blocks(seam.clone(), disk.clone(), slices, pause, Rc::clone(&ends), 3));
    seam.sleep(LOAD).await;
    ends
}

/// Slices of a volume by group.
fn slices_by_group(pool: &SimPool, volume: VolumeId) -> BTreeMap<GroupNo, Vec<u64>> {
    let mut groups = BTreeMap::<GroupNo, Vec<u64>>::new();
    for (slice, group) in pool.slices_of(volume) {
        groups.entry(group).or_default().push(u64::from(slice.0));
    }
    groups
}

fn group_of(pool: &SimPool, volume: VolumeId, slice: u64) -> Option<GroupNo> {
    pool.group_of(SliceAddress { volume, slice: SliceNo(slice as u32) })
}

async fn check_sound(pool: &SimPool) {
    pool.commit().await.expect("sound disks");
    assert!(pool.check_open().findings.is_empty(), "{:?}", pool.check_open());
}

/// Ends the load and lets its last request finish.
async fn end_load(seam: &SimSeam, ends: &Cell<bool>) {
    ends.set(true);
    seam.sleep(Nanos::from_secs(1)).await;
}

#[test]
fn hot_slices_settle_on_the_fast_tier_under_load_with_their_content() {
    with_new_pool(1, async |seam, pool| {
        let (id, disk) = filled_volume(&seam, &pool, TierPolicy::Lowest, 40).await;
        pool.set_policy(id, TierPolicy::Auto).await.expect("sound disks");
        let hot: Vec<u64> = (0..40).step_by(4).collect();
        let ends = load(&seam, &disk, hot.clone()).await;
        let preview = pool.plan(&settings()).await.expect("the pool plans");
        assert!(preview.moves.iter().all(|planned| planned.details.saved_per_hour > 0), "{preview:?}");
        assert!(preview.groups.iter().any(|load| load.measured_ppm > 0 && load.expected_ppm > 0), "{preview:?}");
        assert!(hot.iter().all(|slice| group_of(&pool, id, *slice) != Some(GroupNo(0))), "a plan moves nothing");

        let report = pool.relocate(&settings()).await.expect("the pool relocates");
        println!("{report:?}");
        assert_eq!((report.end, report.failed, report.skipped), (RelocationEnd::Completed, 0, 0));
        assert_eq!((report.moved, report.planned), (preview.moves.len() as u64, preview.moves.len() as u64));
        assert!(report.saved_per_hour > 0, "{report:?}");
        for slice in hot {
            assert_eq!(group_of(&pool, id, slice), Some(GroupNo(0)), "hot slice {slice}");
        }
        // The next plan finds nothing to improve.
        let again = pool.plan(&settings()).await.expect("the pool plans");
        assert!(again.moves.len() <= 1, "{again:?}");
        end_load(&seam, &ends).await;
        check_content(&seam, &disk, 40).await;
        check_sound(&pool).await;
    });
}

#[test]
fn queue_holds_the_moves_of_a_relocation_until_they_end() {
    with_new_pool(9, async |seam, pool| {
        let (id, disk) = filled_volume(&seam, &pool, TierPolicy::Lowest, 40).await;
        pool.set_policy(id, TierPolicy::Auto).await.expect("sound disks");
        let ends = load(&seam, &disk, (0..40).step_by(4).collect()).await;
        assert_eq!(pool.relocation_queue(10), RelocationQueue::default());
        let (relocating, slow) = (pool.clone(), RelocationSettings::new(classes(), MoveRate::Bytes(SLICE)));
        seam.spawn(async move { drop(relocating.relocate(&slow).await) });
        let mut seen = 0;
        while seen == 0 || pool.relocation().is_running {
            seam.sleep(Nanos::from_millis(100)).await;
            let (queue, report) = (pool.relocation_queue(3), pool.relocation().report);
            if queue.moving.is_empty() {
                continue;
            }
            seen += 1;
            let ended = report.moved + report.skipped + report.failed;
            let (moving, waiting) = (queue.moving.len() as u64, queue.waiting_count);
            assert_eq!((ended + moving + waiting, queue.waiting.len() as u64), (report.planned, waiting.min(3)));
            assert!(queue.time_per_move > Nanos::ZERO && queue.time_per_move < Nanos::from_secs(10), "{queue:?}");
        }
        assert!(seen > 10, "seen {seen} times");
        assert_eq!(pool.relocation_queue(10), RelocationQueue::default());
        end_load(&seam, &ends).await;
    });
}

#[test]
fn cells_show_the_tiers_and_the_load_of_a_volume() {
    with_new_pool(10, async |seam, pool| {
        let (id, disk) = filled_volume(&seam, &pool, TierPolicy::Lowest, 20).await;
        let ends = load(&seam, &disk, vec![4]).await;
        let map = pool.volume_cells(id, &classes(), 8).await.expect("the volume exists");
        let slices: Vec<_> = map.cells.iter().map(|cell| cell.slices.clone()).collect();
        assert_eq!((map.cell_slices, slices), (3, [vec![vec![0, 3]; 6], vec![vec![0, 2]]].concat()));
        let hottest = (0..7).max_by_key(|index| map.cells[*index].disk_time);
        assert_eq!(hottest, Some(1), "{map:?}");
        let whole = pool.volume_cells(id, &classes(), 2_048).await.expect("the volume exists");
        assert_eq!((whole.cell_slices, whole.cells.len()), (1, 20));
        let unknown = pool.volume_cells(VolumeId(77), &classes(), 8).await;
        assert_eq!(unknown, Err(PoolError::NoVolume(VolumeId(77))));
        end_load(&seam, &ends).await;
    });
}

#[test]
fn uneven_groups_of_a_tier_are_balanced() {
    with_new_pool(2, async |seam, pool| {
        let pinned = TierPolicy::Tier(TierNo(1));
        let (id, disk) = filled_volume(&seam, &pool, pinned, 40).await;
        let busy = slices_by_group(&pool, id)[&GroupNo(1)].clone();
        assert!(busy.len() >= 15, "both groups have slices");
        let ends = load(&seam, &disk, busy.clone()).await;
        let mut settings = settings();
        // Two per cent of a group's time is the least difference that is balanced.
        settings.classes[1] = ClassCost::rotating(Nanos::from_millis(8), 1, 200_000_000, 1);
        for _ in 0..3 {
            let report = pool.relocate(&settings).await.expect("the pool relocates");
            println!("{report:?}");
            assert_eq!(report.failed, 0);
        }
        let left = busy.iter().filter(|slice| group_of(&pool, id, **slice) == Some(GroupNo(1))).count();
        let half = busy.len() / 2;
        assert!(left.abs_diff(half) <= busy.len() / 5, "{left} of {} hot slices are left", busy.len());
        let plan = pool.plan(&settings).await.expect("the pool plans");
        let expected: Vec<u64> = plan.groups.iter().map(|load| load.expected_ppm).collect();
        assert!(expected[1].abs_diff(expected[2]) * 10 <= expected[1] + expected[2], "{expected:?}");
        assert!(plan.moves.len() <= 1, "{plan:?}");
        assert!(slices_by_group(&pool, id).keys().all(|group| *group != GroupNo(0)), "the volume is pinned");
        end_load(&seam, &ends).await;
        check_content(&seam, &disk, 40).await;
        check_sound(&pool).await;
    });
}

#[test]
fn pinned_volume_stays_in_its_tier_and_moves_there_by_policy() {
    with_new_pool(3, async |seam, pool| {
        let (id, disk) = filled_volume(&seam, &pool, TierPolicy::Lowest, 8).await;
        let ends = load(&seam, &disk, (0..4).collect()).await;
        let report = pool.relocate(&settings()).await.expect("the pool relocates");
        assert!(!slices_by_group(&pool, id).contains_key(&GroupNo(0)), "{report:?}");
        end_load(&seam, &ends).await;

        pool.set_policy(id, TierPolicy::Tier(TierNo(0))).await.expect("sound disks");
        let plan = pool.plan(&settings()).await.expect("the pool plans");
        assert!(plan.moves.iter().all(|planned| planned.details.reason == Reason::Policy), "{plan:?}");
        let report = pool.relocate(&settings()).await.expect("the pool relocates");
        assert_eq!((report.planned, report.moved), (8, 8), "{report:?}");
        assert_eq!(slices_by_group(&pool, id).keys().collect::<Vec<_>>(), [&GroupNo(0)]);
        check_content(&seam, &disk, 8).await;
        check_sound(&pool).await;
    });
}

/// Writes of new slots count; a stream counts by its bytes alone; freed slices are cold.
#[test]
fn demand_counts_random_requests_and_forgets_freed_slices() {
    with_new_pool(4, async |seam, pool| {
        let (id, disk) = filled_volume(&seam, &pool, TierPolicy::Lowest, 20).await;
        let sequential = pool.plan(&settings()).await.expect("the pool plans").groups;
        let ends = load(&seam, &disk, (0..20).collect()).await;
        end_load(&seam, &ends).await;
        let random = pool.plan(&settings()).await.expect("the pool plans").groups;
        for (before, after) in sequential[1..].iter().zip(&random[1..]) {
            assert!(
                before.measured_ppm > 0 && after.expected_ppm > 100 * before.expected_ppm.max(1),
                "{before:?} {after:?}"
            );
        }
        disk.zero(0, 20 * SLICE, true).await.expect("sound disks");
        filled_again(&pool, id, &disk).await;
        let fresh = pool.plan(&settings()).await.expect("the pool plans").groups;
        assert!(fresh.iter().all(|load| load.expected_ppm == 0), "{fresh:?}");
    });
}

#[test]
fn first_write_of_a_slice_is_demand_of_its_group() {
    with_new_pool(10, async |seam, pool| {
        let spec = VolumeSpec { policy: TierPolicy::Tier(TierNo(1)), ..VolumeSpec::thin("a", SLICE) };
        let id = pool.create_volume(spec).await.expect("the volume is created");
        let block = seam.alloc().expect("a buffer is free").freeze();
        let disk = pool.volume(id).expect("the volume exists");
        disk.write(8192, vec![Piece::whole(block)]).await.expect("sound disks");
        let group = group_of(&pool, id, 0).expect("the slice is allocated");
        let loads = pool.plan(&settings()).await.expect("the pool plans").groups;
        assert!(loads.iter().all(|load| (load.measured_ppm > 0) == (load.group == group)), "{loads:?}");
    });
}

#[test]
fn slice_that_has_moved_since_the_plan_is_skipped() {
    with_new_pool(11, async |seam, pool| {
        let (id, disk) = filled_volume(&seam, &pool, TierPolicy::Tier(TierNo(1)), 8).await;
        pool.set_policy(id, TierPolicy::Highest).await.expect("sound disks");
        let slow = RelocationSettings { rate: MoveRate::Bytes(SLICE), ..settings() };
        let last = pool.plan(&slow).await.expect("the pool plans").moves.pop().expect("eight slices move");
        let (relocating, running) = (pool.clone(), slow.clone());
        let done = Rc::<RefCell<Option<RelocationReport>>>::default();
        let report = Rc::clone(&done);
        seam.spawn(async move { *report.borrow_mut() = relocating.relocate(&running).await.ok() });
        seam.sleep(Nanos::from_millis(1_500)).await;
        let other = GroupNo(3 - last.from.0);
        assert_eq!(pool.move_slice(last.slice, other, unpaced()).await, Ok(MoveOutcome::Moved));
        while done.borrow().is_none() {
            seam.sleep(Nanos::from_millis(10)).await;
        }
        let report = done.borrow().expect("it has ended");
        assert_eq!((report.moved, report.skipped, report.failed), (7, 1, 0), "{report:?}");
        assert_eq!(pool.group_of(last.slice), Some(other));
        check_content(&seam, &disk, 8).await;
        check_sound(&pool).await;
    });
}

#[test]
fn copies_of_moves_are_no_demand() {
    with_new_pool(7, async |seam, pool| {
        let spec = VolumeSpec { policy: TierPolicy::Lowest, ..VolumeSpec::thin("a", 4 * SLICE) };
        let id = pool.create_volume(spec).await.expect("the volume is created");
        pool.volume(id).expect("the volume exists").reserve(0, 4 * SLICE).await.expect("room");
        for slice in 0..4 {
            let slice = SliceAddress { volume: id, slice: SliceNo(slice) };
            assert_eq!(pool.move_slice(slice, GroupNo(0), unpaced()).await, Ok(MoveOutcome::Moved));
        }
        seam.sleep(Nanos::from_secs(1)).await;
        let groups = pool.plan(&settings()).await.expect("the pool plans").groups;
        assert!(groups.iter().all(|load| (load.measured_ppm, load.expected_ppm) == (0, 0)), "{groups:?}");
    });
}

/// Time of a relocation of eight slices to the fast tier, with or without a client that always has a read in flight.
fn relocation_time(is_busy: bool) -> Nanos {
    let time = Cell::new(Nanos::ZERO);
    with_new_pool(8, async |seam, pool| {
        let (id, disk) = filled_volume(&seam, &pool, TierPolicy::Tier(TierNo(1)), 9).await;
        let slices = slices_by_group(&pool, id);
        let ends = Rc::new(Cell::new(!is_busy));
        for group in [GroupNo(1), GroupNo(2)] {
            let slices = slices[&group].clone();
            seam.spawn(read_blocks(seam.clone(), disk.clone(), slices, Nanos::ZERO, Rc::clone(&ends), 4));
        }
        pool.set_policy(id, TierPolicy::Highest).await.expect("sound disks");
        let start = seam.now();
        let report = pool.relocate(&settings()).await.expect("the pool relocates");
        time.set(seam.now().since(start));
        assert_eq!((report.moved, report.failed), (9, 0), "{report:?}");
        end_load(&seam, &ends).await;
        check_content(&seam, &disk, 9).await;
        check_sound(&pool).await;
    });
    time.get()
}

#[test]
fn copies_give_way_to_clients_for_a_bounded_time() {
    let (idle, busy) = (relocation_time(false), relocation_time(true));
    println!("nine slices: {idle} idle, {busy} under load");
    // Nine slices of two copies, two at once, each at most 20 ms late. The client has left the source of the last ones
    // by then.
    assert!(busy > idle + Nanos::from_millis(60), "{idle} idle, {busy} under load");
    assert!(busy < idle + Nanos::from_millis(9 * 2 * 22), "{idle} idle, {busy} under load");
}

/// Time of a relocation of nine slices under a share of the idle time, with a client that always has a read in flight
/// on `busy` of the slow groups, and the time of the same moves without a pause.
fn idle_share_time(percent: u32, is_busy: bool) -> Nanos {
    let time = Cell::new(Nanos::ZERO);
    with_new_pool(13, async |seam, pool| {
        let (id, disk) = filled_volume(&seam, &pool, TierPolicy::Tier(TierNo(1)), 9).await;
        let slices = slices_by_group(&pool, id);
        let ends = Rc::new(Cell::new(!is_busy));
        for group in [GroupNo(1), GroupNo(2)] {
            let slices = slices[&group].clone();
            seam.spawn(read_blocks(seam.clone(), disk.clone(), slices, Nanos::ZERO, Rc::clone(&ends), 4));
        }
        pool.set_policy(id, TierPolicy::Highest).await.expect("sound disks");
        let start = seam.now();
        let shared = RelocationSettings { rate: MoveRate::IdleShare(percent), ..settings() };
        let report = pool.relocate(&shared).await.expect("the pool relocates");
        time.set(seam.now().since(start));
        assert_eq!((report.moved, report.failed), (9, 0), "{report:?}");
        assert_eq!(pool.relocation().report, report);
        assert!(!pool.relocation().is_running);
        end_load(&seam, &ends).await;
        check_content(&seam, &disk, 9).await;
        check_sound(&pool).await;
    });
    time.get()
}

#[test]
fn copies_take_their_share_of_idle_time_and_little_of_busy_time() {
    let [most, third, tenth] = [90, 30, 10].map(|percent| idle_share_time(percent, false));
    let busy = idle_share_time(30, true);
    println!("nine slices: {most} at 90 %, {third} at 30 %, {tenth} at 10 %, {busy} at 30 % of a busy pool");
    // The first copy of each of the two workers has no pause.
    assert!(third > Nanos(most.0 * 2) && tenth > Nanos(third.0 * 2), "{most} {third} {tenth}");
    assert!(busy > Nanos(third.0 * 3), "{third} idle, {busy} busy");
    // A share of 2 % remains, after a second in which the latency without copies becomes known.
    assert!(busy < Nanos(most.0 * 50) + Nanos::from_secs(1), "{most} without pauses, {busy} busy");
}

#[test]
fn outdated_plan_starts_no_further_move() {
    with_new_pool(12, async |seam, pool| {
        let (id, disk) = filled_volume(&seam, &pool, TierPolicy::Tier(TierNo(1)), 9).await;
        pool.set_policy(id, TierPolicy::Highest).await.expect("sound disks");
        // The rate permits all moves in this time, the disks do not.
        let short =
            RelocationSettings { valid_for: Nanos::from_millis(40), rate: MoveRate::Bytes(1 << 30), ..settings() };
        let report = pool.relocate(&short).await.expect("the pool relocates");
        assert_eq!((report.planned, report.end, report.failed), (9, RelocationEnd::Outdated, 0), "{report:?}");
        assert!(report.moved > 0 && report.moved < 9, "{report:?}");
        check_content(&seam, &disk, 9).await;
        check_sound(&pool).await;
    });
}

#[test]
fn plan_of_a_large_pool_lets_other_tasks_run() {
    let world = World::new(WorldSpec { time_max: Nanos::from_secs(86_400), ..WorldSpec::new(9) });
    let seam = world.seam();
    world.block_on(async {
        let pool = new_pool(&world, &seam, 5_000).await;
        let spec = VolumeSpec { policy: TierPolicy::Lowest, ..VolumeSpec::thin("a", 8_000 * SLICE) };
        let id = pool.create_volume(spec).await.expect("the volume is created");
        pool.volume(id).expect("the volume exists").reserve(0, 8_000 * SLICE).await.expect("room");
        pool.set_policy(id, TierPolicy::Highest).await.expect("sound disks");
        let (turns, ends) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let (counted, stop, other) = (Rc::clone(&turns), Rc::clone(&ends), seam.clone());
        seam.spawn(async move {
            while !stop.get() {
                counted.set(counted.get() + 1);
                other.yield_now().await;
            }
        });
        let plan = pool.plan(&settings()).await.expect("the pool plans");
        ends.set(true);
        // Steps of 256 of the 15,000 slots.
        assert!(turns.get() >= 15_000 / 256, "{} turns", turns.get());
        // The limit of one plan, which is outdated when the rate has finished it.
        assert_eq!(plan.moves.len(), 4_096);
        assert!(plan.outdated_at.since(seam.now()) < Nanos::from_secs(11), "1 GiB at 100 MiB a second");
    });
}

/// Allocates the first slices again, without a write.
async fn filled_again(pool: &SimPool, id: VolumeId, disk: &PoolDisk<SimSeam, SimDisk>) {
    disk.reserve(0, 20 * SLICE).await.expect("room");
    assert_eq!(pool.slices_of(id).len(), 20);
}

#[test]
fn closed_window_stop_flag_and_second_relocation_move_nothing() {
    with_new_pool(5, async |seam, pool| {
        let (id, _disk) = filled_volume(&seam, &pool, TierPolicy::Lowest, 8).await;
        pool.set_policy(id, TierPolicy::Highest).await.expect("sound disks");
        let noon = WeekMinute::new(2, 12, 0).expect("a time of the week");
        let windows = "22:00-06:00".parse().expect("a window");
        let windows = Some(RelocationWindows { windows, clock: Rc::new(move || noon) });
        let closed = RelocationSettings { windows, ..settings() };
        assert_eq!(pool.relocate(&closed).await.expect("no error").end, RelocationEnd::WindowClosed);
        assert_eq!(pool.plan(&closed).await.expect("a preview").moves.len(), 8);
        let stopped = settings();
        stopped.stop.set(true);
        assert_eq!(pool.relocate(&stopped).await.expect("no error").end, RelocationEnd::Stopped);
        assert!(!slices_by_group(&pool, id).contains_key(&GroupNo(0)));

        // Stopped in the middle of a slow relocation.
        let slow = RelocationSettings { rate: MoveRate::Bytes(SLICE), ..settings() };
        let (first, running, done) = (pool.clone(), slow.clone(), Rc::<RefCell<Option<RelocationReport>>>::default());
        let report = Rc::clone(&done);
        let start = seam.now();
        seam.spawn(async move { *report.borrow_mut() = first.relocate(&running).await.ok() });
        seam.sleep(Nanos::from_millis(3_500)).await;
        assert!(matches!(pool.relocate(&settings()).await, Err(PoolError::Refused(_))));
        slow.stop.set(true);
        while done.borrow().is_none() {
            seam.sleep(Nanos::from_millis(10)).await;
        }
        let report = done.borrow().expect("it has ended");
        assert_eq!(report.end, RelocationEnd::Stopped, "{report:?}");
        assert!(report.moved > 0 && report.moved < 8, "{report:?}");
        let seconds = seam.now().since(start).as_millis().div_ceil(1_000);
        assert!(report.bytes <= SLICE * (seconds + 1), "{report:?} in {seconds} s is above the rate");
        check_sound(&pool).await;
    });
}

#[test]
fn background_relocation_goes_on_until_the_pool_is_dropped() {
    with_new_pool(6, async |seam, pool| {
        pool.start_relocation(settings());
        let (id, disk) = filled_volume(&seam, &pool, TierPolicy::Lowest, 20).await;
        pool.set_policy(id, TierPolicy::Auto).await.expect("sound disks");
        let ends = load(&seam, &disk, vec![1, 2, 3]).await;
        seam.sleep(LOAD).await;
        for slice in [1, 2, 3] {
            assert_eq!(group_of(&pool, id, slice), Some(GroupNo(0)), "hot slice {slice}");
        }
        end_load(&seam, &ends).await;
        check_sound(&pool).await;
        assert_eq!(pool.take_notices(), Vec::<String>::new());
        drop((pool, disk));
        // The disks are free again: the background task keeps no pool open.
        assert_eq!(disks(&seam, &["fast-0", "slow-0", "slow-1"]).await.len(), 3);
    });
}

/// Clients and relocations of volumes whose policies change, until a crash.
async fn relocate_under_writes(world: &World, seam: SimSeam, model: Rc<RefCell<Model>>, seed: u64) -> Option<String> {
    let pool = open(world, &seam, OpenOptions::default()).await.expect("the pool opens");
    let first_error = Rc::<RefCell<Option<String>>>::default();
    let workload = Workload {
        seam: seam.clone(),
        pool: pool.clone(),
        model,
        first_error: Rc::clone(&first_error),
        has_faults: false,
        full: Rc::default(),
        epochs: Rc::default(),
    };
    for name in ["a", "b"] {
        workload.create(VolumeSpec::thin(name, 4 * SLICE)).await;
    }
    seam.clone().spawn(async move {
        let rng = Rng::new(seed, 70);
        let settings = RelocationSettings::new(classes(), MoveRate::Bytes(1 << 30));
        loop {
            for name in ["a", "b"] {
                let policies = [TierPolicy::Highest, TierPolicy::Lowest, TierPolicy::Auto];
                let volume = pool.volume_named(name).expect("the volume exists");
                pool.set_policy(volume, policies[rng.below(3) as usize]).await.expect("sound disks");
            }
            let report = pool.relocate(&settings).await.expect("sound disks");
            MOVED.with(|moved| moved.set(moved.get() + report.moved));
            seam.sleep(Nanos::from_micros(200)).await;
        }
    });
    for _ in 0..20 {
        workload.run(seed, &["a", "b"], 20, 0).await;
    }
    first_error.take()
}

thread_local! {
    /// Slices that relocations moved in all lives of the crash test.
    static MOVED: Cell<u64> = const { Cell::new(0) };
}

#[test]
fn crash_during_relocation_loses_no_flushed_write() {
    let mut crashes = 0;
    for seed in 0..120 {
        let world = with_pool(seed, SMALL);
        let model = Rc::<RefCell<Model>>::default();
        world.crash_at_io(world.io_count() + 100 + Rng::new(seed, 71).below(3_000));
        match world.run_until(relocate_under_writes(&world, world.seam(), Rc::clone(&model), seed)) {
            Ok(error) => assert_eq!(error, None, "seed {seed}"),
            Err(Stop::CrashPoint) => crashes += 1,
            Err(stop) => panic!("seed {seed}: {stop}"),
        }
        let after = world_after_crash(seed, world.crash(CrashMode::Any));
        recover(&after, &model.borrow(), OpenOptions::default()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    let moved = MOVED.with(Cell::get);
    println!("{crashes} crashes, {moved} slices moved");
    assert!(crashes > 100 && moved > 200, "{crashes} crashes, {moved} moves");
}
