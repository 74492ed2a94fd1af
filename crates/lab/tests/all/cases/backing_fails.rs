//! A backing fails with dirty data in the cache. Requests fail or data stays dirty, but no write succeeds and is lost.
//! Other volumes are unaffected. When the backing returns, destage continues and all data arrives.

use lab::fixture::{Fixture, out_of_order_disk, read, write};
use seam::Nanos;

const MIB: u64 = 1 << 20;
/// Every second block is written.
const BLOCK_STEP_SECTORS: u64 = 16;

#[test]
fn case_15_failed_backing_loses_no_dirty_data_and_affects_no_other() {
    let fixture = Fixture::with_memory(1, 4 * MIB);
    let failing = fixture.add_disk("failing", out_of_order_disk(4 * MIB));
    let healthy = fixture.add_disk("healthy", out_of_order_disk(4 * MIB));
    let volume = fixture.attach("failing", |_| ()).unwrap();
    let other = fixture.attach("healthy", |_| ()).unwrap();
    for block in 0..64 {
        fixture.world.block_on(write(&volume, block * BLOCK_STEP_SECTORS, 8, block + 1)).unwrap();
    }
    failing.vanish();
    assert!(fixture.world.block_on(volume.flush()).is_err(), "a flush succeeded on a failed backing");
    assert_eq!(volume.stats().dirty_bytes, 64 * 4096, "dirty data was dropped while its backing has failed");
    assert!(!volume.stats().problems.is_empty(), "no alert was raised");
    for block in 0..64 {
        let tags = fixture.world.block_on(read(&volume, block * BLOCK_STEP_SECTORS, 8)).unwrap();
        assert_eq!(tags, [block + 1; 8], "cached data was not served without the backing");
    }
    assert!(fixture.world.block_on(read(&volume, 4_096, 8)).is_err(), "a read of uncached data succeeded");
    fixture.world.block_on(write(&other, 0, 128, 7)).unwrap();
    fixture.world.block_on(other.flush()).unwrap();
    assert_eq!(healthy.durable_tag(0), 7);
    fixture.world.run_for(Nanos::from_secs(30)).unwrap();
    assert!(fixture.world.block_on(fixture.core.detach("failing")).is_err(), "the volume detached with dirty data");
    assert_eq!(volume.stats().dirty_bytes, 64 * 4096);
    failing.come_back();
    fixture.world.run_for(Nanos::from_secs(30)).unwrap();
    assert_eq!((volume.stats().dirty_bytes, volume.stats().written_bytes), (0, 0), "destage did not resume by itself");
    for block in 0..64 {
        assert_eq!(failing.durable_tag(block * BLOCK_STEP_SECTORS), block + 1);
    }
    fixture.world.block_on(fixture.core.detach("failing")).unwrap();
}
