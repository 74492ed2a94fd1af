//! Metadata copies that replace each other: no opening on a former copy alone misses the state of its successors.

use pool::{PoolError, VolumeSpec};
use seam::sim::{CrashMode, DiskImages, Fault, Ops, Rule, When, World};
use seam::{Disk, Nanos, Seam};

use crate::model::read_sectors;
use crate::timelines::{THREE, crash_while_continuing, filled, open};
use crate::world::{SLICE, world_after_crash, write_at};

/// Bytes of a group that hold its superblocks.
const SUPERBLOCKS: std::ops::Range<u64> = 0..128 << 10;
/// Bytes of a group that hold its journal and its checkpoints.
const METADATA: std::ops::Range<u64> = 128 << 10..1 << 20;

/// Lets writes to a range fail without an effect.
fn fail_writes(world: &World, name: &str, range: std::ops::Range<u64>) {
    let rule = Rule { range: Some(range), ..Rule::new(Fault::NoSpace, Ops::WRITE, When::Always) };
    world.disk(name).expect("the disk exists").add_fault(rule);
}

/// Disks of a pool whose only metadata copy is on `fast-0`. The others are sound again.
fn with_one_copy() -> DiskImages {
    let world = world_after_crash(2, filled());
    fail_writes(&world, "fast-1", METADATA);
    fail_writes(&world, "slow-0", METADATA);
    let seam = world.seam();
    world.block_on(async {
        let (pool, volume) = open(&seam, &THREE, false).await.expect("the pool opens");
        write_at(&seam, &volume, 2 * SLICE, 60).await;
        volume.flush().await.expect("the copy on fast-0 suffices");
        seam.sleep(Nanos::from_secs(1)).await;
        let copies: Vec<_> = pool.groups().iter().map(|group| group.carries_metadata).collect();
        assert_eq!(copies, [true, false, false]);
    });
    world.crash(CrashMode::LoseAll)
}

/// The tag of slice 3 with the pool on `fast-0` alone.
fn tag_on_former_copy(images: DiskImages) -> Result<u64, PoolError> {
    let world = world_after_crash(4, images);
    let seam = world.seam();
    world.block_on(async {
        let (_pool, volume) = open(&seam, &["fast-0"], false).await?;
        Ok(read_sectors(&seam, &volume, 3 * SLICE / 512, 1).await.expect("sound disks")[0])
    })
}

#[test]
fn new_copy_does_not_replace_the_only_one_that_cannot_record_it() {
    let world = world_after_crash(3, with_one_copy());
    let seam = world.seam();
    let is_acknowledged = world.block_on(async {
        let (_pool, volume) = open(&seam, &THREE, false).await.expect("the pool opens");
        // The background is about to make a second copy.
        fail_writes(&world, "fast-0", SUPERBLOCKS);
        seam.sleep(Nanos::from_secs(10)).await;
        write_at(&seam, &volume, 3 * SLICE, 90).await;
        volume.flush().await.is_ok()
    });
    let found = tag_on_former_copy(world.crash(CrashMode::LoseAll));
    assert!(!is_acknowledged && found.is_ok(), "acknowledged: {is_acknowledged}, found {found:?}");
}

#[test]
fn crash_while_a_second_copy_is_made_leaves_no_former_state_on_the_first() {
    let (mut refused, mut older) = (0, 0);
    crash_while_continuing(with_one_copy(), &THREE, false, |images, is_acknowledged| {
        let world = world_after_crash(9, images);
        let seam = world.seam();
        let continued = world.block_on(async {
            let (pool, _) = open(&seam, &["fast-1", "slow-0"], false).await?;
            pool.create_volume(VolumeSpec::thin("b", SLICE)).await.map(drop)
        });
        let found = tag_on_former_copy(world.crash(CrashMode::LoseAll));
        match continued {
            Ok(()) => {
                refused += 1;
                found.err().map(drop).ok_or("fast-0 opens alone with an older state".to_owned())
            }
            Err(_) => {
                older += u32::from(found.is_ok());
                let is_missing = found.as_ref().is_ok_and(|tag| is_acknowledged && *tag != 90);
                if is_missing { Err(format!("fast-0 opens alone with tag {found:?}")) } else { Ok(()) }
            }
        }
    });
    assert!(refused > 10 && older > 10, "{refused} refusals, {older} openings of the first copy");
}
