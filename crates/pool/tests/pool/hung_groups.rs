//! Groups whose flush does not end in time: commits go on without them, and nothing that needs them is acknowledged.

use std::cell::Cell;
use std::rc::Rc;

use pool::{OpenOptions, PoolDisk, Sabotage, TierPolicy};
use seam::sim::{CrashMode, Fault, Ops, Rule, SimDisk, SimSeam, When, World};
use seam::{Disk, Nanos, Seam};

use crate::model::content_after_crash;
use crate::world::{ALL, SLICE, SMALL, SimPool, disks, volume, with_pool, write, write_at};
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
    let content = content_after_crash(world, CrashMode::LoseAll);
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
    let content = content_after_crash(world, CrashMode::LoseAll);
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
    let content = content_after_crash(world, CrashMode::LoseAll);
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
        let content = content_after_crash(world, CrashMode::LoseAll);
        let sector = if new_slice { (SLICE / 512) as usize } else { 0 };
        assert!(!acknowledged || content["slow"][sector] == 3, "new slice {new_slice}: {:x}", content["slow"][sector]);
    }
}
