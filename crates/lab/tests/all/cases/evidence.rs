//! Evidence of the backing after a crash: destaged content proves at the next start which disk a volume had, from the
//! first acknowledged flush on, although destage from the log begins minutes later.

use engine::evidence::DestagedComparison;
use engine::{Backing, CoreSpec, Volume, VolumeId, VolumeSpec};
use lab::fixture::{Fixture, write};
use lab::random::Random;
use lab::torture::flash::FlashOptions;
use seam::sim::{CrashMode, Fault, Ops, Rule, SimDiskSpec, SimSeam, Timing, When, WorldSpec};
use seam::{Nanos, Seam};

const MIB: u64 = 1 << 20;
/// Latency of the disk, as of a hard disk.
const DISK_LATENCY: Nanos = Nanos::from_millis(8);

fn log() -> FlashOptions {
    FlashOptions::plain(2, 64 << 10, 64)
}

fn served(seed: u64) -> (Fixture, Volume<SimSeam>) {
    let fixture = Fixture::new(WorldSpec { blocks: 4096, ..WorldSpec::new(seed) }, CoreSpec::default());
    let timing = Timing::between(DISK_LATENCY, DISK_LATENCY);
    fixture.add_disk("disk", SimDiskSpec { timing, ..SimDiskSpec::new(64 * MIB) });
    fixture.add_disk("blank", SimDiskSpec::new(64 * MIB));
    log().add_disks(&fixture.world);
    let backing = Backing::plain(fixture.open("disk"));
    let volume = fixture.world.block_on(async {
        log().open(&fixture.seam, &fixture.core, true, false).await.expect("the devices are empty");
        // The map of clean pages is read.
        fixture.seam.sleep(Nanos::from_secs(1)).await;
        fixture.core.attach_recovered(VolumeSpec::new("disk", VolumeId(1)), backing).await.expect("a new volume")
    });
    (fixture, volume)
}

fn crash(fixture: Fixture, mode: CrashMode, seed: u64) -> Fixture {
    fixture.crash(mode, WorldSpec { blocks: 4096, ..WorldSpec::new(seed) })
}

/// The comparisons of a start with the volume's disk and with a blank one.
fn compared(fixture: &Fixture) -> (DestagedComparison, DestagedComparison) {
    let (disk, blank) = (Backing::plain(fixture.open("disk")), Backing::plain(fixture.open("blank")));
    fixture.world.block_on(async {
        log().open(&fixture.seam, &fixture.core, false, false).await.expect("the devices are intact");
        (
            fixture.core.compare_destaged(VolumeId(1), &disk).await,
            fixture.core.compare_destaged(VolumeId(1), &blank).await,
        )
    })
}

#[test]
fn first_flush_leaves_evidence_that_any_later_crash_keeps() {
    for (number, mode) in [CrashMode::LoseAll, CrashMode::KeepAll].into_iter().cycle().take(40).enumerate() {
        let (fixture, volume) = served(number as u64);
        fixture.world.block_on(async {
            for block in 0..20 {
                write(&volume, block * 8, 8, 100 + block).await.unwrap();
            }
            volume.flush().await.unwrap();
            fixture.seam.sleep(Nanos::from_millis(number as u64 * 300)).await;
        });
        drop(volume);
        let (own, blank) = compared(&crash(fixture, mode, 1_000 + number as u64));
        assert!(own.different_blocks == 0 && (own.matching_blocks > 0 || own.matches_unproven), "{number}: {own:?}");
        assert!(blank.matching_blocks == 0 && !blank.matches_unproven, "{number}: {blank:?}");
    }
}

/// Blocks of a dirty region prove the backing only if most of them have the destaged content.
#[test]
fn changed_blocks_of_a_dirty_region_leave_the_backing_unproven() {
    for (changes, is_proven) in [(false, true), (true, false)] {
        let (fixture, volume) = served(60);
        fixture.world.block_on(async {
            write(&volume, 0, 40, 5).await.unwrap();
            volume.flush().await.unwrap();
            fixture.seam.sleep(Nanos::from_secs(60)).await;
            // The region becomes dirty and is still dirty at the crash.
            write(&volume, 8, 8, 6).await.unwrap();
            volume.destage_all().await.unwrap();
        });
        drop(volume);
        let fixture = crash(fixture, CrashMode::LoseAll, 61);
        if changes {
            fixture.world.disk("disk").unwrap().set_tags(16, &[77; 8]);
        }
        let (own, _) = compared(&fixture);
        let expected = DestagedComparison { matches_unproven: is_proven, ..DestagedComparison::default() };
        assert_eq!(own, expected);
    }
}

#[test]
fn flushes_wait_at_most_a_second_for_a_backing_that_hangs() {
    let (fixture, volume) = served(70);
    let hang = Fault::Stall(Nanos::from_secs(3_600));
    fixture.world.disk("disk").unwrap().add_fault(Rule::new(hang, Ops::ALL, When::Always));
    let (first, further) = fixture.world.block_on(async {
        let began = fixture.seam.now();
        write(&volume, 0, 8, 1).await.unwrap();
        volume.flush().await.unwrap();
        let first = fixture.seam.now().since(began);
        let began = fixture.seam.now();
        for block in 1..20 {
            write(&volume, block * 8, 8, 1).await.unwrap();
            volume.flush().await.unwrap();
        }
        (first, fixture.seam.now().since(began))
    });
    assert!(first <= Nanos::from_millis(1_010), "{first:?}");
    assert!(further <= Nanos::from_millis(50), "{further:?}");
}

/// A small volume that is written everywhere, so that its regions are dirty at each crash.
#[test]
fn backing_is_proven_after_each_crash_of_a_small_busy_volume() {
    let world = |seed| WorldSpec { blocks: 4096, ..WorldSpec::new(seed) };
    let log = FlashOptions::plain(2, 256 << 10, 96);
    let mut are_unproven = 0;
    for seed in 0..12 {
        let mut random = Random::new(seed, 7);
        let timing = Timing::between(Nanos::from_millis(1), Nanos::from_millis(3));
        let mut fixture = Fixture::new(world(seed), CoreSpec::default());
        fixture.add_disk("disk", SimDiskSpec { timing, ..SimDiskSpec::new(8 * MIB) });
        log.add_disks(&fixture.world);
        for life in 0..6 {
            let backing = Backing::plain(fixture.open("disk"));
            let volume = fixture.world.block_on(async {
                log.open(&fixture.seam, &fixture.core, life == 0, false).await.expect("the devices are intact");
                if life > 0 {
                    let own = fixture.core.compare_destaged(VolumeId(1), &backing).await;
                    assert!(
                        own.different_blocks == 0 && (own.matching_blocks > 0 || own.matches_unproven),
                        "{seed}.{life}: {own:?}"
                    );
                    are_unproven += u64::from(own.matching_blocks == 0);
                }
                let spec = VolumeSpec::new("disk", VolumeId(1));
                fixture.core.attach_recovered(spec, backing).await.expect("the log is intact")
            });
            fixture.world.block_on(async {
                for number in 0..200 + random.below(900) {
                    let content = life * 10_000 + number + 1;
                    write(&volume, random.below(8 * MIB / 4096) * 8, 8, content).await.unwrap();
                    if number % 5 == 0 {
                        volume.flush().await.unwrap();
                    }
                    fixture.seam.sleep(Nanos::from_micros(random.below(6_000))).await;
                }
                volume.flush().await.unwrap();
            });
            drop(volume);
            fixture = fixture.crash(CrashMode::Reordered, world(seed * 100 + life));
        }
    }
    assert!(are_unproven > 10, "{are_unproven} starts relied on blocks that may have been written again");
}
