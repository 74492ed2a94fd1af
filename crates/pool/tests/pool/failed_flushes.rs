//! Failed flushes of metadata, and flushes that do not end. The simulated disk keeps the writes of a failed flush, so
//! the tests observe the epoch that makes the caches write them again, not the loss.

use std::cell::Cell;
use std::rc::Rc;

use pool::{GroupNo, OpenOptions, PoolDisk, Sabotage, TierNo, TierPolicy, VolumeSpec};
use seam::sim::{CrashMode, Fault, Ops, Rule, SimDisk, SimSeam, When, World};
use seam::{BlockMut, Disk, Nanos, Piece, Seam};

use crate::model::{Content, read_all, read_sectors};
use crate::world::{ALL, SLICE, SMALL, SimPool, disks, open, with_pool, world_after_crash};

async fn volume(pool: &SimPool, name: &str, policy: TierPolicy) -> PoolDisk<SimSeam, SimDisk> {
    let spec = VolumeSpec { policy, ..VolumeSpec::thin(name, 2 * SLICE) };
    let id = pool.create_volume(spec).await.expect("sound disks");
    pool.volume(id).expect("the volume exists")
}

async fn write(seam: &SimSeam, disk: &PoolDisk<SimSeam, SimDisk>, tag: u64) {
    write_at(seam, disk, 0, tag).await;
}

async fn write_at(seam: &SimSeam, disk: &PoolDisk<SimSeam, SimDisk>, at: u64, tag: u64) {
    let mut block = seam.alloc().expect("a buffer is free");
    (0..8).for_each(|index| block.set_tag(index, tag));
    disk.write(at, vec![Piece::whole(block.freeze())]).await.expect("room");
}

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
    let world = world_after_crash(2, world.crash(CrashMode::KeepAll));
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&world, &seam, OpenOptions::default()).await.expect("the pool opens");
        read_all(&seam, &pool).await.expect("sound disks")
    })
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

/// The tests' group that does not answer flushes, and for how long.
const HUNG: &str = "slow-0";
const HUNG_FOR: Nanos = Nanos::from_secs(20);
/// Longest wait for a request that does not need the hung group.
const WAIT_MAX: Nanos = Nanos::from_secs(3);

/// A pool with a written volume on the hung group and one on another group, and the beginning of the hang.
async fn with_hung_group(
    world: &World,
    seam: &SimSeam,
    sabotage: Sabotage,
) -> (SimPool, PoolDisk<SimSeam, SimDisk>, PoolDisk<SimSeam, SimDisk>) {
    let opened = disks(seam, &ALL[..3]).await;
    let options = OpenOptions { sabotage, ..OpenOptions::default() };
    let pool = SimPool::open(seam, &opened, options).await.expect("the pool opens");
    let slow = volume(&pool, "slow", TierPolicy::Lowest).await;
    let fast = volume(&pool, "fast", TierPolicy::Highest).await;
    write(seam, &slow, 1).await;
    slow.flush().await.expect("sound disks");
    let control = world.disk(HUNG).expect("the disk exists");
    control.add_fault(Rule::new(Fault::Stall(HUNG_FOR), Ops::FLUSH, When::Nth(0)));
    (pool, slow, fast)
}

#[test]
fn hung_group_delays_no_flush_of_volumes_on_other_groups() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (pool, slow, fast) = with_hung_group(&world, &seam, Sabotage::None).await;
        let begun = seam.now();
        // The new slice makes the map entry wait for the group as well.
        write_at(&seam, &slow, SLICE, 2).await;
        let ended = Rc::new(Cell::new(None));
        let (noted, flushed, clock) = (Rc::clone(&ended), slow.clone(), seam.clone());
        seam.spawn(async move {
            let result = flushed.flush().await;
            noted.set(Some((clock.now(), result.is_ok())));
        });
        for tag in 3..6 {
            let before = seam.now();
            write_at(&seam, &fast, (tag % 2) * SLICE, tag).await;
            fast.flush().await.expect("its group answers");
            fast.reserve(SLICE, SLICE).await.expect("its group answers");
            assert!(seam.now() - before < WAIT_MAX, "a flush waits for another volume's group");
        }
        assert_eq!(ended.get(), None, "the flush of the hung group has not ended");
        while ended.get().is_none() {
            seam.sleep(Nanos::from_millis(100)).await;
        }
        let (at, is_ok) = ended.take().expect("it has ended");
        assert!(is_ok && at - begun >= HUNG_FOR);
        assert!(pool.check_open().findings.is_empty());
    });
    let world = world_after_crash(2, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    let content = world.block_on(async {
        let pool = open(&world, &seam, OpenOptions::default()).await.expect("the pool opens");
        read_all(&seam, &pool).await.expect("sound disks")
    });
    let second = (SLICE / 512) as usize;
    assert_eq!((content["slow"][0], content["slow"][second]), (1, 2));
    assert_eq!((content["fast"][0], content["fast"][second]), (4, 5));
}

/// Flushes the volume of the hung group, and returns the tag that is there after a power cut while it hangs; `None` if
/// the flush did not return.
fn tag_after_a_cut_during_a_hung_flush(sabotage: Sabotage) -> Option<u64> {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    let is_acknowledged = world.block_on(async {
        let (_pool, slow, fast) = with_hung_group(&world, &seam, sabotage).await;
        write(&seam, &slow, 2).await;
        let acknowledged = Rc::new(Cell::new(false));
        let noted = Rc::clone(&acknowledged);
        seam.spawn(async move { noted.set(slow.flush().await.is_ok()) });
        seam.sleep(WAIT_MAX).await;
        fast.flush().await.expect("its group answers");
        acknowledged.get()
    });
    let world = world_after_crash(2, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    let content = world.block_on(async {
        let pool = open(&world, &seam, OpenOptions::default()).await.expect("the pool opens");
        read_all(&seam, &pool).await.expect("sound disks")
    });
    is_acknowledged.then_some(content["slow"][0])
}

#[test]
fn flush_answered_for_a_hung_group_is_caught() {
    assert_eq!(tag_after_a_cut_during_a_hung_flush(Sabotage::None), None);
    assert_eq!(tag_after_a_cut_during_a_hung_flush(Sabotage::AnswerForHungGroups), Some(1), "its write is lost");
}

#[test]
fn failed_flush_of_a_hung_group_is_reported_to_its_volume() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (_pool, slow, fast) = with_hung_group(&world, &seam, Sabotage::None).await;
        write(&seam, &slow, 2).await;
        let epoch = slow.connection_epoch();
        let failure = Rc::new(Cell::new(None));
        let (noted, flushed) = (Rc::clone(&failure), slow.clone());
        seam.spawn(async move { noted.set(Some(flushed.flush().await.is_err())) });
        seam.sleep(WAIT_MAX).await;
        assert_eq!(failure.get(), None, "the device has not answered");
        world.disk(HUNG).expect("the disk exists").vanish();
        seam.sleep(Nanos::from_millis(10)).await;
        assert_eq!(failure.get(), Some(true));
        assert_ne!(slow.connection_epoch(), epoch);
        fast.flush().await.expect("its group answers");
    });
}

#[test]
fn flush_that_ends_during_the_commit_that_left_it_out_loses_nothing() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (_pool, slow, fast) = with_hung_group(&world, &seam, Sabotage::None).await;
        let fault = |disk, fault, ops| {
            let control = world.disk(disk).expect("the disk exists");
            control.clear_faults();
            control.add_fault(Rule::new(fault, ops, When::Nth(0)));
        };
        fault(HUNG, Fault::Stall(Nanos::from_millis(1_100)), Ops::FLUSH);
        // Both volumes have a change of their map. The journal is still being written when the flush ends.
        write_at(&seam, &slow, SLICE, 2).await;
        write_at(&seam, &fast, SLICE, 3).await;
        let fast_flush = fast.clone();
        seam.spawn(async move { fast_flush.flush().await.expect("its group answers") });
        let is_flushed = Rc::new(Cell::new(false));
        let (noted, flushed) = (Rc::clone(&is_flushed), slow.clone());
        seam.spawn(async move {
            flushed.flush().await.expect("sound disks");
            noted.set(true);
        });
        seam.sleep(Nanos::from_millis(900)).await;
        fault("fast-0", Fault::Stall(Nanos::from_millis(500)), Ops::WRITE);
        while !is_flushed.get() {
            seam.sleep(Nanos::from_micros(20)).await;
        }
    });
    let world = world_after_crash(2, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    let content = world.block_on(async {
        let pool = open(&world, &seam, OpenOptions::default()).await.expect("the pool opens");
        read_all(&seam, &pool).await.expect("sound disks")
    });
    assert_eq!(content["slow"][(SLICE / 512) as usize], 2);
}

#[test]
fn flush_in_progress_when_a_hung_flush_ends_covers_later_writes() {
    for new_slice in [false, true] {
        let world = with_pool(1, SMALL);
        let seam = world.seam();
        let acknowledged = world.block_on(async {
            let (pool, slow, fast) = with_hung_group(&world, &seam, Sabotage::None).await;
            let control = world.disk(HUNG).expect("the disk exists");
            // The repeated flush hangs as well.
            control.add_fault(Rule::new(Fault::Stall(HUNG_FOR), Ops::FLUSH, When::Nth(1)));
            write(&seam, &slow, 2).await;
            let first = slow.clone();
            seam.spawn(async move { drop(first.flush().await) });
            seam.sleep(Nanos::from_millis(2_000)).await;
            // After the beginning of the hung flush.
            let at = if new_slice { SLICE } else { 0 };
            write_at(&seam, &slow, at, 3).await;
            seam.sleep(Nanos::from_millis(17_900)).await;
            // Another group's flush takes 300 ms, during which the hung one ends.
            write_at(&seam, &fast, 0, 9).await;
            for name in ["fast-0", "fast-1"] {
                let control = world.disk(name).expect("the disk exists");
                control.add_fault(Rule::new(Fault::Stall(Nanos::from_millis(300)), Ops::FLUSH, When::Nth(0)));
            }
            let other = fast.clone();
            seam.spawn(async move { drop(other.flush().await) });
            let before = seam.now();
            let acknowledged = Rc::new(Cell::new(false));
            let (noted, flushed) = (Rc::clone(&acknowledged), slow.clone());
            seam.spawn(async move { noted.set(flushed.flush().await.is_ok()) });
            while !acknowledged.get() && seam.now() - before < Nanos::from_secs(5) {
                seam.sleep(Nanos::from_millis(10)).await;
            }
            drop(pool);
            acknowledged.get()
        });
        let world = world_after_crash(2, world.crash(CrashMode::LoseAll));
        let seam = world.seam();
        let content = world.block_on(async {
            let pool = open(&world, &seam, OpenOptions::default()).await.expect("the pool opens");
            read_all(&seam, &pool).await.expect("sound disks")
        });
        let sector = if new_slice { (SLICE / 512) as usize } else { 0 };
        assert!(!acknowledged || content["slow"][sector] == 3, "new slice {new_slice}: {:x}", content["slow"][sector]);
    }
}
