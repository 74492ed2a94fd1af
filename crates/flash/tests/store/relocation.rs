//! Pages of a device that leaves move to the other devices: none is lost where there is room, none is stale, and a
//! crash at any I/O loses no record of the log.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use flash::format::FIRST_SEGMENT_BYTES;
use flash::{JobKind, MemberDisk, MemberNo, OpenOptions, PageNo, Pages, Sabotage, Store, StoreError, VolumeId};
use seam::sim::{CrashMode, Fault, Ops, Rng, Rule, SimDiskSpec, SimSeam, Stop, Timing, When, World};
use seam::{DiskOpen, Nanos, Seam};

use crate::crash_points::{at_each_boundary, crashes};
use crate::member_changes::{Outcome, check_each_copy_alone, open_members, recover, spawn_change, wait_outcome};
use crate::model::{LogModel, read_all};
use crate::paged::{Backing, PagedWorkload, check_all};
use crate::pages::{block_with_tag, load_pages, put, read_tags};
use crate::workload::Workload;
use crate::world::{ALL, PAGED, StoreShape, disks, formatted, world_after_crash};

/// A world with a store on `devices` devices, and one more device of this number of segments.
fn world_with_spare(seed: u64, devices: usize, spare_segments: u64) -> World {
    world_of_shape_with_spare(seed, StoreShape { devices, ..PAGED }, spare_segments)
}

fn world_of_shape_with_spare(seed: u64, shape: StoreShape, spare_segments: u64) -> World {
    let world = formatted(seed, shape);
    let timing = Timing::between(Nanos::from_micros(20), Nanos::from_micros(200));
    world.add_disk(ALL[shape.devices], SimDiskSpec { timing, ..SimDiskSpec::new(bytes_of(spare_segments)) });
    world
}

/// Size of a device of this number of segments.
fn bytes_of(segments: u64) -> u64 {
    FIRST_SEGMENT_BYTES + segments * PAGED.segment_bytes
}

async fn disk(seam: &SimSeam, number: usize) -> MemberDisk<SimSeam> {
    disks(seam, &ALL[number..=number]).await.pop().expect("one disk was opened")
}

/// The first block's tag of a page of the test.
fn first_tag(page: u64) -> u64 {
    1_000 * (page + 1)
}

async fn put_pages(seam: &SimSeam, pages: &Pages<SimSeam>, count: u64) {
    for page in 0..count {
        put(seam, pages, 1, page, first_tag(page)).await;
    }
}

/// The numbers of the pages that are readable as a whole; any other content than the one that was put fails the test.
async fn readable(seam: &SimSeam, pages: &Pages<SimSeam>, count: u64) -> Vec<u64> {
    let mut readable = Vec::new();
    for page in 0..count {
        let expected: Vec<_> = (0..16).map(|block| Some(first_tag(page) + block)).collect();
        let read = read_tags(seam, pages, 1, page).await;
        assert!(read == expected || read == vec![None; 16], "page {page}: {read:?}");
        readable.extend((read == expected).then_some(page));
    }
    readable
}

#[test]
fn replaced_device_loses_no_page() {
    for old in 0..3 {
        let member = MemberNo(old as u32);
        let world = world_with_spare(1, 3, PAGED.segments + 2);
        let seam = world.seam();
        let names: Vec<&str> = (0..4).filter(|number| *number != old).map(|number| ALL[number]).collect();
        world.block_on(async {
            let (store, _) = open_members(&seam, &ALL[..3], OpenOptions::default()).await.unwrap();
            let pages = load_pages(&store).await;
            put_pages(&seam, &pages, 70).await;
            let before = readable(&seam, &pages, 70).await;
            assert!(before.len() > 60 && pages.pages_on(member) > 3, "{:?}", pages.stats());
            let new = disk(&seam, 3).await;
            assert_eq!(store.replace(member, new, false).await, Ok(MemberNo(3)));
            assert_eq!(readable(&seam, &pages, 70).await, before, "device {old} was replaced");
            assert_eq!((pages.pages_on(member), store.copies()), (0, 2));
            store.close().await.unwrap();
            drop(pages);
            let (store, _) = open_members(&seam, &names, OpenOptions::default()).await.unwrap();
            assert_eq!(readable(&seam, &load_pages(&store).await, 70).await, before, "after a restart");
        });
    }
}

#[test]
fn removed_device_loses_only_pages_that_find_no_room() {
    for count in [12, 80] {
        let world = formatted(1, StoreShape { devices: 3, ..PAGED });
        let seam = world.seam();
        world.block_on(async {
            let (store, _) = open_members(&seam, &ALL[..3], OpenOptions::default()).await.unwrap();
            let pages = load_pages(&store).await;
            put_pages(&seam, &pages, count).await;
            seam.sleep(Nanos::from_secs(2)).await;
            let (before, on_third) = (readable(&seam, &pages, count).await, pages.pages_on(MemberNo(2)));
            let announced = pages.pages_lost_without(MemberNo(2));
            // The pages of the leaving device are the most used ones.
            store.remove(MemberNo(2), false).await.unwrap();
            let lost = before.len() - readable(&seam, &pages, count).await.len();
            assert_eq!(pages.pages_on(MemberNo(2)), 0);
            match count {
                12 => assert_eq!((announced, lost), (0, 0), "{:?}", pages.stats()),
                _ => assert!(
                    announced > 0 && lost as u64 >= announced,
                    "{lost} lost, {announced} of {on_third} announced"
                ),
            }
        });
    }
}

#[test]
fn replacement_plan_counts_the_pages_without_room() {
    for (old, spare_segments) in [(0, PAGED.segments), (0, 5), (2, PAGED.segments + 2), (2, 5)] {
        let member = MemberNo(old);
        let world = world_with_spare(1, 3, spare_segments);
        let seam = world.seam();
        world.block_on(async {
            let (store, _) = open_members(&seam, &ALL[..3], OpenOptions::default()).await.unwrap();
            let unloaded = store.plan_join(Some(member), bytes_of(spare_segments)).unwrap();
            assert_eq!((unloaded.is_map_loaded, unloaded.kept_pages, unloaded.dropped_pages), (false, 0, 0));
            let pages = load_pages(&store).await;
            put_pages(&seam, &pages, 80).await;
            seam.sleep(Nanos::from_secs(2)).await;
            let (before, on_old) = (readable(&seam, &pages, 80).await, pages.pages_on(member));
            let plan = store.plan_join(Some(member), bytes_of(spare_segments)).unwrap();
            assert_eq!((plan.is_map_loaded, plan.kept_pages + plan.dropped_pages), (true, on_old));
            assert_eq!(plan.dropped_pages > 0, spare_segments == 5, "device {old} by {spare_segments}: {plan:?}");
            store.replace(member, disk(&seam, 3).await, false).await.unwrap();
            let lost = (before.len() - readable(&seam, &pages, 80).await.len()) as u64;
            // Pages without a recent use are dropped beside those without room.
            assert!(lost >= plan.dropped_pages && (plan.dropped_pages > 0 || lost == 0), "{lost} lost, {plan:?}");
            assert_eq!(pages.slots_max(), plan.room_after.usable_slots(), "device {old} by {spare_segments}: {plan:?}");
            let absent = store.plan_join(Some(MemberNo(7)), bytes_of(5));
            assert!(matches!(absent, Err(StoreError::Refused(_))), "{absent:?}");
        });
    }
}

#[test]
fn added_device_is_unused_past_the_room_of_the_map() {
    let shape = StoreShape { segments: 20, journal_bytes: Some(10 * 4096), ..PAGED };
    let world = world_of_shape_with_spare(1, shape, 40);
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open_members(&seam, &ALL[..2], OpenOptions::default()).await.unwrap();
        let pages = load_pages(&store).await;
        assert_eq!(pages.stats().unmapped_slots, 0, "the map has room for the devices at the format");
        let small = store.plan_join(None, bytes_of(4)).unwrap();
        assert_eq!(small.room_after.unmapped_slots(), 0, "{small:?}");
        let plan = store.plan_join(None, bytes_of(40)).unwrap();
        let unmapped = plan.room_after.unmapped_slots();
        assert!(unmapped > 0 && plan.room_after.usable_slots() > plan.room_before.usable_slots(), "{plan:?}");
        store.add(disk(&seam, 2).await, false).await.unwrap();
        let stats = pages.stats();
        assert_eq!((stats.unmapped_slots, stats.slots_max), (unmapped, plan.room_after.map_slots));
    });
}

#[test]
fn log_successor_is_the_largest_device_with_pages_only() {
    let world = formatted(1, StoreShape { devices: 4, ..PAGED });
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open_members(&seam, &ALL, OpenOptions::default()).await.unwrap();
        let pages = load_pages(&store).await;
        let successor = |member| store.log_successor(MemberNo(member));
        assert_eq!([0, 1, 2, 3].map(successor), [Some(MemberNo(3)), Some(MemberNo(3)), None, None]);
        put_pages(&seam, &pages, 40).await;
        let of_both = pages.pages_on(MemberNo(0)) + pages.pages_on(MemberNo(3));
        assert_eq!(pages.pages_lost_without(MemberNo(0)), of_both);
        store.remove(MemberNo(0), false).await.unwrap();
        let takes_over = |member: &flash::MemberReport| member.member == MemberNo(3) && member.role == flash::Role::Log;
        assert!(store.members().iter().any(takes_over), "{:?}", store.members());
    });
}

#[test]
fn used_pages_are_kept_when_room_is_short() {
    let world = formatted(1, StoreShape { devices: 3, ..PAGED });
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open_members(&seam, &ALL[..3], OpenOptions::default()).await.unwrap();
        let pages = load_pages(&store).await;
        put_pages(&seam, &pages, 80).await;
        seam.sleep(Nanos::from_secs(2)).await;
        let volume = pages.volume(VolumeId(1));
        let before = readable(&seam, &pages, 80).await;
        // Ten pages are used, whichever device they are on.
        let used = &before[before.len() - 10..];
        used.iter().for_each(|page| (0..3).for_each(|_| volume.touch(PageNo(*page))));
        store.remove(MemberNo(2), false).await.unwrap();
        let after = readable(&seam, &pages, 80).await;
        assert!(used.iter().all(|page| after.contains(page)), "{used:?} of {before:?}, {after:?} are left");
        assert!(after.len() < before.len());
    });
}

/// A store on two devices with `PAGES` pages, of which the first is being replaced by a third, and the outcome.
struct Replacement {
    store: Store<SimSeam>,
    pages: Pages<SimSeam>,
    outcome: Outcome,
    /// The pages that were readable before.
    before: Vec<u64>,
}

/// Number of pages of a replacement.
const PAGES: u64 = 20;

impl Replacement {
    /// Begins, and returns when some pages have moved.
    async fn begin(seam: &SimSeam) -> Replacement {
        let (store, _) = open_members(seam, &ALL[..2], OpenOptions::default()).await.unwrap();
        let pages = load_pages(&store).await;
        put_pages(seam, &pages, PAGES).await;
        let before = readable(seam, &pages, PAGES).await;
        let (new, other) = (disk(seam, 2).await, store.clone());
        let outcome = spawn_change(seam, async move { other.replace(MemberNo(0), new, false).await });
        while pages.pages_on(MemberNo(2)) < 3 {
            seam.sleep(Nanos::from_micros(20)).await;
        }
        assert!(store.job().is_some_and(|job| job.kind == JobKind::Replace && job.total_bytes > job.done_bytes));
        Replacement { store, pages, outcome, before }
    }
}

/// Lets every write to a device fail, and writes records until the store has seen it.
async fn fail_device(world: &World, store: &Store<SimSeam>, number: usize) {
    let always = Rule::new(Fault::Error, Ops::WRITE | Ops::FLUSH, When::Always);
    world.disk(ALL[number]).expect("the disk exists").add_fault(always);
    workload(&world.seam(), store, &Rc::default(), &Rc::default()).run(3, 1, 3).await;
}

#[test]
fn cancelled_replacement_returns_the_pages() {
    let world = world_with_spare(1, 2, PAGED.segments);
    let seam = world.seam();
    world.block_on(async {
        let Replacement { store, pages, outcome, before } = Replacement::begin(&seam).await;
        assert!(store.cancel_job());
        assert_eq!(wait_outcome(&seam, outcome).await, Err(StoreError::Cancelled));
        let members: Vec<MemberNo> = store.members().iter().map(|report| report.member).collect();
        assert_eq!((members, store.copies()), (vec![MemberNo(0), MemberNo(1)], 2));
        assert_eq!(readable(&seam, &pages, PAGES).await, before);
        put_pages(&seam, &pages, 60).await;
        assert!(pages.pages_on(MemberNo(0)) > 3, "the device takes pages again");
    });
}

#[test]
fn new_device_that_fails_during_the_copy_leaves_the_old_one_in_service() {
    let world = world_with_spare(1, 2, PAGED.segments);
    let seam = world.seam();
    world.block_on(async {
        let Replacement { store, pages, outcome, before } = Replacement::begin(&seam).await;
        let moved_before = pages.pages_on(MemberNo(2));
        fail_device(&world, &store, 2).await;
        assert!(matches!(wait_outcome(&seam, outcome).await, Err(StoreError::Refused(_))));
        assert_eq!((store.copies(), store.members().len()), (2, 2), "{:?}", store.members());
        let left = readable(&seam, &pages, PAGES).await.len();
        assert!(left > 0 && left < before.len(), "{left} of {}, {moved_before} had moved", before.len());
    });
}

#[test]
fn replacement_never_lowers_the_copies_of_the_log() {
    let world = world_with_spare(1, 2, PAGED.segments);
    let seam = world.seam();
    world.block_on(async {
        let Replacement { store, outcome, .. } = Replacement::begin(&seam).await;
        // The other mirror.
        fail_device(&world, &store, 1).await;
        assert!(matches!(wait_outcome(&seam, outcome).await, Err(StoreError::Refused(_))));
        assert_eq!(store.copies(), 2, "{:?}", store.members());
    });
}

#[test]
fn replacement_without_buffers_can_be_cancelled() {
    let world = world_with_spare(1, 2, PAGED.segments);
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open_members(&seam, &ALL[..2], OpenOptions::default()).await.unwrap();
        let pages = load_pages(&store).await;
        put_pages(&seam, &pages, PAGES).await;
        let before = readable(&seam, &pages, PAGES).await;
        // One buffer less than a page has blocks is left.
        let mut held: Vec<_> = std::iter::from_fn(|| seam.alloc()).collect();
        held.truncate(held.len() - 15);
        let (new, other) = (disk(&seam, 2).await, store.clone());
        let outcome = spawn_change(&seam, async move { other.replace(MemberNo(0), new, true).await });
        seam.sleep(Nanos::from_secs(1)).await;
        assert!(outcome.borrow().is_none() && store.copies() == 3, "the pages wait: {:?}", store.members());
        assert!(store.cancel_job());
        assert_eq!(wait_outcome(&seam, outcome).await, Err(StoreError::Cancelled));
        drop(held);
        assert_eq!((readable(&seam, &pages, PAGES).await, store.copies()), (before, 2));
    });
}

/// The map lists pages on a device that takes over the log at the opening, and is loaded without them. A write to their
/// blocks must not reach the backing before that is durable.
#[test]
fn write_to_pages_of_a_take_over_waits_until_they_are_durably_gone() {
    let world = formatted(1, StoreShape { devices: 3, ..PAGED });
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open_members(&seam, &ALL[..3], OpenOptions::default()).await.unwrap();
        let pages = load_pages(&store).await;
        put_pages(&seam, &pages, 60).await;
        store.close().await.expect("the store closes");
    });
    let always = Rule::new(Fault::Error, Ops::WRITE | Ops::FLUSH, When::Always);
    world.disk(ALL[0]).expect("the disk exists").add_fault(always);
    let page = world.block_on(async {
        let (store, _) = open_members(&seam, &ALL[..3], OpenOptions::default()).await.unwrap();
        let pages = store.pages();
        pages.load().await;
        let volume = pages.volume(VolumeId(1));
        let page = (0..60).map(PageNo).find(|page| volume.valid_blocks(*page) == 0).expect("pages were dropped");
        let _intent = volume.begin_write(page.first_block()..page.first_block().next()).await;
        page
    });
    let world = world_after_crash(2, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open_members(&seam, &ALL[1..3], OpenOptions::default()).await.unwrap();
        let pages = store.pages();
        pages.load().await;
        assert_eq!(pages.volume(VolumeId(1)).valid_blocks(page) & 1, 0, "the write may have reached the backing");
    });
}

fn workload(
    seam: &SimSeam,
    store: &Store<SimSeam>,
    model: &Rc<RefCell<LogModel>>,
    first_error: &Rc<RefCell<Option<String>>>,
) -> Workload {
    let (seam, store, model, first_error) = (seam.clone(), store.clone(), Rc::clone(model), Rc::clone(first_error));
    Workload { seam, store, model, first_error, full_without_live_record: Rc::default() }
}

/// Crashes a replacement of a device with pages at every I/O: the log is whole, and every page that is served is the
/// one that was put. Returns the numbers of crashes and of pages that were served after them.
fn crash_replacement_at_every_io(seed: u64) -> Result<(u64, u64), String> {
    let world = world_with_spare(seed, 2, PAGED.segments);
    let (model, first_error, has_ended) =
        (Rc::<RefCell<LogModel>>::default(), Rc::<RefCell<Option<String>>>::default(), Rc::new(Cell::new(false)));
    let (seam, flag) = (world.seam(), Rc::clone(&has_ended));
    let (task_model, task_error) = (Rc::clone(&model), Rc::clone(&first_error));
    world.seam().spawn(async move {
        let (store, recovered) = open_members(&seam, &ALL[..2], OpenOptions::default()).await.expect("the store opens");
        let content = read_all(&seam, &store, &recovered).await.expect("live records can be read");
        task_model.borrow_mut().adopt_recovered(&recovered, &content);
        let pages = load_pages(&store).await;
        put_pages(&seam, &pages, 5).await;
        let (clients, clients_ended) = (workload(&seam, &store, &task_model, &task_error), Rc::new(Cell::new(false)));
        let ended = Rc::clone(&clients_ended);
        seam.spawn(async move {
            clients.run(seed, 1, 4).await;
            ended.set(true);
        });
        store.replace(MemberNo(seed as u32 % 2), disk(&seam, 2).await, false).await.expect("the device is replaced");
        while !clients_ended.get() {
            seam.sleep(Nanos::from_micros(50)).await;
        }
        flag.set(true);
    });
    let (rng, mut crashed, mut served) = (Rng::new(seed, 79), 0, 0);
    at_each_boundary(&world, &has_ended, |snapshot| {
        for (crash, survivals) in crashes(snapshot, &rng) {
            crashed += 1;
            let images = || snapshot.images(|number| survivals[number]);
            let members = recover(&world_after_crash(rng.next(), images()), &model.borrow(), OpenOptions::default())
                .map_err(|error| format!("{crash}: {error}"))?;
            if crashed % 8 == 0 {
                check_each_copy_alone(images, &members, &model.borrow(), OpenOptions::default())
                    .map_err(|error| format!("{crash}: {error}"))?;
            }
            let world = world_after_crash(rng.next(), images());
            let seam = world.seam();
            served += world.block_on(async {
                let (store, _) =
                    open_members(&seam, &ALL[..3], OpenOptions::default()).await.expect("it has just been opened");
                let pages = store.pages();
                pages.load().await;
                readable(&seam, &pages, 5).await.len() as u64
            });
        }
        Ok(())
    })?;
    match first_error.take() {
        Some(error) => Err(error),
        None => Ok((crashed, served)),
    }
}

#[test]
fn replacement_that_crashes_at_any_io_loses_nothing() {
    for seed in 0..2 {
        let (crashed, served) =
            crash_replacement_at_every_io(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        println!("seed {seed}: {crashed} crashes, {served} pages served");
        assert!(crashed > 1_000 && served > crashed, "{crashed} crashes, {served} pages served");
    }
}

/// A page member takes over the log, either when the store opens or later, while the map of its pages is loaded and
/// pages are put. Afterwards its copy of the log must be whole.
fn take_over_beside_pages(seed: u64, fails_at_opening: bool) -> Result<(), String> {
    let world = formatted(seed, StoreShape { devices: 3, ..PAGED });
    let (model, first_error) = (Rc::<RefCell<LogModel>>::default(), Rc::<RefCell<Option<String>>>::default());
    let seam = world.seam();
    let fail = || {
        let always = Rule::new(Fault::Error, Ops::WRITE | Ops::FLUSH, When::Always);
        world.disk(ALL[0]).expect("the disk exists").add_fault(always);
    };
    world.block_on(async {
        let (store, _) = open_members(&seam, &ALL[..3], OpenOptions::default()).await.expect("the store opens");
        let pages = load_pages(&store).await;
        put_pages(&seam, &pages, 60).await;
        workload(&seam, &store, &model, &first_error).run(seed, 1, 6).await;
        store.close().await.expect("the store closes");
    });
    if fails_at_opening {
        fail();
    }
    world.block_on(async {
        let (store, recovered) = open_members(&seam, &ALL[..3], OpenOptions::default()).await.expect("the store opens");
        let content = read_all(&seam, &store, &recovered).await.expect("live records can be read");
        model.borrow_mut().adopt_recovered(&recovered, &content);
        let pages = store.pages();
        pages.load().await;
        if !fails_at_opening {
            fail();
        }
        // A batch in progress delays the switch of the members.
        let stalls = Rule::new(Fault::Stall(Nanos::from_millis(5)), Ops::WRITE, When::PerMillion(300_000));
        world.disk(ALL[1]).expect("the disk exists").add_fault(stalls);
        let clients = workload(&seam, &store, &model, &first_error);
        let (page_seam, volume, rng) = (seam.clone(), pages.volume(VolumeId(1)), Rng::new(seed, 80));
        seam.spawn(async move {
            for page in 0..200 {
                let blocks = (0..16).map(|number| (number, block_with_tag(&page_seam, first_tag(page)))).collect();
                drop(volume.put(PageNo(page), blocks).await);
                page_seam.sleep(Nanos::from_micros(rng.below(200))).await;
            }
        });
        clients.run(seed + 1, 2, 8).await;
        while store.copies() < 2 || store.job().is_some() {
            clients.run(seed + 2, 1, 1).await;
        }
        clients.run(seed + 3, 1, 4).await;
        seam.sleep(Nanos::from_millis(50)).await;
    });
    if let Some(error) = first_error.take() {
        return Err(error);
    }
    let images = || world.crash(CrashMode::LoseAll);
    let mut alone = images();
    [ALL[0], ALL[1]].iter().for_each(|name| assert!(alone.remove(name)));
    let options = OpenOptions { accept_missing: true, ..OpenOptions::default() };
    recover(&world_after_crash(seed, alone), &model.borrow(), options).map(drop)
}

#[test]
fn log_copy_of_a_take_over_is_whole_beside_pages() {
    for seed in 0..20 {
        for fails_at_opening in [false, true] {
            take_over_beside_pages(seed, fails_at_opening)
                .unwrap_or_else(|error| panic!("seed {seed}, fails at the opening: {fails_at_opening}: {error}"));
        }
    }
}

/// Counts of the random scenarios.
#[derive(Clone, Copy, Debug, Default)]
struct ScenarioCounts {
    changes: u64,
    cancelled: u64,
    served: u64,
}

/// Changes members at random, until `flag` is set.
async fn change_members(
    seam: SimSeam,
    store: Store<SimSeam>,
    rng: Rng,
    flag: Rc<Cell<bool>>,
    counts: Rc<Cell<(u64, u64)>>,
) {
    while !flag.get() {
        seam.sleep(Nanos::from_micros(rng.below(30_000))).await;
        let member = rng.below(store.members().len().max(1) as u64) as usize;
        let Some(member) = store.members().get(member).map(|report| report.member) else { continue };
        if rng.below(3) == 0 {
            let (other, pause) = (store.clone(), Nanos::from_micros(rng.below(6_000)));
            let task = seam.clone();
            seam.spawn(async move {
                task.sleep(pause).await;
                other.cancel_job();
            });
        }
        let changed = match rng.below(3) {
            0 => store.remove(member, false).await,
            action => {
                let path = ALL[rng.below(4) as usize].into();
                let options = DiskOpen { path, create_bytes: None, read_only: false, lock_wait_ms: 10 };
                // A device in use cannot be opened.
                let Ok(new) = seam.open_disk(&options).await else { continue };
                let new = MemberDisk::Local(new);
                match action {
                    1 => store.add(new, true).await.map(drop),
                    _ => store.replace(member, new, true).await.map(drop),
                }
            }
        };
        let (done, cancelled) = counts.get();
        counts.set(match changed {
            Ok(()) => (done + 1, cancelled),
            Err(StoreError::Cancelled) => (done, cancelled + 1),
            Err(_) => (done, cancelled),
        });
    }
}

/// Runs clients of pages while members change; each boot ends with a crash.
fn run_scenario(seed: u64, sabotage: Sabotage, counts: &mut ScenarioCounts) -> Result<(), String> {
    let rng = Rng::new(seed, 53);
    let shape = StoreShape { devices: 4, segments: 5 + rng.below(6), ..PAGED };
    let mut world = formatted(seed, shape);
    let backing = Rc::<RefCell<Backing>>::default();
    let options = OpenOptions { sabotage, ..OpenOptions::default() };
    for boot in 0..3 {
        let (seam, first_error) = (world.seam(), Rc::<RefCell<Option<String>>>::default());
        if rng.coin() {
            world.crash_at_io(world.io_count() + 1 + rng.below(900));
        }
        let changed = Rc::new(Cell::new((0, 0)));
        let ended = world.run_until(async {
            let (store, recovered) = open_members(&seam, &ALL, options)
                .await
                .map_err(|error| format!("the store does not open: {error}"))?;
            let pages = store.pages();
            pages.load().await;
            let held = backing.borrow().clone();
            counts.served += check_all(&seam, &pages, &held, &Rng::new(seed, boot), true).await?.0;
            backing.borrow_mut().decide_contents(&Rng::new(seed, boot));
            let logged = Rc::new(RefCell::new(recovered.iter().map(|record| record.position).collect()));
            let (backing, first_error) = (Rc::clone(&backing), Rc::clone(&first_error));
            let workload =
                PagedWorkload { seam: seam.clone(), store: store.clone(), pages, backing, first_error, logged };
            let (flag, changes) = (Rc::new(Cell::new(false)), Rng::new(rng.next(), 54));
            seam.spawn(change_members(seam.clone(), store.clone(), changes, Rc::clone(&flag), Rc::clone(&changed)));
            workload.run(rng.next(), 1 + rng.below(3), 20 + rng.below(60)).await;
            flag.set(true);
            drop(workload);
            store.close().await.map(drop).map_err(|error| error.to_string())
        });
        counts.changes += changed.get().0;
        counts.cancelled += changed.get().1;
        match ended {
            Ok(ended) => ended.map_err(|error| format!("boot {boot}: {error}"))?,
            Err(Stop::CrashPoint) => {}
            Err(stop) => return Err(format!("boot {boot}: {stop}")),
        }
        if let Some(error) = first_error.take() {
            return Err(format!("boot {boot}: {error}"));
        }
        world = world_after_crash(rng.next(), world.crash(CrashMode::Any));
    }
    Ok(())
}

#[test]
fn random_changes_of_members_serve_no_stale_page() {
    let seeds = std::env::var("HOTSET_FLASH_SEEDS").map_or(200, |seeds| seeds.parse().expect("a number of seeds"));
    let mut counts = ScenarioCounts::default();
    for seed in 0..seeds {
        run_scenario(seed, Sabotage::None, &mut counts).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    println!("{counts:?}");
    assert!(counts.changes > seeds && counts.cancelled > seeds / 10 && counts.served > seeds, "{counts:?}");
}

#[test]
fn copy_that_ignores_an_invalidation_is_caught() {
    let run = |seed, sabotage| run_scenario(seed, sabotage, &mut ScenarioCounts::default());
    let caught = (0..500).find_map(|seed| Some((seed, run(seed, Sabotage::PutOverInvalidate).err()?)));
    let (seed, error) = caught.expect("a stale page is detected");
    println!("seed {seed}: {error}");
    run(seed, Sabotage::None).expect("the same seed passes without it");
}
