//! Destage writes whole stripes, and as many small stripes at once as a run holds.

use lab::fixture::{Fixture, write};
use seam::sim::SimDiskSpec;

const MIB: u64 = 1 << 20;

/// Number of backing writes for 4 MiB that were written block by block.
fn writes_with_stripe(stripe_bytes: u32) -> u64 {
    let fixture = Fixture::with_memory(1, 64 * MIB);
    let mut spec = SimDiskSpec::new(16 * MIB);
    spec.geometry.stripe_bytes = stripe_bytes;
    let disk = fixture.add_disk("disk", spec);
    let volume = fixture.attach("disk", |_| ()).unwrap();
    for block in 0..1_024 {
        fixture.world.block_on(write(&volume, block * 8, 8, 1)).unwrap();
    }
    fixture.world.block_on(volume.flush()).unwrap();
    disk.counts().writes
}

#[test]
fn destage_merges_small_stripes_and_writes_large_ones_whole() {
    let writes = [0, 4 << 10, 64 << 10, 192 << 10, 1 << 20].map(writes_with_stripe);
    // 192 KiB are 48 blocks: one such stripe per write, because two exceed a run of 64.
    assert_eq!(writes, [16, 16, 16, 22, 4]);
}
