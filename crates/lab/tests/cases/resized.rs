//! Volume grown and shrunk: dirty data goes to the backing first, what lay past the end never comes back, and a removed volume's
//! blocks appear nowhere.

use engine::AnyDisk;
use lab::rig::{Rig, lively_disk, read, write};
use seam::sim::{CrashMode, SimDiskSpec, WorldSpec};
use seam::{DiskOpen, Seam};

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
fn case_19_shrinking_destages_first_and_a_short_last_block_keeps_its_content_as_it_grows() {
    let rig = Rig::with_memory(1, 4 * MIB);
    let disk = rig.add_disk("disk", lively_disk(MIB));
    let volume = rig.attach("disk", |_| ()).unwrap();
    let resize = |size| rig.world.block_on(volume.resize(Some(size), false)).unwrap();
    let write = |first, count, tag| rig.world.block_on(write(&volume, first, count, tag)).unwrap();
    let read = |first, count| rig.world.block_on(read(&volume, first, count));
    write(0, 512, 1);
    write(1_920, 128, 2);
    assert_eq!(resize(MIB / 2), MIB / 2);
    assert_eq!(disk.durable_tag(0), 1, "dirty data was to go to the backing first");
    assert!(read(1_920, 1).is_err(), "a read past the end");
    assert_eq!(resize(MIB), MIB);
    assert_eq!(read(1_920, 128).unwrap(), [0; 128], "what was cut off is back");
    assert_eq!(read(0, 512).unwrap(), [1; 512]);
    write(2_040, 8, 3);
    assert_eq!(resize(MIB + 512), MIB + 512);
    write(2_048, 1, 4);
    assert_eq!(resize(MIB + 8192), MIB + 8192);
    assert_eq!(read(2_040, 16).unwrap(), [[3; 8], [4, 0, 0, 0, 0, 0, 0, 0]].concat());
    rig.world.block_on(volume.destage_all()).unwrap();
    assert_eq!((disk.durable_tag(2_047), disk.durable_tag(2_048), disk.durable_tag(2_049)), (3, 4, 0));
}

#[test]
fn case_19_a_shrink_that_the_backing_refuses_drops_nothing_although_dirty_data_may_go() {
    let rig = Rig::with_memory(1, 4 * MIB);
    rig.add_disk("disk", SimDiskSpec::new(MIB));
    // A handle without the right to write stands for storage that cannot change its size.
    let open = DiskOpen { path: "disk".into(), create_bytes: None, read_only: true, lock_wait_ms: 0 };
    let disk = rig.world.block_on(rig.seam.open_disk(&open)).unwrap();
    let volume = rig.attach_disk("disk", AnyDisk::Plain(disk), |_| ()).unwrap();
    rig.world.block_on(write(&volume, 1_920, 128, 2)).unwrap();
    assert!(rig.world.block_on(volume.resize(Some(MIB / 2), true)).is_err());
    assert_eq!((volume.size_bytes(), volume.stats().dirty_bytes), (MIB, 64 << 10));
    assert_eq!(rig.world.block_on(read(&volume, 1_920, 128)).unwrap(), [2; 128], "acknowledged and gone");
}

#[test]
fn case_19_the_blocks_of_a_removed_volume_never_appear_under_a_new_one_of_its_name() {
    let rig = Rig::with_memory(1, 16 * MIB);
    rig.add_disk("old", SimDiskSpec::new(MIB));
    rig.add_disk("new", SimDiskSpec::new(MIB));
    let old = rig.attach("old", |_| ()).unwrap();
    rig.world.block_on(write(&old, 0, 64, 7)).unwrap();
    rig.world.block_on(rig.core.detach("old")).unwrap();
    assert!(rig.world.block_on(read(&old, 0, 1)).is_err(), "it still serves");
    let disk = AnyDisk::Plain(rig.open("new"));
    let volume = rig.attach_disk("old", disk, |spec| spec.incarnation += 1).unwrap();
    assert_eq!(rig.world.block_on(read(&volume, 0, 64)).unwrap(), [0; 64]);
    assert_eq!(volume.stats().memory_hits, 0);
}
