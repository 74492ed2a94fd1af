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

#[test]
fn repetitions_of_a_failed_request_are_no_further_backing_errors() {
    let fixture = Fixture::with_memory(1, 4 * MIB);
    let disk = fixture.add_disk("disk", SimDiskSpec::new(128 * MIB));
    let volume = fixture.attach("disk", |_| ()).unwrap();
    let bad_sector = || disk.add_fault(Rule::medium_error(64 << 10..65 << 10));
    let write_around = |tag| {
        fixture.world.block_on(write(&volume, 96, 128, tag)).unwrap();
        fixture.world.run_for(Nanos::from_secs(300)).unwrap();
        volume.stats()
    };
    bad_sector();
    let failing = write_around(1);
    let failed_writes = failing.backing_writes;
    assert!(failed_writes > 20, "the write was repeated {failed_writes} times");
    assert_eq!((failing.dirty_bytes, failing.backing_errors), (4096, 1));
    disk.clear_faults();
    fixture.world.run_for(Nanos::from_secs(30)).unwrap();
    bad_sector();
    assert_eq!(write_around(2).backing_errors, 2, "the block was written and fails again");
    for errors in 3..6 {
        fixture.world.block_on(read(&volume, 4096, 8)).unwrap();
        disk.add_fault(Rule::medium_error(3 << 20..(3 << 20) + 512));
        fixture.world.block_on(read(&volume, 6144 - 64, 128)).expect_err("a sector is bad");
        assert_eq!(volume.stats().backing_errors, errors, "each read of a client that fails counts once");
    }
}

#[test]
fn outage_of_the_backing_is_a_few_backing_errors() {
    let fixture = Fixture::with_memory(2, 16 * MIB);
    let disk = fixture.add_disk("disk", SimDiskSpec::new(128 * MIB));
    let volume = fixture.attach("disk", |_| ()).unwrap();
    disk.add_fault(Rule { ops: Ops::WRITE, ..Rule::medium_error(0..128 * MIB) });
    for position in 0..1_000 {
        fixture.world.block_on(write(&volume, position * 32, 8, position + 1)).unwrap();
    }
    fixture.world.run_for(Nanos::from_secs(3_600)).unwrap();
    let failing = volume.stats();
    assert!(failing.backing_writes > 1_000, "{} writes were tried", failing.backing_writes);
    assert!((1..64).contains(&failing.backing_errors), "{} errors", failing.backing_errors);
    disk.clear_faults();
    fixture.world.run_for(Nanos::from_secs(60)).unwrap();
    assert_eq!((volume.stats().dirty_bytes, volume.stats().backing_errors), (0, failing.backing_errors));
}
