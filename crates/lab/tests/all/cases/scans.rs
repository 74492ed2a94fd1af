//! Scans beside a hot set: one volume reads ten times the cache, and its neighbour keeps 95 % of its hits.

use lab::fixture::{Fixture, Target};
use lab::workload::{Load, Pattern, Skew, run_load};
use seam::sim::{Latency, SimDiskSpec, Timing};
use seam::{Nanos, Seam};

const MIB: u64 = 1 << 20;

#[test]
fn case_24_sequential_scan_leaves_95_percent_of_hits() {
    assert_hits_survive_a_scan(Skew::Sequential);
}

#[test]
fn case_24_random_scan_leaves_95_percent_of_hits() {
    assert_hits_survive_a_scan(Skew::Uniform);
}

fn assert_hits_survive_a_scan(skew: Skew) {
    let fixture = Fixture::with_memory(1, 32 * MIB);
    let timing = Timing { read: Latency::fixed(Nanos::from_micros(200)), ..Timing::INSTANT };
    fixture.add_disk("hot", SimDiskSpec { timing, ..SimDiskSpec::new(16 * MIB) });
    fixture.add_disk("scan", SimDiskSpec { timing, ..SimDiskSpec::new(320 * MIB) });
    let hot = fixture.attach("hot", |_| ()).unwrap();
    let scan = fixture.attach("scan", |_| ()).unwrap();
    let reads = Load { pattern: Pattern::random(16 * MIB, 4096, 100), depth: 4, time: Nanos::from_secs(2), seed: 1 };
    let hits = |seconds| {
        let before = hot.stats();
        let load = Load { time: Nanos::from_secs(seconds), ..reads.clone() };
        fixture.world.block_on(run_load(&fixture.seam, &Target::Volume(hot.clone()), &load));
        let after = hot.stats();
        (after.memory_hits - before.memory_hits) as f64 / (after.reads - before.reads) as f64
    };
    hits(2);
    let alone = hits(1);
    assert!(alone > 0.95, "the hot set does not fit: {:.1} % hits", alone * 100.0);
    let pattern = Pattern::random(320 * MIB, 64 << 10, 100).with_skew(skew);
    let load = Load { pattern, depth: 1, time: Nanos::from_secs(2), seed: 2 };
    let (seam, target) = (fixture.seam.clone(), Target::Volume(scan.clone()));
    fixture.seam.spawn(async move { drop(run_load(&seam, &target, &load).await) });
    let during_scan = hits(2);
    assert!(scan.stats().read_bytes >= 320 * MIB, "the scan read {} bytes", scan.stats().read_bytes);
    assert!(
        during_scan >= 0.95 * alone,
        "{:.1} % hits beside a scan, {:.1} % alone",
        during_scan * 100.0,
        alone * 100.0
    );
}

#[test]
fn cold_scan_is_prefetched_and_second_scan_hits() {
    const SIZE: u64 = 8 * MIB;
    let fixture = Fixture::with_memory(1, 32 * MIB);
    let timing = Timing { read: Latency::fixed(Nanos::from_micros(200)), ..Timing::INSTANT };
    fixture.add_disk("v", SimDiskSpec { timing, ..SimDiskSpec::new(SIZE) });
    let volume = fixture.attach("v", |_| ()).unwrap();
    let target = Target::Volume(volume.clone());
    for (request_bytes, is_first) in [(16 << 10, true), (16 << 10, false), (512, false)] {
        let before = volume.stats();
        for at in (0..SIZE).step_by(request_bytes) {
            fixture
                .world
                .block_on(target.read(&fixture.seam, at, request_bytes))
                .expect("a disk without faults does not fail");
            // Clients that think leave the readahead time to arrive.
            fixture.world.block_on(fixture.seam.sleep(Nanos::from_millis(5)));
        }
        let after = volume.stats();
        let hits = after.memory_hits - before.memory_hits;
        let prefetched = after.prefetched_hits - before.prefetched_hits;
        let reads = after.reads - before.reads;
        let backing_bytes = after.backing_read_bytes - before.backing_read_bytes;
        assert_eq!(reads, SIZE / request_bytes as u64);
        if is_first {
            assert_eq!((hits, backing_bytes), (0, SIZE), "the backing has read every byte");
            assert!(prefetched > reads * 9 / 10, "{prefetched} of {reads}");
        } else {
            assert_eq!((hits, prefetched, backing_bytes), (reads, 0, 0), "{request_bytes}");
        }
    }
    let bytes = volume.stats().source_bytes;
    assert_eq!(bytes.memory, 2 * SIZE);
    assert_eq!(bytes.prefetched + bytes.backing, SIZE);
    assert_eq!(bytes.flash, 0);
}

#[test]
fn cold_scan_by_sectors_has_no_hits_of_prefetched_blocks() {
    const SIZE: u64 = 2 * MIB;
    let fixture = Fixture::with_memory(1, 32 * MIB);
    fixture.add_disk("v", SimDiskSpec::new(SIZE));
    let volume = fixture.attach("v", |_| ()).unwrap();
    let target = Target::Volume(volume.clone());
    for at in (0..SIZE).step_by(1024) {
        fixture.world.block_on(target.read(&fixture.seam, at, 1024)).expect("a disk without faults does not fail");
        fixture.world.block_on(fixture.seam.sleep(Nanos::from_millis(5)));
    }
    let stats = volume.stats();
    assert!(stats.memory_hits * 20 < stats.reads, "{} of {}", stats.memory_hits, stats.reads);
}
