//! Backing dies under dirty data: errors or kept dirty, never success and gone; others undisturbed; when it returns destage goes
//! on and all is whole.

use lab::rig::{Rig, lively_disk, read, write};
use seam::Nanos;

const MIB: u64 = 1 << 20;

#[test]
fn case_15_a_backing_that_dies_under_dirty_data_loses_nothing_and_disturbs_nobody() {
    let rig = Rig::with_memory(1, 4 * MIB);
    let sick = rig.add_disk("sick", lively_disk(4 * MIB));
    let well = rig.add_disk("well", lively_disk(4 * MIB));
    let volume = rig.attach("sick", |_| ()).unwrap();
    let other = rig.attach("well", |_| ()).unwrap();
    for place in 0..64 {
        rig.world.block_on(write(&volume, place * 16, 8, place + 1)).unwrap();
    }
    sick.vanish();
    assert!(rig.world.block_on(volume.flush()).is_err(), "a flush succeeded on a backing that is gone");
    assert_eq!(volume.stats().dirty_bytes, 64 * 4096, "dirty data went although its backing is gone");
    assert!(!volume.stats().alerts.is_empty(), "nobody is told");
    for place in 0..64 {
        let found = rig.world.block_on(read(&volume, place * 16, 8)).unwrap();
        assert_eq!(found, [place + 1; 8], "what is cached is still served");
    }
    assert!(rig.world.block_on(read(&volume, 4_096, 8)).is_err(), "content from nowhere");
    rig.world.block_on(write(&other, 0, 128, 7)).unwrap();
    rig.world.block_on(other.flush()).unwrap();
    assert_eq!(well.durable_tag(0), 7);
    rig.world.run_for(Nanos::from_secs(30)).unwrap();
    assert!(rig.world.block_on(rig.core.detach("sick")).is_err(), "it left with dirty data");
    assert_eq!(volume.stats().dirty_bytes, 64 * 4096);
    sick.come_back();
    rig.world.run_for(Nanos::from_secs(30)).unwrap();
    assert_eq!((volume.stats().dirty_bytes, volume.stats().written_bytes), (0, 0), "destage goes on by itself");
    for place in 0..64 {
        assert_eq!(sick.durable_tag(place * 16), place + 1);
    }
    rig.world.block_on(rig.core.detach("sick")).unwrap();
}
