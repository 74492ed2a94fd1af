//! Volume grown and shrunk: what lay past the end never comes back, and a removed volume's blocks appear nowhere.

use lab::rig::{Rig, read, write};
use seam::sim::{CrashMode, SimDiskSpec, WorldSpec};

const MIB: u64 = 1 << 20;

#[test]
fn case_19_what_a_shrink_cut_off_reads_as_zeroes_when_the_volume_grows_again_after_a_crash_too() {
    let rig = Rig::with_memory(1, 16 * MIB);
    rig.add_disk("disk", SimDiskSpec::new(8 * MIB));
    let volume = rig.attach("disk", |_| ()).unwrap();
    rig.world.block_on(write(&volume, 16_320, 64, 7)).unwrap();
    assert_eq!(rig.world.block_on(volume.resize(Some(4 * MIB), true)).unwrap(), 4 * MIB);
    assert!(rig.world.block_on(read(&volume, 8_192, 8)).is_err(), "a read past the end");
    rig.world.block_on(volume.resize(Some(8 * MIB), false)).unwrap();
    assert_eq!(rig.world.block_on(read(&volume, 16_320, 64)).unwrap(), [0; 64]);
    let rig = rig.crash(CrashMode::LoseAll, WorldSpec::new(2));
    let volume = rig.attach("disk", |_| ()).unwrap();
    assert_eq!(rig.world.block_on(read(&volume, 16_320, 64)).unwrap(), [0; 64]);
}

#[test]
fn case_19_the_blocks_of_a_removed_volume_never_appear_under_a_new_one_of_its_name() {
    let rig = Rig::with_memory(1, 16 * MIB);
    rig.add_disk("old", SimDiskSpec::new(MIB));
    rig.add_disk("new", SimDiskSpec::new(MIB));
    let volume = rig.attach("old", |_| ()).unwrap();
    rig.world.block_on(write(&volume, 0, 64, 7)).unwrap();
    rig.world.block_on(rig.core.detach("old")).unwrap();
    let disk = engine::AnyDisk::Plain(rig.open("new"));
    let volume = rig.attach_disk("old", disk, |spec| spec.incarnation += 1).unwrap();
    assert_eq!(rig.world.block_on(read(&volume, 0, 64)).unwrap(), [0; 64]);
}
