//! Bad sectors of the backing: they cost their own blocks, and nobody else's time.

use lab::rig::{Rig, durable, read, write};
use seam::Nanos;
use seam::sim::{Ops, Rule, SimDiskSpec};

const MIB: u64 = 1 << 20;

/// Writes eight times the memory, one block in each 16 KiB; returns how long that takes, and the rig as it is then.
fn overfill(bad: bool) -> (Nanos, Rig, engine::Volume<seam::sim::SimSeam>, seam::sim::DiskControl) {
    let rig = Rig::with_memory(1, 4 * MIB);
    let disk = rig.add_disk("disk", SimDiskSpec::new(128 * MIB));
    let volume = rig.attach("disk", |_| ()).unwrap();
    if bad {
        disk.add_fault(Rule { ops: Ops::WRITE, ..Rule::medium_error(64 << 10..68 << 10) });
    }
    let begun = rig.world.now();
    for place in 0..8_192 {
        rig.world.block_on(write(&volume, place * 32, 8, place + 1)).unwrap();
    }
    (rig.world.now().since(begun), rig, volume, disk)
}

#[test]
fn a_sector_that_takes_no_write_slows_the_writers_of_others_by_nothing_to_speak_of() {
    let (well, ..) = overfill(false);
    let (sick, rig, volume, disk) = overfill(true);
    assert!(sick.0 < 2 * well.0, "{sick} instead of {well}");
    assert!(rig.world.block_on(volume.flush()).is_err(), "a block is not on the backing");
    assert_eq!(volume.stats().dirty_bytes, 4096, "all but the bad one are");
    assert_eq!(durable(&disk, 33 * 32, 8), [34; 8]);
    assert_eq!(rig.world.block_on(read(&volume, 4 * 32, 8)).unwrap(), [5; 8]);
    assert!(!volume.stats().alerts.is_empty(), "nobody is told");
    disk.clear_faults();
    rig.world.run_for(Nanos::from_secs(30)).unwrap();
    assert_eq!((volume.stats().dirty_bytes, volume.stats().alerts.len()), (0, 0), "tried again once it can be written");
    assert_eq!(durable(&disk, 4 * 32, 8), [5; 8]);
}
