//! Metadata requests that do not end in time: changes go on without their group.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use pool::{CreateOptions, GroupNo, OpenOptions, PoolDisk, TierNo, TierPolicy, TierSpec, unpaced};
use seam::sim::{CrashMode, Fault, Ops, Rng, Rule, SimDisk, SimSeam, When, World};
use seam::{Disk, Nanos, Seam};

use crate::crash_points::{at_each_boundary, crashes};
use crate::model::content_after_crash;
use crate::world::{
    ALL, SLICE, SMALL, SimPool, disks, superblocks, volume, with_disks, with_pool, world_after_crash, write_at,
};

/// Bytes of a group that hold its superblocks, and its journal in a pool of the shape `SMALL`.
const SUPERBLOCKS: Range<u64> = 0..128 << 10;
const JOURNAL: Range<u64> = 128 << 10..160 << 10;
/// Bytes of a group that hold its journal and its checkpoints.
const METADATA: Range<u64> = 128 << 10..1 << 20;
const HUNG_FOR: Nanos = Nanos::from_secs(60);
/// Longest wait for a change of the pool while a group hangs.
const WAIT_MAX: Nanos = Nanos::from_secs(12);

/// Lets the next write to a range hang.
fn hang(world: &World, name: &str, range: Range<u64>) {
    let rule = Rule { range: Some(range), ..Rule::new(Fault::Stall(HUNG_FOR), Ops::WRITE, When::Nth(0)) };
    world.disk(name).expect("the disk exists").add_fault(rule);
}

async fn open(seam: &SimSeam) -> SimPool {
    SimPool::open(seam, &disks(seam, &ALL[..3]).await, OpenOptions::default()).await.expect("the pool opens")
}

/// The pool with its fourth group, and a volume.
async fn open_with_fourth(seam: &SimSeam) -> (SimPool, PoolDisk<SimSeam, SimDisk>) {
    let pool = open(seam).await;
    let extra = disks(seam, &ALL[3..]).await.remove(0);
    pool.add_group(TierNo(1), extra, true).await.expect("sound disks");
    let slow = volume(&pool, "slow", TierPolicy::Lowest).await;
    (pool, slow)
}

fn copies(pool: &SimPool) -> Vec<bool> {
    pool.groups().iter().map(|group| group.carries_metadata).collect()
}

#[test]
fn hung_metadata_copy_is_replaced() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&seam).await;
        let slow = volume(&pool, "slow", TierPolicy::Lowest).await;
        assert_eq!(copies(&pool), [true, true, false]);
        hang(&world, "fast-0", JOURNAL);
        let begun = seam.now();
        for slice in 0..2 {
            write_at(&seam, &slow, slice * SLICE, 7 + slice).await;
            slow.flush().await.expect("the other copy suffices");
        }
        assert!(seam.now() - begun < WAIT_MAX, "{:?}", seam.now() - begun);
        seam.sleep(Nanos::from_secs(10)).await;
        assert_eq!(copies(&pool), [false, true, true], "{:?}", pool.take_notices());
        seam.sleep(HUNG_FOR).await;
        // The group answers again. It is needed when another copy fails.
        hang(&world, "fast-1", METADATA);
        write_at(&seam, &slow, 0, 9).await;
        pool.checkpoint().await.expect("the other copy suffices");
        seam.sleep(Nanos::from_secs(10)).await;
        assert_eq!(copies(&pool), [true, false, true], "{:?}", pool.take_notices());
    });
}

#[test]
fn hung_metadata_copy_without_a_substitute_returns_when_it_answers() {
    let world = with_disks(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let opened = disks(&seam, &ALL[..2]).await;
        let tiers = [TierSpec { name: "one".to_owned(), disks: opened.clone() }];
        let options = CreateOptions { slice_bytes: SLICE, journal_blocks: Some(8), ..CreateOptions::default() };
        SimPool::create(&seam, &tiers, options).await.expect("empty disks become a pool");
        let pool = SimPool::open(&seam, &opened, OpenOptions::default()).await.expect("the pool opens");
        hang(&world, "fast-0", JOURNAL);
        volume(&pool, "a", TierPolicy::Auto).await;
        assert_eq!(copies(&pool), [false, true]);
        seam.sleep(HUNG_FOR).await;
        assert_eq!(copies(&pool), [true, true], "{:?}", pool.take_notices());
    });
}

#[test]
fn hung_group_without_metadata_delays_no_change_of_the_membership() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&seam).await;
        hang(&world, "slow-0", SUPERBLOCKS);
        let begun = seam.now();
        let extra = disks(&seam, &ALL[3..]).await.remove(0);
        pool.add_group(TierNo(1), extra, true).await.expect("one group of four lacks the change");
        assert!(seam.now() - begun < WAIT_MAX, "{:?}", seam.now() - begun);
    });
}

#[test]
fn late_superblock_replaces_no_newer_one() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let opened = disks(&seam, &ALL[..3]).await;
        let pool = SimPool::open(&seam, &opened, OpenOptions::default()).await.expect("the pool opens");
        let extra = disks(&seam, &ALL[3..]).await.remove(0);
        hang(&world, "slow-0", SUPERBLOCKS);
        pool.add_group(TierNo(1), extra, true).await.expect("one group of four lacks the change");
        pool.begin_drain(GroupNo(3)).await.expect("one group of four lacks the change");
        seam.sleep(HUNG_FOR).await;
        let newest = superblocks(&seam, &opened[0]).await[0].as_ref().expect("an intact superblock").generation;
        for superblock in superblocks(&seam, &opened[2]).await {
            assert_eq!(superblock.expect("an intact superblock").generation, newest);
        }
    });
}

#[test]
fn copies_that_hang_together_are_waited_for() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&seam).await;
        let slow = volume(&pool, "slow", TierPolicy::Lowest).await;
        hang(&world, "fast-0", JOURNAL);
        hang(&world, "fast-1", JOURNAL);
        let begun = seam.now();
        write_at(&seam, &slow, 0, 7).await;
        slow.flush().await.expect("the copies answer in the end");
        assert!(seam.now() - begun >= HUNG_FOR);
        seam.sleep(HUNG_FOR).await;
        assert!(copies(&pool).into_iter().filter(|carries| *carries).count() == 2);
    });
}

#[test]
fn change_waits_while_most_groups_hang() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (_pool, slow) = open_with_fourth(&seam).await;
        hang(&world, "fast-0", JOURNAL);
        for name in ["slow-0", "slow-1", "fast-0"] {
            hang(&world, name, SUPERBLOCKS);
        }
        write_at(&seam, &slow, 0, 7).await;
        let begun = seam.now();
        slow.flush().await.expect("the groups answer in the end");
        assert!(seam.now() - begun > WAIT_MAX, "one group of four is no majority");
    });
}

#[test]
fn crash_around_a_hung_metadata_copy_loses_nothing() {
    let world = Rc::new(with_pool(1, SMALL));
    let seam = world.seam();
    let (has_ended, acknowledged) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
    let (ended, noted, controlled) = (Rc::clone(&has_ended), Rc::clone(&acknowledged), Rc::downgrade(&world));
    world.seam().spawn(async move {
        let pool = open(&seam).await;
        let slow = volume(&pool, "slow", TierPolicy::Lowest).await;
        for (step, hung) in ["fast-0", "fast-1", "slow-0", "fast-0"].into_iter().enumerate() {
            hang(&controlled.upgrade().expect("the world lasts"), hung, SUPERBLOCKS.start..JOURNAL.end);
            let tag = step as u64 + 1;
            write_at(&seam, &slow, (tag % 2) * SLICE, tag).await;
            pool.checkpoint().await.expect("another copy answers");
            slow.flush().await.expect("another copy answers");
            noted.set(tag);
            seam.sleep(Nanos(HUNG_FOR.0 * 2)).await;
        }
        ended.set(true);
    });
    let (rng, mut checked) = (Rng::new(9, 9), 0);
    let result = at_each_boundary(&world, &has_ended, |snapshot| {
        let last = acknowledged.get();
        if last == 0 {
            return Ok(());
        }
        for (crash, survivals) in crashes(snapshot, &rng) {
            checked += 1;
            let crashed = world_after_crash(checked, snapshot.images(|number| survivals[number]));
            let content = content_after_crash(crashed, CrashMode::LoseAll);
            let at = (last % 2 * SLICE / 512) as usize;
            let found = content["slow"][at];
            if found != last && found != last + 2 {
                return Err(format!("{crash}: tag {found} instead of {last}"));
            }
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(checked > 100 && acknowledged.get() == 4, "{checked} crashes");
}

#[test]
fn device_leaves_the_pool_only_after_its_last_write() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (pool, slow) = open_with_fourth(&seam).await;
        pool.begin_drain(GroupNo(2)).await.expect("room");
        hang(&world, "slow-0", SUPERBLOCKS);
        let begun = seam.now();
        let (drained, draining, clock) = (Rc::new(Cell::new(None)), pool.clone(), seam.clone());
        let noted = Rc::clone(&drained);
        seam.spawn(async move {
            draining.drain(GroupNo(2), unpaced()).await.expect("the group is empty");
            noted.set(Some(clock.now()));
        });
        seam.sleep(Nanos::from_secs(10)).await;
        write_at(&seam, &slow, 0, 7).await;
        slow.flush().await.expect("its group answers");
        assert!(seam.now() - begun < WAIT_MAX + WAIT_MAX && drained.get().is_none());
        seam.sleep(HUNG_FOR).await;
        assert!(drained.get().expect("the hang is over") - begun >= HUNG_FOR);
    });
}
