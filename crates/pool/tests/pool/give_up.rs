//! Groups that are given up: their slices give errors until they are discarded, and their disks are refused.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pool::{GroupNo, MemberState, OpenOptions, PoolDisk, PoolError, Provisioning, TierNo, TierPolicy, VolumeSpec};
use seam::sim::{CrashMode, Rng, SimDisk, SimSeam, World};
use seam::{BlockMut, Disk, Piece, Seam};

use crate::crash_points::{at_each_boundary, crashes};
use crate::model::read_sectors;
use crate::world::{ALL, SLICE, SLICE_SECTORS, SMALL, SimPool, disks, with_pool, world_after_crash};

type SimVolume = PoolDisk<SimSeam, SimDisk>;

/// The group that is lost.
const LOST: GroupNo = GroupNo(2);

async fn open(seam: &SimSeam, names: &[&str]) -> Result<SimPool, PoolError> {
    SimPool::open(seam, &disks(seam, names).await, OpenOptions::default()).await
}

fn volume_of(pool: &SimPool) -> SimVolume {
    pool.volume(pool.volume_named("a").expect("the volume exists")).expect("the volume exists")
}

async fn write(seam: &SimSeam, volume: &SimVolume, slice: u64, tag: u64) {
    let mut block = seam.alloc().expect("a buffer is free");
    (0..8).for_each(|index| block.set_tag(index, tag));
    volume.write(slice * SLICE, vec![Piece::whole(block.freeze())]).await.expect("room on a sound disk");
}

async fn read(seam: &SimSeam, volume: &SimVolume, slice: u64) -> Result<u64, String> {
    read_sectors(seam, volume, slice * SLICE_SECTORS, 1).await.map(|tags| tags[0])
}

/// Fills slices 0 and 1 on fast groups, and 2 and 3 on the group that is lost.
async fn fill(seam: &SimSeam, pool: &SimPool, provisioning: Provisioning) {
    let spec = VolumeSpec { policy: TierPolicy::Highest, provisioning, ..VolumeSpec::thin("a", 2 * SLICE) };
    let id = pool.create_volume(spec).await.expect("room");
    let volume = pool.volume(id).expect("the volume exists");
    pool.set_policy(id, TierPolicy::Lowest).await.expect("sound disks");
    volume.set_size(4 * SLICE).await.expect("room");
    for slice in 0..4 {
        if provisioning == Provisioning::Thin {
            let policy = if slice < 2 { TierPolicy::Highest } else { TierPolicy::Lowest };
            pool.set_policy(id, policy).await.expect("sound disks");
        }
        write(seam, &volume, slice, 50 + slice).await;
    }
    volume.flush().await.expect("sound disks");
    let groups: Vec<_> = pool.slices_of(id).iter().map(|(_, group)| *group == LOST).collect();
    assert_eq!(groups, [false, false, true, true]);
}

/// A world with a filled pool that is not open.
fn filled(provisioning: Provisioning) -> World {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&seam, &ALL[..3]).await.expect("the pool opens");
        fill(&seam, &pool, provisioning).await;
    });
    world_after_crash(2, world.crash(CrashMode::LoseAll))
}

#[test]
fn slices_of_a_given_up_group_fail_until_they_are_discarded() {
    for provisioning in [Provisioning::Thin, Provisioning::Thick] {
        let world = filled(provisioning);
        let seam = world.seam();
        world.block_on(async {
            let pool = open(&seam, &ALL[..2]).await.expect("two of three groups");
            pool.give_up(LOST).await.expect("the other groups are sound");
            pool.give_up(LOST).await.expect("a second time changes nothing");
            assert_eq!(pool.groups()[2].state, MemberState::Lost);
            let volume = volume_of(&pool);
            for slice in 2..4 {
                let error = read(&seam, &volume, slice).await.expect_err("the slice is lost");
                assert!(error.contains("of volume a"), "{error}");
            }
            assert_eq!(pool.lost(9).await[0].bytes, 2 * SLICE);
            volume.zero(2 * SLICE, SLICE, true).await.expect("a map entry needs no group");
            assert_eq!(read(&seam, &volume, 2).await, Ok(0));
            write(&seam, &volume, 2, 99).await;
            volume.flush().await.expect("the other groups are sound");
            assert_eq!(read(&seam, &volume, 2).await, Ok(99));
            read(&seam, &volume, 3).await.expect_err("the other slice is still lost");
            volume.zero(3 * SLICE, SLICE, true).await.expect("a map entry needs no group");
            volume.flush().await.expect("the other groups are sound");
            assert!(pool.check_open().findings.is_empty());
        });
        let world = world_after_crash(3, world.crash(CrashMode::LoseAll));
        let seam = world.seam();
        world.block_on(async {
            let pool = open(&seam, &ALL[..3]).await.expect("the pool opens");
            assert_eq!(pool.groups()[2].state, MemberState::Removed, "no slice is mapped to it any more");
            let volume = volume_of(&pool);
            let found = [read(&seam, &volume, 0).await, read(&seam, &volume, 2).await, read(&seam, &volume, 3).await];
            assert_eq!(found, [Ok(50), Ok(99), Ok(0)]);
        });
    }
}

#[test]
fn given_up_group_counts_for_no_majority() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&seam, &ALL[..3]).await.expect("the pool opens");
        fill(&seam, &pool, Provisioning::Thin).await;
        let extra = disks(&seam, &ALL[3..]).await.remove(0);
        pool.add_group(TierNo(1), extra, true).await.expect("the disk joins");
    });
    let world = world_after_crash(2, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    let half = ["fast-0", "slow-1"];
    world.block_on(async {
        let error = open(&seam, &half).await.err().expect("half of the groups are no majority");
        assert!(matches!(error, PoolError::NoMajority { .. }), "{error}");
        let pool = open(&seam, &["fast-0", "fast-1", "slow-1"]).await.expect("three of four groups");
        let refused = pool.give_up(GroupNo(3)).await.expect_err("the group is present");
        assert!(refused.to_string().contains("drain it instead"), "{refused}");
        pool.give_up(LOST).await.expect("the other groups are sound");
    });
    let world = world_after_crash(3, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    world.block_on(async { open(&seam, &half).await.map(drop) }).expect("two of three groups");
}

#[test]
fn crash_at_each_io_of_a_give_up_leaves_its_slices_lost_and_others_whole() {
    let filled = filled(Provisioning::Thin);
    let world = Rc::new(world_after_crash(4, filled.crash(CrashMode::LoseAll)));
    let (has_given_up, result) = (Rc::new(Cell::new(false)), Rc::new(RefCell::new(None)));
    let (seam, flag, outcome) = (world.seam(), Rc::clone(&has_given_up), Rc::clone(&result));
    world.seam().spawn(async move {
        let pool = open(&seam, &ALL[..2]).await.expect("two of three groups");
        *outcome.borrow_mut() = Some(pool.give_up(LOST).await);
        flag.set(true);
    });
    let (rng, mut checked) = (Rng::new(5, 5), 0);
    // After the crash the lost disk is there again: with what it had, or refused.
    let check = |images, must_be_lost: bool| -> Result<(), String> {
        let world = world_after_crash(6, images);
        let seam = world.seam();
        world.block_on(async {
            let pool = open(&seam, &ALL[..3]).await.map_err(|error| error.to_string())?;
            let (state, volume) = (pool.groups()[2].state, volume_of(&pool));
            let kept = [read(&seam, &volume, 0).await, read(&seam, &volume, 1).await];
            let of_lost = read(&seam, &volume, 2).await;
            let is_right = match state {
                MemberState::Lost => of_lost.is_err(),
                MemberState::InService => of_lost == Ok(52) && !must_be_lost,
                _ => false,
            };
            let is_right = is_right && kept == [Ok(50), Ok(51)];
            is_right.then_some(()).ok_or_else(|| format!("{state:?}, {kept:?}, {of_lost:?}"))
        })
    };
    let ended = at_each_boundary(&world, &has_given_up, |snapshot| {
        for (crash, survivals) in crashes(snapshot, &rng) {
            checked += 1;
            check(snapshot.images(|number| survivals[number]), has_given_up.get())
                .map_err(|error| format!("{crash}: {error}"))?;
        }
        Ok(())
    });
    ended.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(*result.borrow(), Some(Ok(())));
    assert!(checked > 50, "{checked} crashes");
    let snapshot = world.snapshot();
    for (crash, survivals) in crashes(&snapshot, &rng) {
        check(snapshot.images(|number| survivals[number]), true).unwrap_or_else(|error| panic!("{crash}: {error}"));
    }
}
