//! Clean is never written back, idle is idle.

use engine::WriteFlags;
use lab::rig::{Rig, Same, Target, read, write};
use lab::workload::{Load, Pattern, play};
use seam::Nanos;
use seam::sim::{CrashMode, SimDiskSpec, WorldSpec};

const MIB: u64 = 1 << 20;

#[test]
fn case_21_after_reads_and_a_restart_no_write_reaches_the_backing() {
    let rig = Rig::with_memory(1, 8 * MIB);
    let disk = rig.add_disk("disk", SimDiskSpec::new(32 * MIB));
    let load = Load { pattern: Pattern::random(32 * MIB, 8192, 100), depth: 4, time: Nanos::from_secs(1), seed: 1 };
    let volume = rig.attach("disk", |_| ()).unwrap();
    rig.world.block_on(play(&rig.seam, &Target::Volume(volume), &load));
    rig.world.run_for(Nanos::from_secs(60)).unwrap();
    assert_eq!((disk.counts().writes, disk.counts().zeroes, disk.counts().flushes), (0, 0, 0));
    rig.world.block_on(rig.core.detach("disk")).unwrap();
    assert_eq!((disk.counts().writes, disk.counts().zeroes), (0, 0));
    let rig = rig.crash(CrashMode::KeepAll, WorldSpec::new(2));
    let disk = rig.world.disk("disk").unwrap();
    let volume = rig.attach("disk", |_| ()).unwrap();
    rig.world.block_on(play(&rig.seam, &Target::Volume(volume), &load));
    assert_eq!((disk.counts().writes, disk.counts().zeroes), (0, 0));
}

#[test]
fn case_21_without_clients_and_once_destaged_there_is_no_io() {
    let rig = Rig::with_memory(1, 16 * MIB);
    let disk = rig.add_disk("disk", SimDiskSpec::new(8 * MIB));
    let volume = rig.attach("disk", |_| ()).unwrap();
    rig.world.block_on(write(&volume, 0, 512, 3)).unwrap();
    rig.world.block_on(volume.write(MIB, 4096, WriteFlags { fua: true, ..Default::default() }, &mut Same(6))).unwrap();
    rig.world.run_for(Nanos::from_secs(60)).unwrap();
    assert_eq!((volume.stats().dirty_bytes, volume.stats().written_bytes), (0, 0), "idle, and still not destaged");
    assert_eq!((disk.durable_tag(0), disk.durable_tag(2_048)), (3, 6));
    let before = disk.counts();
    rig.world.run_for(Nanos::from_secs(3_600)).unwrap();
    assert_eq!(disk.counts(), before);
}

#[test]
fn case_21_a_volume_whose_reads_are_all_hits_is_not_idle() {
    let rig = Rig::with_memory(1, 16 * MIB);
    let disk = rig.add_disk("disk", SimDiskSpec::new(8 * MIB));
    let volume = rig.attach("disk", |_| ()).unwrap();
    rig.world.block_on(write(&volume, 0, 8, 3)).unwrap();
    for _ in 0..500 {
        assert_eq!(rig.world.block_on(read(&volume, 0, 8)).unwrap(), [3; 8]);
        rig.world.run_for(Nanos::from_millis(10)).unwrap();
    }
    assert_eq!(disk.counts().writes, 0, "destaged for idleness among 500 reads");
    rig.world.run_for(Nanos::from_secs(3)).unwrap();
    assert_eq!(disk.counts().writes, 1);
}
