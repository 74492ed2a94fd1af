//! The heat of a pool over a restart.

use pool::planner::ClassCost;
use pool::{HeatImageError, OpenOptions, PoolDisk, VolumeSpec};
use seam::sim::{CrashMode, SimDisk, SimSeam};
use seam::{Disk, Nanos, Piece, Seam};

use crate::world::{ALL, SLICE, SMALL, SimPool, disks, with_pool, world_after_crash};

const DAY: u64 = 86_400;
const SAVED_AT: u64 = 1_700_000_000;

async fn read_often(seam: &SimSeam, volume: &PoolDisk<SimSeam, SimDisk>, slice: u64, reads: u64) {
    for read in 0..reads {
        let block = seam.alloc().expect("a buffer is free");
        let at = slice * SLICE + read * 7 % 60 * 4096;
        let (result, _) = volume.read(at, vec![Piece::whole(block)]).await;
        result.expect("sound disks");
        seam.sleep(Nanos::from_secs(1)).await;
    }
}

/// Disk time per hour of all slices.
async fn disk_time(pool: &SimPool) -> Nanos {
    let class = ClassCost::named("10k").expect("a named class");
    let histogram = pool.heat_histogram(&[class, class]).await.expect("two tiers");
    histogram.buckets().map(|bucket| bucket.disk_time).fold(Nanos::ZERO, |sum, time| sum + time)
}

/// A pool with heat, and its image.
fn with_heat() -> (seam::sim::World, Vec<u8>, Nanos) {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    let (image, disk_time) = world.block_on(async {
        let opened = disks(&seam, &ALL[..3]).await;
        let pool = SimPool::open(&seam, &opened, OpenOptions::default()).await.expect("the pool opens");
        let id = pool.create_volume(VolumeSpec::thin("a", 4 * SLICE)).await.expect("room");
        let volume = pool.volume(id).expect("the volume exists");
        volume.reserve(0, 3 * SLICE).await.expect("room");
        for (slice, reads) in [(0, 600), (1, 60)] {
            read_often(&seam, &volume, slice, reads).await;
        }
        volume.flush().await.expect("sound disks");
        (pool.heat_image(SAVED_AT).await, disk_time(&pool).await)
    });
    (world_after_crash(2, world.crash(CrashMode::LoseAll)), image, disk_time)
}

async fn reopened(seam: &SimSeam) -> SimPool {
    let opened = disks(seam, &ALL[..3]).await;
    SimPool::open(seam, &opened, OpenOptions::default()).await.expect("the pool opens")
}

#[test]
fn heat_survives_a_restart_and_ages_by_the_wall_clock() {
    let (world, image, before) = with_heat();
    let seam = world.seam();
    world.block_on(async {
        let pool = reopened(&seam).await;
        assert_eq!(disk_time(&pool).await, Nanos::ZERO);
        assert_eq!(pool.load_heat(&image, SAVED_AT).await, Ok(0));
        let loaded = disk_time(&pool).await;
        assert!(loaded.0.abs_diff(before.0) * 50 < before.0, "{loaded:?} of {before:?}");
        drop(pool);
        let pool = reopened(&seam).await;
        assert_eq!(pool.load_heat(&image, SAVED_AT + DAY).await, Ok(DAY));
        let aged = disk_time(&pool).await;
        // Half of the expectation has a half-life of an hour, the other half one of a day.
        assert!(aged.0 * 3 < before.0 && aged.0 > 0, "{aged:?} of {before:?}");
    });
}

#[test]
fn damaged_foreign_or_old_image_is_ignored() {
    let (world, image, _) = with_heat();
    let seam = world.seam();
    world.block_on(async {
        let pool = reopened(&seam).await;
        for at in (0..image.len()).step_by(61).chain(0..60) {
            let mut damaged = image.clone();
            damaged[at] ^= 1;
            pool.load_heat(&damaged, SAVED_AT).await.expect_err("a flipped bit is seen");
        }
        for len in [0, 51, 52, image.len() - 1] {
            assert_eq!(pool.load_heat(&image[..len], SAVED_AT).await, Err(HeatImageError::Damaged), "{len} bytes");
        }
        assert_eq!(pool.load_heat(&image, SAVED_AT + 15 * DAY).await, Err(HeatImageError::TooOld(15 * DAY)));
        assert_eq!(disk_time(&pool).await, Nanos::ZERO);
        let other = with_pool(3, SMALL);
        let seam = other.seam();
        let foreign = other.block_on(async { reopened(&seam).await.load_heat(&image, SAVED_AT).await });
        assert_eq!(foreign, Err(HeatImageError::OtherPool));
    });
}
