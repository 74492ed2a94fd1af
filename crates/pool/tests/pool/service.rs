//! Behaviour of a running pool: thin volumes, a full pool, groups that fail, join and leave, metadata copies, the
//! check.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pool::{
    CreateOptions, Finding, Flow, GroupNo, MemberState, MoveError, MoveOutcome, OpenOptions, Pace, PoolDisk, PoolError,
    Provisioning, SliceAddress, SliceNo, TierNo, TierPolicy, TierSpec, VolumeSpec, unpaced,
};
use seam::sim::{CrashMode, Fault, Ops, Rule, SimDisk, SimSeam, When, World};
use seam::{BlockMut, Disk, DiskError, Nanos, Piece, Seam};

use task_sync::within;

use crate::model::read_sectors;
use crate::world::{
    ALL, DATA_AT, SLICE, SLICE_SECTORS, SMALL, Shape, SimPool, disks, open, with_disks, with_pool, world_after_crash,
};

type SimVolume = PoolDisk<SimSeam, SimDisk>;

/// Opens the pool of a world with a volume "a" of this many slices.
async fn pool_with_volume(world: &World, seam: &SimSeam, spec: VolumeSpec) -> (SimPool, SimVolume) {
    let opened = disks(seam, &ALL[..3]).await;
    assert!(world.disk(ALL[0]).is_some());
    let pool = SimPool::open(seam, &opened, OpenOptions::default()).await.expect("the pool opens");
    let id = pool.create_volume(spec).await.expect("the volume is created");
    let volume = pool.volume(id).expect("the volume exists");
    (pool, volume)
}

async fn write(seam: &SimSeam, disk: &SimVolume, sector: u64, tag: u64) -> Result<(), DiskError> {
    let mut block = seam.alloc().expect("a buffer is free");
    (0..8).for_each(|index| block.set_tag(index, tag));
    disk.write(sector * 512, vec![Piece::whole(block.freeze())]).await
}

async fn read(seam: &SimSeam, disk: &SimVolume, sector: u64) -> Result<u64, String> {
    read_sectors(seam, disk, sector, 1).await.map(|tags| tags[0])
}

/// Runs `test` in a world with a small pool and a thin volume "a".
fn with_volume<F: Future<Output = ()>>(spec: VolumeSpec, test: impl FnOnce(SimSeam, SimPool, SimVolume) -> F) -> World {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (pool, volume) = pool_with_volume(&world, &seam, spec).await;
        test(seam.clone(), pool, volume).await;
    });
    world
}

#[test]
fn unallocated_range_reads_as_zeroes_and_is_a_hole() {
    with_volume(VolumeSpec::thin("a", 4 * SLICE), |seam, pool, volume| async move {
        assert_eq!(read(&seam, &volume, 5).await, Ok(0));
        write(&seam, &volume, SLICE_SECTORS + 8, 77).await.expect("room");
        assert_eq!(read(&seam, &volume, SLICE_SECTORS + 8).await, Ok(77));
        assert_eq!(read(&seam, &volume, SLICE_SECTORS).await, Ok(0));
        let runs = volume.allocation(0, 4 * SLICE).await.expect("sound disks");
        assert_eq!((runs[0].len_bytes, runs[0].hole, runs[0].zero), (SLICE, true, true));
        assert!(!runs.iter().all(|run| run.hole));
        assert_eq!(runs.iter().map(|run| run.len_bytes).sum::<u64>(), 4 * SLICE);
        assert_eq!(pool.volumes()[0].allocated, 1);
        volume.zero(SLICE, SLICE, true).await.expect("sound disks");
        assert_eq!(pool.volumes()[0].allocated, 0);
        assert_eq!(read(&seam, &volume, SLICE_SECTORS + 8).await, Ok(0));
    });
}

#[test]
fn thick_volume_is_allocated_at_once_and_zeroes_free_nothing() {
    let spec = VolumeSpec { provisioning: Provisioning::Thick, ..VolumeSpec::thin("a", 3 * SLICE) };
    with_volume(spec, |seam, pool, volume| async move {
        assert_eq!(pool.volumes()[0].allocated, 3);
        write(&seam, &volume, 8, 5).await.expect("room");
        volume.zero(0, SLICE, true).await.expect("sound disks");
        assert_eq!((pool.volumes()[0].allocated, read(&seam, &volume, 8).await), (3, Ok(0)));
        volume.set_size(5 * SLICE).await.expect("room");
        assert_eq!(pool.volumes()[0].allocated, 5);
        assert_eq!(volume.set_size(30 * SLICE).await, Err(DiskError::NoSpace));
    });
}

#[test]
fn full_pool_refuses_allocations_only_until_a_group_joins() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    let slots = SMALL.slots[..3].iter().sum::<u64>();
    world.block_on(async {
        let (pool, volume) = pool_with_volume(&world, &seam, VolumeSpec::thin("a", 40 * SLICE)).await;
        let mut written = 0;
        let refused = loop {
            match write(&seam, &volume, written * SLICE_SECTORS, 100 + written).await {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
        };
        assert_eq!((refused, written), (DiskError::NoSpace, slots));
        assert_eq!(volume.reserve(written * SLICE, SLICE).await, Err(DiskError::NoSpace));
        write(&seam, &volume, 3 * SLICE_SECTORS, 7).await.expect("an overwrite needs no space");
        volume.flush().await.expect("sound disks");
        let extra = disks(&seam, &ALL[3..]).await.remove(0);
        let group = pool.add_group(TierNo(1), extra, true).await.expect("the disk joins");
        assert_eq!(group, GroupNo(3));
        for slice in written..written + SMALL.slots[3] {
            write(&seam, &volume, slice * SLICE_SECTORS, 100 + slice).await.expect("room again");
        }
        assert_eq!(write(&seam, &volume, 39 * SLICE_SECTORS, 1).await, Err(DiskError::NoSpace));
        volume.zero(0, SLICE, true).await.expect("sound disks");
        // The freed slot serves another slice as soon as its record is durable.
        write(&seam, &volume, 39 * SLICE_SECTORS, 1).await.expect("a slot was freed");
        volume.flush().await.expect("sound disks");
    });
    let world = world_after_crash(2, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&world, &seam, OpenOptions::default()).await.expect("the pool opens");
        let volume = pool.volume(pool.volume_named("a").expect("the volume exists")).expect("the volume exists");
        for slice in 1..slots + SMALL.slots[3] {
            let expected = if slice == 3 { 7 } else { 100 + slice };
            assert_eq!(read(&seam, &volume, slice * SLICE_SECTORS).await, Ok(expected), "slice {slice}");
        }
        assert_eq!(read(&seam, &volume, 39 * SLICE_SECTORS).await, Ok(1));
    });
}

#[test]
fn buffer_across_two_slices_is_read_whole() {
    with_volume(VolumeSpec::thin("a", 3 * SLICE), |seam, _, volume| async move {
        let at = SLICE_SECTORS - 3;
        write(&seam, &volume, at, 9).await.expect("room");
        let (result, pieces) = volume.read(at * 512, vec![Piece::whole(seam.alloc().expect("a buffer is free"))]).await;
        assert_eq!((result, pieces[0].len(), pieces[0].block.tags()), (Ok(()), 4096, [9; 8]));
    });
}

#[test]
fn missing_group_takes_only_its_slices_with_it() {
    let world = with_volume(VolumeSpec::thin("a", 6 * SLICE), |seam, pool, volume| async move {
        for slice in 0..6 {
            let policy = if slice % 2 == 0 { TierPolicy::Highest } else { TierPolicy::Lowest };
            pool.set_policy(volume.volume(), policy).await.expect("sound disks");
            write(&seam, &volume, slice * SLICE_SECTORS, 50 + slice).await.expect("room");
        }
        volume.flush().await.expect("sound disks");
    });
    let mut images = world.crash(CrashMode::LoseAll);
    assert!(images.remove("slow-0"));
    let world = world_after_crash(2, images);
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&world, &seam, OpenOptions::default()).await.expect("the pool opens without a group");
        let volume = pool.volume(pool.volume_named("a").expect("the volume exists")).expect("the volume exists");
        for slice in 0..6 {
            let found = read(&seam, &volume, slice * SLICE_SECTORS).await;
            if slice % 2 == 0 {
                assert_eq!(found, Ok(50 + slice));
                continue;
            }
            let error = found.expect_err("the group is missing");
            assert!(error.contains("group 2 (sim:slow-0)") && error.contains("of volume a"), "{error}");
        }
        let lost = pool.lost(2).await;
        let ranges: Vec<_> = lost[0].first.iter().map(|range| (range.at, range.len, range.group)).collect();
        assert_eq!(ranges, [1, 3].map(|slice| (slice * SLICE, SLICE, GroupNo(2))));
        assert_eq!((lost.len(), lost[0].name.as_str(), lost[0].ranges, lost[0].bytes), (1, "a", 3, 3 * SLICE));
        // A slice that is freed and written again goes elsewhere, and a flush succeeds.
        volume.zero(SLICE, SLICE, true).await.expect("a map entry needs no group");
        write(&seam, &volume, SLICE_SECTORS, 99).await.expect("room on the other groups");
        volume.flush().await.expect("the other groups are sound");
        assert_eq!(read(&seam, &volume, SLICE_SECTORS).await, Ok(99));
        let expected = format!(
            "group 2 (sim:slow-0) is missing; requests to these ranges fail: {} bytes of volume a in 3 ranges \
             ({SLICE}+{SLICE}, {}+{SLICE}, {}+{SLICE})",
            3 * SLICE,
            3 * SLICE,
            5 * SLICE
        );
        let notices = pool.take_notices();
        assert!(notices.contains(&expected), "{notices:?}");
        assert_eq!(pool.lost(10).await[0].bytes, 2 * SLICE, "the slice that was written again is not lost");
    });
}

#[test]
fn vanished_group_fails_one_flush_and_changes_the_epoch() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let spec = VolumeSpec { policy: TierPolicy::Lowest, ..VolumeSpec::thin("a", 4 * SLICE) };
        let (pool, volume) = pool_with_volume(&world, &seam, spec).await;
        write(&seam, &volume, 0, 5).await.expect("room");
        volume.flush().await.expect("sound disks");
        write(&seam, &volume, 0, 6).await.expect("room");
        let epoch = volume.connection_epoch();
        let control = world.disk("slow-0").expect("the disk exists");
        control.add_fault(Rule::new(Fault::Vanish, Ops::ALL, When::Nth(0)));
        let error = volume.flush().await.expect_err("the write is lost");
        assert!(matches!(error, DiskError::Io(_)), "{error}");
        assert_ne!(volume.connection_epoch(), epoch);
        assert_eq!(pool.lost(10).await[0].bytes, SLICE);
        let notices = pool.take_notices();
        assert!(notices.iter().any(|text| text.contains("is gone") && text.contains("of volume a")), "{notices:?}");
        pool.set_policy(volume.volume(), TierPolicy::Highest).await.expect("the metadata is elsewhere");
        write(&seam, &volume, SLICE_SECTORS, 7).await.expect("another group takes the slice");
        volume.flush().await.expect("the other groups are sound");
    });
}

#[test]
fn failed_flush_is_repeated_until_it_succeeds() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let spec = VolumeSpec { policy: TierPolicy::Lowest, ..VolumeSpec::thin("a", 4 * SLICE) };
        let (_pool, volume) = pool_with_volume(&world, &seam, spec).await;
        write(&seam, &volume, 0, 5).await.expect("room");
        volume.flush().await.expect("sound disks");
        write(&seam, &volume, 0, 6).await.expect("room");
        let control = world.disk("slow-0").expect("the disk exists");
        control.add_fault(Rule::new(Fault::Error, Ops::FLUSH, When::Always));
        let epoch = volume.connection_epoch();
        assert!(volume.flush().await.is_err() && volume.flush().await.is_err());
        assert!(volume.connection_epoch() > epoch);
        control.clear_faults();
        volume.flush().await.expect("the disk is sound again");
        assert_eq!(control.unflushed(), 0);
    });
}

#[test]
fn lost_metadata_copy_moves_to_a_third_group() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (pool, volume) = pool_with_volume(&world, &seam, VolumeSpec::thin("a", 4 * SLICE)).await;
        let control = world.disk("fast-0").expect("the disk exists");
        control.add_fault(Rule { range: Some(0..1 << 20), ..Rule::new(Fault::Error, Ops::WRITE, When::Always) });
        write(&seam, &volume, 0, 5).await.expect("room");
        volume.flush().await.expect("one copy suffices");
        seam.sleep(Nanos::from_secs(1)).await;
        let carriers: Vec<_> = pool.groups().iter().map(|group| group.carries_metadata).collect();
        assert_eq!(carriers, [false, true, true]);
        let notices = pool.take_notices();
        assert!(notices[0].contains("the metadata copy on group 0 (sim:fast-0) failed"), "{notices:?}");
        assert_eq!(notices[1], "group 2 (sim:slow-0) carries a metadata copy now");
        write(&seam, &volume, 8, 6).await.expect("room");
        volume.flush().await.expect("sound copies");
    });
    // The new copy alone serves; together with the disk that was dropped it is a majority.
    let mut images = world.crash(CrashMode::LoseAll);
    assert!(images.remove("fast-1"));
    let world = world_after_crash(2, images);
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&world, &seam, OpenOptions::default()).await.expect("a majority with a copy");
        let volume = pool.volume(pool.volume_named("a").expect("the volume exists")).expect("the volume exists");
        assert!(pool.lost(1).await.is_empty() || read(&seam, &volume, 0).await.is_err());
        seam.sleep(Nanos::from_secs(1)).await;
        let carriers: Vec<_> = pool.groups().iter().map(|group| group.carries_metadata).collect();
        assert_eq!(carriers, [true, false, true], "the first disk is sound again and takes a copy");
    });
}

#[test]
fn metadata_copy_that_is_missing_without_a_majority_is_refused() {
    let world = with_disks(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let disks = disks(&seam, &ALL[..2]).await;
        let tiers = [TierSpec { name: "one".to_owned(), disks }];
        let options = CreateOptions { slice_bytes: SLICE, ..CreateOptions::default() };
        SimPool::create(&seam, &tiers, options).await.expect("empty disks become a pool");
    });
    let mut images = world.crash(CrashMode::LoseAll);
    assert!(images.remove(ALL[0]));
    let world = world_after_crash(2, images);
    let seam = world.seam();
    world.block_on(async {
        let one = disks(&seam, &ALL[1..2]).await;
        let refused = SimPool::open(&seam, &one, OpenOptions::default()).await.err();
        assert!(matches!(&refused, Some(PoolError::NoMajority { missing }) if missing.contains("sim:fast-0")));
        let accepting = OpenOptions { accept_missing: true, ..OpenOptions::default() };
        SimPool::open(&seam, &one, accepting).await.expect("accepted explicitly");
    });
}

#[test]
fn group_on_a_device_that_lost_its_end_is_refused() {
    let world = with_pool(1, SMALL);
    let mut images = world.crash(CrashMode::LoseAll);
    images.resize(ALL[2], DATA_AT + SMALL.slots[2] * SLICE - 512);
    let world = world_after_crash(2, images);
    let seam = world.seam();
    world.block_on(async {
        let refused = SimPool::open(&seam, &disks(&seam, &ALL[..3]).await, OpenOptions::default()).await.err();
        assert!(matches!(&refused, Some(PoolError::TooSmall { device, .. }) if device == "sim:slow-0"), "{refused:?}");
        SimPool::open(&seam, &disks(&seam, &ALL[..2]).await, OpenOptions::default()).await.expect("a majority");
    });
}

#[test]
fn damage_in_both_copies_at_different_blocks_loses_nothing() {
    let shape = Shape { journal_blocks: 64, ..SMALL };
    let world = with_pool(1, shape);
    let seam = world.seam();
    world.block_on(async {
        let (_, volume) = pool_with_volume(&world, &seam, VolumeSpec::thin("a", 4 * SLICE)).await;
        for slice in 0..4 {
            write(&seam, &volume, slice * SLICE_SECTORS, 60 + slice).await.expect("room");
            volume.flush().await.expect("sound disks");
        }
    });
    // Journal blocks 1 and 2: allocations of the first two slices.
    for (name, block) in [("fast-0", 1), ("fast-1", 2)] {
        world.disk(name).expect("the disk exists").flip_bit((128 << 10) / 512 + block * 8, 77);
    }
    let world = world_after_crash(2, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&world, &seam, OpenOptions::default()).await.expect("the copies complete each other");
        let volume = pool.volume(pool.volume_named("a").expect("the volume exists")).expect("the volume exists");
        for slice in 0..4 {
            assert_eq!(read(&seam, &volume, slice * SLICE_SECTORS).await, Ok(60 + slice));
        }
    });
    // The opening has repaired both: each serves alone.
    for removed in ["fast-0", "fast-1"] {
        let seam = world.seam();
        let names: Vec<_> = ALL[..3].iter().copied().filter(|name| *name != removed).collect();
        world.block_on(async {
            let report = SimPool::check(&seam, &disks(&seam, &names).await).await.expect("one copy is intact");
            let missing = matches!(report.findings[..], [Finding::Copy { .. }]);
            assert!(report.slices == 4 && missing, "{report:?}");
        });
    }
}

#[test]
fn journal_damaged_before_its_end_in_every_copy_is_refused() {
    let world = with_pool(1, Shape { journal_blocks: 64, ..SMALL });
    let seam = world.seam();
    world.block_on(async {
        let (_, volume) = pool_with_volume(&world, &seam, VolumeSpec::thin("a", 4 * SLICE)).await;
        for number in 0..24 {
            write(&seam, &volume, number % 4 * SLICE_SECTORS, 60).await.expect("room");
            volume.flush().await.expect("sound disks");
            volume.zero(number % 4 * SLICE, SLICE, true).await.expect("sound disks");
        }
    });
    for name in ["fast-0", "fast-1"] {
        world.disk(name).expect("the disk exists").flip_bit((128 << 10) / 512 + 3 * 8, 77);
    }
    let world = world_after_crash(2, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    world.block_on(async {
        let refused = open(&world, &seam, OpenOptions::default()).await.err();
        let is_expected = matches!(&refused, Some(PoolError::Damaged(text)) if text.contains("damaged at block 3"));
        assert!(is_expected, "{refused:?}");
    });
}

#[test]
fn drained_group_leaves_and_is_ignored_afterwards() {
    let world = with_volume(VolumeSpec::thin("a", 4 * SLICE), |seam, pool, volume| async move {
        pool.set_policy(volume.volume(), TierPolicy::Highest).await.expect("sound disks");
        for slice in 0..4 {
            write(&seam, &volume, slice * SLICE_SECTORS, 60 + slice).await.expect("room");
        }
        let report = pool.drain(GroupNo(1), unpaced()).await.expect("the other groups have room");
        assert!(report.moved > 0 && report.left == 0, "{report:?}");
        let group = &pool.groups()[1];
        assert_eq!((group.state, group.carries_metadata), (MemberState::Removed, false));
        for slice in 0..4 {
            assert_eq!(read(&seam, &volume, slice * SLICE_SECTORS).await, Ok(60 + slice));
        }
        volume.flush().await.expect("a removed group needs no flush");
        assert!(pool.check_open().findings.is_empty());
    });
    let world = world_after_crash(2, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    world.block_on(async {
        let all = disks(&seam, &ALL[..3]).await;
        let pool = SimPool::open(&seam, &all, OpenOptions::default()).await.expect("the removed group is left out");
        assert!(!pool.groups()[1].is_present);
        let notices = pool.take_notices();
        assert!(notices.iter().any(|notice| notice.contains("group 1 was removed from its pool")), "{notices:?}");
        drop(pool);
        let others = [all[0].clone(), all[2].clone()];
        SimPool::open(&seam, &others, OpenOptions::default()).await.expect("the pool opens without the removed group");
    });
}

#[test]
fn dropped_write_runs_to_its_end() {
    with_volume(VolumeSpec::thin("a", 2 * SLICE), |seam, pool, volume| async move {
        // The first write allocates the slice; it is dropped at various times, as the later ones are.
        for step in 0..40 {
            let time = seam.sleep(Nanos::from_micros(step * 50));
            let _ended_or_dropped = within(time, write(&seam, &volume, 0, 100 + step)).await;
            // A snapshot waits for the changes in progress.
            let snapshot = pool.create_snapshot(volume.volume(), &format!("s{step}"), 1).await.expect("room");
            assert_eq!(read(&seam, &volume, 0).await, Ok(100 + step));
            pool.delete_snapshot(snapshot).await.expect("sound disks");
        }
        assert!(pool.check_open().findings.is_empty());
    });
}

#[test]
fn cancelled_drain_returns_the_group_to_service_with_its_slices() {
    with_volume(VolumeSpec::thin("a", 4 * SLICE), |seam, pool, volume| async move {
        pool.set_policy(volume.volume(), TierPolicy::Lowest).await.expect("sound disks");
        for slice in 0..4 {
            write(&seam, &volume, slice * SLICE_SECTORS, 60 + slice).await.expect("room");
        }
        // The copies of the second slice wait until the drain is cancelled.
        let (copies, cancelled) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
        let (counted, seen, clock) = (Rc::clone(&copies), Rc::clone(&cancelled), seam.clone());
        let last_slice = Cell::new(None);
        let pace: Pace = Rc::new(move |request| {
            let (counted, seen, clock) = (Rc::clone(&counted), Rc::clone(&seen), clock.clone());
            if last_slice.replace(Some(request.slice)) != Some(request.slice) {
                counted.set(counted.get() + 1);
            }
            Box::pin(async move {
                while counted.get() > 1 && !seen.get() {
                    clock.sleep(Nanos::from_millis(1)).await;
                }
                Flow::Continue
            })
        });
        let (draining, report) = (pool.clone(), Rc::new(RefCell::new(None)));
        let result = Rc::clone(&report);
        seam.spawn(async move { *result.borrow_mut() = Some(draining.drain(GroupNo(2), pace).await) });
        while copies.get() < 2 {
            seam.sleep(Nanos::from_millis(1)).await;
        }
        assert_eq!(pool.groups()[2].state, MemberState::Draining);
        let extra = disks(&seam, &ALL[3..]).await.remove(0);
        assert_eq!(pool.add_group(TierNo(1), extra, true).await, Ok(GroupNo(3)), "a drain keeps no other change out");
        pool.cancel_drain(GroupNo(2)).await.expect("the group is present");
        cancelled.set(true);
        while report.borrow().is_none() {
            seam.sleep(Nanos::from_millis(1)).await;
        }
        let ended = report.borrow().clone().expect("it has ended").expect("no error");
        assert_eq!((ended.moved, ended.left), (2, 1));
        assert_eq!(pool.groups()[2].state, MemberState::InService);
        for slice in 0..4 {
            assert_eq!(read(&seam, &volume, slice * SLICE_SECTORS).await, Ok(60 + slice));
        }
        assert!(pool.check_open().findings.is_empty());
    });
}

#[test]
fn drain_without_room_on_the_others_is_refused_with_the_missing_bytes() {
    with_volume(VolumeSpec::thin("a", 17 * SLICE), |seam, pool, volume| async move {
        for slice in 0..14 {
            write(&seam, &volume, slice * SLICE_SECTORS, 1).await.expect("room");
        }
        let groups = pool.groups();
        let used = u64::from(groups[2].slots - groups[2].free) * SLICE;
        let free = u64::from(groups[0].free + groups[1].free) * SLICE;
        let refused = PoolError::NoRoomToDrain { group: GroupNo(2), needed_bytes: used, free_bytes: free };
        assert_eq!(pool.drain(GroupNo(2), unpaced()).await, Err(refused));
        assert_eq!(pool.groups()[2].state, MemberState::InService, "nothing has changed");
        disk_zero(&volume, 14).await;
        for group in [GroupNo(2), GroupNo(1)] {
            assert_eq!(pool.drain(group, unpaced()).await.expect("no slice is left").left, 0);
        }
        assert_eq!(pool.drain(GroupNo(0), unpaced()).await, Err(PoolError::LastGroup(GroupNo(0))));
    });
}

#[test]
fn drain_needs_room_for_the_slices_of_other_draining_groups() {
    with_volume(VolumeSpec::thin("a", 17 * SLICE), |seam, pool, volume| async move {
        pool.set_policy(volume.volume(), TierPolicy::Highest).await.expect("sound disks");
        for slice in 0..7 {
            write(&seam, &volume, slice * SLICE_SECTORS, 1).await.expect("room");
        }
        pool.set_policy(volume.volume(), TierPolicy::Lowest).await.expect("sound disks");
        for slice in 7..11 {
            write(&seam, &volume, slice * SLICE_SECTORS, 1).await.expect("room");
        }
        let groups = pool.groups();
        let used: Vec<u32> = groups.iter().map(|group| group.slots - group.free).collect();
        assert!(used[1] <= groups[2].free && used[0] + used[1] > groups[2].free, "{used:?}");
        pool.begin_drain(GroupNo(0)).await.expect("the other two have room");
        let (needed_bytes, free_bytes) = (u64::from(used[0] + used[1]) * SLICE, u64::from(groups[2].free) * SLICE);
        let refused = PoolError::NoRoomToDrain { group: GroupNo(1), needed_bytes, free_bytes };
        assert_eq!(pool.begin_drain(GroupNo(1)).await, Err(refused));
    });
}

#[test]
fn drain_that_was_cancelled_does_not_begin_again_by_itself() {
    with_volume(VolumeSpec::thin("a", 4 * SLICE), |_, pool, _| async move {
        pool.begin_drain(GroupNo(2)).await.expect("room");
        pool.cancel_drain(GroupNo(2)).await.expect("the group is present");
        pool.continue_drain(GroupNo(2), unpaced()).await.expect("sound disks");
        assert_eq!(pool.groups()[2].state, MemberState::InService);
    });
}

#[test]
fn removed_group_has_no_size_after_the_next_opening() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (pool, _) = pool_with_volume(&world, &seam, VolumeSpec::thin("a", SLICE)).await;
        assert_eq!(pool.drain(GroupNo(2), unpaced()).await.expect("no slice is on it").left, 0);
    });
    let world = world_after_crash(2, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&world, &seam, OpenOptions::default()).await.expect("the others are present");
        let removed = &pool.groups()[2];
        assert_eq!((removed.state, removed.slots, removed.free), (MemberState::Removed, 0, 0));
    });
}

#[test]
fn addition_by_force_does_not_overwrite_an_absent_member() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (pool, volume) = pool_with_volume(&world, &seam, VolumeSpec::thin("a", 4 * SLICE)).await;
        pool.set_policy(volume.volume(), TierPolicy::Lowest).await.expect("sound disks");
        write(&seam, &volume, 0, 60).await.expect("room");
        volume.flush().await.expect("sound disks");
    });
    let world = world_after_crash(2, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    world.block_on(async {
        let two = disks(&seam, &ALL[..2]).await;
        let pool = SimPool::open(&seam, &two, OpenOptions::default()).await.expect("a majority is present");
        let returned = disks(&seam, &ALL[2..3]).await.remove(0);
        let refused = pool.add_group(TierNo(1), returned, true).await;
        assert!(matches!(&refused, Err(PoolError::Refused(text)) if text.contains("is group 2")), "{refused:?}");
    });
    let world = world_after_crash(3, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&world, &seam, OpenOptions::default()).await.expect("all are present");
        let volume = pool.volume(pool.volume_named("a").expect("the volume exists")).expect("the volume exists");
        assert_eq!(read(&seam, &volume, 0).await, Ok(60));
    });
}

/// Frees the first slices of a volume.
async fn disk_zero(volume: &PoolDisk<SimSeam, SimDisk>, slices: u64) {
    volume.zero(0, slices * SLICE, true).await.expect("sound disks");
    volume.flush().await.expect("sound disks");
}

#[test]
fn cancelled_and_failed_moves_leave_the_slice_at_its_source() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let spec = VolumeSpec { policy: TierPolicy::Highest, ..VolumeSpec::thin("a", 4 * SLICE) };
        let (pool, volume) = pool_with_volume(&world, &seam, spec).await;
        write(&seam, &volume, 0, 5).await.expect("room");
        let slice = SliceAddress { volume: volume.volume(), slice: SliceNo(0) };
        let home = pool.group_of(slice).expect("allocated");
        let cancel: Pace = Rc::new(|_| Box::pin(async { Flow::Cancel }));
        assert_eq!(pool.move_slice(slice, GroupNo(2), cancel).await, Err(MoveError::Cancelled));
        let control = world.disk("slow-0").expect("the disk exists");
        control.add_fault(Rule::new(Fault::Error, Ops::WRITE, When::Always));
        let failed = pool.move_slice(slice, GroupNo(2), unpaced()).await;
        assert!(matches!(failed, Err(MoveError::Disk(_))), "{failed:?}");
        control.clear_faults();
        assert_eq!(pool.group_of(slice), Some(home));
        assert!(pool.check_open().findings.is_empty(), "the targets are free again");
        assert_eq!(pool.move_slice(slice, GroupNo(2), unpaced()).await, Ok(MoveOutcome::Moved));
        assert_eq!(pool.move_slice(slice, GroupNo(2), unpaced()).await, Ok(MoveOutcome::AlreadyThere));
        assert_eq!((pool.group_of(slice), read(&seam, &volume, 0).await), (Some(GroupNo(2)), Ok(5)));
        let unallocated = SliceAddress { slice: SliceNo(3), ..slice };
        assert_eq!(pool.move_slice(unallocated, GroupNo(2), unpaced()).await, Ok(MoveOutcome::Unallocated));
    });
}

#[test]
fn volume_keeps_its_identity_and_a_removed_number_is_not_reused() {
    let world = with_volume(VolumeSpec::thin("a", SLICE), |_, pool, volume| async move {
        let identity = volume.identity();
        assert!(identity.starts_with("pool:") && identity.ends_with("/1") && volume.is_identity_unique());
        let second = pool.create_volume(VolumeSpec::thin("b", SLICE)).await.expect("a second volume");
        pool.remove_volume(second).await.expect("it is removed");
        let again = pool.create_volume(VolumeSpec::thin("a", SLICE)).await;
        assert!(matches!(again, Err(PoolError::Refused(_))), "names are unique");
        pool.checkpoint().await.expect("sound disks");
        assert_eq!(second.0, 2);
    });
    let world = world_after_crash(2, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&world, &seam, OpenOptions::default()).await.expect("the pool opens");
        let third = pool.create_volume(VolumeSpec::thin("b", SLICE)).await.expect("a third volume");
        assert_eq!(third.0, 3);
    });
}

#[test]
fn grown_volume_shows_zeroes_after_a_shrink() {
    with_volume(VolumeSpec::thin("a", 2 * SLICE), |seam, _, volume| async move {
        write(&seam, &volume, 8, 5).await.expect("room");
        write(&seam, &volume, 64, 6).await.expect("room");
        write(&seam, &volume, SLICE_SECTORS, 7).await.expect("room");
        volume.set_size(8192).await.expect("a smaller size");
        assert_eq!(volume.geometry().size_bytes, 8192);
        volume.set_size(2 * SLICE).await.expect("a larger size");
        assert_eq!(read(&seam, &volume, 8).await, Ok(5));
        assert_eq!(read(&seam, &volume, 64).await, Ok(0));
        assert_eq!(read(&seam, &volume, SLICE_SECTORS).await, Ok(0));
    });
}

#[test]
fn exported_map_names_the_place_of_every_slice() {
    let world = with_volume(VolumeSpec::thin("a", 4 * SLICE), |seam, _, volume| async move {
        for slice in [0, 2] {
            write(&seam, &volume, slice * SLICE_SECTORS, 60 + slice).await.expect("room");
        }
        volume.flush().await.expect("sound disks");
    });
    let world = world_after_crash(2, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    let text = world.block_on(async {
        let disks = disks(&seam, &ALL[..3]).await;
        SimPool::export_map(&seam, &disks).await.expect("sound disks")
    });
    let mut slices = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<_> = line.split(' ').collect();
        let (slice, at): (u64, u64) = (fields[1].parse().expect("a number"), fields[3].parse().expect("a number"));
        let name = fields[2].strip_prefix("sim:").expect("a simulated disk");
        assert_eq!((fields[0], fields[4]), ("1", SLICE.to_string().as_str()));
        assert_eq!(world.disk(name).expect("the disk exists").tag(at / 512), 60 + slice);
        slices.push(slice);
    }
    assert_eq!(slices, [0, 2]);
}

#[test]
fn exported_map_warns_of_an_absent_device_with_a_newer_state() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let disks = disks(&seam, &ALL[..3]).await;
        let one = SimPool::export_map(&seam, &disks[..1]).await.expect("a copy of the metadata");
        assert!(one.starts_with("# WARNING: group 1 (sim:fast-1) with a copy of the metadata is missing"), "{one}");
        let most = SimPool::export_map(&seam, &disks[..2]).await.expect("both copies of the metadata");
        assert!(!most.contains("WARNING"), "{most}");
    });
}

#[test]
fn disk_with_data_is_refused_unless_forced() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let disks = disks(&seam, &ALL[..1]).await;
        let tiers = [TierSpec { name: "one".to_owned(), disks }];
        let options = CreateOptions { slice_bytes: SLICE, ..CreateOptions::default() };
        let refused = SimPool::create(&seam, &tiers, options).await.err();
        assert!(matches!(refused, Some(PoolError::NotEmpty { .. })), "{refused:?}");
        SimPool::create(&seam, &tiers, CreateOptions { force: true, ..options }).await.expect("forced");
    });
}

#[test]
fn checkpoint_of_many_small_volumes_fits_its_area() {
    let world = with_pool(1, Shape { slots: [40, 40, 40, 1], ..SMALL });
    let seam = world.seam();
    world.block_on(async {
        let (pool, _) = pool_with_volume(&world, &seam, VolumeSpec::thin("a", SLICE)).await;
        for number in 0..110 {
            let spec = VolumeSpec::thin(&format!("volume-{number}"), SLICE);
            let id = pool.create_volume(spec).await.expect("the metadata has room");
            let volume = pool.volume(id).expect("the volume exists");
            write(&seam, &volume, 0, 1000 + number).await.expect("room");
            volume.flush().await.expect("sound disks");
        }
        pool.checkpoint().await.expect("sound disks");
    });
    let world = world_after_crash(2, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&world, &seam, OpenOptions::default()).await.expect("the pool opens");
        for number in 0..110 {
            let id = pool.volume_named(&format!("volume-{number}")).expect("the volume exists");
            let volume = pool.volume(id).expect("the volume exists");
            assert_eq!(read(&seam, &volume, 0).await, Ok(1000 + number));
        }
    });
}

#[test]
fn slot_whose_fill_fails_is_quarantined_and_another_one_is_used() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let spec = VolumeSpec { policy: TierPolicy::Lowest, ..VolumeSpec::thin("a", 30 * SLICE) };
        let (pool, volume) = pool_with_volume(&world, &seam, spec).await;
        let control = world.disk("slow-0").expect("the disk exists");
        // The slot that the next allocation takes.
        let bad = Some(DATA_AT..DATA_AT + SLICE);
        control.add_fault(Rule { range: bad, ..Rule::new(Fault::Error, Ops::CHANGE, When::Always) });
        let usable = SMALL.slots[..3].iter().sum::<u64>() - 1;
        for slice in 0..usable {
            write(&seam, &volume, slice * SLICE_SECTORS, 70 + slice).await.expect("another slot is sound");
        }
        assert_eq!(control.counts().errors, 2, "the first fill failed, data and zeroes");
        assert_eq!(write(&seam, &volume, usable * SLICE_SECTORS, 1).await, Err(DiskError::NoSpace));
        volume.flush().await.expect("sound disks");
        for slice in 0..usable {
            assert_eq!(read(&seam, &volume, slice * SLICE_SECTORS).await, Ok(70 + slice));
        }
        assert!(pool.check_open().findings.is_empty());
    });
}
