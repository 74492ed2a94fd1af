//! What torture has found, each as the smallest case that shows it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use engine::{CoreSpec, RequestError, Volume, WriteFlags, WritePolicy, ZeroFlags};
use lab::rig::{Rig, Same, durable, read, write};
use seam::sim::{DiskControl, Fault, Ops, Rule, SimDiskSpec, SimSeam, TaskOrder, When, WorldSpec};
use seam::{Nanos, Seam};

const MIB: u64 = 1 << 20;

/// Seed 256 of its day: the write that failed took the zeroes along that had been acknowledged before it.
#[test]
fn a_write_that_fails_while_the_policy_changes_takes_nothing_acknowledged_along() {
    let rig = Rig::with_memory(1, 16 * MIB);
    let disk = rig.add_disk("disk", SimDiskSpec::new(8 * MIB));
    let volume = rig.attach("disk", |_| ()).unwrap();
    rig.world.block_on(write(&volume, 0, 8, 1)).unwrap();
    rig.world.block_on(volume.destage_all()).unwrap();
    rig.world.block_on(volume.discard(0, 4096, WriteFlags::default())).unwrap();
    disk.add_fault(Rule::new(Fault::Error, Ops::CHANGE, When::Always));
    let change = volume.clone();
    rig.seam.spawn(async move { drop(change.set_policy(WritePolicy::None).await) });
    let late = volume.clone();
    let seam = rig.seam.clone();
    let failed = rig.world.block_on(async move {
        seam.yield_now().await;
        write(&late, 0, 1, 2).await
    });
    assert!(failed.is_err(), "a write through a policy that caches nothing cannot succeed here");
    disk.clear_faults();
    rig.world.block_on(volume.destage_all()).unwrap();
    let found = rig.world.block_on(read(&volume, 0, 8)).unwrap();
    assert_eq!(found[1..], [0; 7], "what was discarded and acknowledged is back");
}

/// Seed 1047 of its day: the flush that noticed the reconnect did not cover what the reconnect made dirty.
#[test]
fn a_flush_that_notices_a_reconnect_covers_what_was_written_again() {
    // Whether the flush or destage notices first is a matter of which task runs first.
    for seed in 0..50 {
        let world = WorldSpec { order: TaskOrder::Seeded, ..WorldSpec::new(seed) };
        let rig = Rig::new(world, CoreSpec::default());
        let disk = rig.add_disk("disk", SimDiskSpec::new(8 * MIB));
        let volume = rig.attach("disk", |spec| spec.policy = WritePolicy::WriteThrough).unwrap();
        rig.world.block_on(write(&volume, 0, 8, 1)).unwrap();
        disk.reconnect();
        rig.world.block_on(volume.flush()).unwrap();
        assert_eq!(disk.durable_tag(0), 1, "seed {seed}");
        assert_eq!(volume.stats().written_bytes, 0, "seed {seed}");
    }
}

/// Seed 0 of its day: the backing was asked for the status of sectors that it has no name for.
#[test]
fn allocation_status_of_sectors_is_answered_on_a_backing_of_4_kib_blocks() {
    let rig = Rig::with_memory(1, 16 * MIB);
    let mut spec = SimDiskSpec::new(8 * MIB);
    (spec.geometry.logical_block, spec.geometry.physical_block) = (4096, 4096);
    rig.add_disk("disk", spec);
    let volume = rig.attach("disk", |_| ()).unwrap();
    let runs = rig.world.block_on(volume.allocation(512, 7 * 512)).unwrap();
    assert_eq!(runs.iter().map(|run| run.len_bytes).sum::<u64>(), 7 * 512);
}

/// Seed 30 of its day: reads that each held a part of the buffers waited for each other's for ever.
#[test]
fn reads_and_readahead_of_more_than_memory_at_once_all_end() {
    let rig = Rig::with_memory(1, 640 << 10);
    let names = ["one", "two", "three", "four"];
    let ended = Rc::new(Cell::new(0));
    for name in names {
        rig.add_disk(name, SimDiskSpec::new(8 * MIB));
        let (volume, ended) = (rig.attach(name, |_| ()).unwrap(), Rc::clone(&ended));
        let seam = rig.seam.clone();
        rig.seam.spawn(async move {
            for first in (0..8_192).step_by(512) {
                read(&volume, first, 512).await.expect("a disk without faults");
                seam.yield_now().await;
            }
            ended.set(ended.get() + 1);
        });
    }
    rig.world.run_for(Nanos::from_secs(30)).unwrap();
    assert_eq!(ended.get(), names.len(), "a read waits for ever");
}

/// Seed 4401 of its day: a discard with FUA was acknowledged although what a later write had made of its second block was not
/// on the backing.
#[test]
fn a_discard_with_fua_is_not_durable_before_what_took_its_place() {
    let rig = Rig::with_memory(1, 16 * MIB);
    let disk = rig.add_disk("disk", SimDiskSpec::new(8 * MIB));
    let volume = rig.attach("disk", |_| ()).unwrap();
    rig.world.block_on(write(&volume, 0, 24, 1)).unwrap();
    rig.world.block_on(volume.flush()).unwrap();
    // A write on its way holds the discard up.
    let busy = volume.clone();
    rig.seam.spawn(async move {
        let flags = WriteFlags { fua: true, ..Default::default() };
        busy.write(2 * 4096, 4096, flags, &mut Same(3)).await.expect("a disk without faults");
    });
    rig.world.run_for(Nanos::from_micros(10)).unwrap();
    let fua = volume.clone();
    let discarded = Rc::new(Cell::new(false));
    let seen = Rc::clone(&discarded);
    rig.seam.spawn(async move {
        fua.discard(0, 3 * 4096, WriteFlags { fua: true, ..Default::default() }).await.expect("a disk without faults");
        seen.set(true);
    });
    rig.world.run_for(Nanos::from_micros(10)).unwrap();
    rig.world.block_on(write(&volume, 8, 8, 2)).unwrap();
    assert!(!discarded.get(), "the discard was to be held up");
    while !discarded.get() {
        rig.world.run_for(Nanos::from_micros(10)).unwrap();
    }
    assert_ne!(disk.durable_tag(8), 1, "what was there before the discard would survive a crash");
}

/// Seed 18845 of its day: a reconnect between a write's end and its flush was noticed by destage, and FUA promised what had
/// to be written again.
#[test]
fn a_write_with_fua_that_a_reconnect_undid_is_written_again_before_it_is_acknowledged() {
    for seed in 0..300 {
        let world = WorldSpec { order: TaskOrder::Seeded, ..WorldSpec::new(seed) };
        let rig = Rig::new(world, CoreSpec::default());
        let disk = rig.add_disk("disk", SimDiskSpec::new(8 * MIB));
        let volume = rig.attach("disk", |_| ()).unwrap();
        let (seam, other) = (rig.seam.clone(), disk.clone());
        rig.seam.spawn(async move {
            // The moment at which a disk of 100 us has taken the write.
            seam.sleep(Nanos::from_micros(100)).await;
            other.reconnect();
        });
        let kept = rig.world.block_on(async move {
            let done = volume.write(0, 4096, WriteFlags { fua: true, ..Default::default() }, &mut Same(7)).await;
            done.is_err() || disk.durable_tag(0) == 7
        });
        assert!(kept, "seed {seed}: acknowledged with FUA and not durable");
    }
}

/// A write-through volume of 64 KiB of tag 1, durable, in a world of `seed`.
fn written_through(seed: u64) -> (Rig, DiskControl, Volume<SimSeam>) {
    let world = WorldSpec { order: TaskOrder::Seeded, ..WorldSpec::new(seed) };
    let rig = Rig::new(world, CoreSpec::default());
    let disk = rig.add_disk("disk", SimDiskSpec::new(8 * MIB));
    let volume = rig.attach("disk", |spec| spec.policy = WritePolicy::WriteThrough).unwrap();
    rig.world.block_on(write(&volume, 0, 128, 1)).unwrap();
    rig.world.block_on(volume.flush()).unwrap();
    (rig, disk, volume)
}

/// What a request returned, once it has ended.
type Ended = Rc<RefCell<Option<Result<(), RequestError>>>>;

/// Runs `request` beside the test.
fn beside(rig: &Rig, request: impl Future<Output = Result<(), RequestError>> + 'static) -> Ended {
    let ended = Ended::default();
    let seen = Rc::clone(&ended);
    rig.seam.spawn(async move {
        let result = request.await;
        *seen.borrow_mut() = Some(result);
    });
    // On its way, and nothing of it has arrived.
    rig.world.run_for(Nanos::from_micros(10)).unwrap();
    ended
}

/// Seed 52107 of its day: the write was acknowledged while a discard over it waited; the discard failed and took along what the
/// backing had not flushed and forgot.
#[test]
fn a_write_that_arrives_under_a_discard_that_fails_outlives_a_reconnect() {
    for seed in 0..20 {
        let (rig, disk, volume) = written_through(seed);
        let other = volume.clone();
        let written = beside(&rig, async move { write(&other, 0, 128, 2).await });
        disk.add_fault(Rule::new(Fault::Error, Ops::ZERO, When::Always));
        let failed = rig.world.block_on(volume.discard(0, 128 * 512, WriteFlags::default()));
        assert!(failed.is_err() && written.take() == Some(Ok(())));
        disk.clear_faults();
        disk.reconnect();
        rig.world.block_on(volume.destage_all()).unwrap();
        let found = durable(&disk, 0, 128);
        assert!(!found.contains(&1), "seed {seed}: the acknowledged write is gone: {found:?}");
    }
}

/// The same the other way round.
#[test]
fn a_discard_that_arrives_under_a_write_that_fails_outlives_a_reconnect() {
    for seed in 0..20 {
        let (rig, disk, volume) = written_through(seed);
        let other = volume.clone();
        let discarded = beside(&rig, async move { other.discard(0, 128 * 512, WriteFlags::default()).await });
        disk.add_fault(Rule::new(Fault::Error, Ops::WRITE, When::Always));
        let failed = rig.world.block_on(write(&volume, 0, 128, 2));
        assert!(failed.is_err() && discarded.take() == Some(Ok(())));
        disk.clear_faults();
        disk.reconnect();
        rig.world.block_on(volume.destage_all()).unwrap();
        let found = durable(&disk, 0, 128);
        assert!(!found.contains(&1), "seed {seed}: the acknowledged discard is undone: {found:?}");
    }
}
/// Found beside it: of a discard that a reconnect cut off only the first part was waited for.
#[test]
fn a_discard_that_a_reconnect_cuts_off_is_acknowledged_when_all_of_it_is_on_the_backing() {
    for seed in 0..20 {
        let (rig, disk, volume) = written_through(seed);
        let other = volume.clone();
        let discarded = beside(&rig, async move { other.discard(0, 128 * 512, WriteFlags::default()).await });
        // Cuts the range in two.
        let (first, middle) = (volume.clone(), volume.clone());
        let writes = [
            beside(&rig, async move { write(&first, 0, 8, 2).await }),
            beside(&rig, async move { write(&middle, 64, 8, 3).await }),
        ];
        disk.reconnect();
        while discarded.borrow().is_none() {
            rig.world.run_for(Nanos::from_micros(10)).unwrap();
        }
        assert_eq!(discarded.take(), Some(Ok(())), "seed {seed}");
        let found: Vec<u64> = (0..128).map(|sector| disk.tag(sector)).collect();
        assert_eq!((&found[8..64], &found[72..]), (&[0; 56][..], &[0; 56][..]), "seed {seed}");
        rig.world.block_on(volume.destage_all()).unwrap();
        assert!(writes.iter().all(|write| write.take() == Some(Ok(()))), "seed {seed}");
    }
}

/// Found by reading: of a discard that a reconnect took along and that was written over, only what took the place of the first block was waited for.
#[test]
fn a_discard_that_a_reconnect_takes_along_under_writes_is_acknowledged_when_all_of_them_are_on_the_backing() {
    const SECTORS: u64 = 8_192;
    for seed in 0..20 {
        let (rig, disk, volume) = written_through(seed);
        rig.world.block_on(write(&volume, 0, SECTORS, 1)).unwrap();
        let other = volume.clone();
        let discarded = beside(&rig, async move { other.discard(0, SECTORS * 512, WriteFlags::default()).await });
        let over = volume.clone();
        let written = beside(&rig, async move { write(&over, 0, SECTORS, 2).await });
        // The first run of what was written arrives long before the others.
        disk.add_fault(Rule::new(Fault::Stall(Nanos::from_millis(50)), Ops::WRITE, When::Nth(1)));
        disk.reconnect();
        while discarded.borrow().is_none() {
            rig.world.run_for(Nanos::from_micros(10)).unwrap();
        }
        assert_eq!(discarded.take(), Some(Ok(())), "seed {seed}");
        let old = (0..SECTORS).filter(|sector| disk.tag(*sector) == 1).count();
        assert_eq!(old, 0, "seed {seed}: sectors that were discarded and are as before");
        rig.world.block_on(volume.destage_all()).unwrap();
        assert_eq!(written.take(), Some(Ok(())), "seed {seed}");
    }
}

/// Seed 500101190 of its day: who waited for zeroes that other zeroes had taken the place of waited for the write alone that later took the
/// place of their first block.
#[test]
fn zeroes_that_must_be_durable_are_waited_for_though_zeroes_and_then_a_write_take_their_place() {
    let rig = Rig::with_memory(1, 16 * MIB);
    let disk = rig.add_disk("disk", SimDiskSpec::new(8 * MIB));
    let volume = rig.attach("disk", |_| ()).unwrap();
    rig.world.block_on(write(&volume, 0, 512, 1)).unwrap();
    rig.world.block_on(volume.flush()).unwrap();
    // A block that is on its way holds the zeroes over it up.
    disk.add_fault(Rule::new(Fault::Stall(Nanos::from_secs(1)), Ops::WRITE, When::Nth(0)));
    rig.world.block_on(write(&volume, 40, 8, 2)).unwrap();
    let sending = volume.clone();
    let flushed = beside(&rig, async move { sending.flush().await });
    let other = volume.clone();
    let flags = ZeroFlags { fua: true, ..ZeroFlags::default() };
    let zeroed = beside(&rig, async move { other.zero(24 * 512, 88 * 512, flags).await });
    rig.world.block_on(volume.zero(0, 504 * 512, ZeroFlags::default())).unwrap();
    rig.world.block_on(write(&volume, 24, 8, 3)).unwrap();
    assert!(zeroed.borrow().is_none() && flushed.borrow().is_none(), "nothing has reached the disk yet");
    disk.add_fault(Rule::new(Fault::Stall(Nanos::from_secs(5)), Ops::ZERO, When::Always));
    while zeroed.borrow().is_none() {
        rig.world.run_for(Nanos::from_millis(10)).unwrap();
    }
    assert_eq!(zeroed.take(), Some(Ok(())));
    assert_eq!(durable(&disk, 24, 88), [vec![3; 8], vec![0; 80]].concat(), "acknowledged and not there");
}
