//! Dirty blocks spilled to flash: flash, not memory, bounds the dirty data. An attach reads none of it, and older
//! content never replaces it.

use std::cell::Cell;
use std::rc::Rc;

use engine::{ByteOffset, CoreSpec, Volume};
use lab::fixture::{Fixture, durable_tags, read, write};
use lab::torture::flash::FlashOptions;
use seam::sim::{CrashMode, Fault, Ops, Rule, SimDiskSpec, SimSeam, Stop, When, WorldSpec};
use seam::{Nanos, Seam};

const MIB: u64 = 1 << 20;
/// Blocks of memory: 2 MiB.
const MEMORY_BLOCKS: usize = 512;

fn log() -> FlashOptions {
    FlashOptions::plain(2, 256 << 10, 100)
}

fn world(seed: u64) -> WorldSpec {
    WorldSpec { blocks: MEMORY_BLOCKS, ..WorldSpec::new(seed) }
}

fn first_session(seed: u64) -> (Fixture, Volume<SimSeam>) {
    let fixture = Fixture::new(world(seed), CoreSpec::default());
    fixture.add_disk("disk", SimDiskSpec::new(16 * MIB));
    log().add_disks(&fixture.world);
    let volume = log().serve(&fixture, true);
    (fixture, volume)
}

/// Writes blocks 0 to `count`, far more than memory holds, each with the tag block number + `tag_offset`, while the
/// backing fails all writes.
fn filled_volume(seed: u64, count: u64, tag_offset: u64) -> (Fixture, Volume<SimSeam>) {
    let (fixture, volume) = first_session(seed);
    fixture.world.disk("disk").unwrap().add_fault(Rule::new(Fault::Error, Ops::CHANGE, When::Always));
    fixture.world.block_on(async {
        for block in 0..count {
            write(&volume, block * 8, 8, block + tag_offset).await.unwrap();
        }
        volume.flush().await.unwrap();
    });
    (fixture, volume)
}

#[test]
fn flash_not_memory_bounds_dirty_data() {
    let (fixture, volume) = filled_volume(1, 3_000, 10);
    let stats = volume.stats();
    assert!(stats.spilled_bytes > 2_500 * 4096 && stats.dirty_bytes >= 3_000 * 4096, "{stats:?}");
    assert!(stats.spilled_index_bytes <= 24 * stats.spilled_bytes / 4096, "{stats:?}");
    fixture.world.block_on(async {
        for block in 0..3_000 {
            assert_eq!(read(&volume, block * 8, 8).await.unwrap(), [block + 10; 8], "block {block}");
        }
        // A partial overwrite keeps the rest of the block.
        write(&volume, 8 * 8 + 3, 2, 7).await.unwrap();
        assert_eq!(read(&volume, 8 * 8, 8).await.unwrap(), [18, 18, 18, 7, 7, 18, 18, 18]);
        let disk = fixture.world.disk("disk").unwrap();
        disk.clear_faults();
        volume.destage_all().await.unwrap();
        assert_eq!(durable_tags(&disk, 2_999 * 8, 8), [3_009; 8]);
        assert_eq!(durable_tags(&disk, 8 * 8, 8), [18, 18, 18, 7, 7, 18, 18, 18]);
    });
    let stats = volume.stats();
    assert_eq!((stats.spilled_bytes, stats.dirty_bytes, stats.flash_dirty_bytes), (0, 0, 0), "{stats:?}");
}

#[test]
fn volume_serves_before_recovery_reads_and_destages_later() {
    let (fixture, volume) = filled_volume(2, 3_000, 10);
    drop(volume);
    let fixture = fixture.crash(CrashMode::LoseAll, world(3));
    let volume = log().serve(&fixture, false);
    let flash = ["flash1", "flash2"].map(|name| fixture.world.disk(name).unwrap());
    let bytes: u64 = flash.iter().map(|device| device.counts().read_bytes).sum();
    // The attach reads superblocks, headers, and the part after the last batch.
    assert!(bytes < 3_000 * 4096 / 2, "{bytes} bytes were read");
    assert_eq!(volume.stats().spilled_bytes, 3_000 * 4096);
    fixture.world.block_on(async {
        assert_eq!(read(&volume, 700 * 8, 8).await.unwrap(), [710; 8]);
        fixture.seam.sleep(Nanos::from_secs(30)).await;
    });
    let disk = fixture.world.disk("disk").unwrap();
    assert_eq!((volume.stats().spilled_bytes, durable_tags(&disk, 2_000 * 8, 8)), (0, vec![2_010; 8]));
}

#[test]
fn block_without_an_intact_copy_fails_only_its_own_reads() {
    let (fixture, volume) = filled_volume(4, 1_000, 10);
    drop(volume);
    let fixture = fixture.crash(CrashMode::LoseAll, world(5));
    let volume = log().serve(&fixture, false);
    // Corrupts a position inside the log on both devices: the data of one block that is not on the backing either.
    for name in ["flash1", "flash2"] {
        (0..8).for_each(|sector| fixture.world.disk(name).unwrap().flip_bit((MIB + 400 * 4096) / 512 + sector, 3));
    }
    fixture.world.block_on(async {
        let mut unreadable = 0;
        for block in 0..1_000 {
            match read(&volume, block * 8, 8).await {
                Ok(content) => assert_eq!(content, [block + 10; 8]),
                Err(error) => {
                    assert!(error.to_string().contains("has no good copy on flash"), "{error}");
                    unreadable += 1;
                }
            }
        }
        assert_eq!(unreadable, 1);
        assert!(volume.destage_all().await.is_err(), "one block cannot be destaged");
        fixture.seam.sleep(Nanos::from_secs(30)).await;
        let disk = fixture.world.disk("disk").unwrap();
        let destaged_count = (0..1_000).filter(|block| durable_tags(&disk, block * 8, 8) == [block + 10; 8]).count();
        assert_eq!(destaged_count, 999, "all other blocks are destaged");
        assert!(!volume.stats().problems.is_empty());
    });
}

/// Found by torture (seed 1514): a tombstone for zeroes retired the record of a block written over them before the
/// block's new content was durable.
#[test]
fn flush_of_zeroes_keeps_records_of_newer_writes() {
    for io in 1..60 {
        let (fixture, volume) = first_session(6);
        fixture.world.block_on(async {
            write(&volume, 0, 64 * 8, 5).await.unwrap();
            volume.destage_all().await.unwrap();
            write(&volume, 9 * 8, 8, 1).await.unwrap();
            volume.flush().await.unwrap();
        });
        fixture.world.crash_at_io(fixture.world.io_count() + io);
        let ended = fixture.world.run_until(async {
            volume.zero(ByteOffset::ZERO, 64 * 4096, engine::ZeroFlags::default()).await.unwrap();
            write(&volume, 9 * 8, 8, 2).await.unwrap();
            volume.flush().await.unwrap();
        });
        let flushed = match ended {
            Ok(()) => true,
            Err(Stop::CrashPoint) => false,
            Err(stop) => panic!("{stop}"),
        };
        drop(volume);
        let fixture = fixture.crash(CrashMode::KeepAll, world(7));
        let volume = log().serve(&fixture, false);
        let content = fixture.world.block_on(read(&volume, 9 * 8, 8)).unwrap();
        let allowed: &[u64] = if flushed { &[2] } else { &[0, 1, 2] };
        assert!(allowed.iter().any(|tag| content == [*tag; 8]), "cut at I/O {io}: {content:?}");
    }
}

/// Found by torture (seed 330005476): reads of blocks that were partly in the log took buffers for one part after the
/// other, and each waited for buffers that others held.
#[test]
fn concurrent_reads_beyond_free_buffers_all_end() {
    const READS: u64 = 32;
    let (fixture, volume) = first_session(7);
    fixture.world.disk("disk").unwrap().add_fault(Rule::new(Fault::Error, Ops::CHANGE, When::Always));
    fixture.world.block_on(async {
        for number in 0..READS * 32 {
            write(&volume, number * 16, 8, number + 10).await.unwrap();
        }
        volume.flush().await.unwrap();
    });
    drop(volume);
    let fixture = fixture.crash(CrashMode::LoseAll, world(8));
    let volume = log().serve(&fixture, false);
    let ended = Rc::new(Cell::new(0));
    for part in 0..READS {
        let (volume, ended) = (volume.clone(), Rc::clone(&ended));
        fixture.seam.spawn(async move {
            let tags = read(&volume, part * 512, 512).await.unwrap();
            let expected = (0..512).map(|sector| if sector % 16 < 8 { part * 32 + sector / 16 + 10 } else { 0 });
            assert!(tags.into_iter().eq(expected), "part {part}");
            ended.set(ended.get() + 1);
        });
    }
    fixture.world.run_for(Nanos::from_secs(10)).unwrap();
    assert_eq!(ended.get(), READS, "reads that ended");
}
