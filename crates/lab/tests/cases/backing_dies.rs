//! Backing dies under dirty data: errors or kept dirty, never success and gone; others undisturbed; it comes back whole.

use lab::rig::{Rig, durable, read, write};
use seam::Nanos;
use seam::sim::SimDiskSpec;

const MIB: u64 = 1 << 20;

#[test]
fn case_15_a_backing_that_dies_under_dirty_data_loses_nothing_and_disturbs_nobody() {
    let rig = Rig::with_memory(1, 16 * MIB);
    let sick = rig.add_disk("sick", SimDiskSpec::new(8 * MIB));
    rig.add_disk("well", SimDiskSpec::new(8 * MIB));
    let volume = rig.attach("sick", |_| ()).unwrap();
    let other = rig.attach("well", |_| ()).unwrap();
    rig.world.block_on(write(&volume, 8, 64, 7)).unwrap();
    sick.vanish();
    assert!(rig.world.block_on(volume.flush()).is_err(), "a flush succeeded on a backing that is gone");
    assert_eq!(rig.world.block_on(read(&volume, 8, 64)).unwrap(), [7; 64], "what is cached is still served");
    assert!(rig.world.block_on(read(&volume, 4_096, 8)).is_err(), "content from nowhere");
    rig.world.block_on(write(&other, 0, 8, 9)).unwrap();
    rig.world.block_on(other.flush()).unwrap();
    assert!(volume.stats().dirty_bytes >= 64 * 512, "dirty data went although its backing is gone");
    sick.come_back();
    rig.world.run_for(Nanos::from_secs(60)).unwrap();
    rig.world.block_on(volume.destage_all()).unwrap();
    assert_eq!(durable(&sick, 8, 64), [7; 64]);
    assert_eq!(volume.stats().dirty_bytes + volume.stats().written_bytes, 0);
}
