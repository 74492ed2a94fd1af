//! Marks of backings that lack flushed writes: their latency disturbs no attach, and they follow the policy.

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
