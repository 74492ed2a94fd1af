//! Marks of backings that lack flushed writes: their latency disturbs no attach, they follow the policy, a removal that
//! fails delays nothing, and storage without a mark may be changed by another owner.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use engine::{Backing, CoreSpec, Volume, VolumeId, VolumeSpec, WritePolicy};
use lab::fixture::{Fixture, durable_tags, read, write};
use lab::torture::flash::FlashOptions;
use seam::sim::{CrashMode, Fault, Ops, Rule, SimDiskSpec, SimSeam, When, WorldSpec};
use seam::{DiskOpen, Nanos, Seam};

const MIB: u64 = 1 << 20;
const VOLUMES: [u64; 3] = [1, 2, 3];

fn log() -> FlashOptions {
    FlashOptions::plain(2, 256 << 10, 100)
}

fn name(number: u64) -> String {
    format!("disk{number}")
}

async fn attach(fixture: &Fixture, number: u64, policy: WritePolicy) -> Volume<SimSeam> {
    let open = DiskOpen { path: name(number).into(), create_bytes: None, read_only: false, lock_wait_ms: 1_000 };
    let disk = fixture.seam.open_disk(&open).await.expect("the disk exists");
    let spec = VolumeSpec { policy, ..VolumeSpec::new(&name(number), VolumeId(number)) };
    fixture.core.attach_recovered(spec, Backing::plain(disk)).await.expect("the log is intact")
}

#[test]
fn volumes_that_are_attached_at_the_same_time_get_their_own_records() {
    let fixture = Fixture::new(WorldSpec::new(1), CoreSpec::default());
    log().add_disks(&fixture.world);
    for number in VOLUMES {
        fixture.add_disk(&name(number), SimDiskSpec::new(4 * MIB));
        let disk = fixture.world.disk(name(number)).expect("it was added");
        disk.add_fault(Rule::new(Fault::Error, Ops::CHANGE, When::Always));
    }
    fixture.world.block_on(async {
        log().open(&fixture.seam, &fixture.core, true, false).await.expect("the devices are empty");
        for number in VOLUMES {
            let volume = attach(&fixture, number, WritePolicy::WriteBack).await;
            for block in 0..10 * number {
                write(&volume, block * 8, 8, 100 * number + block).await.expect("memory has room");
            }
            volume.flush().await.expect("the log has room");
        }
    });
    let fixture = Rc::new(fixture.crash(CrashMode::LoseAll, WorldSpec::new(2)));
    fixture.world.block_on(async {
        log().open(&fixture.seam, &fixture.core, false, false).await.expect("the devices are intact");
        let (volumes, open) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(VOLUMES.len())));
        for number in VOLUMES {
            let (fixture, volumes, open) = (Rc::clone(&fixture), Rc::clone(&volumes), Rc::clone(&open));
            fixture.seam.clone().spawn(async move {
                let volume = attach(&fixture, number, WritePolicy::WriteBack).await;
                volumes.borrow_mut().push((number, volume));
                open.set(open.get() - 1);
            });
        }
        while open.get() > 0 {
            fixture.seam.sleep(Nanos::from_micros(10)).await;
        }
        for (number, volume) in volumes.take() {
            for block in 0..10 * number {
                let content = read(&volume, block * 8, 8).await.expect("it is readable");
                assert_eq!(content, [100 * number + block; 8], "volume {number}, block {block}");
            }
        }
    });
}

#[test]
fn mark_follows_the_policy_and_goes_with_the_last_undestaged_block() {
    let fixture = Fixture::new(WorldSpec::new(3), CoreSpec::default());
    log().add_disks(&fixture.world);
    fixture.add_disk(&name(1), SimDiskSpec::new(4 * MIB));
    let disk = fixture.world.disk(name(1)).expect("it was added");
    fixture.world.block_on(async {
        log().open(&fixture.seam, &fixture.core, true, false).await.expect("the devices are empty");
        let volume = attach(&fixture, 1, WritePolicy::WriteThrough).await;
        assert!(!disk.is_marked(), "the log answers no flush");
        volume.set_policy(WritePolicy::WriteBack).await.expect("the disk works");
        assert!(disk.is_marked());
        write(&volume, 0, 8, 5).await.expect("memory has room");
        volume.flush().await.expect("the log has room");
        volume.set_policy(WritePolicy::WriteThrough).await.expect("the disk works");
        assert_eq!((disk.is_marked(), durable_tags(&disk, 0, 8)), (false, vec![5; 8]));
        volume.set_policy(WritePolicy::WriteBack).await.expect("the disk works");
        write(&volume, 0, 8, 6).await.expect("memory has room");
        volume.flush().await.expect("the log has room");
        assert!(disk.is_marked());
        fixture.core.detach(&name(1)).await.expect("the disk works");
        assert_eq!((disk.is_marked(), durable_tags(&disk, 0, 8)), (false, vec![6; 8]));
    });
}

/// Attaches the first volume, writes a block, and flushes it to the log.
async fn attach_with_data(fixture: &Fixture) -> Volume<SimSeam> {
    log().open(&fixture.seam, &fixture.core, true, false).await.expect("the devices are empty");
    let volume = attach(fixture, 1, WritePolicy::WriteBack).await;
    write(&volume, 0, 8, 5).await.expect("memory has room");
    volume.flush().await.expect("the log has room");
    volume
}

#[test]
fn detach_ends_although_the_removal_of_the_mark_fails() {
    for fault in [Fault::Error, Fault::Hang] {
        let fixture = Fixture::new(WorldSpec::new(4), CoreSpec::default());
        log().add_disks(&fixture.world);
        fixture.add_disk(&name(1), SimDiskSpec::new(4 * MIB));
        let disk = fixture.world.disk(name(1)).expect("it was added");
        fixture.world.block_on(async {
            let volume = attach_with_data(&fixture).await;
            disk.add_fault(Rule::new(fault, Ops::MARK, When::Always));
            let began = fixture.seam.now();
            volume.set_policy(WritePolicy::WriteThrough).await.expect("the disk works");
            disk.clear_faults();
            volume.set_policy(WritePolicy::WriteBack).await.expect("the disk works");
            write(&volume, 0, 8, 6).await.expect("memory has room");
            volume.flush().await.expect("the log has room");
            drop(volume);
            disk.add_fault(Rule::new(fault, Ops::MARK, When::Always));
            fixture.core.detach(&name(1)).await.expect("its data is on the disk");
            assert!(fixture.seam.now().since(began) < Nanos::from_secs(20), "{fault:?}");
            assert!(fixture.core.find(&name(1)).is_none());
            assert_eq!((disk.is_marked(), durable_tags(&disk, 0, 8)), (true, vec![6; 8]), "{fault:?}");
            // No task keeps the disk open: the server of the storage ends with it.
            disk.clear_faults();
            drop(attach(&fixture, 1, WritePolicy::WriteThrough).await);
            assert!(!disk.is_marked());
        });
    }
}

/// Stops after the destage of the log's records. Then another owner writes, if the disk has no mark, and the volume is
/// served again. Returns whether the disk had a mark, and the content of the block.
fn write_elsewhere_after_a_stop(fault: Option<Fault>) -> (bool, Vec<u64>) {
    let fixture = Fixture::new(WorldSpec::new(5), CoreSpec::default());
    log().add_disks(&fixture.world);
    fixture.add_disk(&name(1), SimDiskSpec::new(4 * MIB));
    let disk = fixture.world.disk(name(1)).expect("it was added");
    disk.set_lineage("1");
    fixture.world.block_on(async {
        let volume = attach_with_data(&fixture).await;
        volume.destage_all().await.expect("the disk works");
        write(&volume, 0, 8, 6).await.expect("memory has room");
        volume.flush().await.expect("the log has room");
        fixture.seam.sleep(Nanos::from_secs(120)).await;
        assert!(!volume.needs_log() && durable_tags(&disk, 0, 8) == [6; 8], "the disk is complete");
        fault.into_iter().for_each(|fault| disk.add_fault(Rule::new(fault, Ops::MARK, When::Always)));
        let began = fixture.seam.now();
        let has_records = volume.leave_in_log().await.expect("the log works");
        assert!(!has_records && fixture.seam.now().since(began) < Nanos::from_secs(3));
    });
    let fixture = fixture.crash(CrashMode::LoseAll, WorldSpec::new(6));
    let disk = fixture.world.disk(name(1)).expect("it was added");
    let is_marked = disk.is_marked();
    if !is_marked {
        disk.set_tags(0, &[7; 8]);
    }
    let content = fixture.world.block_on(async {
        log().open(&fixture.seam, &fixture.core, false, false).await.expect("the devices are intact");
        let volume = attach(&fixture, 1, WritePolicy::WriteBack).await;
        volume.destage_all().await.expect("the disk works");
        read(&volume, 0, 8).await.expect("it is readable")
    });
    (is_marked, content)
}

#[test]
fn stop_without_a_mark_leaves_no_record_to_recover() {
    assert_eq!(write_elsewhere_after_a_stop(None), (false, vec![7; 8]));
    assert_eq!(write_elsewhere_after_a_stop(Some(Fault::Error)), (true, vec![6; 8]));
    assert_eq!(write_elsewhere_after_a_stop(Some(Fault::Hang)), (true, vec![6; 8]));
}
