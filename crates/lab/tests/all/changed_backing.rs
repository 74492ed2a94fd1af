//! A backing that was changed while it was not served: the change is detected before a stale byte is served, wherever
//! the changes lie.

use engine::{Backing, ByteOffset, CoreSpec, Volume, VolumeId, VolumeProblem, VolumeSpec};
use lab::fixture::{Fixture, out_of_order_disk, read, write};
use lab::random::Random;
use lab::torture::flash::FlashOptions;
use seam::sim::{SimSeam, Snapshot, Survival, WorldSpec};
use seam::{DiskOpen, Nanos, Seam};

const MIB: u64 = 1 << 20;
const VOLUME_BYTES: u64 = 64 * MIB;
const BLOCKS: u64 = VOLUME_BYTES / 4096;
/// Number of blocks changed while the volume is not served: 1 %.
const CHANGED_BLOCKS: u64 = BLOCKS / 100;
const TRIALS: u64 = 100;
/// Content of the last writes before the stop.
const LAST_WRITE_TAG: u64 = 9_000_000;
/// Content of the changed blocks.
const CHANGED_TAG: u64 = 5_000_000;

/// True if pages were dropped because the backing changed.
fn is_changed_backing(problem: &VolumeProblem) -> bool {
    matches!(problem, VolumeProblem::PagesDropped(reason) if reason.contains("the backing changed"))
}

fn devices() -> FlashOptions {
    FlashOptions::plain(2, MIB, 48)
}

fn spec(seed: u64) -> WorldSpec {
    WorldSpec { blocks: 4096, time_max: Nanos::from_secs(100_000), ..WorldSpec::new(seed) }
}

fn fixture(seed: u64) -> Fixture {
    Fixture::new(spec(seed), CoreSpec { readahead_max_bytes: 0, ..CoreSpec::default() })
}

/// Opens the flash store, which the first session formats, and attaches the volume.
fn serve(fixture: &Fixture, first: bool) -> Volume<SimSeam> {
    let open = DiskOpen { path: "disk".into(), create_bytes: None, read_only: false, lock_wait_ms: 1_000 };
    fixture.world.block_on(async {
        devices().open(&fixture.seam, &fixture.core, first, false).await.expect("the devices are intact");
        let disk = fixture.seam.open_disk(&open).await.expect("the disk exists");
        let volume = fixture.core.attach_recovered(VolumeSpec::new("disk", VolumeId(1)), Backing::plain(disk)).await;
        volume.expect("an intact log is readable")
    })
}

fn wait_until_checked(fixture: &Fixture, volume: &Volume<SimSeam>) {
    fixture.world.block_on(async {
        while !volume.stats().flash.is_checked {
            fixture.seam.sleep(Nanos::from_millis(5)).await;
        }
    });
}

/// Block of the last write `number`. The blocks are scattered, and each is written once.
fn last_written_block(number: u64) -> u64 {
    number * 97 % BLOCKS
}

/// Runs a session that leaves nearly all of the volume on flash, and stops cleanly.
fn cache_and_stop() -> (Snapshot, u64) {
    let fixture = fixture(1);
    let disk = fixture.add_disk("disk", out_of_order_disk(VOLUME_BYTES));
    disk.set_tags(0, &(0..VOLUME_BYTES / 512).map(|sector| sector + 1).collect::<Vec<_>>());
    devices().add_disks(&fixture.world);
    let volume = serve(&fixture, true);
    wait_until_checked(&fixture, &volume);
    let mut random = Random::new(1, 1);
    fixture.world.block_on(async {
        for _ in 0..60_000 {
            let page = random.below(VOLUME_BYTES / 65_536);
            let mut pieces = Vec::new();
            volume
                .read(ByteOffset(page * 65_536), 65_536, &mut pieces)
                .await
                .expect("a disk without faults does not fail");
        }
        for number in 0..CHANGED_BLOCKS {
            write(&volume, last_written_block(number) * 8, 8, LAST_WRITE_TAG)
                .await
                .expect("a disk without faults does not fail");
        }
        volume.destage_all().await.expect("a disk without faults does not fail");
    });
    fixture.world.run_for(Nanos::from_secs(20)).expect("no task is stuck");
    let cached = fixture.core.pages().expect("the engine has a flash store").stats().valid_blocks;
    fixture.world.block_on(async {
        let store = fixture.core.log().expect("the engine has a flash store");
        drop(volume);
        fixture.core.detach("disk").await.expect("devices without faults do not fail");
        store.close().await.expect("devices without faults do not fail");
    });
    (fixture.world.snapshot(), cached)
}

/// Draws the blocks that are changed while the volume is not served.
fn draw_changed_blocks(kind: &str, random: &mut Random) -> Vec<u64> {
    match kind {
        "uniform" => (0..CHANGED_BLOCKS).map(|_| random.below(BLOCKS)).collect(),
        "clustered" => {
            let first = random.below(BLOCKS - CHANGED_BLOCKS);
            (first..first + CHANGED_BLOCKS).collect()
        }
        _ => (0..CHANGED_BLOCKS).map(last_written_block).collect(),
    }
}

#[test]
fn case_17_offline_changes_of_the_backing_are_detected() {
    let (snapshot, cached) = cache_and_stop();
    assert!(cached * 10 >= BLOCKS * 8, "only {cached} of {BLOCKS} blocks are on flash");
    for kind in ["uniform", "clustered", "last written"] {
        let mut detected = 0;
        for trial in 0..TRIALS {
            let fixture = fixture(100 + trial);
            fixture.world.adopt(snapshot.images(|_| Survival::Whole));
            let mut random = Random::new(trial, 7);
            let changed = draw_changed_blocks(kind, &mut random);
            let disk = fixture.world.disk("disk").expect("the disk was added in the first session");
            changed.iter().for_each(|block| disk.set_tags(block * 8, &[CHANGED_TAG; 8]));
            let volume = serve(&fixture, false);
            // The volume is online at once, and no stale byte is read while the check runs.
            for block in &changed[..4] {
                assert_eq!(
                    fixture.world.block_on(read(&volume, block * 8, 8)).expect("a disk without faults does not fail"),
                    [CHANGED_TAG; 8]
                );
            }
            wait_until_checked(&fixture, &volume);
            detected += u64::from(volume.stats().problems.iter().any(is_changed_backing));
            for block in &changed {
                assert_eq!(
                    fixture.world.block_on(read(&volume, block * 8, 8)).expect("a disk without faults does not fail"),
                    [CHANGED_TAG; 8]
                );
            }
        }
        println!(
            "{kind}: {detected} of {TRIALS} detected, {CHANGED_BLOCKS} of {BLOCKS} blocks changed, {cached} cached"
        );
        assert_eq!(detected, TRIALS, "{kind}");
    }
}

#[test]
fn unchanged_backing_keeps_its_pages() {
    let (snapshot, cached) = cache_and_stop();
    let fixture = fixture(2);
    fixture.world.adopt(snapshot.images(|_| Survival::Whole));
    let volume = serve(&fixture, false);
    wait_until_checked(&fixture, &volume);
    let pages = fixture.core.pages().expect("the engine has a flash store").stats();
    assert!(pages.valid_blocks * 100 >= cached * 99, "{} of {cached} blocks are left", pages.valid_blocks);
    assert_eq!(volume.stats().problems, Vec::new());
}
