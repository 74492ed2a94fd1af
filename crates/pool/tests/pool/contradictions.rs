//! The check reports contradictions of the maps, and the opening refuses them.

use pool::format::block::{BlockKind, MetadataBlock};
use pool::format::record::{Record, pack};
use pool::format::superblock::Superblock;
use pool::{
    Finding, GroupNo, OpenOptions, PoolError, Sequence, SliceAddress, SliceNo, SlotAddress, SlotNo, VolumeId,
    VolumeSpec,
};
use seam::sim::{CrashMode, SimDisk, SimSeam, World};
use seam::{Block, BlockMut, Disk, Piece, Seam};

use crate::world::{ALL, SLICE, SMALL, SimPool, disks, open, with_pool, world_after_crash};

async fn read_block(seam: &SimSeam, disk: &SimDisk, at: u64) -> [u8; 4096] {
    let buffer = seam.alloc().expect("a buffer is free");
    let (result, mut pieces) = disk.read(at, vec![Piece::whole(buffer)]).await;
    result.expect("sound disks");
    let mut raw = [0; 4096];
    pieces.remove(0).block.freeze().read_bytes(0, &mut raw);
    raw
}

/// Appends a block with these records to the journal of a pool whose journal has one block.
async fn append(seam: &SimSeam, disk: &SimDisk, records: &[Record]) {
    let raw = read_block(seam, disk, 0).await;
    let superblock = Superblock::decode(&raw).expect("a superblock");
    let raw = read_block(seam, disk, superblock.journal_offset(Sequence(0))).await;
    let (first, previous) =
        MetadataBlock::decode(&raw, BlockKind::Journal, superblock.pool).expect("the first journal block");
    let block = MetadataBlock { sequence: Sequence(1), previous, payload: pack(records).remove(0).into(), ..first };
    let mut buffer = seam.alloc().expect("a buffer is free");
    buffer.write_metadata(0, &*block.encode().0);
    let at = superblock.journal_offset(Sequence(1));
    disk.write(at, vec![Piece::whole(buffer.freeze())]).await.expect("sound disks");
    disk.flush().await.expect("sound disks");
}

/// A world with a pool, one volume of four slices, and these map entries.
fn with_maps(maps: &[(u32, u16, u32)]) -> World {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let disks = disks(&seam, &ALL[..3]).await;
        let pool = SimPool::open(&seam, &disks, OpenOptions::default()).await.expect("the pool opens");
        pool.create_volume(VolumeSpec::thin("a", 4 * SLICE)).await.expect("the volume is created");
        let record = |(slice, group, slot): &(u32, u16, u32)| Record::Map {
            volume: VolumeId(1),
            slice: SliceNo(*slice),
            slot: SlotAddress { group: GroupNo(*group), slot: SlotNo(*slot) },
            count: 1,
        };
        let records: Vec<_> = maps.iter().map(record).collect();
        for disk in &disks[..2] {
            append(&seam, disk, &records).await;
        }
    });
    world_after_crash(2, world.crash(CrashMode::LoseAll))
}

/// Findings of the check, and the result of the opening.
fn inspect(maps: &[(u32, u16, u32)]) -> (Vec<Finding>, Option<PoolError>) {
    let world = with_maps(maps);
    let seam = world.seam();
    let findings = world.block_on(async {
        let report = SimPool::check(&seam, &disks(&seam, &ALL[..3]).await).await.expect("the metadata is intact");
        assert_eq!(report.slices, maps.len() as u64);
        report.findings
    });
    let error = world.block_on(async { open(&world, &seam, OpenOptions::default()).await.err() });
    (findings, error)
}

fn slice(slice: u32) -> SliceAddress {
    SliceAddress { volume: VolumeId(1), slice: SliceNo(slice) }
}

fn slot(group: u16, slot: u32) -> SlotAddress {
    SlotAddress { group: GroupNo(group), slot: SlotNo(slot) }
}

#[test]
fn sound_maps_have_no_findings() {
    assert_eq!(inspect(&[(0, 0, 1), (1, 2, 7)]), (Vec::new(), None));
}

#[test]
fn slot_of_two_slices_is_doubled_and_refused() {
    let (findings, error) = inspect(&[(0, 0, 1), (2, 0, 1)]);
    assert_eq!(findings, [Finding::Doubled { slot: slot(0, 1), first: slice(0), second: slice(2) }]);
    assert!(matches!(error, Some(PoolError::Damaged(_))), "{error:?}");
}

#[test]
fn slot_past_its_group_or_on_no_group_is_reported_and_refused() {
    let (findings, error) = inspect(&[(0, 0, 99)]);
    assert_eq!(findings, [Finding::OutOfRange { slice: slice(0), slot: slot(0, 99) }]);
    assert!(matches!(error, Some(PoolError::Damaged(_))), "{error:?}");
    let (findings, error) = inspect(&[(0, 9, 1)]);
    assert_eq!(findings, [Finding::Foreign { slice: slice(0), slot: slot(9, 1) }]);
    assert!(matches!(error, Some(PoolError::Damaged(_))), "{error:?}");
}

#[test]
fn slice_past_the_end_of_its_volume_is_leaked() {
    let (findings, _) = inspect(&[(4, 0, 1)]);
    assert_eq!(findings, [Finding::Leaked { slot: slot(0, 1) }]);
}
