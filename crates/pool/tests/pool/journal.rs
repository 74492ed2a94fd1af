//! The journal at the opening: blocks that cannot be read.

use std::ops::Range;

use pool::{OpenOptions, VolumeSpec};
use seam::sim::{CrashMode, Fault, Ops, Rule, When, World};

use crate::world::{ALL, SLICE, SMALL, SimPool, disks, open, with_pool, world_after_crash};

/// Byte range of the journal in a small pool.
const JOURNAL: Range<u64> = 128 << 10..160 << 10;

/// A pool after a crash, with a volume whose record is in the journal alone.
fn crashed_with_a_volume() -> World {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let opened = disks(&seam, &ALL[..3]).await;
        let pool = SimPool::open(&seam, &opened, OpenOptions::default()).await.expect("a new pool");
        pool.create_volume(VolumeSpec::thin("a", SLICE)).await.expect("sound disks");
        assert_eq!(pool.counts().checkpoints, 0);
    });
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
