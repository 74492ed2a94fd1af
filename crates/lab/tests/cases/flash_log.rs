//! The flash log under the engine: what a flush promises without the backing, what a recovery brings back and what it must not.

use engine::{CoreSpec, Volume, VolumeSpec, WriteFlags, WritePolicy};
use lab::rig::{Rig, durable, read, write};
use lab::torture::flash::FlashOptions;
use seam::sim::{CrashMode, Fault, Ops, Rule, SimDiskSpec, SimSeam, Timing, When, WorldSpec};
use seam::{DiskOpen, Nanos, Seam};

const MIB: u64 = 1 << 20;

fn log(segments: u64) -> FlashOptions {
    FlashOptions::plain(2, 64 << 10, segments)
}

fn spec(seed: u64) -> WorldSpec {
    WorldSpec { blocks: 4096, ..WorldSpec::new(seed) }
}

/// A world with a disk of 8 MiB, a log, and a volume over both.
fn first_life(seed: u64, segments: u64) -> (Rig, Volume<SimSeam>) {
    let rig = Rig::new(spec(seed), CoreSpec::default());
    rig.add_disk("disk", SimDiskSpec::new(8 * MIB));
    log(segments).add_disks(&rig.world);
    let volume = serve(&rig, segments, true);
    (rig, volume)
}

/// The next world after a crash.
fn next_life(rig: Rig, mode: CrashMode, seed: u64, segments: u64) -> (Rig, Volume<SimSeam>) {
    let rig = rig.crash(mode, spec(seed));
    let volume = serve(&rig, segments, false);
    (rig, volume)
}

fn serve(rig: &Rig, segments: u64, first: bool) -> Volume<SimSeam> {
    let open = DiskOpen { path: "disk".into(), create_bytes: None, read_only: false, lock_wait_ms: 1_000 };
    rig.world.block_on(async {
        log(segments).open(&rig.seam, &rig.core, first, false).await.expect("the devices are whole");
        let disk = rig.seam.open_disk(&open).await.expect("the disk is there");
        rig.core
            .attach_recovered(VolumeSpec::new("disk", 1), engine::Backing::plain(disk))
            .await
            .expect("what the log holds can be read")
    })
}

#[test]
fn a_flush_is_answered_while_the_backing_refuses_everything_and_survives_a_power_cut() {
    let (rig, volume) = first_life(1, 16);
    rig.world.disk("disk").unwrap().add_fault(Rule::new(Fault::Error, Ops::CHANGE, When::Always));
    rig.world.block_on(async {
        for block in 0..40 {
            write(&volume, block * 24, 8, 7).await.unwrap();
        }
        volume.flush().await.expect("the log has it");
        write(&volume, 0, 8, 8).await.unwrap();
    });
    let written: Vec<u64> = rig.core.pages().unwrap().stats().members.iter().map(|member| member.log_bytes).collect();
    assert!(written.len() == 2 && written.iter().all(|bytes| (40 * 4096..60 * 4096).contains(bytes)), "{written:?}");
    drop(volume);
    let (rig, volume) = next_life(rig, CrashMode::LoseAll, 2, 16);
    let disk = rig.world.disk("disk").unwrap();
    for block in 0..40 {
        let content = rig.world.block_on(read(&volume, block * 24, 8)).unwrap();
        assert_eq!(content, [7; 8], "block {block}: flushed content, and nothing that was not flushed");
    }
    assert_eq!(durable(&disk, 0, 8), [0; 8], "the backing had refused it");
    rig.world.block_on(volume.destage_all()).unwrap();
    assert_eq!(durable(&disk, 0, 8), [7; 8]);
}

#[test]
fn a_flush_goes_on_with_one_device_when_the_other_fails_and_the_stale_one_is_not_believed() {
    let (rig, volume) = first_life(3, 16);
    rig.world.block_on(async {
        write(&volume, 0, 8, 1).await.unwrap();
        volume.flush().await.unwrap();
    });
    rig.world.disk("flash1").unwrap().add_fault(Rule::new(Fault::Error, Ops::ALL, When::Always));
    rig.world.disk("disk").unwrap().add_fault(Rule::new(Fault::Error, Ops::CHANGE, When::Always));
    rig.world.block_on(async {
        write(&volume, 0, 8, 2).await.unwrap();
        volume.flush().await.expect("the other device has it");
    });
    drop(volume);
    let (rig, volume) = next_life(rig, CrashMode::LoseAll, 4, 16);
    assert_eq!(rig.world.block_on(read(&volume, 0, 8)).unwrap(), [2; 8]);
}

/// Found by torture (seed 90): destage had promised the zeroes, and an older record of the log came back over them.
#[test]
fn what_was_destaged_by_command_is_not_undone_by_an_older_record() {
    let (rig, volume) = first_life(5, 16);
    rig.world.block_on(async {
        write(&volume, 0, 8, 1).await.unwrap();
        volume.flush().await.unwrap();
        write(&volume, 0, 8, 2).await.unwrap();
        volume.destage_all().await.unwrap();
    });
    drop(volume);
    let (rig, volume) = next_life(rig, CrashMode::LoseAll, 6, 16);
    assert_eq!(rig.world.block_on(read(&volume, 0, 8)).unwrap(), [2; 8]);
}

/// Found by torture (seed 10067613): the record of a block that was cut in two had what lies past the end, and that came back.
#[test]
fn what_a_shrink_cut_off_inside_a_block_is_not_brought_back_by_the_record_of_the_block() {
    let (rig, volume) = first_life(7, 16);
    rig.world.block_on(async {
        write(&volume, 800, 8, 7).await.unwrap();
        volume.flush().await.unwrap();
        volume.resize(Some(802 * 512), false).await.unwrap();
        volume.resize(Some(8 * MIB), false).await.unwrap();
        volume.destage_all().await.unwrap();
    });
    drop(volume);
    let (rig, volume) = next_life(rig, CrashMode::LoseAll, 8, 16);
    assert_eq!(rig.world.block_on(read(&volume, 800, 8)).unwrap(), [7, 7, 0, 0, 0, 0, 0, 0]);
}

/// Found by torture (seed 10149725): the size had changed, and the shrink was said to have failed.
#[test]
fn a_shrink_that_drops_dirty_data_succeeds_when_the_log_cannot_be_told_and_the_next_flush_owes_it() {
    let (rig, volume) = first_life(11, 16);
    rig.world.block_on(async {
        write(&volume, 800, 8, 7).await.unwrap();
        volume.flush().await.unwrap();
    });
    for name in ["flash1", "flash2"] {
        rig.world.disk(name).unwrap().add_fault(Rule::new(Fault::Error, Ops::CHANGE, When::Always));
    }
    assert_eq!(rig.world.block_on(volume.resize(Some(4096), true)), Ok(4096));
    assert_eq!(volume.size_bytes(), 4096);
    assert!(rig.world.block_on(volume.flush()).is_err(), "the record of what was dropped is still in the log");
}

/// Found by torture (seed 102196): records of blocks that were discarded since held the whole log, and their tombstones had no room.
#[test]
fn a_log_full_of_what_was_discarded_since_makes_room() {
    let (rig, volume) = first_life(7, 6);
    rig.world.block_on(async {
        for round in 0..20 {
            for block in 0..60 {
                write(&volume, block * 8, 8, round + 1).await.unwrap();
            }
            volume.flush().await.unwrap_or_else(|error| panic!("round {round}: {error}"));
            volume.discard(0, 60 * 4096, WriteFlags::default()).await.unwrap();
        }
        volume.flush().await.unwrap();
    });
    drop(volume);
    let (rig, volume) = next_life(rig, CrashMode::LoseAll, 8, 6);
    assert_eq!(rig.world.block_on(read(&volume, 0, 480)).unwrap(), [0; 480]);
}

/// Two volumes over one log: "disk", and "other", whose backing refuses everything and whose flushed blocks fill the log.
fn filled_by_another(seed: u64) -> (Rig, Volume<SimSeam>, Volume<SimSeam>) {
    let (rig, volume) = first_life(seed, 30);
    let other = rig.add_disk("other", SimDiskSpec::new(64 * MIB));
    other.add_fault(Rule::new(Fault::Error, Ops::CHANGE, When::Always));
    let other = rig.attach("other", |spec| spec.incarnation = 2).unwrap();
    rig.world.block_on(async {
        write(&volume, 0, 8, 1).await.unwrap();
        volume.flush().await.unwrap();
        let mut block = 0;
        loop {
            for _ in 0..16 {
                write(&other, block * 16, 8, 7).await.unwrap();
                block += 1;
            }
            if other.flush().await.is_err() {
                break;
            }
            assert!(block < 10_000, "the log has an end");
        }
    });
    (rig, volume, other)
}

/// Found by torture (seed 20094254): whoever else needed room in the log waited for a minute and failed.
#[test]
fn a_log_that_is_full_of_another_volumes_blocks_fails_nobodys_flush() {
    for round in 0..3 {
        let (rig, volume, other) = filled_by_another(31 + round);
        rig.world.block_on(async {
            for tag in 2..40 {
                write(&volume, 0, 8, tag).await.unwrap();
                write(&volume, tag * 8, 8, tag).await.unwrap();
                volume.flush().await.unwrap_or_else(|error| panic!("flush {tag}: {error}"));
            }
            write(&volume, 0, 8, 50).await.unwrap();
        });
        let disk = rig.world.disk("disk").unwrap();
        assert_eq!(durable(&disk, 0, 8), [39; 8], "what the log has no room for is on the backing");
        drop((volume, other));
        let (rig, volume) = next_life(rig, CrashMode::LoseAll, 40 + round, 30);
        assert_eq!(rig.world.block_on(read(&volume, 0, 8)).unwrap(), [39; 8], "no older record comes back");
        // The other volume's blocks still fill the log, and nobody serves it.
        rig.world.block_on(async {
            write(&volume, 0, 8, 60).await.unwrap();
            volume.flush().await.expect("the backing is well");
            volume.set_policy(WritePolicy::WriteThrough).await.expect("nothing of it stays in the log");
        });
    }
}

#[test]
fn a_flush_in_a_full_log_waits_for_its_oldest_part_and_not_for_the_whole_volume() {
    let rig = Rig::new(spec(21), CoreSpec::default());
    let slow = Timing::between(Nanos::from_millis(200), Nanos::from_millis(220));
    let disk = rig.add_disk("disk", SimDiskSpec { timing: slow, ..SimDiskSpec::new(64 * MIB) });
    log(40).add_disks(&rig.world);
    let volume = serve(&rig, 40, true);
    let mut left = Vec::new();
    rig.world.block_on(async {
        for round in 0..60 {
            for block in 0..20 {
                // Far apart, so that nothing is merged.
                write(&volume, (round * 20 + block) * 80, 8, round + 1).await.unwrap();
            }
            let begun = rig.seam.now();
            volume.flush().await.expect("room is made");
            if rig.seam.now().since(begun) >= Nanos::from_millis(50) {
                left.push(volume.stats().dirty_bytes);
            }
        }
    });
    println!("dirty after flushes that had to make room: {left:?}");
    assert!(!left.is_empty() && left.iter().all(|left| *left > 0), "a flush waited for all that was dirty: {left:?}");
    let expected: Vec<u64> = (0..1200).map(|place| place / 20 + 1).collect();
    drop(volume);
    let rig = rig.crash(CrashMode::LoseAll, spec(22));
    let volume = serve(&rig, 40, false);
    for (place, tag) in (0..).zip(expected) {
        assert_eq!(rig.world.block_on(read(&volume, place * 80, 8)).unwrap(), [tag; 8], "block {place}");
    }
    drop(disk);
}

#[test]
fn a_volume_that_was_drained_leaves_nothing_in_the_log_and_one_that_was_parked_everything() {
    for parked in [false, true] {
        let (rig, volume) = first_life(9, 16);
        rig.world.block_on(async {
            write(&volume, 0, 8, 1).await.unwrap();
            volume.flush().await.unwrap();
            write(&volume, 8, 8, 2).await.unwrap();
            match parked {
                true => assert_eq!(volume.park().await, Ok(true)),
                false => volume.drain().await.unwrap(),
            }
        });
        drop(volume);
        let rig = rig.crash(CrashMode::LoseAll, spec(10));
        let content = durable(&rig.world.disk("disk").unwrap(), 0, 16);
        let complete = [[1; 8], [2; 8]].concat();
        assert_eq!(content == complete, !parked, "{content:?}");
        let volume = serve(&rig, 16, false);
        assert_eq!(rig.world.block_on(read(&volume, 0, 16)).unwrap(), complete);
    }
}
