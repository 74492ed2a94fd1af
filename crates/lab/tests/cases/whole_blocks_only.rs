//! A backing that takes whole blocks only: what was written in part is filled first.

use std::cell::Cell;
use std::rc::Rc;

use engine::WritePolicy;
use lab::rig::{Rig, durable, read, write};
use seam::sim::{DiskControl, SimDiskSpec};
use seam::{Nanos, Seam};

const MIB: u64 = 1 << 20;

/// A disk of 4 KiB blocks.
fn add_disk(rig: &Rig) -> DiskControl {
    let mut spec = SimDiskSpec::new(64 * MIB);
    (spec.geometry.logical_block, spec.geometry.physical_block) = (4096, 4096);
    rig.add_disk("disk", spec)
}

#[test]
fn filling_many_partial_blocks_for_a_flush_drives_nothing_out_of_memory() {
    let rig = Rig::with_memory(1, 16 * MIB);
    let disk = add_disk(&rig);
    let volume = rig.attach("disk", |_| ()).unwrap();
    // Ten of sixteen MiB are read and 900 further blocks written in part: there is room for all, not for as many fills at once.
    for block in 0..2_560 {
        rig.world.block_on(read(&volume, block * 8, 8)).unwrap();
    }
    for block in 8_000..8_900 {
        rig.world.block_on(write(&volume, block * 8 + 3, 1, block)).unwrap();
    }
    rig.world.block_on(volume.flush()).unwrap();
    assert_eq!(durable(&disk, 8_899 * 8, 8), [0, 0, 0, 8_899, 0, 0, 0, 0]);
    let before = volume.stats().memory_hits;
    for block in 0..2_560 {
        rig.world.block_on(read(&volume, block * 8, 8)).unwrap();
    }
    assert_eq!(volume.stats().memory_hits - before, 2_560, "clean blocks made way for fills");
}

/// Seed 230051936 of its day: half-written blocks took all of destage's places to wait there for buffers.
#[test]
fn whole_blocks_go_while_partial_ones_wait_for_the_buffers_that_they_hold() {
    let rig = Rig::with_memory(1, 16 * MIB);
    let disk = add_disk(&rig);
    let volume = rig.attach("disk", |spec| spec.policy = WritePolicy::WriteBackVolatile).unwrap();
    for block in 0..100 {
        rig.world.block_on(write(&volume, block * 16 + 3, 1, block + 1)).unwrap();
        rig.world.block_on(write(&volume, 8_000 + block * 8, 8, block + 1)).unwrap();
    }
    // What clients hold.
    let held: Vec<_> = std::iter::from_fn(|| rig.seam.alloc()).collect();
    let (all, seen) = (volume.clone(), Rc::new(Cell::new(false)));
    let done = Rc::clone(&seen);
    rig.seam.spawn(async move { done.set(all.destage_all().await.is_ok()) });
    rig.world.run_for(Nanos::from_secs(60)).unwrap();
    assert!(seen.get(), "destage stands still");
    assert_eq!(held.len(), 4_096 - 200);
    assert_eq!(durable(&disk, 99 * 16, 8), [0, 0, 0, 100, 0, 0, 0, 0]);
    assert_eq!(durable(&disk, 8_000 + 99 * 8, 1), [100]);
}
