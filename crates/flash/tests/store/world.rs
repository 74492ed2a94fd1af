//! Simulated worlds with one to four flash devices.

use std::future::{Future, poll_fn};
use std::pin::pin;

use flash::format::FIRST_SEGMENT_BYTES;
use flash::{FormatOptions, MemberDisk, OpenOptions, RecoveredRecord, Store, StoreError};
use seam::sim::{DiskImages, SimDiskSpec, SimSeam, TaskOrder, Timing, World, WorldSpec};
use seam::{DiskOpen, Nanos, Seam};

/// Names of the devices that carry the log.
pub const NAMES: [&str; 2] = ["flash-0", "flash-1"];
/// Names of all devices. The devices after the first two hold only pages, until one takes over
/// the log.
pub const ALL: [&str; 4] = [NAMES[0], NAMES[1], "flash-2", "flash-3"];

/// Number, sizes and journal of the devices of a world.
#[derive(Clone, Copy, Debug)]
pub struct StoreShape {
    pub devices: usize,
    pub segment_bytes: u64,
    pub segments: u64,
    pub journal_bytes: Option<u64>,
}

/// Small segments, so that the log wraps soon.
pub const SMALL: StoreShape = StoreShape { devices: 2, segment_bytes: 32 << 10, segments: 6, journal_bytes: None };

/// The smallest segments with a summary.
pub const SUMMARIZED: StoreShape = StoreShape { segment_bytes: 64 << 10, segments: 4, ..SMALL };

/// Segments of three pages each, and a map journal that often needs a checkpoint.
pub const PAGED: StoreShape =
    StoreShape { devices: 2, segment_bytes: 256 << 10, segments: 10, journal_bytes: Some(16 * 4096) };

/// A world that runs its tasks in an order of the seed, with 600 buffers.
pub fn empty(seed: u64) -> World {
    let time_max = Nanos::from_secs(3600);
    World::new(WorldSpec { order: TaskOrder::Seeded, blocks: 600, time_max, ..WorldSpec::new(seed) })
}

/// A world that continues from a crash.
pub fn world_after_crash(seed: u64, images: DiskImages) -> World {
    let world = empty(seed);
    world.adopt(images);
    world
}

/// A world with a new store on fast devices that answer out of order.
pub fn formatted(seed: u64, shape: StoreShape) -> World {
    formatted_on(seed, shape, Timing::between(Nanos::from_micros(20), Nanos::from_micros(200)))
}

/// A world with a new store on devices of this timing.
pub fn formatted_on(seed: u64, shape: StoreShape, timing: Timing) -> World {
    let world = empty(seed);
    for (number, name) in (0..).zip(&ALL[..shape.devices]) {
        // Each is larger than the previous one.
        let spec = SimDiskSpec::new(FIRST_SEGMENT_BYTES + (shape.segments + number) * shape.segment_bytes);
        world.add_disk(name, SimDiskSpec { timing, ..spec });
    }
    let seam = world.seam();
    world.block_on(async {
        let disks = disks(&seam, &ALL[..shape.devices]).await;
        let journal_bytes = shape.journal_bytes;
        let options = FormatOptions { segment_bytes: Some(shape.segment_bytes), force: false, journal_bytes };
        Store::format(&seam, &disks, options).await.expect("empty devices are formatted");
    });
    world
}

/// Runs `reading`, and `writing` beside it from its first wait on.
///
/// # Panics
/// If the write has not ended before the read.
pub async fn read_across<R>(reading: impl Future<Output = R>, writing: impl Future<Output = ()>) -> R {
    let (mut reading, mut writing) = (pin!(reading), pin!(writing));
    let mut is_written = false;
    let read = poll_fn(|context| {
        let read = reading.as_mut().poll(context);
        is_written = is_written || writing.as_mut().poll(context).is_ready();
        read
    })
    .await;
    assert!(is_written, "the write ended later than the read");
    read
}

/// Opens devices by name.
pub async fn disks(seam: &SimSeam, names: &[&str]) -> Vec<MemberDisk<SimSeam>> {
    let mut disks = Vec::new();
    for name in names {
        let options = DiskOpen { path: name.into(), create_bytes: None, read_only: false, lock_wait_ms: 10 };
        disks.push(MemberDisk::Local(seam.open_disk(&options).await.expect("the device exists")));
    }
    disks
}

/// Opens the store on all devices of the world.
pub async fn open(
    world: &World,
    seam: &SimSeam,
    options: OpenOptions,
) -> Result<(Store<SimSeam>, Vec<RecoveredRecord>), StoreError> {
    let names: Vec<_> = ALL.into_iter().filter(|name| world.disk(name).is_some()).collect();
    open_named(seam, &names, options).await
}

/// Opens the store on these devices.
pub async fn open_named(
    seam: &SimSeam,
    names: &[&str],
    options: OpenOptions,
) -> Result<(Store<SimSeam>, Vec<RecoveredRecord>), StoreError> {
    Store::open(seam, &disks(seam, names).await, options).await
}
