//! One block written through repeatedly: the list of unflushed writes stays bounded, because the backing is flushed.

use engine::WritePolicy;
use lab::fixture::{Fixture, write};
use seam::sim::SimDiskSpec;

const MIB: u64 = 1 << 20;

#[test]
fn repeated_write_through_of_a_block_flushes_the_backing() {
    let fixture = Fixture::with_memory(1, 4 * MIB);
    let disk = fixture.add_disk("disk", SimDiskSpec::new(8 * MIB));
    let volume = fixture.attach("disk", |spec| spec.policy = WritePolicy::WriteThrough).unwrap();
    for count in 0..5_000 {
        fixture.world.block_on(write(&volume, 0, 8, count)).unwrap();
    }
    // The pump flushes the backing once the unflushed writes reach a quarter of the volume's limit, here 85; during the
    // flush about five more complete. So 5,000 writes need at least 50 flushes.
    assert!(disk.counts().flushes >= 5_000 / 100, "{} flushes", disk.counts().flushes);
}
