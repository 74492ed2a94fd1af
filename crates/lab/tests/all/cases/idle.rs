//! Clean data is never written back, and an idle volume issues no I/O.

use engine::{ByteOffset, WriteFlags};
use lab::fixture::{Fixture, SameTag, Target, read, write};
use lab::workload::{Load, Pattern, run_load};
use seam::Nanos;
use seam::sim::{CrashMode, SimDiskSpec, WorldSpec};

const MIB: u64 = 1 << 20;

#[test]
fn case_21_reads_and_a_restart_write_nothing_to_the_backing() {
    let fixture = Fixture::with_memory(1, 8 * MIB);
    let disk = fixture.add_disk("disk", SimDiskSpec::new(32 * MIB));
    let load = Load { pattern: Pattern::random(32 * MIB, 8192, 100), depth: 4, time: Nanos::from_secs(1), seed: 1 };
    let volume = fixture.attach("disk", |_| ()).unwrap();
    fixture.world.block_on(run_load(&fixture.seam, &Target::Volume(volume), &load));
    fixture.world.run_for(Nanos::from_secs(60)).unwrap();
    assert_eq!((disk.counts().writes, disk.counts().zeroes, disk.counts().flushes), (0, 0, 0));
    fixture.world.block_on(fixture.core.detach("disk")).unwrap();
    assert_eq!((disk.counts().writes, disk.counts().zeroes), (0, 0));
    let fixture = fixture.crash(CrashMode::KeepAll, WorldSpec::new(2));
    let disk = fixture.world.disk("disk").unwrap();
    let volume = fixture.attach("disk", |_| ()).unwrap();
    fixture.world.block_on(run_load(&fixture.seam, &Target::Volume(volume), &load));
    assert_eq!((disk.counts().writes, disk.counts().zeroes), (0, 0));
}

#[test]
fn case_21_idle_destaged_volume_issues_no_io() {
    let fixture = Fixture::with_memory(1, 16 * MIB);
    let disk = fixture.add_disk("disk", SimDiskSpec::new(8 * MIB));
    let volume = fixture.attach("disk", |_| ()).unwrap();
    fixture.world.block_on(write(&volume, 0, 512, 3)).unwrap();
    fixture
        .world
        .block_on(volume.write(ByteOffset(MIB), 4096, WriteFlags { fua: true, ..Default::default() }, &mut SameTag(6)))
        .unwrap();
    fixture.world.run_for(Nanos::from_secs(60)).unwrap();
    assert_eq!((volume.stats().dirty_bytes, volume.stats().written_bytes), (0, 0), "an idle volume did not destage");
    assert_eq!((disk.durable_tag(0), disk.durable_tag(2_048)), (3, 6));
    let before = disk.counts();
    fixture.world.run_for(Nanos::from_secs(3_600)).unwrap();
    assert_eq!(disk.counts(), before);
}

#[test]
fn case_21_volume_with_read_hits_is_not_idle() {
    let fixture = Fixture::with_memory(1, 16 * MIB);
    let disk = fixture.add_disk("disk", SimDiskSpec::new(8 * MIB));
    let volume = fixture.attach("disk", |_| ()).unwrap();
    fixture.world.block_on(write(&volume, 0, 8, 3)).unwrap();
    for _ in 0..500 {
        assert_eq!(fixture.world.block_on(read(&volume, 0, 8)).unwrap(), [3; 8]);
        fixture.world.run_for(Nanos::from_millis(10)).unwrap();
    }
    assert_eq!(disk.counts().writes, 0, "a volume with 500 reads counted as idle");
    fixture.world.run_for(Nanos::from_secs(3)).unwrap();
    assert_eq!(disk.counts().writes, 1);
}
