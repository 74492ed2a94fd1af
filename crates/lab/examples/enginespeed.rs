//! Speed of the simulated engine on one core: memory hits and modelled disk requests per second of real time.

use engine::policy::curve::VolumeCurves;
use engine::{ByteOffset, CoreSpec};
use lab::fixture::{Fixture, Target};
use lab::random::Random;
use lab::workload::{Load, Pattern, run_load};
use seam::Nanos;
use seam::model::{ArraySpec, DiskType, RaidLevel};
use seam::sim::{SimDiskSpec, StoredContent, WorldSpec};

const MIB: u64 = 1 << 20;

fn main() {
    println!("memory hits of 4 KiB:              {:>9.0} a second", measure_hits());
    println!("disk requests, plain disk:         {:>9.0} a second", measure_misses(false));
    println!("disk requests, RAID 5 of 5 x 15k:  {:>9.0} a second", measure_misses(true));
    for size in [32 * MIB, 1 << 30, 1 << 40] {
        println!(
            "miss-ratio curves of {:>7} MiB:      {:>7.1} ns a request of 4 KiB",
            size / MIB,
            measure_curves(size)
        );
    }
}

fn fixture(memory_bytes: u64) -> Fixture {
    let blocks = (memory_bytes / 4096) as usize;
    let world = WorldSpec { blocks, content: StoredContent::MetadataOnly, ..WorldSpec::new(1) };
    Fixture::new(world, CoreSpec { readahead_max_bytes: 0, ..CoreSpec::default() })
}

fn measure_hits() -> f64 {
    let fixture = fixture(96 * MIB);
    fixture.add_disk("disk", SimDiskSpec::new(64 * MIB));
    let volume = fixture.attach("disk", |_| ()).expect("the first volume can be attached");
    fixture.world.block_on(volume.prefetch(ByteOffset::ZERO, 64 * MIB)).expect("a disk without faults does not fail");
    let load = Load { pattern: Pattern::random(64 * MIB, 4096, 100), depth: 16, time: Nanos::from_secs(4), seed: 1 };
    let (figures, seconds) =
        timed(|| fixture.world.block_on(run_load(&fixture.seam, &Target::Volume(volume.clone()), &load)));
    let stats = volume.stats();
    assert!(stats.memory_hits * 100 >= stats.reads * 99, "{} hits of {} reads", stats.memory_hits, stats.reads);
    figures.requests() as f64 / seconds
}

/// Random reads over far more than memory, so that nearly every read is a request to the backing.
fn measure_misses(modelled: bool) -> f64 {
    let fixture = fixture(64 * MIB);
    let size = 16 << 30;
    let volume = if modelled {
        let disk = fixture.add_disks_on_array(ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas15k), &[size]).remove(0);
        fixture.attach_disk("disk", disk, |_| ())
    } else {
        fixture.add_disk("disk", SimDiskSpec::new(size));
        fixture.attach("disk", |_| ())
    };
    let volume = volume.expect("the first volume can be attached");
    let seconds = if modelled { 600 } else { 6 };
    let load = Load { pattern: Pattern::random(size, 4096, 100), depth: 32, time: Nanos::from_secs(seconds), seed: 1 };
    let (_, seconds) =
        timed(|| fixture.world.block_on(run_load(&fixture.seam, &Target::Volume(volume.clone()), &load)));
    volume.stats().backing_reads as f64 / seconds
}

/// Nanoseconds per request that both miss-ratio curves of a volume cost. The requests are drawn before the measurement,
/// and the curves have seen all of them once.
fn measure_curves(size: u64) -> f64 {
    let (mut random, mut curves) = (Random::new(1, 0), VolumeCurves::default());
    let requests: Vec<_> = (0..8 << 20).map(|_| ByteOffset(random.below(size / 4096) * 4096)).collect();
    requests.iter().for_each(|at| curves.record_use(*at, 4096));
    let (_, seconds) = timed(|| requests.iter().for_each(|at| curves.record_use(*at, 4096)));
    seconds * 1e9 / requests.len() as f64
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    #[expect(clippy::disallowed_methods, reason = "measures real time")]
    let began = std::time::Instant::now();
    let value = work();
    (value, began.elapsed().as_secs_f64())
}
