//! A backing that takes whole blocks only: partially written blocks are filled before destage.

use std::cell::Cell;
use std::rc::Rc;

use engine::WritePolicy;
use lab::fixture::{Fixture, durable_tags, read, write};
use seam::sim::{DiskControl, SimDiskSpec};
use seam::{Nanos, Seam};

const MIB: u64 = 1 << 20;

/// Adds a disk with 4 KiB blocks.
fn add_disk(fixture: &Fixture) -> DiskControl {
    let mut spec = SimDiskSpec::new(64 * MIB);
    (spec.geometry.logical_block, spec.geometry.physical_block) = (4096, 4096);
    fixture.add_disk("disk", spec)
}

#[test]
fn fills_of_partial_blocks_evict_no_clean_blocks() {
    let fixture = Fixture::with_memory(1, 16 * MIB);
    let disk = add_disk(&fixture);
    let volume = fixture.attach("disk", |_| ()).unwrap();
    // Ten of sixteen MiB are read, and 900 further blocks are written in part. Memory has space for all of these, but
    // not for 900 fills at once.
    for block in 0..2_560 {
        fixture.world.block_on(read(&volume, block * 8, 8)).unwrap();
    }
    for block in 8_000..8_900 {
        fixture.world.block_on(write(&volume, block * 8 + 3, 1, block)).unwrap();
    }
    fixture.world.block_on(volume.flush()).unwrap();
    assert_eq!(durable_tags(&disk, 8_899 * 8, 8), [0, 0, 0, 8_899, 0, 0, 0, 0]);
    let before = volume.stats().memory_hits;
    for block in 0..2_560 {
        fixture.world.block_on(read(&volume, block * 8, 8)).unwrap();
    }
    assert_eq!(volume.stats().memory_hits - before, 2_560, "fills evicted clean blocks");
}

/// Seed 230051936 of torture: partially written blocks occupied all of destage's slots while they waited for buffers.
#[test]
fn whole_blocks_destage_while_partial_ones_wait_for_buffers() {
    let fixture = Fixture::with_memory(1, 16 * MIB);
    let disk = add_disk(&fixture);
    let volume = fixture.attach("disk", |spec| spec.policy = WritePolicy::WriteBackVolatile).unwrap();
    for block in 0..100 {
        fixture.world.block_on(write(&volume, block * 16 + 3, 1, block + 1)).unwrap();
        fixture.world.block_on(write(&volume, 8_000 + block * 8, 8, block + 1)).unwrap();
    }
    // Buffers held by clients.
    let held: Vec<_> = std::iter::from_fn(|| fixture.seam.alloc()).collect();
    let (destaging_volume, has_destaged) = (volume.clone(), Rc::new(Cell::new(false)));
    let result = Rc::clone(&has_destaged);
    fixture.seam.spawn(async move { result.set(destaging_volume.destage_all().await.is_ok()) });
    fixture.world.run_for(Nanos::from_secs(60)).unwrap();
    assert!(has_destaged.get(), "destage is stuck");
    assert_eq!(held.len(), 4_096 - 200);
    assert_eq!(durable_tags(&disk, 99 * 16, 8), [0, 0, 0, 100, 0, 0, 0, 0]);
    assert_eq!(durable_tags(&disk, 8_000 + 99 * 8, 1), [100]);
}
