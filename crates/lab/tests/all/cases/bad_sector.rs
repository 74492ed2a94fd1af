//! Bad sectors of the backing affect their own blocks only, not the speed of other writes.

use lab::fixture::{Fixture, durable_tags, read, write};
use seam::Nanos;
use seam::sim::{Ops, Rule, SimDiskSpec};

const MIB: u64 = 1 << 20;

/// Writes eight times the memory, one block in each 16 KiB; returns the duration, and the fixture at the end.
fn overfill(bad: bool) -> (Nanos, Fixture, engine::Volume<seam::sim::SimSeam>, seam::sim::DiskControl) {
    let fixture = Fixture::with_memory(1, 4 * MIB);
    let disk = fixture.add_disk("disk", SimDiskSpec::new(128 * MIB));
    let volume = fixture.attach("disk", |_| ()).unwrap();
    if bad {
        disk.add_fault(Rule { ops: Ops::WRITE, ..Rule::medium_error(64 << 10..68 << 10) });
    }
    let start = fixture.world.now();
    for position in 0..8_192 {
        fixture.world.block_on(write(&volume, position * 32, 8, position + 1)).unwrap();
    }
    (fixture.world.now().since(start), fixture, volume, disk)
}

#[test]
fn unwritable_sector_does_not_slow_other_writes() {
    let (healthy, ..) = overfill(false);
    let (with_bad_sector, fixture, volume, disk) = overfill(true);
    assert!(with_bad_sector.0 < 2 * healthy.0, "{with_bad_sector} instead of {healthy}");
    assert!(fixture.world.block_on(volume.flush()).is_err(), "a block is not on the backing");
    assert_eq!(volume.stats().dirty_bytes, 4096, "only the bad block is dirty");
    assert_eq!(durable_tags(&disk, 33 * 32, 8), [34; 8]);
    assert_eq!(fixture.world.block_on(read(&volume, 4 * 32, 8)).unwrap(), [5; 8]);
    assert!(!volume.stats().problems.is_empty(), "no alert was raised");
    disk.clear_faults();
    fixture.world.run_for(Nanos::from_secs(30)).unwrap();
    assert_eq!(
        (volume.stats().dirty_bytes, volume.stats().problems.len()),
        (0, 0),
        "the write is retried once the sector is writable"
    );
    assert_eq!(durable_tags(&disk, 4 * 32, 8), [5; 8]);
}
