//! A backing that takes whole blocks only: what was written in part is filled first.

use lab::rig::{Rig, durable, read, write};
use seam::sim::SimDiskSpec;

const MIB: u64 = 1 << 20;

#[test]
fn filling_many_partial_blocks_for_a_flush_drives_nothing_out_of_memory() {
    let rig = Rig::with_memory(1, 16 * MIB);
    let mut spec = SimDiskSpec::new(64 * MIB);
    (spec.geometry.logical_block, spec.geometry.physical_block) = (4096, 4096);
    let disk = rig.add_disk("disk", spec);
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
