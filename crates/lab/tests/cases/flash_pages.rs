//! Clean pages on flash under the engine: what is served from there, and what never is.

use engine::{CoreSpec, Volume, VolumeSpec};
use lab::rig::{FlashPlan, Rig, Target, lively_disk, read, write};
use lab::torture::flash::FlashOptions;
use lab::workload::{Load, Pattern, Skew, play};
use seam::sim::{CrashMode, Fault, Ops, Rule, SimDiskSpec, SimSeam, When, WorldSpec};
use seam::{DiskOpen, Nanos, Seam};

const MIB: u64 = 1 << 20;
/// What is read again and again: more than memory holds, less than flash.
const HOT: u64 = 3 * MIB;

fn devices() -> FlashOptions {
    FlashOptions::plain(2, MIB, 24)
}

fn spec(seed: u64) -> WorldSpec {
    WorldSpec { blocks: 256, time_max: Nanos::from_secs(100_000), ..WorldSpec::new(seed) }
}

fn core() -> CoreSpec {
    CoreSpec { readahead_max_bytes: 0, ..CoreSpec::default() }
}

/// A world with a disk of 16 MiB that holds its own sector numbers, flash, and a volume over both.
fn first_life(seed: u64) -> (Rig, Volume<SimSeam>) {
    let rig = Rig::new(spec(seed), core());
    let disk = rig.add_disk("disk", lively_disk(16 * MIB));
    disk.set_tags(0, &(0..16 * MIB / 512).map(|sector| sector + 1).collect::<Vec<_>>());
    devices().add_disks(&rig.world);
    let volume = serve(&rig, true);
    (rig, volume)
}

/// Serves the disk once its pages were compared with it.
fn serve(rig: &Rig, first: bool) -> Volume<SimSeam> {
    serve_as(rig, first, 1, false)
}

/// The same by another identity; `void`: it was noted that the map on the devices is.
fn serve_as(rig: &Rig, first: bool, incarnation: u64, void: bool) -> Volume<SimSeam> {
    let open = DiskOpen { path: "disk".into(), create_bytes: None, read_only: false, lock_wait_ms: 1_000 };
    rig.world.block_on(async {
        devices().open(&rig.seam, &rig.core, first, false).await.expect("the devices are whole");
        if void {
            rig.core.pages().expect("just opened").distrust();
        }
        let disk = rig.seam.open_disk(&open).await.expect("the disk is there");
        let backing = engine::Backing::plain(disk);
        let volume = rig.core.attach_recovered(VolumeSpec::new("disk", incarnation), backing).await;
        let volume = volume.expect("what the log holds can be read");
        while !volume.stats().flash.checked {
            rig.seam.sleep(Nanos::from_millis(10)).await;
        }
        volume
    })
}

fn load(millis: u64, seed: u64) -> Load {
    Load { pattern: Pattern::random(HOT, 4096, 100), depth: 4, time: Nanos::from_millis(millis), seed }
}

/// Reads at random until everything hot is on flash.
fn warm(rig: &Rig, volume: &Volume<SimSeam>) {
    for round in 0..20 {
        rig.world.block_on(play(&rig.seam, &Target::Volume(volume.clone()), &load(300, round)));
        rig.world.run_for(Nanos::from_secs(2)).expect("nothing is stuck");
        let before = volume.stats().backing_reads;
        rig.world.block_on(play(&rig.seam, &Target::Volume(volume.clone()), &load(300, 1_000 + round)));
        if volume.stats().backing_reads == before {
            return;
        }
    }
    panic!("the hot set never came to flash: {:?}, {:?}", volume.stats(), rig.core.pages().unwrap().stats());
}

/// Every hot block reads as what it is to be.
fn hot_reads_as(rig: &Rig, volume: &Volume<SimSeam>, expected: impl Fn(u64) -> u64) {
    for block in 0..HOT / 4096 {
        let content = rig.world.block_on(read(volume, block * 8, 8)).expect("a disk that can be read");
        let wanted: Vec<u64> = (block * 8..block * 8 + 8).map(&expected).collect();
        assert_eq!(content, wanted, "block {block}");
    }
}

#[test]
fn a_page_that_has_earned_its_place_is_read_whole_by_the_miss_that_earned_it() {
    let rig = Rig::new(WorldSpec { blocks: 512, ..spec(7) }, core());
    rig.add_disk("disk", lively_disk(16 * MIB));
    devices().add_disks(&rig.world);
    let volume = serve(&rig, true);
    // Clients never leave the backing alone, so nothing but their own reads may be asked of it.
    rig.world.block_on(play(&rig.seam, &Target::Volume(volume.clone()), &load(2_000, 1)));
    let stats = volume.stats();
    let whole = stats.flash.promoted_bytes as f64 / stats.flash.promotions as f64 / 65_536.0;
    assert!(whole > 0.9, "{whole:.2} of a page on average, {:?}", stats.flash);
    assert!(stats.backing_reads < 2 * HOT / 4096, "{} reads for {} blocks", stats.backing_reads, HOT / 4096);
}

#[test]
fn what_is_read_again_and_again_comes_from_flash_and_not_from_the_backing() {
    let (rig, volume) = first_life(1);
    warm(&rig, &volume);
    let before = (volume.stats(), rig.world.disk("disk").unwrap().counts().reads);
    hot_reads_as(&rig, &volume, |sector| sector + 1);
    let after = volume.stats();
    assert_eq!(rig.world.disk("disk").unwrap().counts().reads, before.1);
    assert!(after.flash_hits - before.0.flash_hits > HOT / 4096 / 2, "{after:?}");
}

#[test]
fn hits_on_flash_use_a_device_to_its_limit() {
    const IOPS: u64 = 20_000;
    let rig = Rig::new(spec(33), core());
    rig.add_disk("disk", lively_disk(16 * MIB));
    rig.open_flash(&FlashPlan { devices: 1, bytes: 64 * MIB, iops: IOPS });
    let volume = rig.attach("disk", |_| ()).expect("the first volume");
    rig.until_checked(std::slice::from_ref(&volume));
    warm(&rig, &volume);
    let before = volume.stats();
    let all = Load { depth: 32, ..load(2_000, 78) };
    rig.world.block_on(play(&rig.seam, &Target::Volume(volume.clone()), &all));
    let after = volume.stats();
    assert_eq!(after.backing_reads, before.backing_reads);
    let rate = (after.flash_hits - before.flash_hits) / 2;
    println!("{rate} hits a second on flash");
    assert!(rate * 100 >= IOPS * 95, "{rate} of {IOPS}");
}

#[test]
fn what_is_written_over_a_page_on_flash_is_there_again_without_a_read_of_the_backing() {
    let (rig, volume) = first_life(31);
    warm(&rig, &volume);
    hot_reads_as(&rig, &volume, |sector| sector + 1);
    let written = |block: u64| block.is_multiple_of(7);
    for block in (0..HOT / 4096).filter(|block| written(*block)) {
        rig.world.block_on(write(&volume, block * 8, 8, 1_000_000)).unwrap();
    }
    rig.world.block_on(volume.destage_all()).unwrap();
    rig.world.run_for(Nanos::from_secs(5)).unwrap();
    let before = volume.stats().backing_reads;
    // Nothing of it stays in memory.
    rig.world.block_on(play(&rig.seam, &Target::Volume(volume.clone()), &load(500, 77)));
    hot_reads_as(&rig, &volume, |sector| if written(sector / 8) { 1_000_000 } else { sector + 1 });
    let (reads, writes) = (volume.stats().backing_reads - before, volume.stats().writes);
    assert!(reads * 10 < writes, "{reads} reads of the backing for {writes} writes: {:?}", volume.stats());
}

#[test]
fn reads_and_writes_of_the_same_pages_find_no_bad_copy() {
    let (rig, volume) = first_life(32);
    warm(&rig, &volume);
    let mixed = Load { pattern: Pattern::random(HOT, 16_384, 80), depth: 16, time: Nanos::from_secs(5), seed: 3 };
    rig.world.block_on(play(&rig.seam, &Target::Volume(volume.clone()), &mixed));
    let stats = volume.stats();
    assert!(stats.flash_hits > 1_000 && stats.writes > 1_000, "{stats:?}");
    assert_eq!(stats.flash.bad_blocks, 0, "{:?}", stats.flash);
}

#[test]
fn case_6_clean_pages_are_there_after_a_crash_and_after_a_clean_stop() {
    for clean in [false, true] {
        let (rig, volume) = first_life(2);
        warm(&rig, &volume);
        rig.world.run_for(Nanos::from_secs(10)).unwrap();
        if clean {
            rig.world.block_on(rig.core.detach("disk")).unwrap();
            let store = rig.core.log().unwrap();
            rig.world.block_on(store.close()).unwrap();
        }
        drop(volume);
        let rig = rig.crash(CrashMode::LoseAll, spec(3));
        let volume = serve(&rig, false);
        hot_reads_as(&rig, &volume, |sector| sector + 1);
        let stats = volume.stats();
        let hits = stats.flash_hits + stats.memory_hits;
        assert!(hits * 100 >= stats.reads * 95, "clean stop {clean}: {hits} hits of {} reads", stats.reads);
    }
}

#[test]
fn case_10_a_read_error_on_a_hit_is_not_seen_and_the_page_is_dropped() {
    for fault in [Fault::Error, Fault::BitFlip] {
        let (rig, volume) = first_life(4);
        warm(&rig, &volume);
        for device in ["flash1", "flash2"] {
            rig.world.disk(device).unwrap().add_fault(Rule::new(fault, Ops::READ, When::PerMillion(200_000)));
        }
        hot_reads_as(&rig, &volume, |sector| sector + 1);
        let stats = volume.stats();
        assert!(stats.flash.bad_blocks > 0, "{fault:?}: {stats:?}");
        assert_eq!(stats.errors, 0);
        assert!(stats.flash.not_hit.iter().any(|(why, _)| *why == "bad-copy"), "{:?}", stats.flash.not_hit);
    }
}

#[test]
fn case_11_a_write_error_of_the_cache_lets_the_request_through_and_the_older_copy_is_gone_after_a_crash_too() {
    // With one device left the log takes the flush; with none the backing has to have it, once it is noted that the map is void.
    for (seed, failing) in [(11, &["flash1"][..]), (12, &["flash2"]), (13, &["flash1", "flash2"])] {
        let (rig, volume) = first_life(seed);
        warm(&rig, &volume);
        for device in failing {
            rig.world.disk(device).unwrap().add_fault(Rule::new(Fault::Error, Ops::CHANGE, When::Always));
        }
        let alone = failing.len() == 1;
        // As the daemon does once a second.
        let (pages, seam) = (rig.core.pages().expect("there is flash"), rig.seam.clone());
        rig.seam.spawn(async move {
            while !alone && pages.failed().is_none() {
                seam.sleep(Nanos::from_secs(1)).await;
            }
            if !alone {
                pages.abandon();
            }
        });
        rig.world.block_on(async {
            for block in (0..HOT / 4096).step_by(3) {
                write(&volume, block * 8, 8, 7_000_000).await.expect("a write needs no device");
            }
            if alone {
                volume.flush().await.expect("the other device takes it");
                return;
            }
            drop(volume.flush().await);
            volume.destage_past_log().await.expect("the backing takes it");
        });
        let expected = |sector: u64| if (sector / 8).is_multiple_of(3) { 7_000_000 } else { sector + 1 };
        hot_reads_as(&rig, &volume, expected);
        assert!(!alone || volume.stats().errors == 0, "no request failed");
        drop(volume);
        // The devices work again, and hold what they held.
        let rig = rig.crash(CrashMode::LoseAll, spec(seed + 100));
        let volume = match alone {
            true => serve(&rig, false),
            // What the devices have of it was given up: it is another volume's.
            false => serve_as(&rig, false, 2, true),
        };
        hot_reads_as(&rig, &volume, expected);
    }
}

#[test]
fn case_12_when_all_flash_requests_fail_then_some_the_counters_return_exactly_to_zero() {
    for (seed, writes_fail) in [(14, false), (15, true)] {
        let (rig, volume) = first_life(seed);
        warm(&rig, &volume);
        let devices = || ["flash1", "flash2"].map(|device| rig.world.disk(device).unwrap());
        for (round, rate) in [1_000_000, 200_000, 0].into_iter().enumerate() {
            devices().iter().for_each(|device| device.clear_faults());
            for device in &devices() {
                device.add_fault(Rule::new(Fault::Error, Ops::READ, When::PerMillion(rate)));
            }
            if writes_fail {
                // For the other one there would be no cache left to speak of.
                devices()[0].add_fault(Rule::new(Fault::Error, Ops::ALL, When::PerMillion(rate)));
            }
            connections(&rig, &volume, round as u64);
        }
        rig.world.block_on(async {
            volume.destage_all().await.expect("the disk is whole");
            volume.start_anew(false).await.expect("nothing is dirty");
        });
        rig.world.run_for(Nanos::from_secs(30)).expect("nothing is stuck");
        let stats = volume.stats();
        let left = [stats.dirty_bytes, stats.written_bytes, stats.flash_dirty_bytes, stats.resting_bytes];
        assert_eq!((left, stats.memory_bytes), ([0; 4], 0), "{stats:?}");
        assert_eq!((stats.flash.pages, stats.flash.cached_bytes), (0, 0));
        let pages = rig.core.pages().unwrap().stats();
        assert_eq!((pages.pages, pages.valid_blocks, pages.suspect, pages.regions_in_flux), (0, 0, 0, 0), "{pages:?}");
        assert_eq!(pages.free, pages.slots, "every slot is free again: {pages:?}");
        // And what is used comes to flash again.
        for round in 0..10 {
            rig.world.block_on(play(&rig.seam, &Target::Volume(volume.clone()), &load(300, round)));
        }
        let pages = volume.stats().flash.pages;
        assert!(pages >= 24, "{pages} pages of 48 came back");
    }
}

/// Eight connections read, write and flush the same few pages at once.
fn connections(rig: &Rig, volume: &Volume<SimSeam>, round: u64) {
    let left = std::rc::Rc::new(std::cell::Cell::new(8));
    for connection in 0..8 {
        let (volume, left) = (volume.clone(), std::rc::Rc::clone(&left));
        rig.seam.spawn(async move {
            let mut random = lab::random::Random::new(round, connection);
            for _ in 0..300 {
                let first = random.below(HOT / 512 - 64);
                let count = random.between(1, 64);
                match random.below(8) {
                    // What only the log has cannot be read while no device can.
                    0..4 => drop(read(&volume, first, count).await),
                    // Nor changed in part.
                    4..7 => drop(write(&volume, first, count, 9_000 + connection).await),
                    // A record that cannot be written is told.
                    _ => drop(volume.flush().await),
                }
            }
            left.set(left.get() - 1);
        });
    }
    rig.world.block_on(async {
        while left.get() > 0 {
            rig.seam.sleep(Nanos::from_millis(10)).await;
        }
    });
}

#[test]
fn a_write_takes_the_copy_on_flash_away_and_a_crash_does_not_bring_it_back() {
    for mode in [CrashMode::LoseAll, CrashMode::KeepAll] {
        let (rig, volume) = first_life(5);
        warm(&rig, &volume);
        rig.world.block_on(async {
            for block in (0..HOT / 4096).step_by(3) {
                write(&volume, block * 8, 8, 7_000_000).await.unwrap();
            }
            volume.destage_all().await.unwrap();
        });
        let expected = |sector: u64| if (sector / 8).is_multiple_of(3) { 7_000_000 } else { sector + 1 };
        hot_reads_as(&rig, &volume, expected);
        drop(volume);
        let rig = rig.crash(mode, spec(6));
        let volume = serve(&rig, false);
        hot_reads_as(&rig, &volume, expected);
    }
}

#[test]
fn case_21_with_flash_clean_is_never_written_back_and_idle_is_idle() {
    let (rig, volume) = first_life(7);
    warm(&rig, &volume);
    rig.world.run_for(Nanos::from_secs(60)).unwrap();
    let counts = || ["disk", "flash1", "flash2"].map(|disk| rig.world.disk(disk).unwrap().counts());
    let before = counts();
    assert_eq!((before[0].writes, before[0].zeroes), (0, 0));
    rig.world.run_for(Nanos::from_secs(3_600)).unwrap();
    assert_eq!(counts(), before, "an hour without clients");
}

#[test]
fn case_24_one_pass_over_ten_times_the_flash_leaves_it_and_its_neighbour_alone() {
    for skew in [Skew::Sequential, Skew::Uniform] {
        let (rig, volume) = first_life(8);
        warm(&rig, &volume);
        rig.add_disk("scan", SimDiskSpec::new(256 * MIB));
        let scan = rig.attach("scan", |_| ()).unwrap();
        let written = || ["flash1", "flash2"].map(|disk| rig.world.disk(disk).unwrap().counts().write_bytes);
        let before = written();
        let pages = rig.core.pages().unwrap().stats();
        one_pass(&rig, &scan, skew, 256 * MIB);
        rig.world.run_for(Nanos::from_secs(5)).unwrap();
        let wrote: u64 = written().iter().zip(before).map(|(after, before)| after - before).sum();
        let after = rig.core.pages().unwrap().stats();
        println!("{skew:?}: {wrote} bytes written to flash, {} pages evicted", after.evictions - pages.evictions);
        assert!(wrote * 100 < 256 * MIB, "{skew:?}: {wrote} bytes written to flash");
        assert!((after.evictions - pages.evictions) * 50 < pages.pages.max(1), "{skew:?}: {after:?}");
        let before = volume.stats();
        rig.world.block_on(play(&rig.seam, &Target::Volume(volume.clone()), &load(300, 9)));
        let after = volume.stats();
        let (reads, misses) = (after.reads - before.reads, after.misses - before.misses);
        assert!(misses * 50 <= reads, "{skew:?}: {misses} misses of {reads}");
    }
}

/// Reads every block once, in order or in an order that looks like none.
fn one_pass(rig: &Rig, volume: &Volume<SimSeam>, skew: Skew, bytes: u64) {
    let size = if skew == Skew::Sequential { 65_536 } else { 4096 };
    let count = bytes / size;
    rig.world.block_on(async {
        let mut place = 0;
        for turn in 0..count {
            // An odd step walks over all places of a power of two once.
            place = if skew == Skew::Sequential { turn } else { (place + 0x9E37_79B9) % count };
            let mut pieces = Vec::new();
            volume.read(place * size, size as usize, &mut pieces).await.expect("a disk without faults");
        }
    });
}
