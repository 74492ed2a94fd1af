//! Destage writes whole stripes, and as many small ones at once as a run holds.

use lab::rig::{Rig, write};
use seam::sim::SimDiskSpec;

const MIB: u64 = 1 << 20;

/// Writes to the backing for 4 MiB that were written one block after the other.
fn writes_with_stripe(stripe_bytes: u32) -> u64 {
    let rig = Rig::with_memory(1, 64 * MIB);
    let mut spec = SimDiskSpec::new(16 * MIB);
    spec.geometry.stripe_bytes = stripe_bytes;
    let disk = rig.add_disk("disk", spec);
    let volume = rig.attach("disk", |_| ()).unwrap();
    for block in 0..1_024 {
        rig.world.block_on(write(&volume, block * 8, 8, 1)).unwrap();
    }
    rig.world.block_on(volume.flush()).unwrap();
    disk.counts().writes
}

#[test]
fn a_small_stripe_makes_no_small_writes_and_a_large_one_is_written_at_once() {
    let writes = [0, 4 << 10, 64 << 10, 192 << 10, 1 << 20].map(writes_with_stripe);
    // 192 KiB are 48 blocks: one such stripe a write, since two are more than a run of 64.
    assert_eq!(writes, [16, 16, 16, 22, 4]);
}
