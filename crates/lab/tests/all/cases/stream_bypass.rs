//! Streams bypass the flash log, unless a client flushes them, they get old, or the backing is slower.

use engine::spec::Sabotage;
use engine::{CoreSpec, Volume};
use lab::fixture::{Fixture, durable_tags, read, write, write_evidence};
use lab::torture::flash::FlashOptions;
use seam::sim::{CrashMode, DiskControl, Fault, Ops, Rule, SimDiskSpec, SimSeam, Timing, When, WorldSpec};
use seam::{Nanos, Seam};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4_096;
/// Length of a request of the stream, in sectors.
const REQUEST_SECTORS: u64 = 128;
const SECTORS_PER_MIB: u64 = MIB / 512;
/// First sector that no stream writes.
const ELSEWHERE: u64 = 64 * SECTORS_PER_MIB;

fn world(seed: u64) -> WorldSpec {
    WorldSpec { blocks: 8_192, time_max: Nanos::from_secs(100_000), ..WorldSpec::new(seed) }
}

fn log() -> FlashOptions {
    FlashOptions::plain(2, MIB, 64)
}

/// A volume of 256 MiB with memory of 32 MiB and a log of 64 MiB.
fn served(seed: u64) -> (Fixture, DiskControl, Volume<SimSeam>) {
    served_with(seed, CoreSpec::default())
}

fn served_with(seed: u64, core: CoreSpec) -> (Fixture, DiskControl, Volume<SimSeam>) {
    let fixture = Fixture::new(world(seed), core);
    let timing = Timing::between(Nanos::from_micros(100), Nanos::from_micros(500));
    let control = fixture.add_disk("disk", SimDiskSpec { timing, ..SimDiskSpec::new(256 * MIB) });
    log().add_disks(&fixture.world);
    let volume = log().serve(&fixture, true);
    (fixture, control, volume)
}

/// Writes `mib` MiB from the first sector on with this tag, one request every `interval`.
async fn write_stream(fixture: &Fixture, volume: &Volume<SimSeam>, mib: u64, tag: u64, interval: Nanos) {
    for request in 0..mib * SECTORS_PER_MIB / REQUEST_SECTORS {
        write(volume, request * REQUEST_SECTORS, REQUEST_SECTORS, tag).await.unwrap();
        fixture.seam.sleep(interval).await;
    }
}

/// Writes `count` scattered blocks with this tag.
async fn write_scattered(volume: &Volume<SimSeam>, count: u64, tag: u64) {
    for number in 0..count {
        write(volume, ELSEWHERE + number * 37 % count * 24, 8, tag).await.unwrap();
    }
}

/// Reads elsewhere for this time, so that the clients do not count as idle.
async fn stay_busy(fixture: &Fixture, volume: &Volume<SimSeam>, time: Nanos) {
    let until = fixture.seam.now() + time;
    while fixture.seam.now() < until {
        read(volume, 200 * SECTORS_PER_MIB, 8).await.unwrap();
        fixture.seam.sleep(Nanos::from_millis(100)).await;
    }
}

fn logged_bytes(volume: &Volume<SimSeam>) -> u64 {
    volume.stats().flash.logged_bytes
}

#[test]
fn stream_without_flushes_goes_to_the_backing_alone() {
    let (fixture, disk, volume) = served(1);
    fixture.world.block_on(async {
        write_stream(&fixture, &volume, 32, 5, Nanos::from_millis(10)).await;
        stay_busy(&fixture, &volume, Nanos::from_secs(25)).await;
    });
    let logged = logged_bytes(&volume);
    // The blocks before the stream is recognised are logged.
    assert!(logged <= 256 << 10, "{logged} bytes of a stream of 32 MiB are in the log");
    let missing = durable_tags(&disk, 0, 32 * SECTORS_PER_MIB).into_iter().filter(|tag| *tag != 5).count();
    assert_eq!(missing, 0, "sectors of the stream that are not on the disk");
    let written = disk.counts().write_bytes;
    assert!(written <= 33 * MIB, "{written} bytes written to the disk");
}

#[test]
fn scattered_writes_beside_a_stream_stay_in_the_log() {
    let (fixture, disk, volume) = served(2);
    fixture.world.block_on(async {
        write_scattered(&volume, 1_000, 6).await;
        write_stream(&fixture, &volume, 32, 5, Nanos::from_millis(10)).await;
        stay_busy(&fixture, &volume, Nanos::from_secs(25)).await;
    });
    let logged = logged_bytes(&volume);
    assert!((1_000 * BLOCK..1_000 * BLOCK + MIB / 2).contains(&logged), "{logged} bytes logged");
    let on_disk = (0..1_000).filter(|number| durable_tags(&disk, ELSEWHERE + number * 24, 1) == [6]).count();
    assert_eq!(on_disk, 0, "scattered blocks that have left the log");
}

/// Flushes while a flush in the background, which has left out blocks of a stream, is in progress. Returns how many
/// blocks of the stream are lost in a crash after the flush.
fn lost_after_flush(sabotage: Sabotage) -> usize {
    let (fixture, disk, volume) = served_with(3, CoreSpec { sabotage, ..CoreSpec::default() });
    fixture.world.block_on(write_evidence(&fixture.seam, &volume, 60_000));
    disk.add_fault(Rule::new(Fault::Hang, Ops::CHANGE, When::Always));
    fixture.world.block_on(async {
        write_scattered(&volume, 700, 6).await;
        write_stream(&fixture, &volume, 2, 5, Nanos::from_millis(1)).await;
        let logged = logged_bytes(&volume);
        assert!((1..700 * BLOCK).contains(&logged), "no flush in the background is in progress: {logged} bytes logged");
        volume.flush().await.unwrap();
    });
    drop(volume);
    let fixture = fixture.crash(CrashMode::LoseAll, world(4));
    let volume = log().serve(&fixture, false);
    let blocks = 2 * SECTORS_PER_MIB / 8;
    let is_lost = |block: &u64| fixture.world.block_on(read(&volume, block * 8, 8)).unwrap() != [5; 8];
    (0..blocks).filter(is_lost).count()
}

#[test]
fn flush_covers_blocks_that_a_background_flush_has_left_out() {
    assert_eq!(lost_after_flush(Sabotage::None), 0);
    assert!(lost_after_flush(Sabotage::LeaveOutStreams) > 0, "the case cannot fail");
}

/// The log has older records of blocks that a stream has written again.
#[test]
fn flush_outdates_older_records_of_a_stream() {
    let (fixture, disk, volume) = served(7);
    fixture.world.block_on(async {
        for block in 0..512 {
            write(&volume, block * 8, 8, 4).await.unwrap();
            if block % 8 == 7 {
                volume.flush().await.unwrap();
            }
        }
        write_stream(&fixture, &volume, 2, 5, Nanos::from_millis(5)).await;
        stay_busy(&fixture, &volume, Nanos::from_secs(15)).await;
        let on_disk = durable_tags(&disk, 0, 2 * SECTORS_PER_MIB).into_iter().filter(|tag| *tag == 5).count();
        assert!(on_disk > 3_000, "{on_disk} sectors of the stream are on the disk");
        volume.flush().await.unwrap();
    });
    drop(volume);
    let fixture = fixture.crash(CrashMode::LoseAll, world(8));
    let volume = log().serve(&fixture, false);
    let tags = fixture.world.block_on(read(&volume, 0, 2 * SECTORS_PER_MIB)).unwrap();
    assert_eq!(tags.into_iter().filter(|tag| *tag != 5).count(), 0, "sectors with older content");
}

#[test]
fn old_blocks_of_a_stream_are_logged_if_the_backing_hangs() {
    let (fixture, disk, volume) = served(5);
    fixture.world.block_on(async {
        // The disk answers no later read.
        read(&volume, 200 * SECTORS_PER_MIB, 8).await.unwrap();
        disk.add_fault(Rule::new(Fault::Hang, Ops::CHANGE, When::Always));
        write_stream(&fixture, &volume, 1, 5, Nanos::from_millis(1)).await;
        stay_busy(&fixture, &volume, Nanos::from_secs(14)).await;
        let logged = logged_bytes(&volume);
        assert!(logged <= 256 << 10, "{logged} bytes are logged already");
        stay_busy(&fixture, &volume, Nanos::from_secs(15)).await;
    });
    assert_eq!(logged_bytes(&volume), MIB);
}

/// Each write of the disk takes 400 ms.
#[test]
fn stream_faster_than_the_backing_is_logged() {
    let (fixture, disk, volume) = served(6);
    disk.add_fault(Rule::new(Fault::Stall(Nanos::from_millis(400)), Ops::CHANGE, When::Always));
    let started = fixture.seam.now();
    fixture.world.block_on(write_stream(&fixture, &volume, 32, 5, Nanos::from_millis(5)));
    let took = fixture.seam.now().since(started);
    assert!(took < Nanos::from_secs(8), "the stream waited for the disk: {took}");
    let logged = logged_bytes(&volume);
    assert!(logged > 16 * MIB, "{logged} bytes logged");
    assert!(disk.counts().write_bytes > MIB, "no block bypasses the log");
    assert_eq!(fixture.world.block_on(read(&volume, 0, 1)).unwrap(), [5]);
}
