//! The published bugs of another write-back log, the persistent write log of Ceph's librbd, as cases of this one. The
//! numbers are those of the requests that mended them, <https://github.com/ceph/ceph/pull/NUMBER>.

use std::cell::Cell;
use std::rc::Rc;

use engine::{ByteOffset, CoreSpec, Volume, WriteFlags};
use lab::fixture::{Fixture, SameTag, durable_tags, out_of_order_disk, read, write, write_evidence};
use lab::torture::flash::FlashOptions;
use seam::sim::{CrashMode, Fault, Ops, Rule, SimDiskSpec, SimSeam, When, WorldSpec};
use seam::{Nanos, Seam};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Sectors of a block.
const BLOCK: u64 = 8;
const CRASHES: [CrashMode; 7] = [
    CrashMode::Kill,
    CrashMode::LoseAll,
    CrashMode::KeepAll,
    CrashMode::Prefix,
    CrashMode::Reordered,
    CrashMode::Torn,
    CrashMode::Scattered,
];

/// A log of 4 MiB on two devices.
fn log() -> FlashOptions {
    FlashOptions::plain(2, 64 << 10, 64)
}

/// A world that gives up after an hour, so that a wait without an end fails.
fn world(seed: u64) -> WorldSpec {
    WorldSpec { blocks: 1024, time_max: Nanos::from_secs(3_600), ..WorldSpec::new(seed) }
}

/// A volume with `log` on a new disk.
fn served(seed: u64, log: &FlashOptions, disk: SimDiskSpec) -> (Fixture, Volume<SimSeam>) {
    let fixture = Fixture::new(world(seed), CoreSpec::default());
    let evidence = disk.geometry.size_bytes / 4096 - 8;
    fixture.add_disk("disk", disk);
    log.add_disks(&fixture.world);
    let volume = log.serve(&fixture, true);
    fixture.world.block_on(write_evidence(&fixture.seam, &volume, evidence));
    (fixture, volume)
}

async fn write_durably(volume: &Volume<SimSeam>, first: u64, count: u64, tag: u64) {
    let flags = WriteFlags { fua: true, ..WriteFlags::default() };
    let (at, len) = (ByteOffset(first * 512), (count * 512) as usize);
    volume.write(at, len, flags, &mut SameTag(tag)).await.expect("the disks are healthy");
}

fn stall(fixture: &Fixture, time: Nanos) {
    let disk = fixture.world.disk("disk").expect("the disk was added");
    disk.add_fault(Rule::new(Fault::Stall(time), Ops::CHANGE, When::Always));
}

/// The root of the log was written by two appends at a time, and then named entries that no device had (41490).
#[test]
fn two_appends_at_a_time_leave_a_log_that_a_crash_cannot_break() {
    for (number, crash) in CRASHES.into_iter().enumerate() {
        for moment_us in [100, 300, 1_000, 5_000] {
            let (fixture, volume) = served(number as u64, &log(), out_of_order_disk(64 * MIB));
            let flushed = [0, 1].map(|_| Rc::new(Cell::new(0)));
            for (writer, flushed) in flushed.iter().enumerate() {
                let (volume, flushed) = (volume.clone(), Rc::clone(flushed));
                fixture.seam.spawn(async move {
                    for tag in 1.. {
                        let written = write(&volume, writer as u64 * 64 + tag % 4 * BLOCK, BLOCK, tag).await;
                        if written.is_err() || volume.flush().await.is_err() {
                            return;
                        }
                        flushed.set(tag);
                    }
                });
            }
            fixture.world.block_on(fixture.seam.sleep(Nanos::from_micros(moment_us)));
            drop(volume);
            let fixture = fixture.crash(crash, world(100));
            let volume = log().serve(&fixture, false);
            for (writer, flushed) in flushed.iter().enumerate() {
                let tags = fixture.world.block_on(read(&volume, writer as u64 * 64, 4 * BLOCK)).expect("it is served");
                let newest = tags.iter().max().copied().unwrap_or(0);
                assert!(newest >= flushed.get(), "{crash:?} after {moment_us} us: {tags:?}, {} flushed", flushed.get());
            }
        }
    }
}

/// Overlapping writes reached the image in another order than that in which they were acknowledged (44199).
#[test]
fn overlapping_writes_are_destaged_in_their_order() {
    for seed in 0..40 {
        let (fixture, volume) = served(seed, &log(), out_of_order_disk(64 * MIB));
        fixture.world.block_on(async {
            for round in 0..6 {
                let tag = round * 3 + 10;
                write(&volume, 0, 16, tag).await.unwrap();
                write(&volume, 4, 16, tag + 1).await.unwrap();
                if round % 2 == 0 {
                    volume.flush().await.unwrap();
                }
                // Destage has begun when the next write comes.
                let destaging = volume.clone();
                fixture.seam.spawn(async move { destaging.destage_all().await.expect("the disk is healthy") });
                fixture.seam.sleep(Nanos::from_micros(seed * 10)).await;
                write(&volume, 12, 8, tag + 2).await.unwrap();
            }
            volume.destage_all().await.unwrap();
        });
        let tags = durable_tags(&fixture.world.disk("disk").expect("the disk was added"), 0, 20);
        assert_eq!(tags, [vec![25; 4], vec![26; 8], vec![27; 8]].concat(), "seed {seed}");
    }
}

/// A cache that was full once took no write any more: its space was not counted as free after the destage (41068).
#[test]
fn log_that_was_full_takes_writes_again() {
    let (fixture, volume) = served(1, &log(), out_of_order_disk(64 * MIB));
    stall(&fixture, Nanos::from_millis(20));
    fixture.world.block_on(async {
        // Four times what the log has room for.
        for block in 0..4_096 {
            write(&volume, block * BLOCK, BLOCK, block + 1).await.unwrap();
            if block % 64 == 63 {
                volume.flush().await.unwrap();
            }
        }
        fixture.world.disk("disk").expect("the disk was added").clear_faults();
        volume.destage_all().await.unwrap();
        write(&volume, 0, BLOCK, 7).await.unwrap();
        volume.flush().await.unwrap();
    });
    assert!(volume.stats().flash.logged_bytes > 4 * MIB, "the log was full");
    drop(volume);
    let fixture = fixture.crash(CrashMode::LoseAll, world(2));
    let volume = log().serve(&fixture, false);
    let tags = fixture.world.block_on(async {
        [read(&volume, 0, BLOCK).await.unwrap()[0], read(&volume, 4_095 * BLOCK, BLOCK).await.unwrap()[0]]
    });
    assert_eq!(tags, [7, 4_096]);
}

/// A flush waited for a write that waited for space, which only the flush would have freed (40208).
#[test]
fn flush_beside_writes_that_wait_for_space_ends() {
    let (fixture, volume) = served(2, &log(), out_of_order_disk(64 * MIB));
    stall(&fixture, Nanos::from_secs(2));
    let written = Rc::new(Cell::new(0));
    for writer in 0..4 {
        let (volume, written) = (volume.clone(), Rc::clone(&written));
        fixture.seam.spawn(async move {
            for number in 0..1_000 {
                write(&volume, (number * 4 + writer) * BLOCK, BLOCK, 9).await.expect("the disk is slow, not broken");
                written.set(written.get() + 1);
            }
        });
    }
    fixture.world.block_on(async {
        fixture.seam.sleep(Nanos::from_secs(1)).await;
        let before = written.get();
        assert!((500..4_000).contains(&before), "writes wait for space: {before}");
        volume.flush().await.unwrap();
        fixture.world.disk("disk").expect("the disk was added").clear_faults();
        while written.get() < 4_000 {
            fixture.seam.sleep(Nanos::from_millis(100)).await;
        }
        volume.flush().await.unwrap();
    });
}

/// A shutdown waited for the destage, which waited for the shutdown (42950).
#[test]
fn stop_beside_requests_and_destage_ends_with_everything_on_the_backing() {
    for seed in 0..20 {
        let (fixture, volume) = served(seed, &log(), out_of_order_disk(64 * MIB));
        stall(&fixture, Nanos::from_millis(5));
        let acknowledged = Rc::new(Cell::new(0));
        let (writer, counted) = (volume.clone(), Rc::clone(&acknowledged));
        fixture.seam.spawn(async move {
            for tag in 1..2_000 {
                if write(&writer, tag * BLOCK, BLOCK, tag).await.is_err() {
                    return;
                }
                counted.set(tag);
                if tag % 8 == 0 && writer.flush().await.is_err() {
                    return;
                }
            }
        });
        fixture.world.block_on(async {
            fixture.seam.sleep(Nanos::from_micros(500 + seed * 700)).await;
            fixture.core.detach("disk").await.expect("the disk is slow, not broken");
        });
        let (disk, last) = (fixture.world.disk("disk").expect("the disk was added"), acknowledged.get());
        assert!(last > 8, "seed {seed}: {last} writes");
        for tag in 1..=last {
            assert_eq!(durable_tags(&disk, tag * BLOCK, 1), [tag], "seed {seed}, write {tag} of {last}");
        }
    }
}

/// After a partial overwrite, the map from blocks to entries of the log named the wrong one (42555).
#[test]
fn partly_overwritten_ranges_are_read_from_the_newest_records() {
    let expected = [vec![3; 5], vec![1; 3], vec![2; 14], vec![4; 1], vec![1; 41]].concat();
    let content = async |volume: &Volume<SimSeam>| read(volume, 0, 64).await.unwrap();
    let (fixture, volume) = served(3, &log(), out_of_order_disk(64 * MIB));
    // Nothing is destaged: the log has all of it.
    stall(&fixture, Nanos::from_secs(1_000));
    fixture.world.block_on(async {
        for (first, count, tag) in [(0, 64, 1), (8, 14, 2), (0, 5, 3), (22, 1, 4)] {
            write(&volume, first, count, tag).await.unwrap();
            volume.flush().await.unwrap();
        }
        assert_eq!(content(&volume).await, expected);
    });
    drop(volume);
    let fixture = fixture.crash(CrashMode::LoseAll, world(4));
    let volume = log().serve(&fixture, false);
    assert_eq!(fixture.world.block_on(content(&volume)), expected);
    fixture.world.block_on(async { volume.destage_all().await.unwrap() });
    assert_eq!(durable_tags(&fixture.world.disk("disk").expect("the disk was added"), 0, 64), expected);
}

/// Positions in a log of more than 4 GiB were cut to 32 bits (42046).
#[test]
fn volume_and_log_past_4_gib_keep_their_blocks_apart() {
    // Each opening begins a new segment, so that the log passes 4 GiB without so much data.
    let large = FlashOptions::plain(2, GIB, 8);
    let sectors = [0, 4 * GIB, 8 * GIB, 12 * GIB].map(|at| at / 512);
    let (mut fixture, mut volume) = served(5, &large, SimDiskSpec::new(16 * GIB));
    stall(&fixture, Nanos::from_secs(1_000));
    let mut past_4_gib = false;
    for session in 1..=8 {
        fixture.world.block_on(async {
            for (index, sector) in sectors.iter().enumerate() {
                write(&volume, sector + session * BLOCK, BLOCK, session * 10 + index as u64).await.unwrap();
            }
            volume.flush().await.unwrap();
        });
        drop(volume);
        fixture = fixture.crash(CrashMode::LoseAll, world(session));
        stall(&fixture, Nanos::from_secs(1_000));
        volume = large.serve(&fixture, false);
        let flash = fixture.world.disk("flash1").expect("the disk was added");
        let has_data = |segment: &u64| {
            let first = (MIB + segment * GIB) / 512;
            durable_tags(&flash, first, 64 * BLOCK).iter().any(|tag| (10..100).contains(tag))
        };
        past_4_gib |= (4..8).any(|segment| has_data(&segment));
        for earlier in 1..=session {
            for (index, sector) in sectors.iter().enumerate() {
                let tags = fixture.world.block_on(read(&volume, sector + earlier * BLOCK, BLOCK)).unwrap();
                assert_eq!(tags, [earlier * 10 + index as u64; 8], "session {earlier} of {session}, at {sector}");
            }
        }
    }
    assert!(past_4_gib, "the log has stayed below 4 GiB");
}

/// Durable writes beside others were corrupted, or not durable (43038).
#[test]
fn durable_writes_among_others_survive_every_crash() {
    for (number, crash) in CRASHES.into_iter().enumerate() {
        let (fixture, volume) = served(number as u64, &log(), out_of_order_disk(64 * MIB));
        fixture.world.block_on(async {
            for round in 0..20 {
                write(&volume, 0, 24, 1_000 + round).await.unwrap();
                write_durably(&volume, 8, 8, 2_000 + round).await;
                write(&volume, 16, 4, 3_000 + round).await.unwrap();
                write_durably(&volume, 40 + round * 8, 8, 4_000 + round).await;
            }
        });
        drop(volume);
        let fixture = fixture.crash(crash, world(6));
        let volume = log().serve(&fixture, false);
        let (middle, apart) = fixture
            .world
            .block_on(async { (read(&volume, 8, 8).await.unwrap(), read(&volume, 40, 160).await.unwrap()) });
        assert_eq!(middle, [2_019; 8], "{crash:?}");
        let expected: Vec<u64> = (0..20).flat_map(|round| [4_000 + round; 8]).collect();
        assert_eq!(apart, expected, "{crash:?}");
    }
}

/// An image was opened without its cache file, as if that had been clean (44236).
#[test]
fn log_whose_devices_are_lost_is_not_taken_for_an_empty_one() {
    let (fixture, volume) = served(7, &log(), out_of_order_disk(64 * MIB));
    stall(&fixture, Nanos::from_secs(1_000));
    fixture.world.block_on(async {
        write(&volume, 0, BLOCK, 5).await.unwrap();
        volume.flush().await.unwrap();
    });
    drop(volume);
    let fixture = fixture.crash(CrashMode::LoseAll, world(8));
    for name in ["flash1", "flash2"] {
        let device = fixture.world.disk(name).expect("the disk was added");
        (0..4_096).for_each(|sector| device.set_tags(sector, &[0]));
    }
    let opened = fixture.world.block_on(log().open(&fixture.seam, &fixture.core, false, false));
    let error = opened.expect_err("the devices are empty");
    assert!(error.contains("holds no flash store"), "{error}");
}
