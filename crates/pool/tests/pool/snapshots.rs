//! Snapshots, roll back and clones of an open pool, and the space that shared slices need.

use pool::{
    GroupNo, MoveOutcome, OpenOptions, PoolDisk, PoolError, SliceAddress, SliceNo, TierPolicy, VolumeId, VolumeSpec,
    unpaced,
};
use seam::sim::{Rule, SimDisk, SimSeam, World};
use seam::{BlockMut, Disk, DiskError, Piece, Seam};

use crate::model::read_sectors;
use crate::world::{ALL, DATA_AT, SLICE, SLICE_SECTORS, SMALL, Shape, SimPool, disks, pool_disks, with_pool};

async fn open_three(seam: &SimSeam) -> SimPool {
    SimPool::open(seam, &disks(seam, &ALL[..3]).await, OpenOptions::default()).await.expect("it opens")
}

async fn write(seam: &SimSeam, disk: &PoolDisk<SimSeam, SimDisk>, block: u64, tag: u64) {
    let mut buffer = seam.alloc().expect("a buffer is free");
    (0..8).for_each(|sector| buffer.set_tag(sector, tag));
    disk.write(block * 4096, vec![Piece::whole(buffer.freeze())]).await.expect("room");
}

async fn tag_at(seam: &SimSeam, disk: &PoolDisk<SimSeam, SimDisk>, block: u64) -> u64 {
    read_sectors(seam, disk, block * 8, 1).await.expect("sound disks")[0]
}

/// A pool with a volume of two written slices. Its blocks have the tag 1.
async fn with_volume(seam: &SimSeam) -> (SimPool, VolumeId, PoolDisk<SimSeam, SimDisk>) {
    let pool = open_three(seam).await;
    let id = pool.create_volume(VolumeSpec::thin("a", 4 * SLICE)).await.expect("the name is free");
    let disk = pool.volume(id).expect("the volume exists");
    write(seam, &disk, 0, 1).await;
    write(seam, &disk, SLICE_SECTORS / 8, 1).await;
    (pool, id, disk)
}

fn used(pool: &SimPool) -> u32 {
    pool.groups().iter().map(|group| group.slots - group.free).sum()
}

#[test]
fn write_after_a_snapshot_takes_a_slot_and_changes_only_the_volume() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (pool, id, disk) = with_volume(&seam).await;
        let snapshot = pool.create_snapshot(id, "s", 7).await.expect("sound disks");
        assert_eq!(used(&pool), 2);
        write(&seam, &disk, 1, 2).await;
        assert_eq!(used(&pool), 3);
        let frozen = pool.volume(snapshot).expect("the snapshot exists");
        assert_eq!((tag_at(&seam, &disk, 0).await, tag_at(&seam, &disk, 1).await), (1, 2));
        assert_eq!((tag_at(&seam, &frozen, 0).await, tag_at(&seam, &frozen, 1).await), (1, 0));
        assert_eq!(frozen.zero(0, 4096, true).await, Err(DiskError::ReadOnly));
        disk.zero(SLICE, SLICE, true).await.expect("sound disks");
        pool.commit().await.expect("sound disks");
        assert_eq!((used(&pool), tag_at(&seam, &frozen, SLICE_SECTORS / 8).await), (3, 1));
        let report = &pool.snapshots(id)[0];
        assert_eq!((report.name.as_str(), report.created_secs, report.allocated, report.own_slices), ("s", 7, 2, 2));
        pool.roll_back(snapshot).await.expect("sound disks");
        assert_eq!((tag_at(&seam, &disk, 1).await, tag_at(&seam, &disk, SLICE_SECTORS / 8).await), (0, 1));
        assert_eq!((used(&pool), pool.check_open().findings), (2, vec![]));
        pool.delete_snapshot(snapshot).await.expect("sound disks");
        write(&seam, &disk, 1, 3).await;
        assert_eq!(used(&pool), 2, "the slices are the volume's own again");
    });
}

#[test]
fn shared_slice_has_no_space_until_it_is_reserved() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (pool, id, disk) = with_volume(&seam).await;
        disk.flush().await.expect("sound disks");
        assert!(disk.has_space_for(0, 2 * SLICE));
        let snapshot = pool.create_snapshot(id, "s", 0).await.expect("sound disks");
        assert!(!disk.has_space_for(0, 4096));
        disk.reserve(0, 4096).await.expect("room");
        assert!(disk.has_space_for(0, SLICE) && !disk.has_space_for(SLICE, 4096));
        // A full pool: an overwrite of a shared slice finds no place, one of a reserved slice needs none.
        let filler = pool.create_volume(VolumeSpec::thin("filler", 64 * SLICE)).await.expect("the name is free");
        let filler = pool.volume(filler).expect("the volume exists");
        assert_eq!(filler.reserve(0, 64 * SLICE).await, Err(DiskError::NoSpace));
        write(&seam, &disk, 2, 5).await;
        let block = seam.alloc().expect("a buffer is free").freeze();
        assert_eq!(disk.write(SLICE, vec![Piece::whole(block)]).await, Err(DiskError::NoSpace));
        pool.delete_snapshot(snapshot).await.expect("sound disks");
        assert!(disk.has_space_for(0, 2 * SLICE));
        write(&seam, &disk, SLICE_SECTORS / 8, 6).await;
    });
}

#[test]
fn clone_is_independent_and_outlives_snapshot_and_master() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (pool, id, disk) = with_volume(&seam).await;
        let snapshot = pool.create_snapshot(id, "s", 0).await.expect("sound disks");
        let clone = pool.clone_snapshot(snapshot, "clone").await.expect("the name is free");
        let copy = pool.volume(clone).expect("the volume exists");
        write(&seam, &copy, 0, 9).await;
        write(&seam, &disk, 1, 2).await;
        assert_eq!((tag_at(&seam, &copy, 0).await, tag_at(&seam, &copy, 1).await), (9, 0));
        assert_eq!((tag_at(&seam, &disk, 0).await, tag_at(&seam, &disk, 1).await), (1, 2));
        let refusal = pool.remove_volume(id).await.expect_err("it has a snapshot").to_string();
        assert_eq!(refusal, "volume \"a\" has a snapshot: delete it first");
        assert!(pool.create_snapshot(id, "s", 0).await.is_err_and(|error| error.to_string().contains("already")));
        assert!(pool.create_snapshot(id, "", 0).await.is_err());
        assert!(pool.clone_snapshot(snapshot, "a").await.is_err());
        assert_eq!(pool.roll_back(id).await, Err(PoolError::NoSnapshot(id)));
        pool.delete_snapshot(snapshot).await.expect("sound disks");
        pool.remove_volume(id).await.expect("sound disks");
        assert_eq!((tag_at(&seam, &copy, 0).await, tag_at(&seam, &copy, SLICE_SECTORS / 8).await), (9, 1));
        assert_eq!((used(&pool), pool.check_open().findings), (2, vec![]));
    });
    let report = check(&world);
    assert_eq!((report.volumes, report.snapshots, report.shared_slots, report.findings), (1, 0, 0, vec![]));
}

fn check(world: &World) -> pool::CheckReport {
    let seam = world.seam();
    world.block_on(async { SimPool::check(&seam, &pool_disks(world, &seam).await).await.expect("a sound pool") })
}

#[test]
fn shared_slice_moves_once_for_all_and_leaves_a_drained_group() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let pool = open_three(&seam).await;
        let spec = VolumeSpec { policy: TierPolicy::Lowest, ..VolumeSpec::thin("a", 4 * SLICE) };
        let id = pool.create_volume(spec).await.expect("the name is free");
        let disk = pool.volume(id).expect("the volume exists");
        for slice in 0..3 {
            write(&seam, &disk, slice * SLICE_SECTORS / 8, 10 + slice).await;
        }
        let snapshot = pool.create_snapshot(id, "s", 0).await.expect("sound disks");
        let clone = pool.clone_snapshot(snapshot, "clone").await.expect("the name is free");
        let slice = SliceAddress { volume: snapshot, slice: SliceNo(0) };
        assert_eq!(pool.move_slice(slice, GroupNo(0), unpaced()).await, Ok(MoveOutcome::Moved));
        for volume in [id, snapshot, clone] {
            assert_eq!(pool.group_of(SliceAddress { volume, ..slice }), Some(GroupNo(0)));
        }
        assert_eq!((used(&pool), pool.counts().moves), (3, 1));
        // A write that makes the slot the snapshot's own, then one slot only the clone has.
        write(&seam, &disk, SLICE_SECTORS / 8, 20).await;
        let report = pool.drain(GroupNo(2), unpaced()).await.expect("the others have room");
        assert_eq!((report.left, pool.check_open().findings), (0, vec![]));
        for (volume, tags) in [(id, [10, 20, 12]), (snapshot, [10, 11, 12]), (clone, [10, 11, 12])] {
            let disk = pool.volume(volume).expect("the volume exists");
            for slice in 0..3 {
                assert_eq!(tag_at(&seam, &disk, slice * SLICE_SECTORS / 8).await, tags[slice as usize], "{volume}");
            }
        }
    });
    let report = check(&world);
    assert_eq!((report.volumes, report.snapshots, report.shared_slots, report.findings), (2, 1, 3, vec![]));
}

#[test]
fn snapshot_survives_checkpoints_and_openings_with_later_changes() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    let id = world.block_on(async {
        let (pool, id, disk) = with_volume(&seam).await;
        for (number, name) in ["s", "t", "u"].into_iter().enumerate() {
            pool.create_snapshot(id, name, 0).await.expect("sound disks");
            pool.checkpoint().await.expect("sound disks");
            write(&seam, &disk, 0, 100 + number as u64).await;
            disk.flush().await.expect("sound disks");
        }
        pool.checkpoint().await.expect("sound disks");
        id
    });
    let world = crate::world::world_after_crash(2, world.crash(seam::sim::CrashMode::LoseAll));
    let seam = world.seam();
    world.block_on(async {
        let pool = open_three(&seam).await;
        let tags = ["s", "t", "u"].map(|name| pool.snapshot_named(id, name).expect("it was made"));
        for (snapshot, tag) in tags.into_iter().zip([1, 100, 101]) {
            assert_eq!(tag_at(&seam, &pool.volume(snapshot).expect("it exists"), 0).await, tag);
        }
        assert_eq!(tag_at(&seam, &pool.volume(id).expect("it exists"), 0).await, 102);
    });
}

#[test]
fn holes_of_a_thick_volume_are_filled_and_shared_slices_stay_shared() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (pool, id, disk) = with_volume(&seam).await;
        pool.create_snapshot(id, "s", 0).await.expect("sound disks");
        disk.fill_holes().await.expect("room");
        assert_eq!((used(&pool), pool.slices_of(id).len()), (4, 4));
        assert!(!disk.has_space_for(0, 4096) && disk.has_space_for(2 * SLICE, 2 * SLICE));
    });
}

#[test]
fn volume_has_at_most_256_snapshots() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (pool, id, _) = with_volume(&seam).await;
        for number in 0..256 {
            let made = pool.create_snapshot(id, &format!("s{number}"), 0).await;
            made.unwrap_or_else(|error| panic!("snapshot {number}: {error}"));
        }
        let refusal = pool.create_snapshot(id, "more", 0).await.expect_err("one too many").to_string();
        assert_eq!(refusal, "volume \"a\" has 256 snapshots already: delete one first");
        pool.checkpoint().await.expect("sound disks");
        assert_eq!((used(&pool), pool.check_open().findings), (2, vec![]));
    });
}

#[test]
fn zeroes_of_a_part_of_a_shared_slice_need_a_reserved_copy() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (pool, id, disk) = with_volume(&seam).await;
        assert_eq!(disk.part_to_reserve_for_zeroes(4096, 8192), None, "the slice is the volume's own");
        let snapshot = pool.create_snapshot(id, "s", 0).await.expect("sound disks");
        assert_eq!(disk.part_to_reserve_for_zeroes(4096, 8192), Some(4096..12_288));
        assert_eq!(disk.part_to_reserve_for_zeroes(0, 2 * SLICE), None, "whole slices drop their references");
        assert_eq!(disk.part_to_reserve_for_zeroes(0, SLICE + 4096), Some(SLICE..SLICE + 4096));
        assert_eq!(disk.part_to_reserve_for_zeroes(2 * SLICE, 4096), None, "a hole is zeroes already");
        disk.reserve(4096, 8192).await.expect("room");
        assert_eq!(disk.part_to_reserve_for_zeroes(4096, 8192), None);
        // A full pool: zeroes on a reserved slice succeed, as do those on a whole shared slice.
        let filler = pool.create_volume(VolumeSpec::thin("filler", 64 * SLICE)).await.expect("the name is free");
        let filler = pool.volume(filler).expect("the volume exists");
        assert_eq!(filler.reserve(0, 64 * SLICE).await, Err(DiskError::NoSpace));
        assert_eq!(disk.zero(SLICE, 4096, true).await, Err(DiskError::NoSpace));
        disk.zero(0, 8192, true).await.expect("the copy is reserved");
        disk.zero(SLICE, SLICE, false).await.expect("a whole slice needs no space");
        let frozen = pool.volume(snapshot).expect("the snapshot exists");
        for block in [0, SLICE_SECTORS / 8] {
            assert_eq!((tag_at(&seam, &disk, block).await, tag_at(&seam, &frozen, block).await), (0, 1));
        }
    });
}

#[test]
fn unreadable_shared_slot_takes_no_new_slots() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (pool, id, disk) = with_volume(&seam).await;
        pool.create_snapshot(id, "s", 0).await.expect("sound disks");
        disk.flush().await.expect("sound disks");
        let group = pool.group_of(SliceAddress { volume: id, slice: SliceNo(0) }).expect("the slice is written");
        let control = world.disk(ALL[group.index()]).expect("the disk exists");
        let block_at =
            (0..(DATA_AT + 9 * SLICE) / 512).find(|sector| control.tag(*sector) == 1).expect("a written block");
        control.add_fault(Rule::medium_error(block_at * 512..(block_at + 8) * 512));
        for _ in 0..20 {
            let block = seam.alloc().expect("a buffer is free").freeze();
            assert!(matches!(disk.write(8192, vec![Piece::whole(block)]).await, Err(DiskError::Io(_))));
        }
        assert_eq!((used(&pool), pool.check_open().findings), (2, vec![]), "no slot is taken out of service");
        control.clear_faults();
        write(&seam, &disk, 2, 5).await;
        assert_eq!((tag_at(&seam, &disk, 0).await, tag_at(&seam, &disk, 2).await), (1, 5));
    });
}

#[test]
fn clones_between_two_checkpoints_leave_room_for_the_next_one() {
    let world = with_pool(1, Shape { slots: [12, 12, 12, 4], journal_blocks: 32 });
    let seam = world.seam();
    world.block_on(async {
        let pool = open_three(&seam).await;
        let id = pool.create_volume(VolumeSpec::thin("a", 16 * SLICE)).await.expect("the name is free");
        let disk = pool.volume(id).expect("the volume exists");
        let mut snapshots = Vec::new();
        // Slots out of order, so that each slice has a record of its own.
        for (name, stride) in [("s", 5), ("t", 7)] {
            for number in 0..16 {
                write(&seam, &disk, number * stride % 16 * SLICE_SECTORS / 8, 7).await;
            }
            snapshots.push(pool.create_snapshot(id, name, 0).await.expect("sound disks"));
        }
        let mut refusals = 0;
        for number in 0..100 {
            match pool.clone_snapshot(snapshots[number % 2], &format!("clone {number}")).await {
                Ok(_) => {}
                Err(PoolError::Refused(_)) => refusals += 1,
                Err(error) => panic!("clone {number}: {error}"),
            }
        }
        assert!(refusals > 0, "the metadata has room for everything");
        pool.checkpoint().await.expect("the checkpoint has room");
        write(&seam, &disk, 0, 9).await;
        disk.flush().await.expect("the pool is in service");
    });
    assert_eq!(check(&world).findings, vec![]);
}

#[test]
fn content_keys_are_equal_exactly_while_volumes_share_a_slot() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (pool, id, master) = with_volume(&seam).await;
        let key = |disk: &PoolDisk<SimSeam, SimDisk>, slice: u64| disk.shared_content(slice * SLICE, 4096);
        assert_eq!(key(&master, 0), None, "the volume has no clone");
        let snapshot = pool.create_snapshot(id, "s", 0).await.expect("sound disks");
        assert_eq!(key(&master, 0), None, "a snapshot alone has no cache");
        let first = pool.clone_snapshot(snapshot, "c1").await.expect("the name is free");
        let second = pool.clone_snapshot(snapshot, "c2").await.expect("the name is free");
        let [first, second] = [first, second].map(|clone| pool.volume(clone).expect("it exists"));
        for slice in [0, 1] {
            let shared = key(&master, slice);
            assert!(shared.is_some() && key(&first, slice) == shared && key(&second, slice) == shared);
        }
        assert_ne!(key(&master, 0), key(&master, 1));
        assert_eq!((key(&master, 2), key(&first, 2)), (None, None), "unallocated slices have no content");
        assert_eq!(master.shared_content(SLICE - 4096, 8192), None, "a range has one key");
        assert_eq!(master.shared_content(8 * SLICE, 4096), None, "past the end");
        // A move changes the key of all.
        let before = key(&master, 0);
        let slice = SliceAddress { volume: id, slice: SliceNo(0) };
        let target = GroupNo((pool.group_of(slice).expect("allocated").0 + 1) % 3);
        let moved = pool.move_slice(slice, target, unpaced()).await.expect("room");
        assert_eq!(moved, MoveOutcome::Moved);
        assert!(key(&master, 0) != before && key(&master, 0) == key(&first, 0));
        // A reservation copies the slice: it is the master's own.
        master.reserve(0, 4096).await.expect("room");
        assert_eq!((key(&master, 0), key(&first, 0)), (None, key(&second, 0)));
        pool.roll_back(snapshot).await.expect("sound disks");
        assert!(key(&master, 0).is_some() && key(&master, 0) == key(&first, 0));
        second.zero(0, SLICE, true).await.expect("sound disks");
        assert_eq!(key(&second, 0), None);
    });
}
