//! Discards by the thousand, as `fstrim` sends them: neither slow, nor kept one by one.

use engine::WriteFlags;
use lab::rig::{Rig, read, write};
use seam::Nanos;
use seam::sim::SimDiskSpec;

const MIB: u64 = 1 << 20;

#[test]
fn discards_all_over_a_fragmented_volume_wait_for_the_backing_and_for_nothing_else() {
    // So much memory that ranges alone never count as too much that is dirty.
    let rig = Rig::with_memory(1, 256 * MIB);
    rig.add_disk("disk", SimDiskSpec::new(256 * MIB));
    let volume = rig.attach("disk", |_| ()).unwrap();
    let begun = rig.world.now();
    for place in 0..12_000 {
        rig.world.block_on(volume.discard(place * 16_384, 4096, WriteFlags::default())).unwrap();
    }
    let took = rig.world.now().since(begun);
    assert!(took < Nanos::from_secs(1), "{took} for what a disk of 100 us and a queue of 32 does in 40 ms");
}

#[test]
fn neighbouring_discards_reach_the_backing_as_one() {
    let rig = Rig::with_memory(1, 256 * MIB);
    let disk = rig.add_disk("disk", SimDiskSpec::new(64 * MIB));
    let volume = rig.attach("disk", |_| ()).unwrap();
    rig.world.block_on(write(&volume, 0, 64, 7)).unwrap();
    rig.world.block_on(volume.flush()).unwrap();
    // From both ends, so that the last one closes the gap.
    for place in (0..1_000).chain((1_001..2_000).rev()).chain([1_000]) {
        rig.world.block_on(volume.discard(place * 4096, 4096, WriteFlags::default())).unwrap();
    }
    rig.world.block_on(write(&volume, 8_000, 8, 9)).unwrap();
    rig.world.block_on(volume.flush()).unwrap();
    assert!(disk.counts().zeroes <= 2, "{} requests for what a write cut in two", disk.counts().zeroes);
    let found = rig.world.block_on(read(&volume, 7_992, 24)).unwrap();
    assert_eq!(found, [[0; 8], [9; 8], [0; 8]].concat());
    assert_eq!((disk.durable_tag(0), disk.durable_tag(8_000)), (0, 9));
}

#[test]
fn a_discard_that_must_be_durable_is_so_when_a_neighbour_has_taken_it_in() {
    let rig = Rig::with_memory(1, 16 * MIB);
    let disk = rig.add_disk("disk", SimDiskSpec::new(8 * MIB));
    let volume = rig.attach("disk", |_| ()).unwrap();
    rig.world.block_on(write(&volume, 0, 64, 7)).unwrap();
    rig.world.block_on(volume.flush()).unwrap();
    for place in [0, 2, 1] {
        rig.world
            .block_on(volume.discard(place * 4096, 4096, WriteFlags { fua: place == 1, ..Default::default() }))
            .unwrap();
    }
    assert_eq!((disk.durable_tag(8), disk.durable_tag(24)), (0, 7));
}
