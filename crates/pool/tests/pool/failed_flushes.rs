//! Failed flushes of metadata. The simulated disk keeps the writes of a failed flush, so the tests observe the epoch
//! that makes the caches write them again, not the loss.

use pool::{CreateOptions, GroupNo, OpenOptions, TierNo, TierPolicy, TierSpec};
use seam::sim::{CrashMode, Fault, Ops, Rule, When};
use seam::{BlockMut, Disk, Nanos, Piece, Seam};

use crate::model::{Content, content_after_crash, read_sectors};
use crate::world::{
    ALL, SLICE, SMALL, SimPool, disks, open, volume, with_disks, with_pool, world_after_crash, write, write_at,
};

#[test]
fn failed_flush_of_the_journal_changes_the_epoch_of_other_volumes() {
    for copy in ["fast-0", "fast-1"] {
        let world = with_pool(1, SMALL);
        let seam = world.seam();
        world.block_on(async {
            let opened = disks(&seam, &ALL[..3]).await;
            let pool = SimPool::open(&seam, &opened, OpenOptions::default()).await.expect("the pool opens");
            let fast = volume(&pool, "fast", TierPolicy::Highest).await;
            let slow = volume(&pool, "slow", TierPolicy::Lowest).await;
            write(&seam, &fast, 1).await;
            fast.flush().await.expect("sound disks");
            // In place: the next flush of this volume has nothing to commit.
            write(&seam, &fast, 2).await;
            write(&seam, &slow, 3).await;
            let epoch = fast.connection_epoch();
            let control = world.disk(copy).expect("the disk exists");
            control.add_fault(Rule::new(Fault::Error, Ops::FLUSH, When::Nth(0)));
            slow.flush().await.expect("the other copy suffices");
            assert_ne!(fast.connection_epoch(), epoch, "{copy}");
        });
    }
}

#[test]
fn failed_flush_of_a_checkpoint_changes_the_epoch() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let opened = disks(&seam, &ALL[..3]).await;
        let pool = SimPool::open(&seam, &opened, OpenOptions::default()).await.expect("the pool opens");
        let fast = volume(&pool, "fast", TierPolicy::Highest).await;
        write(&seam, &fast, 1).await;
        fast.flush().await.expect("sound disks");
        let epoch = fast.connection_epoch();
        let control = world.disk("fast-0").expect("the disk exists");
        control.add_fault(Rule::new(Fault::Error, Ops::FLUSH, When::Nth(0)));
        pool.checkpoint().await.expect("the other copy suffices");
        assert_ne!(fast.connection_epoch(), epoch);
    });
}

#[test]
fn failed_flush_of_a_superblock_changes_the_epoch() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let opened = disks(&seam, &ALL[..3]).await;
        let pool = SimPool::open(&seam, &opened, OpenOptions::default()).await.expect("the pool opens");
        let slow = volume(&pool, "slow", TierPolicy::Lowest).await;
        let epoch = slow.connection_epoch();
        let control = world.disk("slow-0").expect("the disk exists");
        control.add_fault(Rule::new(Fault::Error, Ops::FLUSH, When::Nth(0)));
        let extra = disks(&seam, &ALL[3..]).await.remove(0);
        // The new group's own epoch is added, too.
        let expected = epoch + extra.connection_epoch() + 1;
        assert_eq!(pool.add_group(TierNo(1), extra, true).await, Ok(GroupNo(3)));
        assert_eq!(slow.connection_epoch(), expected);
    });
}

#[test]
fn group_whose_flush_fails_at_the_opening_counts_as_missing() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let opened = disks(&seam, &ALL[..3]).await;
        let control = world.disk("fast-1").expect("the disk exists");
        control.add_fault(Rule::new(Fault::Error, Ops::FLUSH, When::Nth(0)));
        let pool = SimPool::open(&seam, &opened, OpenOptions::default()).await.expect("the other copy suffices");
        let present: Vec<_> = pool.groups().iter().map(|group| group.is_present).collect();
        assert_eq!(present, [true, false, true]);
    });
}

#[test]
fn grown_volume_shows_zeroes_although_its_group_reconnects() {
    for seed in 1..24 {
        let world = with_pool(seed, SMALL);
        let seam = world.seam();
        let has_grown = world.block_on(async {
            let opened = disks(&seam, &ALL[..3]).await;
            let pool = SimPool::open(&seam, &opened, OpenOptions::default()).await.expect("the pool opens");
            let slow = volume(&pool, "slow", TierPolicy::Lowest).await;
            write_at(&seam, &slow, 64 << 10, 5).await;
            slow.set_size(8192).await.expect("a smaller size");
            slow.flush().await.expect("sound disks");
            let control = world.disk("slow-0").expect("the disk exists");
            control.add_fault(Rule::new(Fault::Reconnect, Ops::FLUSH, When::Nth(0)));
            slow.set_size(2 * SLICE).await.is_ok()
        });
        assert!(has_grown, "seed {seed}: a reconnect is repeated");
        let world = world_after_crash(seed, world.crash(CrashMode::LoseAll));
        let seam = world.seam();
        world.block_on(async {
            let pool = open(&world, &seam, OpenOptions::default()).await.expect("the pool opens");
            let slow = pool.volume(pool.volume_named("slow").expect("it exists")).expect("it exists");
            assert_eq!(read_sectors(&seam, &slow, 128, 1).await, Ok(vec![0]), "seed {seed}");
        });
    }
}

/// Fails a snapshot or a roll back at the flush of its record on both copies of the metadata, of which the disks keep
/// all, tries to write, and returns the content of the volume and of all its snapshots after a crash.
fn content_after_a_failed_change(rolls_back: bool) -> Content {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let opened = disks(&seam, &ALL[..3]).await;
        let pool = SimPool::open(&seam, &opened, OpenOptions::default()).await.expect("the pool opens");
        let disk = volume(&pool, "a", TierPolicy::Highest).await;
        let id = pool.volume_named("a").expect("it was created");
        write(&seam, &disk, 1).await;
        let first = pool.create_snapshot(id, "first", 1).await.expect("sound disks");
        write(&seam, &disk, 2).await;
        disk.flush().await.expect("sound disks");
        for copy in ["fast-0", "fast-1"] {
            let control = world.disk(copy).expect("the disk exists");
            control.add_fault(Rule::new(Fault::Error, Ops::FLUSH, When::Always));
        }
        let result = if rolls_back {
            pool.roll_back(first).await
        } else {
            pool.create_snapshot(id, "second", 1).await.map(drop)
        };
        assert!(result.is_err(), "no copy of the metadata takes the record");
        let mut block = seam.alloc().expect("a buffer is free");
        (0..8).for_each(|index| block.set_tag(index, 3));
        let error = disk.write(0, vec![Piece::whole(block.freeze())]).await.expect_err("the content is in doubt");
        assert!(error.to_string().contains("until the daemon is restarted"), "{error}");
        disk.zero(0, SLICE, true).await.expect_err("the content is in doubt");
    });
    content_after_crash(world, CrashMode::KeepAll)
}

#[test]
fn volume_takes_no_writes_while_its_snapshot_is_in_doubt() {
    let content = content_after_a_failed_change(false);
    assert_eq!((content["a"][0], content["a@first"][0]), (2, 1));
    assert_eq!(content["a@second"][0], 2, "the record is durable although its flush failed");
}

#[test]
fn volume_takes_no_writes_while_its_roll_back_is_in_doubt() {
    let content = content_after_a_failed_change(true);
    assert_eq!((content["a"][0], content["a@first"][0]), (1, 1));
}
