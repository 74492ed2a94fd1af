//! Destage from the flash log: dirty data stays in the log until it fills more than its target, or is too old.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use engine::spec::AdmissionRule;
use engine::{ByteOffset, CoreSpec, Volume, VolumeId, VolumeSpec, WriteFlags, WritePolicy};
use flash::SegmentChoice;
use lab::fixture::{Fixture, FlashPlan, durable_tags, read, write};
use lab::torture::flash::FlashOptions;
use seam::sim::{DiskControl, Fault, Ops, Rule, SimDiskSpec, SimSeam, Timing, When, WorldSpec};
use seam::{DiskOpen, Nanos, Seam};

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

/// Number of the first `count` blocks, each third one of the volume, whose content 5 is not durable on the disk.
fn missing(disk: &DiskControl, count: u64) -> usize {
    (0..count).filter(|number| durable_tags(disk, number * 24, 1) != [5]).count()
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
fn logged_data_is_destaged_at_its_maximum_age() {
    let (fixture, disk, volume) = served(2);
    fixture.world.block_on(async {
        write_blocks(&volume, (0..2_400).map(|number| number * 3), 5).await;
        assert!(volume.stats().spilled_bytes > MIB, "all blocks are in memory");
        volume.discard(ByteOffset(128 * MIB), MIB, WriteFlags::default()).await.unwrap();
        volume.flush().await.unwrap();
        stay_busy(&fixture, &volume, Nanos::from_secs(250)).await;
        assert_eq!(disk.counts().writes, 4, "the log has room; only the evidence of the backing is destaged");
        // Segments that are younger than the first one wait for the next round, two and a half minutes later.
        stay_busy(&fixture, &volume, Nanos::from_secs(220)).await;
    });
    let left = missing(&disk, 2_400);
    assert_eq!((left, volume.needs_log()), (0, false), "blocks that are not on the disk");
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
    let left = missing(&disk, 4_000);
    assert_eq!(left, 0, "blocks that are not on the disk");
}

/// After the loss of a flash device volumes become write-through, and all that the log held goes to the backing.
#[test]
fn flush_waits_for_its_own_blocks_while_a_volume_leaves_the_log() {
    let (fixture, disk, volume) = served(6);
    fixture.world.block_on(write_blocks(&volume, (0..4_000).map(|number| number * 3), 5));
    disk.add_fault(Rule::new(Fault::Stall(Nanos::from_millis(5)), Ops::CHANGE, When::Always));
    let change = volume.clone();
    fixture.seam.spawn(async move { change.set_policy(WritePolicy::WriteThrough).await.expect("the disk answers") });
    fixture.world.block_on(async {
        fixture.seam.sleep(Nanos::from_millis(1)).await;
        write(&volume, 60_000 * 8, 16, 9).await.unwrap();
        volume.flush().await.unwrap();
    });
    assert_eq!(durable_tags(&disk, 60_000 * 8, 16), [9; 16]);
    let left = missing(&disk, 4_000);
    assert!(left > 2_000, "the flush waited for the log: {left} of 4,000 blocks are left");
    fixture.world.run_for(Nanos::from_secs(30)).unwrap();
    let left = missing(&disk, 4_000);
    assert_eq!((left, volume.needs_log()), (0, false));
}

#[test]
fn reads_are_served_while_a_resize_destages_the_log() {
    let (fixture, disk, volume) = served(7);
    fixture.world.block_on(write_blocks(&volume, (0..4_000).map(|number| number * 3), 5));
    disk.add_fault(Rule::new(Fault::Stall(Nanos::from_millis(5)), Ops::CHANGE, When::Always));
    let resized = volume.clone();
    fixture.seam.spawn(async move {
        resized.resize(Some(128 * MIB), false).await.expect("the disk answers");
    });
    fixture.world.block_on(async {
        fixture.seam.sleep(Nanos::from_millis(1)).await;
        read(&volume, 0, 8).await.unwrap();
    });
    let left = missing(&disk, 4_000);
    assert!(left > 2_000, "the read waited for the resize: {left} of 4,000 blocks are left");
    fixture.world.run_for(Nanos::from_secs(30)).unwrap();
    assert_eq!(volume.size_bytes(), 128 * MIB);
}

/// A smaller device joins once the log lies within its size.
#[test]
fn records_past_the_end_of_a_smaller_device_are_destaged() {
    let (fixture, disk, volume) = served(8);
    let store = fixture.core.log().expect("the engine has a log");
    fixture.world.block_on(async {
        let all = SegmentChoice { opened_before: Nanos::MAX, includes_older_half: false, live_records_max: u64::MAX };
        let newest = || store.select_old_segments(&all).numbers.last().map_or(0, |number| number.0);
        while newest() < 50 {
            write_blocks(&volume, (0..500).map(|number| number * 3), 6).await;
            volume.destage_all().await.unwrap();
        }
        write_blocks(&volume, (0..1_000).map(|number| 30_000 + number * 3), 5).await;
    });
    let written = disk.counts().write_bytes;
    fixture.add_disk("small", SimDiskSpec::new(LOG_BLOCKS * 4_096 / 2));
    let open = DiskOpen { path: "small".into(), create_bytes: None, read_only: false, lock_wait_ms: 1_000 };
    fixture.world.block_on(async {
        let small = fixture.seam.open_disk(&open).await.unwrap();
        let joined = Rc::new(Cell::new(false));
        let is_joined = Rc::clone(&joined);
        fixture.seam.spawn(async move {
            store
                .replace(flash::MemberNo(0), flash::MemberDisk::Local(small), false)
                .await
                .expect("a smaller device can replace a mirror");
            is_joined.set(true);
        });
        stay_busy(&fixture, &volume, Nanos::from_secs(60)).await;
        assert!(joined.get(), "the device has not joined");
    });
    assert!(disk.counts().write_bytes > written, "no record was past the end of the device");
}

/// While pages fill the flash, the log keeps records only for a short time. Blocks that destage has reloaded get new
/// copies in their pages from memory.
#[test]
fn blocks_destaged_from_the_log_return_to_their_pages() {
    const PAGES: u64 = 1_900;
    const WRITTEN: u64 = 400;
    let world = WorldSpec { blocks: 512, time_max: Nanos::from_secs(100_000), ..WorldSpec::new(9) };
    let core = CoreSpec { admission: AdmissionRule::ThirdTouch, readahead_max_bytes: 0, ..CoreSpec::default() };
    let fixture = Fixture::new(world, core);
    fixture.add_disk("disk", SimDiskSpec::new(256 * MIB));
    fixture.open_flash(&FlashPlan { devices: 2, bytes: 64 * MIB, iops: 20_000 });
    let volume = fixture.attach("disk", |_| ()).expect("the first volume can be attached");
    fixture.wait_until_checked(std::slice::from_ref(&volume));
    fixture.world.block_on(async {
        for _ in 0..4 {
            for page in 0..PAGES {
                read(&volume, page * 128, 128).await.unwrap();
                fixture.seam.sleep(Nanos::from_millis(20)).await;
            }
        }
        fixture.seam.sleep(Nanos::from_secs(60)).await;
        let cached_bytes = || volume.stats().flash.cached_bytes;
        let before = cached_bytes();
        write_blocks(&volume, (0..WRITTEN).map(|page| page * 16), 5).await;
        let store = fixture.core.log().expect("the engine has a log");
        assert!(store.retention_percent() < 25, "{} % are free for the log", store.retention_percent());
        let spilled_bytes = volume.stats().spilled_bytes;
        assert!(spilled_bytes > WRITTEN * 4_096 / 3, "memory holds the blocks: {spilled_bytes} bytes are spilled");
        let after_writes = cached_bytes();
        assert!(before - after_writes > WRITTEN / 2 * 4_096, "{before} and {after_writes} bytes in pages");
        stay_busy(&fixture, &volume, Nanos::from_secs(700)).await;
        assert_eq!(volume.stats().spilled_bytes, 0, "the log holds the blocks");
        let regained = cached_bytes() - after_writes;
        assert!(regained > (before - after_writes) * 3 / 4, "{regained} of {} bytes", before - after_writes);
    });
}
