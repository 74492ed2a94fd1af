//! Volumes that grow and shrink: dirty data is destaged first, data past the end never returns, and blocks of a removed
//! volume never appear elsewhere.

use engine::AnyDisk;
use lab::fixture::{Fixture, out_of_order_disk, read, write};
use seam::sim::{CrashMode, SimDiskSpec, WorldSpec};
use seam::{DiskOpen, Seam};

const MIB: u64 = 1 << 20;

#[test]
fn case_19_regrown_volume_reads_zeroes_even_after_a_crash() {
    let fixture = Fixture::with_memory(1, 16 * MIB);
    fixture.add_disk("disk", SimDiskSpec::new(8 * MIB));
    let volume = fixture.attach("disk", |_| ()).unwrap();
    fixture.world.block_on(write(&volume, 16_320, 64, 7)).unwrap();
    assert_eq!(fixture.world.block_on(volume.resize(Some(4 * MIB), true)).unwrap(), 4 * MIB);
    assert!(fixture.world.block_on(read(&volume, 8_192, 8)).is_err(), "a read past the end");
    fixture.world.block_on(volume.resize(Some(8 * MIB), false)).unwrap();
    assert_eq!(fixture.world.block_on(read(&volume, 16_320, 64)).unwrap(), [0; 64]);
    let fixture = fixture.crash(CrashMode::LoseAll, WorldSpec::new(2));
    let volume = fixture.attach("disk", |_| ()).unwrap();
    assert_eq!(fixture.world.block_on(read(&volume, 16_320, 64)).unwrap(), [0; 64]);
}

#[test]
fn case_19_shrink_destages_and_a_partial_last_block_is_kept() {
    let fixture = Fixture::with_memory(1, 4 * MIB);
    let disk = fixture.add_disk("disk", out_of_order_disk(MIB));
    let volume = fixture.attach("disk", |_| ()).unwrap();
    let resize = |size| fixture.world.block_on(volume.resize(Some(size), false)).unwrap();
    let write = |first, count, tag| fixture.world.block_on(write(&volume, first, count, tag)).unwrap();
    let read = |first, count| fixture.world.block_on(read(&volume, first, count));
    write(0, 512, 1);
    write(1_920, 128, 2);
    assert_eq!(resize(MIB / 2), MIB / 2);
    assert_eq!(disk.durable_tag(0), 1, "dirty data must be destaged first");
    assert!(read(1_920, 1).is_err(), "a read past the end");
    assert_eq!(resize(MIB), MIB);
    assert_eq!(read(1_920, 128).unwrap(), [0; 128], "data past the old end returned");
    assert_eq!(read(0, 512).unwrap(), [1; 512]);
    write(2_040, 8, 3);
    assert_eq!(resize(MIB + 512), MIB + 512);
    write(2_048, 1, 4);
    assert_eq!(resize(MIB + 8192), MIB + 8192);
    assert_eq!(read(2_040, 16).unwrap(), [[3; 8], [4, 0, 0, 0, 0, 0, 0, 0]].concat());
    fixture.world.block_on(volume.destage_all()).unwrap();
    assert_eq!((disk.durable_tag(2_047), disk.durable_tag(2_048), disk.durable_tag(2_049)), (3, 4, 0));
}

#[test]
fn case_19_refused_shrink_drops_no_dirty_data() {
    let fixture = Fixture::with_memory(1, 4 * MIB);
    fixture.add_disk("disk", SimDiskSpec::new(MIB));
    // A read-only handle stands for storage that cannot change its size.
    let open = DiskOpen { path: "disk".into(), create_bytes: None, read_only: true, lock_wait_ms: 0 };
    let disk = fixture.world.block_on(fixture.seam.open_disk(&open)).unwrap();
    let volume = fixture.attach_disk("disk", AnyDisk::Plain(disk), |_| ()).unwrap();
    fixture.world.block_on(write(&volume, 1_920, 128, 2)).unwrap();
    assert!(fixture.world.block_on(volume.resize(Some(MIB / 2), true)).is_err());
    assert_eq!((volume.size_bytes(), volume.stats().dirty_bytes), (MIB, 64 << 10));
    assert_eq!(fixture.world.block_on(read(&volume, 1_920, 128)).unwrap(), [2; 128], "an acknowledged write was lost");
}

#[test]
fn case_19_removed_blocks_never_appear_in_a_new_volume() {
    let fixture = Fixture::with_memory(1, 16 * MIB);
    fixture.add_disk("old", SimDiskSpec::new(MIB));
    fixture.add_disk("new", SimDiskSpec::new(MIB));
    let old = fixture.attach("old", |_| ()).unwrap();
    fixture.world.block_on(write(&old, 0, 64, 7)).unwrap();
    fixture.world.block_on(fixture.core.detach("old")).unwrap();
    assert!(fixture.world.block_on(read(&old, 0, 1)).is_err(), "the removed volume still serves");
    let disk = AnyDisk::Plain(fixture.open("new"));
    let volume = fixture.attach_disk("old", disk, |spec| spec.volume_id.0 += 1).unwrap();
    assert_eq!(fixture.world.block_on(read(&volume, 0, 64)).unwrap(), [0; 64]);
    assert_eq!(volume.stats().memory_hits, 0);
}
