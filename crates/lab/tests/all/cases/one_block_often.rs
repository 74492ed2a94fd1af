//! One block written repeatedly: the record of its writes does not grow with their number.

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
    // The limit is a quarter of the volume's part of the dirty bound: 85 blocks. A flush takes as long as five writes.
    assert!(disk.counts().flushes >= 5_000 / 100, "{} flushes", disk.counts().flushes);
}
