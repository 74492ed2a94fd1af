//! Blocks of which a client wrote only some sectors, and the flash log, which takes whole blocks.

use engine::spec::Sabotage;
use engine::{Backing, CoreSpec, Volume, VolumeId, VolumeSpec};
use lab::fixture::{Fixture, read, write, write_evidence};
use lab::torture::flash::FlashOptions;
use seam::sim::{CrashMode, DiskControl, Fault, Ops, Rule, SimDiskSpec, SimSeam, Timing, When, WorldSpec};
use seam::{Nanos, Seam};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4_096;
const BLOCK_SECTORS: u64 = 8;
const DISK_MS: u64 = 10;
/// Distance of the written blocks, in blocks: none continues another.
const DISTANCE: u64 = 7;

fn world(seed: u64) -> WorldSpec {
    WorldSpec { blocks: 8_192, time_max: Nanos::from_secs(100_000), ..WorldSpec::new(seed) }
}

fn log() -> FlashOptions {
    FlashOptions::plain(2, MIB, 64)
}

/// A volume of 256 MiB on a disk that serves many requests at once, with memory of 32 MiB and a log of 64 MiB.
fn served(seed: u64, sabotage: Sabotage) -> (Fixture, DiskControl, Volume<SimSeam>) {
    let fixture = Fixture::new(world(seed), CoreSpec { sabotage, ..CoreSpec::default() });
    let timing = Timing::between(Nanos::from_millis(DISK_MS), Nanos::from_millis(DISK_MS));
    let control = fixture.add_disk("disk", SimDiskSpec { timing, ..SimDiskSpec::new(256 * MIB) });
    log().add_disks(&fixture.world);
    let volume = log().serve(&fixture, true);
    (fixture, control, volume)
}

/// Writes the first `sectors` of each of these blocks with this tag.
async fn write_blocks(volume: &Volume<SimSeam>, numbers: std::ops::Range<u64>, sectors: u64, tag: u64) {
    for number in numbers {
        write(volume, number * DISTANCE * BLOCK_SECTORS, sectors, tag).await.unwrap();
    }
}

fn logged_blocks(volume: &Volume<SimSeam>) -> u64 {
    volume.stats().flash.logged_bytes / BLOCK
}

/// The number of blocks, of 64 written in part, whose sectors are lost in a crash after a flush.
fn lost_after_flush(sabotage: Sabotage) -> usize {
    let (fixture, disk, volume) = served(1, sabotage);
    disk.add_fault(Rule::new(Fault::Hang, Ops::CHANGE, When::Always));
    fixture.world.block_on(async {
        write_blocks(&volume, 0..64, 3, 5).await;
        volume.flush().await.unwrap();
    });
    drop(volume);
    let fixture = fixture.crash(CrashMode::LoseAll, world(2));
    let volume = log().serve(&fixture, false);
    let is_lost = |number: &u64| {
        fixture.world.block_on(read(&volume, number * DISTANCE * BLOCK_SECTORS, 8)).unwrap() != [5, 5, 5, 0, 0, 0, 0, 0]
    };
    (0..64).filter(is_lost).count()
}

#[test]
fn flush_logs_blocks_that_were_written_in_part() {
    assert_eq!(lost_after_flush(Sabotage::None), 0);
    assert!(lost_after_flush(Sabotage::LeaveOutPartial) > 0, "the case cannot fail");
}

#[test]
fn flush_reads_the_rest_of_many_partial_blocks_at_once() {
    let (fixture, disk, volume) = served(3, Sabotage::None);
    // Two chunks: the fills of the second one begin with those of the first.
    let (full, partial) = (0..120, 120..152);
    let seconds = fixture.world.block_on(async {
        write_blocks(&volume, full, BLOCK_SECTORS, 5).await;
        write_blocks(&volume, partial, 3, 6).await;
        let began = fixture.seam.now();
        volume.flush().await.unwrap();
        fixture.seam.now().since(began).as_secs_f64()
    });
    assert_eq!(disk.counts().reads, 32, "one read for each partial block");
    let one_after_the_other = 32.0 * DISK_MS as f64 / 1e3;
    assert!(seconds < one_after_the_other / 4.0, "the flush took {seconds} s");
}

/// Reads from memory for this time, so that the clients do not count as idle and destage leaves dirty data in the log.
async fn stay_busy(fixture: &Fixture, volume: &Volume<SimSeam>, time: Nanos) {
    let until = fixture.seam.now() + time;
    while fixture.seam.now() < until {
        read(volume, 799 * DISTANCE * BLOCK_SECTORS, 8).await.unwrap();
        fixture.seam.sleep(Nanos::from_millis(100)).await;
    }
}

#[test]
fn partial_blocks_hold_up_no_flush_in_the_background() {
    let (fixture, disk, volume) = served(4, Sabotage::None);
    fixture.world.block_on(write_evidence(&fixture.seam, &volume, 200 * MIB / BLOCK));
    disk.add_fault(Rule::new(Fault::Stall(Nanos::from_secs(5)), Ops::READ, When::Always));
    fixture.world.block_on(async {
        write_blocks(&volume, 0..100, 3, 6).await;
        write_blocks(&volume, 100..800, BLOCK_SECTORS, 5).await;
        stay_busy(&fixture, &volume, Nanos::from_secs(12)).await;
    });
    assert_eq!(logged_blocks(&volume), 700, "all full blocks are logged, and none that was written in part");
    fixture.world.block_on(stay_busy(&fixture, &volume, Nanos::from_secs(100)));
    assert_eq!(logged_blocks(&volume), 800, "the others follow once they are filled");
    assert_eq!(disk.counts().writes, 1, "only the evidence of the backing is destaged");
}

#[test]
fn partial_block_whose_rest_is_unreadable_goes_to_the_backing() {
    let (fixture, disk, volume) = served(5, Sabotage::None);
    disk.add_fault(Rule::new(Fault::Error, Ops::READ, When::Always));
    fixture.world.block_on(async {
        write_blocks(&volume, 0..40, 3, 6).await;
        for _ in 0..600 {
            fixture.seam.sleep(Nanos::from_millis(100)).await;
            let _ = read(&volume, 200 * MIB / 512, 8).await;
        }
    });
    assert_eq!(logged_blocks(&volume), 0);
    let missing =
        (0..40).filter(|number| lab::fixture::durable_tags(&disk, number * DISTANCE * BLOCK_SECTORS, 3) != [6; 3]);
    assert_eq!(missing.count(), 0, "blocks that are not on the backing");
}

#[test]
fn request_across_blocks_is_destaged_in_one_write() {
    let fixture = Fixture::new(world(6), CoreSpec::default());
    let disk = fixture.add_disk("disk", SimDiskSpec::new(256 * MIB));
    let backing = Backing::plain(fixture.open("disk"));
    let volume = fixture.core.attach(VolumeSpec::new("disk", VolumeId(1)), backing).unwrap();
    // A guest with misaligned partitions: 8 KiB from the sixth sector of a block on.
    let starts: Vec<u64> = (0..100).map(|number| number * DISTANCE * BLOCK_SECTORS + 5).collect();
    fixture.world.block_on(async {
        for start in &starts {
            write(&volume, *start, 16, 5).await.unwrap();
        }
        volume.flush().await.unwrap();
    });
    let writes = disk.counts().writes;
    assert!((100..=105).contains(&writes), "{writes} writes; a few requests cross the end of a run");
    for start in starts {
        let tags = lab::fixture::durable_tags(&disk, start - 5, 24);
        let expected: Vec<u64> = (0..24).map(|sector| if (5..21).contains(&sector) { 5 } else { 0 }).collect();
        assert_eq!(tags, expected, "sectors around {start}");
    }
}
