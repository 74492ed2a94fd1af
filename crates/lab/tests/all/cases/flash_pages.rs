//! Clean pages on flash under the engine: when they serve reads, and when they must not.

use engine::{ByteOffset, CoreSpec, Volume, VolumeId, VolumeSpec};
use lab::fixture::{Fixture, FlashPlan, Target, out_of_order_disk, read, write};
use lab::torture::flash::FlashOptions;
use lab::workload::{Load, Pattern, Skew, run_load};
use seam::sim::{CrashMode, Fault, Ops, Rule, SimDiskSpec, SimSeam, When, WorldSpec};
use seam::{DiskOpen, Nanos, Seam};

const MIB: u64 = 1 << 20;
/// The hot region: larger than memory, smaller than flash.
const HOT_BYTES: u64 = 3 * MIB;

fn devices() -> FlashOptions {
    FlashOptions::plain(2, MIB, 24)
}

fn spec(seed: u64) -> WorldSpec {
    WorldSpec { blocks: 256, time_max: Nanos::from_secs(100_000), ..WorldSpec::new(seed) }
}

fn core() -> CoreSpec {
    CoreSpec { readahead_max_bytes: 0, ..CoreSpec::default() }
}

/// Creates a world with a disk of 16 MiB filled with its sector numbers, flash, and a volume over both.
fn first_session(seed: u64) -> (Fixture, Volume<SimSeam>) {
    let fixture = Fixture::new(spec(seed), core());
    let disk = fixture.add_disk("disk", out_of_order_disk(16 * MIB));
    disk.set_tags(0, &(0..16 * MIB / 512).map(|sector| sector + 1).collect::<Vec<_>>());
    devices().add_disks(&fixture.world);
    let volume = serve(&fixture, true);
    (fixture, volume)
}

/// Serves the disk and waits until its pages have been compared with it.
fn serve(fixture: &Fixture, first: bool) -> Volume<SimSeam> {
    serve_as(fixture, first, VolumeId(1), false)
}

/// Serves the disk under a volume ID. With `is_map_unusable` the map of pages on the devices is recorded as unusable.
fn serve_as(fixture: &Fixture, first: bool, volume_id: VolumeId, is_map_unusable: bool) -> Volume<SimSeam> {
    let open = DiskOpen { path: "disk".into(), create_bytes: None, read_only: false, lock_wait_ms: 1_000 };
    fixture.world.block_on(async {
        devices().open(&fixture.seam, &fixture.core, first, false).await.expect("the devices are intact");
        if is_map_unusable {
            fixture.core.pages().expect("an open store has a page map").ignore_persisted_map();
        }
        let disk = fixture.seam.open_disk(&open).await.expect("the disk exists");
        let backing = engine::Backing::plain(disk);
        let volume = fixture.core.attach_recovered(VolumeSpec::new("disk", volume_id), backing).await;
        let volume = volume.expect("an intact log is readable");
        while !volume.stats().flash.is_checked {
            fixture.seam.sleep(Nanos::from_millis(10)).await;
        }
        volume
    })
}

fn load(millis: u64, seed: u64) -> Load {
    Load { pattern: Pattern::random(HOT_BYTES, 4096, 100), depth: 4, time: Nanos::from_millis(millis), seed }
}

/// Reads at random until the whole hot region is on flash.
fn warm_up(fixture: &Fixture, volume: &Volume<SimSeam>) {
    for round in 0..20 {
        fixture.world.block_on(run_load(&fixture.seam, &Target::Volume(volume.clone()), &load(300, round)));
        fixture.world.run_for(Nanos::from_secs(2)).expect("no task is stuck");
        let before = volume.stats().backing_reads;
        fixture.world.block_on(run_load(&fixture.seam, &Target::Volume(volume.clone()), &load(300, 1_000 + round)));
        if volume.stats().backing_reads == before {
            return;
        }
    }
    panic!(
        "the hot region was never promoted to flash: {:?}, {:?}",
        volume.stats(),
        fixture.core.pages().unwrap().stats()
    );
}

/// Checks the content of every hot block.
fn check_hot_blocks(fixture: &Fixture, volume: &Volume<SimSeam>, expected: impl Fn(u64) -> u64) {
    for block in 0..HOT_BYTES / 4096 {
        let content = fixture.world.block_on(read(volume, block * 8, 8)).expect("a readable disk does not fail");
        let expected_tags: Vec<u64> = (block * 8..block * 8 + 8).map(&expected).collect();
        assert_eq!(content, expected_tags, "block {block}");
    }
}

#[test]
fn admitted_page_is_read_whole_by_the_admitting_miss() {
    let fixture = Fixture::new(WorldSpec { blocks: 512, ..spec(7) }, core());
    fixture.add_disk("disk", out_of_order_disk(16 * MIB));
    devices().add_disks(&fixture.world);
    let volume = serve(&fixture, true);
    // Clients keep the backing busy, so that only their own reads go to it.
    fixture.world.block_on(run_load(&fixture.seam, &Target::Volume(volume.clone()), &load(2_000, 1)));
    let stats = volume.stats();
    let whole = stats.flash.promoted_bytes as f64 / stats.flash.promotions as f64 / 65_536.0;
    assert!(whole > 0.9, "{whole:.2} of a page on average, {:?}", stats.flash);
    assert!(
        stats.backing_reads < 2 * HOT_BYTES / 4096,
        "{} reads for {} blocks",
        stats.backing_reads,
        HOT_BYTES / 4096
    );
}

#[test]
fn repeated_reads_are_served_by_flash() {
    let (fixture, volume) = first_session(1);
    warm_up(&fixture, &volume);
    let before = (volume.stats(), fixture.world.disk("disk").unwrap().counts().reads);
    check_hot_blocks(&fixture, &volume, |sector| sector + 1);
    let after = volume.stats();
    assert_eq!(fixture.world.disk("disk").unwrap().counts().reads, before.1);
    assert!(after.flash_hits - before.0.flash_hits > HOT_BYTES / 4096 / 2, "{after:?}");
}

#[test]
fn flash_hits_reach_the_device_limit() {
    const IOPS: u64 = 20_000;
    let fixture = Fixture::new(spec(33), core());
    fixture.add_disk("disk", out_of_order_disk(16 * MIB));
    fixture.open_flash(&FlashPlan { devices: 1, bytes: 64 * MIB, iops: IOPS });
    let volume = fixture.attach("disk", |_| ()).expect("the first volume can be attached");
    fixture.wait_until_checked(std::slice::from_ref(&volume));
    warm_up(&fixture, &volume);
    let before = volume.stats();
    let all_pages = Load { depth: 32, ..load(2_000, 78) };
    fixture.world.block_on(run_load(&fixture.seam, &Target::Volume(volume.clone()), &all_pages));
    let after = volume.stats();
    assert_eq!(after.backing_reads, before.backing_reads);
    let rate = (after.flash_hits - before.flash_hits) / 2;
    println!("{rate} hits per second on flash");
    assert!(rate * 100 >= IOPS * 95, "{rate} of {IOPS}");
}

#[test]
fn overwritten_flash_pages_are_updated_without_backing_reads() {
    let (fixture, volume) = first_session(31);
    warm_up(&fixture, &volume);
    check_hot_blocks(&fixture, &volume, |sector| sector + 1);
    let written = |block: u64| block.is_multiple_of(7);
    for block in (0..HOT_BYTES / 4096).filter(|block| written(*block)) {
        fixture.world.block_on(write(&volume, block * 8, 8, 1_000_000)).unwrap();
    }
    fixture.world.block_on(volume.destage_all()).unwrap();
    fixture.world.run_for(Nanos::from_secs(5)).unwrap();
    let before = volume.stats().backing_reads;
    // Evicts all of it from memory.
    fixture.world.block_on(run_load(&fixture.seam, &Target::Volume(volume.clone()), &load(500, 77)));
    check_hot_blocks(&fixture, &volume, |sector| if written(sector / 8) { 1_000_000 } else { sector + 1 });
    let (reads, writes) = (volume.stats().backing_reads - before, volume.stats().writes);
    assert!(reads * 10 < writes, "{reads} reads of the backing for {writes} writes: {:?}", volume.stats());
}

#[test]
fn concurrent_reads_and_writes_find_no_bad_flash_copy() {
    let (fixture, volume) = first_session(32);
    warm_up(&fixture, &volume);
    let mixed = Load { pattern: Pattern::random(HOT_BYTES, 16_384, 80), depth: 16, time: Nanos::from_secs(5), seed: 3 };
    fixture.world.block_on(run_load(&fixture.seam, &Target::Volume(volume.clone()), &mixed));
    let stats = volume.stats();
    assert!(stats.flash_hits > 1_000 && stats.writes > 1_000, "{stats:?}");
    assert_eq!(stats.flash.bad_blocks, 0, "{:?}", stats.flash);
}

#[test]
fn case_6_clean_pages_survive_a_crash_and_a_clean_stop() {
    for clean in [false, true] {
        let (fixture, volume) = first_session(2);
        warm_up(&fixture, &volume);
        fixture.world.run_for(Nanos::from_secs(10)).unwrap();
        if clean {
            fixture.world.block_on(fixture.core.detach("disk")).unwrap();
            let store = fixture.core.log().unwrap();
            fixture.world.block_on(store.close()).unwrap();
        }
        drop(volume);
        let fixture = fixture.crash(CrashMode::LoseAll, spec(3));
        let volume = serve(&fixture, false);
        check_hot_blocks(&fixture, &volume, |sector| sector + 1);
        let stats = volume.stats();
        let hits = stats.flash_hits + stats.memory_hits;
        assert!(hits * 100 >= stats.reads * 95, "clean stop {clean}: {hits} hits of {} reads", stats.reads);
    }
}

#[test]
fn case_10_read_error_on_a_hit_is_hidden_and_drops_the_page() {
    for fault in [Fault::Error, Fault::BitFlip] {
        let (fixture, volume) = first_session(4);
        warm_up(&fixture, &volume);
        for device in ["flash1", "flash2"] {
            fixture.world.disk(device).unwrap().add_fault(Rule::new(fault, Ops::READ, When::PerMillion(200_000)));
        }
        check_hot_blocks(&fixture, &volume, |sector| sector + 1);
        let stats = volume.stats();
        assert!(stats.flash.bad_blocks > 0, "{fault:?}: {stats:?}");
        assert_eq!(stats.errors, 0);
        assert!(
            stats.flash.miss_reasons.iter().any(|(reason, _)| *reason == "bad-copy"),
            "{:?}",
            stats.flash.miss_reasons
        );
    }
}

#[test]
fn case_11_flash_write_error_fails_no_request_and_no_stale_copy() {
    // With one device left the log takes the flush. Without a device the backing must take it, once the map is recorded
    // as unusable.
    for (seed, failing) in [(11, &["flash1"][..]), (12, &["flash2"]), (13, &["flash1", "flash2"])] {
        let (fixture, volume) = first_session(seed);
        warm_up(&fixture, &volume);
        for device in failing {
            fixture.world.disk(device).unwrap().add_fault(Rule::new(Fault::Error, Ops::CHANGE, When::Always));
        }
        let alone = failing.len() == 1;
        // The daemon does the same once a second.
        let (pages, seam) = (fixture.core.pages().expect("the engine has a flash store"), fixture.seam.clone());
        fixture.seam.spawn(async move {
            while !alone && pages.unusable_reason().is_none() {
                seam.sleep(Nanos::from_secs(1)).await;
            }
            if !alone {
                pages.abandon();
            }
        });
        fixture.world.block_on(async {
            for block in (0..HOT_BYTES / 4096).step_by(3) {
                write(&volume, block * 8, 8, 7_000_000).await.expect("a write needs no flash device");
            }
            if alone {
                volume.flush().await.expect("the other device accepts it");
                return;
            }
            drop(volume.flush().await);
            volume.destage_without_log().await.expect("a backing without faults does not fail");
        });
        let expected = |sector: u64| if (sector / 8).is_multiple_of(3) { 7_000_000 } else { sector + 1 };
        check_hot_blocks(&fixture, &volume, expected);
        assert!(!alone || volume.stats().errors == 0, "no request failed");
        drop(volume);
        // The devices work again with their old content.
        let fixture = fixture.crash(CrashMode::LoseAll, spec(seed + 100));
        let volume = match alone {
            true => serve(&fixture, false),
            // The data on the devices was abandoned, so the volume has a new ID.
            false => serve_as(&fixture, false, VolumeId(2), true),
        };
        check_hot_blocks(&fixture, &volume, expected);
    }
}

#[test]
fn case_12_flash_failures_return_all_counters_to_zero() {
    for (seed, writes_fail) in [(14, false), (15, true)] {
        let (fixture, volume) = first_session(seed);
        warm_up(&fixture, &volume);
        let devices = || ["flash1", "flash2"].map(|device| fixture.world.disk(device).unwrap());
        for (round, rate) in [1_000_000, 200_000, 0].into_iter().enumerate() {
            devices().iter().for_each(|device| device.clear_faults());
            for device in &devices() {
                device.add_fault(Rule::new(Fault::Error, Ops::READ, When::PerMillion(rate)));
            }
            if writes_fail {
                // Both devices failing would leave no cache to test.
                devices()[0].add_fault(Rule::new(Fault::Error, Ops::ALL, When::PerMillion(rate)));
            }
            run_connections(&fixture, &volume, round as u64);
        }
        fixture.world.block_on(async {
            volume.destage_all().await.expect("a disk without faults does not fail");
            volume.drop_cached_data(false).await.expect("a clean volume accepts the change");
        });
        fixture.world.run_for(Nanos::from_secs(30)).expect("no task is stuck");
        let stats = volume.stats();
        let remaining = [stats.dirty_bytes, stats.written_bytes, stats.flash_dirty_bytes, stats.spilled_bytes];
        assert_eq!((remaining, stats.memory_bytes), ([0; 4], 0), "{stats:?}");
        assert_eq!((stats.flash.page_count, stats.flash.cached_bytes), (0, 0));
        let pages = fixture.core.pages().unwrap().stats();
        assert_eq!(
            (pages.pages, pages.valid_blocks, pages.suspect_pages, pages.dirty_regions),
            (0, 0, 0, 0),
            "{pages:?}"
        );
        assert_eq!(pages.free_slots, pages.slots, "every slot is free again: {pages:?}");
        // Used pages are promoted to flash again.
        for round in 0..10 {
            fixture.world.block_on(run_load(&fixture.seam, &Target::Volume(volume.clone()), &load(300, round)));
        }
        let pages = volume.stats().flash.page_count;
        assert!(pages >= 24, "{pages} pages of 48 were promoted again");
    }
}

/// Eight connections read, write and flush the same few pages concurrently.
fn run_connections(fixture: &Fixture, volume: &Volume<SimSeam>, round: u64) {
    let running = std::rc::Rc::new(std::cell::Cell::new(8));
    for connection in 0..8 {
        let (volume, running) = (volume.clone(), std::rc::Rc::clone(&running));
        fixture.seam.spawn(async move {
            let mut random = lab::random::Random::new(round, connection);
            for _ in 0..300 {
                let first = random.below(HOT_BYTES / 512 - 64);
                let count = random.between(1, 64);
                match random.below(8) {
                    // Data that only the log holds cannot be read while no device can be read.
                    0..4 => drop(read(&volume, first, count).await),
                    // Such data cannot be partly overwritten either.
                    4..7 => drop(write(&volume, first, count, 9_000 + connection).await),
                    // A flush reports a failed log write.
                    _ => drop(volume.flush().await),
                }
            }
            running.set(running.get() - 1);
        });
    }
    fixture.world.block_on(async {
        while running.get() > 0 {
            fixture.seam.sleep(Nanos::from_millis(10)).await;
        }
    });
}

#[test]
fn write_invalidates_the_flash_copy_across_a_crash() {
    for mode in [CrashMode::LoseAll, CrashMode::KeepAll] {
        let (fixture, volume) = first_session(5);
        warm_up(&fixture, &volume);
        fixture.world.block_on(async {
            for block in (0..HOT_BYTES / 4096).step_by(3) {
                write(&volume, block * 8, 8, 7_000_000).await.unwrap();
            }
            volume.destage_all().await.unwrap();
        });
        let expected = |sector: u64| if (sector / 8).is_multiple_of(3) { 7_000_000 } else { sector + 1 };
        check_hot_blocks(&fixture, &volume, expected);
        drop(volume);
        let fixture = fixture.crash(mode, spec(6));
        let volume = serve(&fixture, false);
        check_hot_blocks(&fixture, &volume, expected);
    }
}

#[test]
fn case_21_clean_flash_data_is_never_written_and_idle_issues_no_io() {
    let (fixture, volume) = first_session(7);
    warm_up(&fixture, &volume);
    fixture.world.run_for(Nanos::from_secs(60)).unwrap();
    let counts = || ["disk", "flash1", "flash2"].map(|disk| fixture.world.disk(disk).unwrap().counts());
    let before = counts();
    assert_eq!((before[0].writes, before[0].zeroes), (0, 0));
    fixture.world.run_for(Nanos::from_secs(3_600)).unwrap();
    assert_eq!(counts(), before, "an hour without clients");
}

#[test]
fn case_24_scan_of_ten_times_the_flash_evicts_almost_nothing() {
    for skew in [Skew::Sequential, Skew::Uniform] {
        let (fixture, volume) = first_session(8);
        warm_up(&fixture, &volume);
        fixture.add_disk("scan", SimDiskSpec::new(256 * MIB));
        let scan = fixture.attach("scan", |_| ()).unwrap();
        let written = || ["flash1", "flash2"].map(|disk| fixture.world.disk(disk).unwrap().counts().write_bytes);
        let before = written();
        let pages = fixture.core.pages().unwrap().stats();
        read_every_block(&fixture, &scan, skew, 256 * MIB);
        fixture.world.run_for(Nanos::from_secs(5)).unwrap();
        let written_bytes: u64 = written().iter().zip(before).map(|(after, before)| after - before).sum();
        let after = fixture.core.pages().unwrap().stats();
        println!(
            "{skew:?}: {written_bytes} bytes written to flash, {} pages evicted",
            after.evictions - pages.evictions
        );
        assert!(written_bytes * 100 < 256 * MIB, "{skew:?}: {written_bytes} bytes written to flash");
        assert!((after.evictions - pages.evictions) * 50 < pages.pages.max(1), "{skew:?}: {after:?}");
        let before = volume.stats();
        fixture.world.block_on(run_load(&fixture.seam, &Target::Volume(volume.clone()), &load(300, 9)));
        let after = volume.stats();
        let (reads, misses) = (after.reads - before.reads, after.misses - before.misses);
        assert!(misses * 50 <= reads, "{skew:?}: {misses} misses of {reads}");
    }
}

/// Reads every block once, sequentially or in a scattered order.
fn read_every_block(fixture: &Fixture, volume: &Volume<SimSeam>, skew: Skew, bytes: u64) {
    let size = if skew == Skew::Sequential { 65_536 } else { 4096 };
    let count = bytes / size;
    fixture.world.block_on(async {
        let mut position = 0;
        for round in 0..count {
            // An odd step visits all positions of a power of two once.
            position = if skew == Skew::Sequential { round } else { (position + 0x9E37_79B9) % count };
            let mut pieces = Vec::new();
            volume
                .read(ByteOffset(position * size), size as usize, &mut pieces)
                .await
                .expect("a disk without faults does not fail");
        }
    });
}
