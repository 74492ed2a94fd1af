//! Simulated worlds with the disks of a pool.

use pool::format::superblock::{SUPERBLOCK_OFFSETS, Superblock};
use pool::{CreateOptions, OpenOptions, Pool, PoolDisk, PoolError, TierPolicy, TierSpec, VolumeSpec};
use seam::sim::{DiskImages, SimDisk, SimDiskSpec, SimSeam, TaskOrder, Timing, World, WorldSpec};
use seam::{Block, BlockMut, Disk, DiskOpen, Nanos, Piece, Seam};

/// Names of all disks: two fast ones, two slow ones. The last one joins a pool later.
pub const ALL: [&str; 4] = ["fast-0", "fast-1", "slow-0", "slow-1"];
/// Bytes of a slice.
pub const SLICE: u64 = 256 << 10;
/// Sectors of a slice.
pub const SLICE_SECTORS: u64 = SLICE / 512;
/// Content of the disks before the pool: no volume may ever show it.
pub const FOREIGN: u64 = 0xf0e1 << 32;
/// Byte offset of the slots on disks of this size.
pub const DATA_AT: u64 = 1 << 20;

/// Sizes of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Slots of each disk.
    pub slots: [u64; 4],
    pub journal_blocks: u32,
}

/// A pool that is small enough to fill, with a journal that often needs a checkpoint.
pub const SMALL: Shape = Shape { slots: [4, 5, 8, 9], journal_blocks: 8 };

pub type SimPool = Pool<SimSeam, SimDisk>;

/// A world that runs its tasks in an order of the seed, with 900 buffers.
pub fn empty(seed: u64) -> World {
    let time_max = Nanos::from_secs(3600);
    World::new(WorldSpec { order: TaskOrder::Seeded, blocks: 900, time_max, ..WorldSpec::new(seed) })
}

/// A world that continues from a crash.
pub fn world_after_crash(seed: u64, images: DiskImages) -> World {
    let world = empty(seed);
    world.adopt(images);
    world
}

/// A world with four disks full of foreign data.
pub fn with_disks(seed: u64, shape: Shape) -> World {
    let world = empty(seed);
    for (name, slots) in ALL.iter().zip(shape.slots) {
        let spec = SimDiskSpec::new(DATA_AT + slots * SLICE);
        let timing = Timing::between(Nanos::from_micros(20), Nanos::from_micros(200));
        let disk = world.add_disk(name, SimDiskSpec { timing, ..spec });
        let foreign: Vec<u64> = (0..slots * SLICE_SECTORS).map(|sector| FOREIGN | sector).collect();
        disk.set_tags(DATA_AT / 512, &foreign);
    }
    let seam = world.seam();
    world.block_on(async {
        for disk in disks(&seam, &ALL).await {
            disk.flush().await.expect("a sound disk is flushed");
        }
    });
    world
}

/// A world with a new pool on the first three disks.
pub fn with_pool(seed: u64, shape: Shape) -> World {
    let world = with_disks(seed, shape);
    let seam = world.seam();
    world.block_on(async {
        let disks = disks(&seam, &ALL[..3]).await;
        let tiers = [
            TierSpec { name: "fast".to_owned(), disks: disks[..2].to_vec() },
            TierSpec { name: "slow".to_owned(), disks: disks[2..].to_vec() },
        ];
        let journal_blocks = Some(shape.journal_blocks);
        let options = CreateOptions { slice_bytes: SLICE, journal_blocks, ..CreateOptions::default() };
        SimPool::create(&seam, &tiers, options).await.expect("empty disks become a pool");
    });
    world
}

/// Opens disks by name.
pub async fn disks(seam: &SimSeam, names: &[&str]) -> Vec<SimDisk> {
    let mut disks = Vec::new();
    for name in names {
        let options = DiskOpen { path: name.into(), create_bytes: None, read_only: false, lock_wait_ms: 10 };
        disks.push(seam.open_disk(&options).await.expect("the disk exists"));
    }
    disks
}

/// The disks of the world that belong to a pool. An interrupted addition leaves a disk that no superblock names.
pub async fn pool_disks(world: &World, seam: &SimSeam) -> Vec<SimDisk> {
    let present: Vec<_> = ALL.into_iter().filter(|name| world.disk(name).is_some()).collect();
    disks(seam, &present).await
}

/// Opens the pool on its disks. Disks that are no group, or not any more, are left out, as the refusal advises.
pub async fn open(world: &World, seam: &SimSeam, options: OpenOptions) -> Result<SimPool, PoolError> {
    let mut disks = pool_disks(world, seam).await;
    loop {
        match SimPool::open(seam, &disks, options).await {
            Err(PoolError::NoPool { device, .. } | PoolError::OtherPool { device }) => {
                disks.retain(|disk| disk.identity() != device);
            }
            other => return other,
        }
    }
}

/// The superblocks of a disk; `None` for a damaged one.
pub async fn superblocks(seam: &SimSeam, disk: &SimDisk) -> [Option<Superblock>; 2] {
    let mut found = [None, None];
    for (at, found) in SUPERBLOCK_OFFSETS.into_iter().zip(&mut found) {
        let (result, mut pieces) = disk.read(at, vec![Piece::whole(seam.alloc().expect("a buffer is free"))]).await;
        result.expect("sound disks");
        let mut raw = [0; 4096];
        pieces.remove(0).block.freeze().read_bytes(0, &mut raw);
        *found = Superblock::decode(&raw).ok();
    }
    found
}

/// A thin volume of two slices.
pub async fn volume(pool: &SimPool, name: &str, policy: TierPolicy) -> PoolDisk<SimSeam, SimDisk> {
    let spec = VolumeSpec { policy, ..VolumeSpec::thin(name, 2 * SLICE) };
    let id = pool.create_volume(spec).await.expect("sound disks");
    pool.volume(id).expect("the volume exists")
}

/// Writes a block at the start.
pub async fn write(seam: &SimSeam, disk: &PoolDisk<SimSeam, SimDisk>, tag: u64) {
    write_at(seam, disk, 0, tag).await;
}

/// Writes a block at a byte offset, with one tag.
pub async fn write_at(seam: &SimSeam, disk: &PoolDisk<SimSeam, SimDisk>, at: u64, tag: u64) {
    let mut block = seam.alloc().expect("a buffer is free");
    (0..8).for_each(|index| block.set_tag(index, tag));
    disk.write(at, vec![Piece::whole(block.freeze())]).await.expect("room");
}
