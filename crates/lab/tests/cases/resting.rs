//! Dirty blocks that rest on flash: flash and not memory bounds what is dirty, nothing is read for a volume to be served, and what is
//! older never comes back over them.

use engine::{CoreSpec, Volume, VolumeSpec};
use lab::rig::{Rig, durable, read, write};
use lab::torture::flash::FlashOptions;
use seam::sim::{CrashMode, Fault, Ops, Rule, SimDiskSpec, SimSeam, Stop, When, WorldSpec};
use seam::{DiskOpen, Seam};

const MIB: u64 = 1 << 20;
/// Blocks of memory: 2 MiB.
const MEMORY: usize = 512;

fn log() -> FlashOptions {
    FlashOptions::plain(2, 256 << 10, 100)
}

fn world(seed: u64) -> WorldSpec {
    WorldSpec { blocks: MEMORY, ..WorldSpec::new(seed) }
}

fn first_life(seed: u64) -> (Rig, Volume<SimSeam>) {
    let rig = Rig::new(world(seed), CoreSpec::default());
    rig.add_disk("disk", SimDiskSpec::new(16 * MIB));
    log().add_disks(&rig.world);
    let volume = serve(&rig, true);
    (rig, volume)
}

fn serve(rig: &Rig, first: bool) -> Volume<SimSeam> {
    let open = DiskOpen { path: "disk".into(), create_bytes: None, read_only: false, lock_wait_ms: 1_000 };
    rig.world.block_on(async {
        log().open(&rig.seam, &rig.core, first, false).await.expect("the devices are whole");
        let disk = engine::Backing::plain(rig.seam.open_disk(&open).await.expect("the disk is there"));
        rig.core.attach_recovered(VolumeSpec::new("disk", 1), disk).await.expect("the log was read")
    })
}

/// Writes blocks 0 to `count`, far more than memory holds, each its number and `plus`, while the backing takes nothing.
fn filled(seed: u64, count: u64, plus: u64) -> (Rig, Volume<SimSeam>) {
    let (rig, volume) = first_life(seed);
    rig.world.disk("disk").unwrap().add_fault(Rule::new(Fault::Error, Ops::CHANGE, When::Always));
    rig.world.block_on(async {
        for block in 0..count {
            write(&volume, block * 8, 8, block + plus).await.unwrap();
        }
        volume.flush().await.unwrap();
    });
    (rig, volume)
}

#[test]
fn flash_bounds_what_is_dirty_and_not_memory() {
    let (rig, volume) = filled(1, 3_000, 10);
    let stats = volume.stats();
    assert!(stats.resting_bytes > 2_500 * 4096 && stats.dirty_bytes >= 3_000 * 4096, "{stats:?}");
    assert!(stats.resting_index_bytes <= 24 * stats.resting_bytes / 4096, "{stats:?}");
    rig.world.block_on(async {
        for block in 0..3_000 {
            assert_eq!(read(&volume, block * 8, 8).await.unwrap(), [block + 10; 8], "block {block}");
        }
        // A part of a block is changed: the rest of it is what it was.
        write(&volume, 8 * 8 + 3, 2, 7).await.unwrap();
        assert_eq!(read(&volume, 8 * 8, 8).await.unwrap(), [18, 18, 18, 7, 7, 18, 18, 18]);
        let disk = rig.world.disk("disk").unwrap();
        disk.clear_faults();
        volume.destage_all().await.unwrap();
        assert_eq!(durable(&disk, 2_999 * 8, 8), [3_009; 8]);
        assert_eq!(durable(&disk, 8 * 8, 8), [18, 18, 18, 7, 7, 18, 18, 18]);
    });
    let stats = volume.stats();
    assert_eq!((stats.resting_bytes, stats.dirty_bytes, stats.flash_dirty_bytes), (0, 0, 0), "{stats:?}");
}

#[test]
fn a_volume_is_served_before_its_dirty_data_was_read_and_destages_it_by_itself() {
    let (rig, volume) = filled(2, 3_000, 10);
    drop(volume);
    let rig = rig.crash(CrashMode::LoseAll, world(3));
    let volume = serve(&rig, false);
    let flash = ["flash1", "flash2"].map(|name| rig.world.disk(name).unwrap());
    let bytes: u64 = flash.iter().map(|device| device.counts().read_bytes).sum();
    // Superblocks, headers, and what lies behind the last batch.
    assert!(bytes < 3_000 * 4096 / 2, "{bytes} bytes were read");
    assert_eq!(volume.stats().resting_bytes, 3_000 * 4096);
    rig.world.block_on(async {
        assert_eq!(read(&volume, 700 * 8, 8).await.unwrap(), [710; 8]);
        rig.seam.sleep(seam::Nanos::from_secs(30)).await;
    });
    let disk = rig.world.disk("disk").unwrap();
    assert_eq!((volume.stats().resting_bytes, durable(&disk, 2_000 * 8, 8)), (0, vec![2_010; 8]));
}

#[test]
fn a_block_without_a_good_copy_fails_who_asks_for_it_alone() {
    let (rig, volume) = filled(4, 1_000, 10);
    drop(volume);
    let rig = rig.crash(CrashMode::LoseAll, world(5));
    let volume = serve(&rig, false);
    // Somewhere inside the log, on both devices: one block's data at least.
    for name in ["flash1", "flash2"] {
        (0..8).for_each(|sector| rig.world.disk(name).unwrap().flip_bit((MIB + 40 * 4096) / 512 + sector, 3));
    }
    rig.world.block_on(async {
        let mut bad = 0;
        for block in 0..1_000 {
            match read(&volume, block * 8, 8).await {
                Ok(content) => assert_eq!(content, [block + 10; 8]),
                Err(error) => {
                    assert!(error.to_string().contains("has no good copy on flash"), "{error}");
                    bad += 1;
                }
            }
        }
        assert_eq!(bad, 1);
        assert!(volume.destage_all().await.is_err(), "one block cannot be brought to the backing");
        rig.seam.sleep(seam::Nanos::from_secs(30)).await;
        let disk = rig.world.disk("disk").unwrap();
        let there = (0..1_000).filter(|block| durable(&disk, block * 8, 8) == [block + 10; 8]).count();
        assert_eq!(there, 999, "all others can");
        assert!(!volume.stats().alerts.is_empty());
    });
}

/// Found by torture (seed 1514): a tombstone for zeroes took along the record of a block that had been written over them, before its new
/// content was durable anywhere.
#[test]
fn a_flush_of_zeroes_keeps_the_record_of_what_was_written_over_them_until_that_is_durable() {
    for io in 1..60 {
        let (rig, volume) = first_life(6);
        rig.world.block_on(async {
            write(&volume, 0, 64 * 8, 5).await.unwrap();
            volume.destage_all().await.unwrap();
            write(&volume, 9 * 8, 8, 1).await.unwrap();
            volume.flush().await.unwrap();
        });
        rig.world.crash_at_io(rig.world.io_count() + io);
        let ended = rig.world.run_until(async {
            volume.zero(0, 64 * 4096, engine::ZeroFlags::default()).await.unwrap();
            write(&volume, 9 * 8, 8, 2).await.unwrap();
            volume.flush().await.unwrap();
        });
        let flushed = match ended {
            Ok(()) => true,
            Err(Stop::CrashPoint) => false,
            Err(stop) => panic!("{stop}"),
        };
        drop(volume);
        let rig = rig.crash(CrashMode::KeepAll, world(7));
        let volume = serve(&rig, false);
        let content = rig.world.block_on(read(&volume, 9 * 8, 8)).unwrap();
        let allowed: &[u64] = if flushed { &[2] } else { &[0, 1, 2] };
        assert!(allowed.iter().any(|tag| content == [*tag; 8]), "cut at I/O {io}: {content:?}");
    }
}
