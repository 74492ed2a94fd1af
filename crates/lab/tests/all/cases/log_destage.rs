//! Destage from the flash log: dirty data stays in the log until it fills more than its target, or is too old.

use std::ops::Range;

use engine::{ByteOffset, CoreSpec, Volume, VolumeId, VolumeSpec, WriteFlags};
use lab::fixture::{Fixture, durable_tags, read, write};
use lab::torture::flash::FlashOptions;
use seam::sim::{DiskControl, Fault, Ops, Rule, SimDiskSpec, SimSeam, Timing, When, WorldSpec};
use seam::{Nanos, Seam};

const MIB: u64 = 1 << 20;
/// Blocks of memory: 32 MiB, of which dirty data may take a third.
const MEMORY_BLOCKS: usize = 8_192;
/// Blocks of the log: 64 MiB, of which dirty data may take a fifth.
const LOG_BLOCKS: u64 = 16_384;
/// Interval of reads that keep the clients from counting as idle.
const READ_INTERVAL: Nanos = Nanos::from_millis(100);

fn served(seed: u64) -> (Fixture, DiskControl, Volume<SimSeam>) {
    let world = WorldSpec { blocks: MEMORY_BLOCKS, time_max: Nanos::from_secs(100_000), ..WorldSpec::new(seed) };
    let fixture = Fixture::new(world, CoreSpec::default());
    let timing = Timing::between(Nanos::from_micros(100), Nanos::from_micros(500));
    let control = fixture.add_disk("disk", SimDiskSpec { timing, ..SimDiskSpec::new(256 * MIB) });
    let log = FlashOptions::plain(2, MIB, LOG_BLOCKS * 4_096 / MIB);
    log.add_disks(&fixture.world);
    let backing = engine::Backing::plain(fixture.open("disk"));
    let volume = fixture.world.block_on(async {
        log.open(&fixture.seam, &fixture.core, true, false).await.expect("the devices are empty");
        fixture.core.attach_recovered(VolumeSpec::new("disk", VolumeId(1)), backing).await.expect("the log is empty")
    });
    (fixture, control, volume)
}

/// Reads blocks past the written ones for this time.
async fn stay_busy(fixture: &Fixture, volume: &Volume<SimSeam>, time: Nanos) {
    let until = fixture.seam.now() + time;
    while fixture.seam.now() < until {
        read(volume, 500_000, 8).await.unwrap();
        fixture.seam.sleep(READ_INTERVAL).await;
    }
}

/// Writes these blocks with this tag, and flushes after every 100.
async fn write_blocks(volume: &Volume<SimSeam>, blocks: impl Iterator<Item = u64>, tag: u64) {
    for (block, number) in blocks.zip(1..) {
        write(volume, block * 8, 8, tag).await.unwrap();
        if number % 100 == 0 {
            volume.flush().await.unwrap();
        }
    }
}

#[test]
fn blocks_written_again_and_again_stay_in_the_log() {
    let (fixture, disk, volume) = served(1);
    fixture.world.block_on(async {
        for round in 1..=40 {
            write_blocks(&volume, 0..2_000, round).await;
            stay_busy(&fixture, &volume, Nanos::from_millis(300)).await;
        }
    });
    let written = disk.counts().write_bytes / 4_096;
    assert!(written < 800, "{written} of 80,000 written blocks went to the disk");
    assert!(volume.stats().spilled_bytes > 0, "memory holds all dirty data");
    fixture.world.block_on(volume.destage_all()).unwrap();
    assert_eq!(durable_tags(&disk, 1_999 * 8, 1), [40]);
}

#[test]
fn data_leaves_the_log_at_its_age() {
    let (fixture, disk, volume) = served(2);
    fixture.world.block_on(async {
        write_blocks(&volume, (0..2_400).map(|number| number * 3), 5).await;
        assert!(volume.stats().spilled_bytes > MIB, "all blocks are in memory");
        volume.discard(ByteOffset(128 * MIB), MIB, WriteFlags::default()).await.unwrap();
        volume.flush().await.unwrap();
        stay_busy(&fixture, &volume, Nanos::from_secs(250)).await;
        assert_eq!(disk.counts().write_bytes, 0, "the log has room");
        // Segments that are younger than the first one wait for the next round, two and a half minutes later.
        stay_busy(&fixture, &volume, Nanos::from_secs(220)).await;
    });
    let missing = (0..2_400).filter(|number| durable_tags(&disk, number * 24, 1) != [5]).count();
    assert_eq!((missing, volume.needs_log()), (0, false), "blocks that are not on the disk");
}

#[test]
fn oldest_data_leaves_a_log_above_its_target() {
    let (fixture, disk, volume) = served(3);
    let total = LOG_BLOCKS * 2 / 5;
    fixture.world.block_on(async {
        write_blocks(&volume, (0..total).map(|number| number * 3), 7).await;
        stay_busy(&fixture, &volume, Nanos::from_secs(60)).await;
    });
    let (free, segments) = fixture.core.log().expect("the engine has a log").room();
    let used_percent = (segments - free) * 100 / segments;
    assert!((10..=22).contains(&used_percent), "{used_percent} % of the log are in use");
    let on_disk = |numbers: Range<u64>| numbers.filter(|number| durable_tags(&disk, number * 24, 1) == [7]).count();
    assert_eq!(on_disk(0..total / 4), (total / 4) as usize, "the oldest blocks are not on the disk");
    assert_eq!(on_disk(total - 500..total), 0, "the newest blocks are on the disk");
}

/// While the backing refuses writes, rounds read the log only now and then.
#[test]
fn log_is_rarely_read_for_a_backing_that_fails() {
    let (fixture, disk, volume) = served(4);
    disk.add_fault(Rule::new(Fault::Error, Ops::CHANGE, When::Always));
    let reads = || {
        let of = |name| fixture.world.disk(name).expect("the disk was added").counts().reads;
        of("flash1") + of("flash2")
    };
    let mut before = 0;
    fixture.world.block_on(async {
        write_blocks(&volume, (0..4_000).map(|number| number * 3), 5).await;
        stay_busy(&fixture, &volume, Nanos::from_secs(305)).await;
        before = reads();
        stay_busy(&fixture, &volume, Nanos::from_secs(100)).await;
    });
    let count = reads() - before;
    assert!(count < 20_000, "{count} reads of the log in 100 s");
    disk.clear_faults();
    fixture.world.block_on(stay_busy(&fixture, &volume, Nanos::from_secs(120)));
    let missing = (0..4_000).filter(|number| durable_tags(&disk, number * 24, 1) != [5]).count();
    assert_eq!(missing, 0, "blocks that are not on the disk");
}
