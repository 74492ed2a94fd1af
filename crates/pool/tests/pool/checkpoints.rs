//! Checkpoints: damage in both copies, and pools of releases whose checkpoints have no lists of slots.

use pool::format::superblock::{FEATURE_LISTS, SUPERBLOCK_OFFSETS, Superblock};
use pool::{CheckpointNo, OpenOptions, VolumeSpec};
use seam::sim::{CrashMode, SimDisk, SimSeam, World};
use seam::{BlockMut, Disk, Nanos, Piece, Seam};

use crate::world::{ALL, SLICE, SMALL, SimPool, disks, open, superblocks, with_pool, world_after_crash};

/// The superblocks of a sound disk.
async fn valid_superblocks(seam: &SimSeam, disk: &SimDisk) -> [Superblock; 2] {
    superblocks(seam, disk).await.map(|superblock| superblock.expect("a valid superblock"))
}

fn name(number: usize) -> String {
    format!("{number:060}")
}

/// A pool after a crash, with 100 volumes. In both checkpoints of each copy, one block of the content is damaged.
fn with_damaged_checkpoints(blocks: [(&str, u64); 2]) -> World {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    let offsets = world.block_on(async {
        let opened = disks(&seam, &ALL[..3]).await;
        let pool = SimPool::open(&seam, &opened, OpenOptions::default()).await.expect("a new pool");
        for number in 0..100 {
            pool.create_volume(VolumeSpec::thin(&name(number), SLICE)).await.expect("the name is free");
        }
        pool.checkpoint().await.expect("sound disks");
        let [superblock, _] = valid_superblocks(&seam, &opened[0]).await;
        [CheckpointNo(0), CheckpointNo(1)].map(|number| superblock.checkpoint_offset(number))
    });
    for (name, block) in blocks {
        let disk = world.disk(name).expect("the disk exists");
        offsets.iter().for_each(|offset| disk.flip_bit(offset / 512 + block * 8, 77));
    }
    world_after_crash(2, world.crash(CrashMode::LoseAll))
}

#[test]
fn checkpoint_damaged_in_both_copies_at_the_same_block_is_refused() {
    let world = with_damaged_checkpoints([("fast-0", 2), ("fast-1", 2)]);
    let seam = world.seam();
    world.block_on(async {
        let refusal = open(&world, &seam, OpenOptions::default()).await.map(drop);
        let error = refusal.expect_err("volumes would be lost").to_string();
        assert!(error.contains("block 2 is damaged in every copy"), "{error}");
    });
}

#[test]
fn checkpoint_damaged_in_both_copies_at_different_blocks_loses_nothing() {
    let world = with_damaged_checkpoints([("fast-0", 2), ("fast-1", 1)]);
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&world, &seam, OpenOptions::default()).await.expect("the copies complete each other");
        assert_eq!(pool.volumes().len(), 100);
        assert!((0..100).all(|number| pool.volume_named(&name(number)).is_some()));
        seam.sleep(Nanos::from_secs(1)).await;
    });
    // A new checkpoint has repaired both copies.
    let world = world_after_crash(3, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    world.block_on(async {
        let opened = disks(&seam, &ALL[..3]).await;
        let pool = SimPool::open(&seam, &opened, OpenOptions::default()).await.expect("both copies are intact");
        assert_eq!((pool.volumes().len(), pool.check_open().findings), (100, vec![]));
        assert_eq!(pool.take_notices(), Vec::<String>::new());
    });
}

#[test]
fn opening_announces_lists_before_the_first_checkpoint_has_one() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let opened = disks(&seam, &ALL[..3]).await;
        // As a release without lists has left it.
        for disk in &opened {
            for (at, superblock) in SUPERBLOCK_OFFSETS.into_iter().zip(valid_superblocks(&seam, disk).await) {
                let former = Superblock { features: superblock.features & !FEATURE_LISTS, ..superblock };
                let mut block = seam.alloc().expect("a buffer is free");
                block.write_metadata(0, &*former.encode());
                disk.write(at, vec![Piece::whole(block.freeze())]).await.expect("sound disks");
            }
            disk.flush().await.expect("sound disks");
        }
        let pool = SimPool::open(&seam, &opened, OpenOptions::default()).await.expect("a pool of the former release");
        for disk in &opened {
            let features = valid_superblocks(&seam, disk).await.map(|superblock| superblock.features & FEATURE_LISTS);
            assert_eq!(features, [FEATURE_LISTS; 2], "a release without lists refuses each superblock");
        }
        assert_eq!(pool.counts().checkpoints, 0);
    });
}
