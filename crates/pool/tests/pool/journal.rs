//! The journal at the opening: blocks that cannot be read.

use std::ops::Range;

use pool::{OpenOptions, VolumeSpec};
use seam::sim::{CrashMode, Fault, Ops, Rule, When, World};

use crate::world::{ALL, SLICE, SMALL, Shape, SimPool, disks, open, with_pool, world_after_crash};

/// Byte range of the journal in a small pool.
const JOURNAL: Range<u64> = 128 << 10..160 << 10;

/// Journal blocks of a pool whose journal keeps 30 commits.
const LONG: Shape = Shape { journal_blocks: 64, ..SMALL };

/// A pool after a crash, with a volume whose record is in the journal alone.
fn crashed_with_a_volume() -> World {
    crashed_with_volumes(SMALL, 1, &[])
}

/// A pool after a crash, with volumes whose records are in the journal alone, a block for each. In both copies, bits of
/// some blocks are flipped.
fn crashed_with_volumes(shape: Shape, volumes: usize, flipped: &[(u64, u64)]) -> World {
    let world = with_pool(1, shape);
    let seam = world.seam();
    world.block_on(async {
        let opened = disks(&seam, &ALL[..3]).await;
        let pool = SimPool::open(&seam, &opened, OpenOptions::default()).await.expect("a new pool");
        for name in ('a'..).take(volumes) {
            pool.create_volume(VolumeSpec::thin(&name.to_string(), SLICE)).await.expect("sound disks");
        }
        assert_eq!((pool.counts().checkpoints, pool.counts().journal_blocks), (0, volumes as u64));
    });
    for disk in ["fast-0", "fast-1"].map(|copy| world.disk(copy).expect("the disk exists")) {
        flipped.iter().for_each(|(block, bit)| disk.flip_bit(JOURNAL.start / 512 + block * 8, *bit as usize));
    }
    world_after_crash(2, world.crash(CrashMode::LoseAll))
}

fn make_journal_unreadable(world: &World, copy: &str) {
    let rule = Rule { range: Some(JOURNAL), ..Rule::new(Fault::Error, Ops::READ, When::Always) };
    world.disk(copy).expect("the disk exists").add_fault(rule);
}

#[test]
fn journal_that_no_copy_can_read_refuses_the_pool() {
    let world = crashed_with_a_volume();
    ["fast-0", "fast-1"].iter().for_each(|copy| make_journal_unreadable(&world, copy));
    let seam = world.seam();
    world.block_on(async {
        let refusal = open(&world, &seam, OpenOptions::default()).await.map(drop);
        let error = refusal.expect_err("an acknowledged commit would be lost").to_string();
        assert!(error.contains("can be read"), "{error}");
        ["fast-0", "fast-1"].iter().for_each(|copy| world.disk(copy).expect("the disk exists").clear_faults());
    });
    let world = world_after_crash(3, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&world, &seam, OpenOptions::default()).await.expect("the disks answer again");
        assert!(pool.volume_named("a").is_some(), "the refusal has changed nothing");
    });
}

#[test]
fn journal_that_one_copy_cannot_read_comes_from_the_other() {
    for copy in ["fast-0", "fast-1"] {
        let world = crashed_with_a_volume();
        make_journal_unreadable(&world, copy);
        let seam = world.seam();
        world.block_on(async {
            let pool = open(&world, &seam, OpenOptions::default()).await.expect("the other copy has it");
            assert!(pool.volume_named("a").is_some(), "{copy}");
        });
    }
}

#[test]
fn journal_damaged_before_acknowledged_blocks_is_refused() {
    // Blocks that may belong to a torn last write, the block past them, and several.
    for (volumes, is_refused) in [(19, false), (20, true), (26, true)] {
        let world = crashed_with_volumes(LONG, volumes, &[(3, 77)]);
        let seam = world.seam();
        world.block_on(async {
            let error = open(&world, &seam, OpenOptions::default()).await.err().map(|error| error.to_string());
            assert_eq!(error.is_some(), is_refused, "{volumes}: {error:?}");
            let says = |error: &String| error.contains("the journal is damaged at block 3: block 19 exists");
            assert!(error.as_ref().is_none_or(says), "{error:?}");
        });
    }
}

#[test]
fn damaged_block_with_a_high_number_ends_the_journal() {
    const NUMBER_BIT: u64 = (32 + 5) * 8;
    let world = crashed_with_volumes(LONG, 3, &[(2, NUMBER_BIT)]);
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&world, &seam, OpenOptions::default()).await.expect("the block may be a torn last write");
        assert_eq!(pool.volumes().len(), 2);
    });
}
