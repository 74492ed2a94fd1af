//! Durability of membership changes: groups that miss a superblock, commits during a change, a group that is joining.

use std::rc::Rc;

use pool::format::superblock::Superblock;
use pool::{GroupNo, OpenOptions, PoolDisk, PoolGeneration, TierNo, TierPolicy, VolumeSpec};
use seam::sim::{Fault, Ops, Rule, SimDisk, SimSeam, When, World};
use seam::{BlockMut, Disk, DiskError, Nanos, Piece, Seam};

use crate::world::{ALL, SLICE, SLICE_SECTORS, SMALL, SimPool, disks, superblocks, with_pool};

/// Bytes of a group that hold its superblocks, and its journal in a pool of the shape `SMALL`.
const SUPERBLOCKS: std::ops::Range<u64> = 0..128 << 10;
const JOURNAL: std::ops::Range<u64> = 128 << 10..160 << 10;
const CHECKPOINTS: std::ops::Range<u64> = 160 << 10..1 << 20;

fn fault(world: &World, name: &str, fault: Fault, range: std::ops::Range<u64>) {
    let rule = Rule { range: Some(range), ..Rule::new(fault, Ops::WRITE, When::Always) };
    world.disk(name).expect("the disk exists").add_fault(rule);
}

async fn open_with_volume(seam: &SimSeam, policy: TierPolicy) -> (SimPool, PoolDisk<SimSeam, SimDisk>, Vec<SimDisk>) {
    let opened = disks(seam, &ALL[..3]).await;
    let pool = SimPool::open(seam, &opened, OpenOptions::default()).await.expect("the pool opens");
    let spec = VolumeSpec { policy, ..VolumeSpec::thin("a", 8 * SLICE) };
    let id = pool.create_volume(spec).await.expect("sound disks");
    let volume = pool.volume(id).expect("the volume exists");
    (pool, volume, opened)
}

async fn write(seam: &SimSeam, disk: &PoolDisk<SimSeam, SimDisk>, slice: u64) -> Result<(), DiskError> {
    let mut block = seam.alloc().expect("a buffer is free");
    (0..8).for_each(|index| block.set_tag(index, 1));
    disk.write(slice * SLICE_SECTORS * 512, vec![Piece::whole(block.freeze())]).await
}

/// Generations of the two superblocks of a disk; 0 for a damaged one.
async fn generations(seam: &SimSeam, disk: &SimDisk) -> [PoolGeneration; 2] {
    let generation = |superblock: Option<Superblock>| superblock.map_or(PoolGeneration(0), |found| found.generation);
    superblocks(seam, disk).await.map(generation)
}

#[test]
fn group_that_missed_a_superblock_gets_it_when_it_answers() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (_pool, volume, opened) = open_with_volume(&seam, TierPolicy::Lowest).await;
        fault(&world, "slow-0", Fault::Error, SUPERBLOCKS);
        fault(&world, "fast-0", Fault::Error, JOURNAL);
        write(&seam, &volume, 0).await.expect("room");
        volume.flush().await.expect("one copy suffices, and two of three groups know");
        seam.sleep(Nanos::from_secs(1)).await;
        assert!(generations(&seam, &opened[2]).await < generations(&seam, &opened[1]).await);
        for name in ["slow-0", "fast-0"] {
            world.disk(name).expect("the disk exists").clear_faults();
        }
        write(&seam, &volume, 1).await.expect("room");
        volume.flush().await.expect("sound disks");
        seam.sleep(Nanos::from_secs(1)).await;
        assert_eq!(generations(&seam, &opened[2]).await, generations(&seam, &opened[1]).await);
    });
}

#[test]
fn copy_is_not_dropped_when_most_groups_miss_the_superblock() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (_pool, volume, _) = open_with_volume(&seam, TierPolicy::Lowest).await;
        fault(&world, "slow-0", Fault::Error, SUPERBLOCKS);
        fault(&world, "fast-0", Fault::Error, 0..1 << 20);
        write(&seam, &volume, 0).await.expect("room");
        // The two would be a majority without the last copy.
        volume.flush().await.expect_err("an opening could miss the flush");
    });
}

#[test]
fn commit_waits_until_a_dropped_copy_is_durably_out_of_service() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (pool, volume, opened) = open_with_volume(&seam, TierPolicy::Lowest).await;
        write(&seam, &volume, 0).await.expect("room");
        fault(&world, "fast-0", Fault::Error, CHECKPOINTS);
        fault(&world, "slow-0", Fault::Stall(Nanos::from_secs(5)), SUPERBLOCKS);
        let checkpointing = pool.clone();
        seam.spawn(async move { checkpointing.checkpoint().await.expect("the other copy suffices") });
        seam.sleep(Nanos::from_secs(1)).await;
        let before = generations(&seam, &opened[2]).await;
        volume.flush().await.expect("the other copy suffices");
        assert!(generations(&seam, &opened[2]).await > before, "the flush returns after the superblocks are written");
    });
}

#[test]
fn joining_group_takes_no_slices_before_it_is_durably_a_member() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (pool, volume, _) = open_with_volume(&seam, TierPolicy::Lowest).await;
        fault(&world, "slow-0", Fault::Stall(Nanos::from_secs(5)), SUPERBLOCKS);
        let extra = disks(&seam, &ALL[3..]).await.remove(0);
        let (adding, added) = (pool.clone(), Rc::new(std::cell::Cell::new(false)));
        let has_added = Rc::clone(&added);
        seam.spawn(async move {
            assert_eq!(adding.add_group(TierNo(1), extra, true).await, Ok(GroupNo(3)));
            has_added.set(true);
        });
        seam.sleep(Nanos::from_secs(1)).await;
        for slice in 0..4 {
            write(&seam, &volume, slice).await.expect("room");
        }
        assert!(!added.get() && pool.groups().len() == 4, "the group is joining");
        assert!(pool.slices_of(volume.volume()).iter().all(|(_, group)| *group == GroupNo(2)));
        seam.sleep(Nanos::from_secs(30)).await;
        assert!(added.get());
        write(&seam, &volume, 4).await.expect("room");
        assert_eq!(pool.slices_of(volume.volume())[4].1, GroupNo(3));
    });
}
