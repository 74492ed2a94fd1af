//! A backing that was changed while nobody served it: noticed before a stale byte is served, however the changes lie.

use engine::{Backing, CoreSpec, Volume, VolumeSpec};
use lab::random::Random;
use lab::rig::{Rig, lively_disk, read, write};
use lab::torture::flash::FlashOptions;
use seam::sim::{Cut, SimSeam, Survival, WorldSpec};
use seam::{DiskOpen, Nanos, Seam};

const MIB: u64 = 1 << 20;
const VOLUME: u64 = 64 * MIB;
const BLOCKS: u64 = VOLUME / 4096;
/// Blocks that are changed behind the cache's back: 1 %.
const CHANGED: u64 = BLOCKS / 100;
const TRIALS: u64 = 100;
/// What was written last, before the stop.
const WRITTEN: u64 = 9_000_000;
/// What the changed blocks hold.
const CHANGE: u64 = 5_000_000;

fn devices() -> FlashOptions {
    FlashOptions::plain(2, MIB, 48)
}

fn spec(seed: u64) -> WorldSpec {
    WorldSpec { blocks: 4096, time_max: Nanos::from_secs(100_000), ..WorldSpec::new(seed) }
}

fn rig(seed: u64) -> Rig {
    Rig::new(spec(seed), CoreSpec { readahead_max_bytes: 0, ..CoreSpec::default() })
}

fn serve(rig: &Rig, first: bool) -> Volume<SimSeam> {
    let open = DiskOpen { path: "disk".into(), create_bytes: None, read_only: false, lock_wait_ms: 1_000 };
    rig.world.block_on(async {
        devices().open(&rig.seam, &rig.core, first, false).await.expect("the devices are whole");
        let disk = rig.seam.open_disk(&open).await.expect("the disk is there");
        let volume = rig.core.attach_recovered(VolumeSpec::new("disk", 1), Backing::plain(disk)).await;
        volume.expect("what the log holds can be read")
    })
}

fn until_checked(rig: &Rig, volume: &Volume<SimSeam>) {
    rig.world.block_on(async {
        while !volume.stats().flash.checked {
            rig.seam.sleep(Nanos::from_millis(5)).await;
        }
    });
}

/// Where the last writes went: scattered, and each block once.
fn written_last(number: u64) -> u64 {
    number * 97 % BLOCKS
}

/// A life after which nearly all of the volume is on flash, and a clean stop.
fn a_life() -> (Cut, u64) {
    let rig = rig(1);
    let disk = rig.add_disk("disk", lively_disk(VOLUME));
    disk.set_tags(0, &(0..VOLUME / 512).map(|sector| sector + 1).collect::<Vec<_>>());
    devices().add_disks(&rig.world);
    let volume = serve(&rig, true);
    until_checked(&rig, &volume);
    let mut random = Random::new(1, 1);
    rig.world.block_on(async {
        for _ in 0..60_000 {
            let page = random.below(VOLUME / 65_536);
            let mut pieces = Vec::new();
            volume.read(page * 65_536, 65_536, &mut pieces).await.expect("a disk without faults");
        }
        for number in 0..CHANGED {
            write(&volume, written_last(number) * 8, 8, WRITTEN).await.expect("a disk without faults");
        }
        volume.destage_all().await.expect("a disk without faults");
    });
    rig.world.run_for(Nanos::from_secs(20)).expect("nothing is stuck");
    let cached = rig.core.pages().expect("there is a store").stats().valid_blocks;
    rig.world.block_on(async {
        let store = rig.core.log().expect("there is a store");
        drop(volume);
        rig.core.detach("disk").await.expect("nothing fails");
        store.close().await.expect("nothing fails");
    });
    (rig.world.snapshot(), cached)
}

fn change(kind: &str, random: &mut Random) -> Vec<u64> {
    match kind {
        "uniform" => (0..CHANGED).map(|_| random.below(BLOCKS)).collect(),
        "clustered" => {
            let first = random.below(BLOCKS - CHANGED);
            (first..first + CHANGED).collect()
        }
        _ => (0..CHANGED).map(written_last).collect(),
    }
}

#[test]
fn case_17_a_backing_changed_while_it_was_not_served_is_noticed_however_the_changes_lie() {
    let (cut, cached) = a_life();
    assert!(cached * 10 >= BLOCKS * 8, "only {cached} of {BLOCKS} blocks are on flash");
    for kind in ["uniform", "clustered", "last written"] {
        let mut noticed = 0;
        for trial in 0..TRIALS {
            let rig = rig(100 + trial);
            rig.world.adopt(cut.images(|_| Survival::Whole));
            let mut random = Random::new(trial, 7);
            let changed = change(kind, &mut random);
            let disk = rig.world.disk("disk").expect("it was there before");
            changed.iter().for_each(|block| disk.set_tags(block * 8, &[CHANGE; 8]));
            let volume = serve(&rig, false);
            // Online at once, and not a stale byte while the check runs.
            for block in &changed[..4] {
                assert_eq!(rig.world.block_on(read(&volume, block * 8, 8)).expect("it can be read"), [CHANGE; 8]);
            }
            until_checked(&rig, &volume);
            noticed += u64::from(volume.stats().alerts.iter().any(|alert| alert.contains("the backing changed")));
            for block in &changed {
                assert_eq!(rig.world.block_on(read(&volume, block * 8, 8)).expect("it can be read"), [CHANGE; 8]);
            }
        }
        println!("{kind}: {noticed} of {TRIALS} noticed, {CHANGED} of {BLOCKS} blocks changed, {cached} cached");
        assert_eq!(noticed, TRIALS, "{kind}");
    }
}

#[test]
fn a_backing_that_nobody_changed_keeps_its_pages() {
    let (cut, cached) = a_life();
    let rig = rig(2);
    rig.world.adopt(cut.images(|_| Survival::Whole));
    let volume = serve(&rig, false);
    until_checked(&rig, &volume);
    let pages = rig.core.pages().expect("there is a store").stats();
    assert!(pages.valid_blocks * 100 >= cached * 99, "{} of {cached} blocks are left", pages.valid_blocks);
    assert_eq!(volume.stats().alerts, Vec::<String>::new());
}
