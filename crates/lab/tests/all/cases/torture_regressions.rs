//! Findings of torture, each as its smallest reproduction. A seed names the run that found the bug; it may draw another
//! run now.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use engine::{ByteOffset, CoreSpec, RequestError, Volume, WriteFlags, WritePolicy, ZeroFlags};
use lab::fixture::{Fixture, SameTag, durable_tags, read, write};
use seam::sim::{DiskControl, Fault, Ops, Rule, SimDiskSpec, SimSeam, TaskOrder, When, WorldSpec};
use seam::{Nanos, Seam};

const MIB: u64 = 1 << 20;
/// Number of worlds whose order of tasks the seed draws: enough to meet each order of a few tasks.
const TASK_ORDERS: u64 = 20;
/// The same for a race between a request, its flush and the tasks of destage.
const DESTAGE_TASK_ORDERS: u64 = 300;

/// Seed 256: the failed write discarded zeroes that had been acknowledged before it.
#[test]
fn failed_write_during_a_policy_change_keeps_acknowledged_data() {
    let fixture = Fixture::with_memory(1, 16 * MIB);
    let disk = fixture.add_disk("disk", SimDiskSpec::new(8 * MIB));
    let volume = fixture.attach("disk", |_| ()).unwrap();
    fixture.world.block_on(write(&volume, 0, 8, 1)).unwrap();
    fixture.world.block_on(volume.destage_all()).unwrap();
    fixture.world.block_on(volume.discard(ByteOffset::ZERO, 4096, WriteFlags::default())).unwrap();
    disk.add_fault(Rule::new(Fault::Error, Ops::CHANGE, When::Always));
    let policy_changer = volume.clone();
    fixture.seam.spawn(async move { drop(policy_changer.set_policy(WritePolicy::None).await) });
    let writer = volume.clone();
    let seam = fixture.seam.clone();
    let failed = fixture.world.block_on(async move {
        seam.yield_now().await;
        write(&writer, 0, 1, 2).await
    });
    assert!(failed.is_err(), "a write through a policy that caches nothing cannot succeed here");
    disk.clear_faults();
    fixture.world.block_on(volume.destage_all()).unwrap();
    let tags = fixture.world.block_on(read(&volume, 0, 8)).unwrap();
    assert_eq!(tags[1..], [0; 7], "acknowledged zeroes were lost");
}

/// Seed 1047: the flush that detected a reconnect did not cover the data that the reconnect had made dirty.
#[test]
fn flush_that_detects_a_reconnect_covers_the_rewrites() {
    // The order of tasks determines whether the flush or destage detects the reconnect.
    for seed in 0..50 {
        let world = WorldSpec { order: TaskOrder::Seeded, ..WorldSpec::new(seed) };
        let fixture = Fixture::new(world, CoreSpec::default());
        let disk = fixture.add_disk("disk", SimDiskSpec::new(8 * MIB));
        let volume = fixture.attach("disk", |spec| spec.policy = WritePolicy::WriteThrough).unwrap();
        fixture.world.block_on(write(&volume, 0, 8, 1)).unwrap();
        disk.reconnect();
        fixture.world.block_on(volume.flush()).unwrap();
        assert_eq!(disk.durable_tag(0), 1, "seed {seed}");
        assert_eq!(volume.stats().written_bytes, 0, "seed {seed}");
    }
}

/// Seed 0: the engine requested the status of sectors from a backing with larger blocks.
#[test]
fn allocation_of_sectors_works_on_4_kib_backing_blocks() {
    let fixture = Fixture::with_memory(1, 16 * MIB);
    let mut spec = SimDiskSpec::new(8 * MIB);
    (spec.geometry.logical_block, spec.geometry.physical_block) = (4096, 4096);
    fixture.add_disk("disk", spec);
    let volume = fixture.attach("disk", |_| ()).unwrap();
    let runs = fixture.world.block_on(volume.allocation(ByteOffset(512), 7 * 512)).unwrap();
    assert_eq!(runs.iter().map(|run| run.len_bytes).sum::<u64>(), 7 * 512);
}

/// Seed 30: reads that each held a part of the buffers deadlocked.
#[test]
fn concurrent_reads_of_more_than_memory_all_end() {
    let fixture = Fixture::with_memory(1, 640 << 10);
    let names = ["one", "two", "three", "four"];
    let ended = Rc::new(Cell::new(0));
    for name in names {
        fixture.add_disk(name, SimDiskSpec::new(8 * MIB));
        let (volume, ended) = (fixture.attach(name, |_| ()).unwrap(), Rc::clone(&ended));
        let seam = fixture.seam.clone();
        fixture.seam.spawn(async move {
            for first in (0..8_192).step_by(512) {
                read(&volume, first, 512).await.expect("a disk without faults does not fail");
                seam.yield_now().await;
            }
            ended.set(ended.get() + 1);
        });
    }
    fixture.world.run_for(Nanos::from_secs(30)).unwrap();
    assert_eq!(ended.get(), names.len(), "a read never ended");
}

/// Seed 4401: a discard with FUA was acknowledged although a later write over its second block was not on the backing.
#[test]
fn fua_discard_waits_for_the_write_that_replaced_it() {
    let fixture = Fixture::with_memory(1, 16 * MIB);
    let disk = fixture.add_disk("disk", SimDiskSpec::new(8 * MIB));
    let volume = fixture.attach("disk", |_| ()).unwrap();
    fixture.world.block_on(write(&volume, 0, 24, 1)).unwrap();
    fixture.world.block_on(volume.flush()).unwrap();
    // A write in flight delays the discard.
    let writer = volume.clone();
    fixture.seam.spawn(async move {
        let flags = WriteFlags { fua: true, ..Default::default() };
        writer
            .write(ByteOffset(2 * 4096), 4096, flags, &mut SameTag(3))
            .await
            .expect("a disk without faults does not fail");
    });
    fixture.world.run_for(Nanos::from_micros(10)).unwrap();
    let discarder = volume.clone();
    let discarded = Rc::new(Cell::new(false));
    let is_done = Rc::clone(&discarded);
    fixture.seam.spawn(async move {
        discarder
            .discard(ByteOffset::ZERO, 3 * 4096, WriteFlags { fua: true, ..Default::default() })
            .await
            .expect("a disk without faults does not fail");
        is_done.set(true);
    });
    fixture.world.run_for(Nanos::from_micros(10)).unwrap();
    fixture.world.block_on(write(&volume, 8, 8, 2)).unwrap();
    assert!(!discarded.get(), "the discard was not delayed");
    while !discarded.get() {
        fixture.world.run_for(Nanos::from_micros(10)).unwrap();
    }
    assert_ne!(disk.durable_tag(8), 1, "the content from before the discard would survive a crash");
}

/// Seed 18845: destage detected a reconnect between a write's end and its flush, and FUA was acknowledged for data that
/// had to be written again.
#[test]
fn fua_write_undone_by_a_reconnect_is_rewritten_before_its_ack() {
    for seed in 0..DESTAGE_TASK_ORDERS {
        let world = WorldSpec { order: TaskOrder::Seeded, ..WorldSpec::new(seed) };
        let fixture = Fixture::new(world, CoreSpec::default());
        let disk = fixture.add_disk("disk", SimDiskSpec::new(8 * MIB));
        let volume = fixture.attach("disk", |_| ()).unwrap();
        let (seam, disk_handle) = (fixture.seam.clone(), disk.clone());
        fixture.seam.spawn(async move {
            // The time at which a disk of 100 us has accepted the write.
            seam.sleep(Nanos::from_micros(100)).await;
            disk_handle.reconnect();
        });
        let is_durable = fixture.world.block_on(async move {
            let result = volume
                .write(ByteOffset::ZERO, 4096, WriteFlags { fua: true, ..Default::default() }, &mut SameTag(7))
                .await;
            result.is_err() || disk.durable_tag(0) == 7
        });
        assert!(is_durable, "seed {seed}: acknowledged with FUA, but not durable");
    }
}

/// Creates a write-through volume with 64 KiB of durable tag 1 in a world of `seed`.
fn write_through_fixture(seed: u64) -> (Fixture, DiskControl, Volume<SimSeam>) {
    let world = WorldSpec { order: TaskOrder::Seeded, ..WorldSpec::new(seed) };
    let fixture = Fixture::new(world, CoreSpec::default());
    let disk = fixture.add_disk("disk", SimDiskSpec::new(8 * MIB));
    let volume = fixture.attach("disk", |spec| spec.policy = WritePolicy::WriteThrough).unwrap();
    fixture.world.block_on(write(&volume, 0, 128, 1)).unwrap();
    fixture.world.block_on(volume.flush()).unwrap();
    (fixture, disk, volume)
}

/// Result of a request, once it has ended.
type RequestResult = Rc<RefCell<Option<Result<(), RequestError>>>>;

/// Runs `request` concurrently with the test.
fn start_request(
    fixture: &Fixture,
    request: impl Future<Output = Result<(), RequestError>> + 'static,
) -> RequestResult {
    let ended = RequestResult::default();
    let result_handle = Rc::clone(&ended);
    fixture.seam.spawn(async move {
        let result = request.await;
        *result_handle.borrow_mut() = Some(result);
    });
    // The request is in flight and has not reached the disk.
    fixture.world.run_for(Nanos::from_micros(10)).unwrap();
    ended
}

/// Seed 52107: a write was acknowledged while a discard over it waited. The discard failed, and the data that the
/// backing had not flushed was lost in its reconnect.
#[test]
fn write_under_a_failed_discard_survives_a_reconnect() {
    for seed in 0..TASK_ORDERS {
        let (fixture, disk, volume) = write_through_fixture(seed);
        let writer = volume.clone();
        let written = start_request(&fixture, async move { write(&writer, 0, 128, 2).await });
        disk.add_fault(Rule::new(Fault::Error, Ops::ZERO, When::Always));
        let failed = fixture.world.block_on(volume.discard(ByteOffset::ZERO, 128 * 512, WriteFlags::default()));
        assert!(failed.is_err() && written.take() == Some(Ok(())));
        disk.clear_faults();
        disk.reconnect();
        fixture.world.block_on(volume.destage_all()).unwrap();
        let tags = durable_tags(&disk, 0, 128);
        assert!(!tags.contains(&1), "seed {seed}: the acknowledged write is lost: {tags:?}");
    }
}

/// The same race with write and discard exchanged.
#[test]
fn discard_under_a_failed_write_survives_a_reconnect() {
    for seed in 0..TASK_ORDERS {
        let (fixture, disk, volume) = write_through_fixture(seed);
        let discarder = volume.clone();
        let discarded = start_request(&fixture, async move {
            discarder.discard(ByteOffset::ZERO, 128 * 512, WriteFlags::default()).await
        });
        disk.add_fault(Rule::new(Fault::Error, Ops::WRITE, When::Always));
        let failed = fixture.world.block_on(write(&volume, 0, 128, 2));
        assert!(failed.is_err() && discarded.take() == Some(Ok(())));
        disk.clear_faults();
        disk.reconnect();
        fixture.world.block_on(volume.destage_all()).unwrap();
        let tags = durable_tags(&disk, 0, 128);
        assert!(!tags.contains(&1), "seed {seed}: the acknowledged discard is undone: {tags:?}");
    }
}

/// Found with seed 52107: a reconnect cut off a discard, whose acknowledgement then waited only for its first part.
#[test]
fn discard_cut_off_by_a_reconnect_is_acked_only_when_complete() {
    for seed in 0..TASK_ORDERS {
        let (fixture, disk, volume) = write_through_fixture(seed);
        let discarder = volume.clone();
        let discarded = start_request(&fixture, async move {
            discarder.discard(ByteOffset::ZERO, 128 * 512, WriteFlags::default()).await
        });
        // Splits the range in two.
        let (first, middle) = (volume.clone(), volume.clone());
        let writes = [
            start_request(&fixture, async move { write(&first, 0, 8, 2).await }),
            start_request(&fixture, async move { write(&middle, 64, 8, 3).await }),
        ];
        disk.reconnect();
        while discarded.borrow().is_none() {
            fixture.world.run_for(Nanos::from_micros(10)).unwrap();
        }
        assert_eq!(discarded.take(), Some(Ok(())), "seed {seed}");
        let tags: Vec<u64> = (0..128).map(|sector| disk.tag(sector)).collect();
        assert_eq!((&tags[8..64], &tags[72..]), (&[0; 56][..], &[0; 56][..]), "seed {seed}");
        fixture.world.block_on(volume.destage_all()).unwrap();
        assert!(writes.iter().all(|write| write.take() == Some(Ok(()))), "seed {seed}");
    }
}

/// Found by reading: a discard had been overwritten and was lost in a reconnect; its acknowledgement waited only for
/// the write over its first block.
#[test]
fn overwritten_lost_discard_is_acked_after_all_replacing_writes() {
    const SECTORS: u64 = 8_192;
    for seed in 0..TASK_ORDERS {
        let (fixture, disk, volume) = write_through_fixture(seed);
        fixture.world.block_on(write(&volume, 0, SECTORS, 1)).unwrap();
        let discarder = volume.clone();
        let discarded = start_request(&fixture, async move {
            discarder.discard(ByteOffset::ZERO, SECTORS * 512, WriteFlags::default()).await
        });
        let writer = volume.clone();
        let written = start_request(&fixture, async move { write(&writer, 0, SECTORS, 2).await });
        // The first run of the write arrives long before the others.
        disk.add_fault(Rule::new(Fault::Stall(Nanos::from_millis(50)), Ops::WRITE, When::Nth(1)));
        disk.reconnect();
        while discarded.borrow().is_none() {
            fixture.world.run_for(Nanos::from_micros(10)).unwrap();
        }
        assert_eq!(discarded.take(), Some(Ok(())), "seed {seed}");
        let old = (0..SECTORS).filter(|sector| disk.tag(*sector) == 1).count();
        assert_eq!(old, 0, "seed {seed}: discarded sectors with their old content");
        fixture.world.block_on(volume.destage_all()).unwrap();
        assert_eq!(written.take(), Some(Ok(())), "seed {seed}");
    }
}

/// Seed 500101190: a FUA zero was replaced by a second zero, and that in part by a write. The FUA zero was acknowledged
/// when the write was durable, before the rest of the second zero.
///
/// ```text
/// sectors             0     24    32     40    48           112          504
/// write in flight                        |=====|
/// FUA zero                  |===============================|
/// second zero         |==================================================|
/// write over it             |=====|
/// ```
#[test]
fn fua_zeroes_wait_for_everything_that_replaced_them() {
    let fixture = Fixture::with_memory(1, 16 * MIB);
    let disk = fixture.add_disk("disk", SimDiskSpec::new(8 * MIB));
    let volume = fixture.attach("disk", |_| ()).unwrap();
    fixture.world.block_on(write(&volume, 0, 512, 1)).unwrap();
    fixture.world.block_on(volume.flush()).unwrap();
    // A block in flight delays the zeroes over it.
    disk.add_fault(Rule::new(Fault::Stall(Nanos::from_secs(1)), Ops::WRITE, When::Nth(0)));
    fixture.world.block_on(write(&volume, 40, 8, 2)).unwrap();
    let flusher = volume.clone();
    let flushed = start_request(&fixture, async move { flusher.flush().await });
    let (fua_start, fua_sectors) = (24, 88);
    let fua_zeroer = volume.clone();
    let flags = ZeroFlags { fua: true, ..ZeroFlags::default() };
    let zeroed =
        start_request(
            &fixture,
            async move { fua_zeroer.zero(ByteOffset(fua_start * 512), fua_sectors * 512, flags).await },
        );
    fixture.world.block_on(volume.zero(ByteOffset::ZERO, 504 * 512, ZeroFlags::default())).unwrap();
    fixture.world.block_on(write(&volume, fua_start, 8, 3)).unwrap();
    assert!(zeroed.borrow().is_none() && flushed.borrow().is_none(), "a request ended before its disk write");
    disk.add_fault(Rule::new(Fault::Stall(Nanos::from_secs(5)), Ops::ZERO, When::Always));
    while zeroed.borrow().is_none() {
        fixture.world.run_for(Nanos::from_millis(10)).unwrap();
    }
    assert_eq!(zeroed.take(), Some(Ok(())));
    let expected = [vec![3; 8], vec![0; 80]].concat();
    assert_eq!(durable_tags(&disk, fua_start, fua_sectors), expected, "acknowledged, but not on the backing");
}
