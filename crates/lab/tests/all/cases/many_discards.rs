//! Thousands of discards, as `fstrim` sends them: they are fast and are merged.

use engine::{ByteOffset, WriteFlags};
use lab::fixture::{Fixture, read, write};
use seam::Nanos;
use seam::sim::SimDiskSpec;

const MIB: u64 = 1 << 20;

#[test]
fn scattered_discards_run_at_the_speed_of_the_backing() {
    // Memory is large enough that the ranges alone never exceed the dirty limit.
    let fixture = Fixture::with_memory(1, 256 * MIB);
    fixture.add_disk("disk", SimDiskSpec::new(256 * MIB));
    let volume = fixture.attach("disk", |_| ()).unwrap();
    let start = fixture.world.now();
    for position in 0..12_000 {
        fixture.world.block_on(volume.discard(ByteOffset(position * 16_384), 4096, WriteFlags::default())).unwrap();
    }
    let elapsed = fixture.world.now().since(start);
    assert!(
        elapsed < Nanos::from_secs(1),
        "{elapsed} instead of the 40 ms of a disk with 100 us latency and queue depth 32"
    );
}

#[test]
fn adjacent_discards_are_merged() {
    let fixture = Fixture::with_memory(1, 256 * MIB);
    let disk = fixture.add_disk("disk", SimDiskSpec::new(64 * MIB));
    let volume = fixture.attach("disk", |_| ()).unwrap();
    fixture.world.block_on(write(&volume, 0, 64, 7)).unwrap();
    fixture.world.block_on(volume.flush()).unwrap();
    // The discards come from both ends, so that the last one closes the gap.
    for position in (0..1_000).chain((1_001..2_000).rev()).chain([1_000]) {
        fixture.world.block_on(volume.discard(ByteOffset(position * 4096), 4096, WriteFlags::default())).unwrap();
    }
    fixture.world.block_on(write(&volume, 8_000, 8, 9)).unwrap();
    fixture.world.block_on(volume.flush()).unwrap();
    assert!(disk.counts().zeroes <= 2, "{} requests for two discarded ranges", disk.counts().zeroes);
    let tags = fixture.world.block_on(read(&volume, 7_992, 24)).unwrap();
    assert_eq!(tags, [[0; 8], [9; 8], [0; 8]].concat());
    assert_eq!((disk.durable_tag(0), disk.durable_tag(8_000)), (0, 9));
}

#[test]
fn merged_fua_discard_is_durable() {
    let fixture = Fixture::with_memory(1, 16 * MIB);
    let disk = fixture.add_disk("disk", SimDiskSpec::new(8 * MIB));
    let volume = fixture.attach("disk", |_| ()).unwrap();
    fixture.world.block_on(write(&volume, 0, 64, 7)).unwrap();
    fixture.world.block_on(volume.flush()).unwrap();
    for position in [0, 2, 1] {
        fixture
            .world
            .block_on(volume.discard(
                ByteOffset(position * 4096),
                4096,
                WriteFlags { fua: position == 1, ..Default::default() },
            ))
            .unwrap();
    }
    assert_eq!((disk.durable_tag(8), disk.durable_tag(24)), (0, 7));
}
