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
fn flush_is_not_acknowledged_before_the_error_of_another_one_is_known() {
    let mut shared = 0;
    for seed in 0..300 {
        let world = with_pool(seed, SMALL);
        let seam = world.seam();
        world.block_on(async {
            let opened = disks(&seam, &ALL[..3]).await;
            let pool = SimPool::open(&seam, &opened, OpenOptions::default()).await.expect("the pool opens");
            let slow = volume(&pool, "slow", TierPolicy::Lowest).await;
            write(&seam, &slow, 1).await;
            slow.flush().await.expect("sound disks");
            // In place: only the flush of the group is left to do.
            write(&seam, &slow, 2).await;
            let before = slow.connection_epoch();
            let control = world.disk("slow-0").expect("the disk exists");
            control.add_fault(Rule::new(Fault::Error, Ops::FLUSH, When::Nth(0)));
            let draining = pool.clone();
            // It writes the superblocks of all groups, and flushes them.
            seam.spawn(async move { drop(draining.begin_drain(GroupNo(1)).await) });
            seam.sleep(Nanos::from_micros(seed * 4)).await;
            let result = slow.flush().await;
            let acknowledged = slow.connection_epoch();
            seam.sleep(Nanos::from_secs(1)).await;
            // A flush that succeeds comes after the one with the error, which the writes may belong to.
            if result.is_ok() {
                shared += u32::from(acknowledged != before);
                assert_eq!(slow.connection_epoch(), acknowledged, "seed {seed}");
            }
        });
    }
    assert!(shared > 50, "{shared} flushes met the one with the error");
}

/// Runs a commit and a checkpoint on a pool with one metadata copy, on which requests of a kind fail for some seconds.
fn commit_on_the_only_copy(seed: u64, fault: Fault, ops: Ops, when: When) -> Result<(), String> {
    let world = with_disks(seed, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let opened = disks(&seam, &ALL[..1]).await;
        let tiers = [TierSpec { name: "one".to_owned(), disks: opened.clone() }];
        let options = CreateOptions { slice_bytes: SLICE, journal_blocks: Some(8), ..CreateOptions::default() };
        SimPool::create(&seam, &tiers, options).await.expect("an empty disk becomes a pool");
        let pool = SimPool::open(&seam, &opened, OpenOptions::default()).await.expect("the pool opens");
        let disk = volume(&pool, "a", TierPolicy::Highest).await;
        let control = world.disk("fast-0").expect("the disk exists");
        for wait in [false, true] {
            write_at(&seam, &disk, if wait { SLICE } else { 0 }, 7).await;
            seam.sleep(Nanos::from_millis(10)).await;
            let range = (ops == Ops::WRITE).then_some(128 << 10..1 << 20);
            control.add_fault(Rule { range, ..Rule::new(fault, ops, when) });
            let (repaired, clock) = (control.clone(), seam.clone());
            seam.spawn(async move {
                clock.sleep(Nanos::from_secs(3)).await;
                repaired.clear_faults();
            });
            let result = match wait {
                false => pool.commit().await,
                true => pool.checkpoint().await,
            };
            result.map_err(|error| error.to_string())?;
            seam.sleep(Nanos::from_secs(5)).await;
        }
        disk.flush().await.map_err(|error| error.to_string())
    })
}

#[test]
fn error_on_the_last_metadata_copy_that_passes_delays_changes() {
    commit_on_the_only_copy(1, Fault::Error, Ops::WRITE, When::Always).expect("the error has passed");
}

#[test]
fn reconnects_of_the_last_metadata_copy_delay_changes() {
    for seed in 1..16 {
        let ended = commit_on_the_only_copy(seed, Fault::Reconnect, Ops::WRITE, When::Nth(0));
        ended.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

#[test]
fn copy_that_reconnects_once_stays_in_service() {
    for seed in 1..16 {
        let world = with_pool(seed, SMALL);
        let seam = world.seam();
        world.block_on(async {
            let opened = disks(&seam, &ALL[..3]).await;
            let pool = SimPool::open(&seam, &opened, OpenOptions::default()).await.expect("the pool opens");
            volume(&pool, "a", TierPolicy::Lowest).await;
            let control = world.disk("fast-0").expect("the disk exists");
            control.add_fault(Rule::new(Fault::Reconnect, Ops::WRITE, When::Nth(0)));
            volume(&pool, "b", TierPolicy::Lowest).await;
            assert!(pool.groups()[0].carries_metadata, "seed {seed}: {:?}", pool.take_notices());
        });
    }
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
