//! One block written again and again: what is remembered of it does not grow with the writes.

use engine::WritePolicy;
use lab::rig::{Rig, write};
use seam::sim::SimDiskSpec;

const MIB: u64 = 1 << 20;

#[test]
fn a_block_written_through_again_and_again_has_the_backing_flushed_before_the_list_of_writes_grows_long() {
    let rig = Rig::with_memory(1, 4 * MIB);
    let disk = rig.add_disk("disk", SimDiskSpec::new(8 * MIB));
    let volume = rig.attach("disk", |spec| spec.policy = WritePolicy::WriteThrough).unwrap();
    for count in 0..5_000 {
        rig.world.block_on(write(&volume, 0, 8, count)).unwrap();
    }
    // A quarter of a volume's part of the dirty bound: 85 blocks; and a flush lasts for five writes.
    assert!(disk.counts().flushes >= 5_000 / 100, "{} flushes", disk.counts().flushes);
}
