//! A backing dies with dirty data in the cache. Requests fail or data stays dirty, but no write succeeds and is lost.
//! Other volumes are unaffected. When the backing returns, destage continues and all data arrives.

use lab::fixture::{Fixture, out_of_order_disk, read, write};
use seam::Nanos;

const MIB: u64 = 1 << 20;

#[test]
fn case_15_dead_backing_loses_no_dirty_data_and_affects_no_other() {
    let fixture = Fixture::with_memory(1, 4 * MIB);
    let sick = fixture.add_disk("sick", out_of_order_disk(4 * MIB));
    let well = fixture.add_disk("well", out_of_order_disk(4 * MIB));
    let volume = fixture.attach("sick", |_| ()).unwrap();
    let other = fixture.attach("well", |_| ()).unwrap();
    for place in 0..64 {
        fixture.world.block_on(write(&volume, place * 16, 8, place + 1)).unwrap();
    }
    sick.vanish();
    assert!(fixture.world.block_on(volume.flush()).is_err(), "a flush succeeded on a dead backing");
    assert_eq!(volume.stats().dirty_bytes, 64 * 4096, "dirty data was dropped while its backing is dead");
    assert!(!volume.stats().problems.is_empty(), "no alert was raised");
    for place in 0..64 {
        let found = fixture.world.block_on(read(&volume, place * 16, 8)).unwrap();
        assert_eq!(found, [place + 1; 8], "cached data is still served");
    }
    assert!(fixture.world.block_on(read(&volume, 4_096, 8)).is_err(), "a read of uncached data succeeded");
    fixture.world.block_on(write(&other, 0, 128, 7)).unwrap();
    fixture.world.block_on(other.flush()).unwrap();
    assert_eq!(well.durable_tag(0), 7);
    fixture.world.run_for(Nanos::from_secs(30)).unwrap();
    assert!(fixture.world.block_on(fixture.core.detach("sick")).is_err(), "the volume detached with dirty data");
    assert_eq!(volume.stats().dirty_bytes, 64 * 4096);
    sick.come_back();
    fixture.world.run_for(Nanos::from_secs(30)).unwrap();
    assert_eq!((volume.stats().dirty_bytes, volume.stats().written_bytes), (0, 0), "destage resumes by itself");
    for place in 0..64 {
        assert_eq!(sick.durable_tag(place * 16), place + 1);
    }
    fixture.world.block_on(fixture.core.detach("sick")).unwrap();
}
