//! Benchmark of the opening of a large pool, on simulated SSDs: two fast groups with a sixteenth of it, two slow ones
//! with the rest. `TIB` of one volume are allocated in 4 MiB slices; with `scattered` each slice needs a map record of
//! its own.
//!
//! `cargo run --release -p pool --example terabyte TIB [scattered]` prints the slices, the metadata's size on disk, and
//! the times of the opening: of the devices (virtual time) and of the processor (the thread's time, with the simulation
//! of the reads). A start takes at most their sum. The opening is repeated; the times are medians.

use pool::{CreateOptions, OpenOptions, Pool, TierPolicy, TierSpec, VolumeSpec};
use seam::model::DiskType;
use seam::sim::{SimDisk, SimDiskSpec, SimSeam, StoredContent, Timing, World, WorldSpec, WriteCache};
use seam::{DiskOpen, Nanos, Seam};

const NAMES: [&str; 4] = ["fast-0", "fast-1", "slow-0", "slow-1"];
const SLICE: u64 = 4 << 20;

/// Openings to measure.
const OPENINGS: usize = 5;

/// Processor time of the thread in seconds, from Linux.
#[expect(clippy::disallowed_methods, reason = "reads the time of the thread from Linux")]
fn processor_secs() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts the thread's time");
    let nanos = text.split(' ').next().and_then(|nanos| nanos.parse::<u64>().ok());
    nanos.expect("the first number is the time in nanoseconds") as f64 / 1e9
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn disks(seam: &SimSeam) -> Vec<SimDisk> {
    let mut disks = Vec::new();
    for name in NAMES {
        let options = DiskOpen { path: name.into(), create_bytes: None, read_only: false, lock_wait_ms: 0 };
        disks.push(seam.open_disk(&options).await.expect("the disk exists"));
    }
    disks
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let tib: u64 = arguments.next().map_or(1, |tib| tib.parse().expect("a number of TiB"));
    let is_scattered = arguments.next().is_some();
    let spec =
        WorldSpec { content: StoredContent::MetadataOnly, time_max: Nanos::from_secs(1 << 30), ..WorldSpec::new(1) };
    let world = World::new(spec);
    let seam = world.seam();
    let volume_bytes = tib << 40;
    for (index, name) in NAMES.iter().enumerate() {
        let part = if index < 2 { volume_bytes / 32 } else { volume_bytes / 2 };
        let bytes = (part / 20 * 21 + (8 << 30)).next_multiple_of(SLICE);
        let ssd = seam::model::SsdSpec { capacity_bytes: bytes, ..DiskType::Ssd.ssd().expect("it is flash") };
        let spec = SimDiskSpec { timing: Timing::of_ssd(ssd), cache: WriteCache::Through, ..SimDiskSpec::new(bytes) };
        world.add_disk(name, spec);
    }
    let slices = volume_bytes / SLICE;
    let metadata_bytes = world.block_on(async {
        let disks = disks(&seam).await;
        let tiers = [
            TierSpec { name: "fast".to_owned(), disks: disks[..2].to_vec() },
            TierSpec { name: "slow".to_owned(), disks: disks[2..].to_vec() },
        ];
        // A world without content cannot tell that a disk is empty.
        let options = CreateOptions { slice_bytes: SLICE, force: true, ..CreateOptions::default() };
        Pool::create(&seam, &tiers, options).await.expect("empty disks become a pool");
        let pool = Pool::open(&seam, &disks, OpenOptions::default()).await.expect("the pool opens");
        let policy = if is_scattered { TierPolicy::Auto } else { TierPolicy::Lowest };
        let spec = VolumeSpec { policy, ..VolumeSpec::thin("large", volume_bytes) };
        let volume = pool.create_volume(spec).await.expect("the volume is created");
        let volume = pool.volume(volume).expect("the volume exists");
        let step = 1 << 14;
        for first in (0..slices).step_by(step as usize) {
            let count = step.min(slices - first);
            volume.reserve(first * SLICE, count * SLICE).await.expect("the pool has room");
        }
        pool.checkpoint().await.expect("sound disks");
        let blocks = |slots: u32| u64::from(pool::format::layout::area_blocks_for(slots));
        let slots: u32 = pool.groups().iter().map(|group| group.slots).sum();
        3 * 2 * blocks(slots * pool::format::layout::GROWTH) * 4096
    });
    let (mut device_secs, mut thread_secs, mut counts) = (Vec::new(), Vec::new(), (0, 0));
    for _ in 0..OPENINGS {
        let (start, thread_start) = (seam.now(), processor_secs());
        let pool = world.block_on(async {
            let disks = disks(&seam).await;
            Pool::open(&seam, &disks, OpenOptions::default()).await.expect("the pool opens")
        });
        device_secs.push(seam.now().since(start).as_secs_f64());
        thread_secs.push(processor_secs() - thread_start);
        let volume = pool.volumes().remove(0);
        counts = (volume.allocated, volume.slices.first().map_or(0, |(_, count)| *count));
    }
    let (allocated, fast) = counts;
    println!(
        "{tib} TiB: {allocated} slices ({fast} on the first group), {} MiB of checkpoint areas; opened in {:.3} s of \
         the devices and {:.3} s of a processor",
        metadata_bytes >> 20,
        median(device_secs),
        median(thread_secs)
    );
}
