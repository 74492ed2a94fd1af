//! Invalid numbers under valid checksums: each is refused before it is used.

use flash::format::FIRST_SEGMENT_BYTES;
use flash::format::superblock::{SUPERBLOCK_OFFSETS, Superblock};
use flash::{BootEpoch, CommitNo, MemberDisk, MembershipGeneration, OpenOptions, Sequence, StoreError, inspect};
use seam::sim::SimSeam;
use seam::{BLOCK_BYTES, Block, BlockMut, Disk, Piece, Seam};

use crate::world::{NAMES, SMALL, disks, formatted};

/// Changes both superblocks of a device.
async fn rewrite_superblock(seam: &SimSeam, disk: &MemberDisk<SimSeam>, change: fn(&mut Superblock)) {
    for at in SUPERBLOCK_OFFSETS {
        let buffer = Piece::whole(seam.alloc().expect("the pool has a free buffer"));
        let (result, mut pieces) = disk.read(at, vec![buffer]).await;
        result.expect("the superblock is readable");
        let block = pieces.pop().expect("one block was read").block.freeze();
        let mut raw = [0; BLOCK_BYTES];
        block.read_bytes(0, &mut raw);
        let mut superblock = Superblock::decode(&raw).expect("the superblock is valid");
        change(&mut superblock);
        let mut buffer = seam.alloc().expect("the pool has a free buffer");
        buffer.write_metadata(0, &*superblock.encode());
        disk.write(at, vec![Piece::whole(buffer.freeze())]).await.expect("the superblock is writable");
    }
}

#[test]
fn invalid_number_in_a_superblock_is_refused() {
    type Change = fn(&mut Superblock);
    let changes: [(&str, Change); 12] = [
        ("segments", |superblock| superblock.log_segment_count = u32::MAX),
        ("a member's segments", |superblock| {
            superblock.members.iter_mut().for_each(|member| member.segment_count = u32::MAX)
        }),
        ("both", |superblock| {
            superblock.log_segment_count = u32::MAX;
            superblock.members.iter_mut().for_each(|member| member.segment_count = u32::MAX);
        }),
        ("larger segments", |superblock| superblock.segment_bytes = 1 << 30),
        ("no journal", |superblock| superblock.journal_bytes = 0),
        ("a journal of a block", |superblock| superblock.journal_bytes = 4096),
        ("a journal as large as the log", |superblock| superblock.journal_bytes = FIRST_SEGMENT_BYTES),
        ("a revision", |superblock| superblock.revision = u64::MAX),
        ("a generation", |superblock| superblock.generation = MembershipGeneration(u64::MAX)),
        ("a boot", |superblock| superblock.boot_epoch = BootEpoch(u64::MAX)),
        ("a tail", |superblock| superblock.tail = Sequence(u64::MAX)),
        ("a commit of the journal", |superblock| superblock.journal_commit = CommitNo(u64::MAX)),
    ];
    for (field, change) in changes {
        let world = formatted(1, SMALL);
        let seam = world.seam();
        world.block_on(async {
            let disks = disks(&seam, &NAMES).await;
            for disk in &disks {
                rewrite_superblock(&seam, disk, change).await;
            }
            for accept_missing in [false, true] {
                let options = OpenOptions { accept_missing, ..OpenOptions::default() };
                let error = flash::Store::open(&seam, &disks, options).await.err();
                assert!(matches!(error, Some(StoreError::NoStore { .. })), "{field}: {error:?}");
            }
            let (devices, store) = inspect(&seam, &disks).await;
            assert!(store.is_err() && devices.len() == disks.len(), "{field}");
        });
    }
}

#[test]
fn members_with_different_constant_fields_are_refused() {
    let world = formatted(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let disks = disks(&seam, &NAMES).await;
        rewrite_superblock(&seam, &disks[1], |superblock| superblock.journal_bytes += 4096).await;
        let error = flash::Store::open(&seam, &disks, OpenOptions::default()).await.err();
        assert_eq!(error, Some(StoreError::Diverged));
    });
}
