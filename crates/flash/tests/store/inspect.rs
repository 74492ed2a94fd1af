//! Read-only inspection of devices.

use flash::{
    BlockAddress, BlockNo, Content, Epoch, MemberNo, OpenOptions, Record, Sequence, StoreError, VolumeId, inspect,
};
use seam::sim::{CrashMode, SimSeam, World};
use seam::{BlockMut, Seam};

use crate::world::{NAMES, SMALL, StoreShape, disks, formatted, open, world_after_crash};

/// A crashed world with blocks 0 to 5 in the log, one batch each. Block *n* has tag *n* + 100; the last batch writes
/// block 0 again.
fn written() -> World {
    let world = formatted(1, StoreShape { devices: 2, ..SMALL });
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        for (block, tag) in (0..6).map(|block| (block, block + 100)).chain([(0, 900)]) {
            let mut buffer = seam.alloc().expect("the pool has a free buffer");
            (0..8).for_each(|sector| buffer.set_tag(sector, tag));
            let address = BlockAddress { volume_id: VolumeId(5), block: BlockNo(block) };
            let content = Content::Data(buffer.freeze());
            store.append(vec![Record { address, epoch: Epoch(1), content }]).await.unwrap();
        }
    });
    world_after_crash(2, world.crash(CrashMode::LoseAll))
}

/// Inspects these devices, checks that nothing was written, and returns the findings.
async fn inspect_devices(
    world: &World,
    seam: &SimSeam,
    names: &[&str],
) -> (Vec<(u64, Option<u64>)>, Vec<MemberNo>, Option<StoreError>, Vec<std::ops::Range<Sequence>>) {
    let disks = disks(seam, names).await;
    let (devices, inspection) = inspect(seam, &disks).await;
    assert_eq!(devices.len(), names.len());
    let inspection = inspection.expect("a store exists");
    let mut blocks = Vec::new();
    for dirty in &inspection.dirty_blocks {
        let block = inspection.read(dirty).await;
        blocks.push((dirty.address.block.0, block.map(|block| block.tags()[0])));
    }
    blocks.sort_unstable();
    for name in names {
        let counts = world.disk(name).unwrap().counts();
        assert_eq!((counts.writes, counts.flushes), (0, 0), "nothing is written");
    }
    (blocks, inspection.missing_members, inspection.problem, inspection.lost_batches)
}

fn all() -> Vec<(u64, Option<u64>)> {
    (0..6).map(|block| (block, Some(if block == 0 { 900 } else { block + 100 }))).collect()
}

#[test]
fn inspection_finds_the_blocks_of_an_opening_and_writes_nothing() {
    let world = written();
    let seam = world.seam();
    world.block_on(async {
        assert_eq!(inspect_devices(&world, &seam, &NAMES).await, (all(), vec![], None, vec![]));
        let alone = inspect_devices(&world, &seam, &NAMES[..1]).await;
        assert_eq!(alone, (all(), vec![MemberNo(1)], Some(StoreError::MemberMissing { member: MemberNo(1) }), vec![]));
        let nothing = inspect(&seam, &[]).await.1;
        assert!(nothing.is_err());
    });
}

#[test]
fn inspection_of_a_damaged_log_finds_the_rest_and_lists_lost_batches() {
    let world = written();
    let first = flash::format::FIRST_SEGMENT_BYTES / 512;
    // Damage the third batch's header and the fourth's data on both devices, and the fifth's data on one.
    for name in NAMES {
        world.disk(name).unwrap().flip_bit(first + 4 * 8, 3);
        world.disk(name).unwrap().flip_bit(first + 7 * 8, 3);
    }
    world.disk(NAMES[0]).unwrap().flip_bit(first + 9 * 8, 3);
    let seam = world.seam();
    world.block_on(async {
        let (blocks, missing, problem, lost) = inspect_devices(&world, &seam, &NAMES).await;
        let mut expected = all();
        expected.retain(|(block, _)| *block != 2);
        expected[2].1 = None;
        assert_eq!((blocks, missing, lost.first()), (expected, vec![], Some(&(Sequence(3)..Sequence(4)))));
        assert_eq!(problem, Some(StoreError::Damaged { sequence: Sequence(3) }));
    });
}
