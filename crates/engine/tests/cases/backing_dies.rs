//! Case 15: the backing dies under dirty data. Errors or kept dirty, never success and gone; others are undisturbed; when it
//! returns destage goes on and all is whole.

use engine::WritePolicy;
use seam::{Nanos, Seam};

use crate::setting::{attach, attach_to, disk, read, world, write};

#[test]
fn dirty_data_outlives_a_dead_backing_and_reaches_it_when_it_is_back() {
    let world = world(1024);
    let bad = world.add_disk("bad", disk(4 << 20));
    let good = world.add_disk("good", disk(4 << 20));
    let seam = world.seam();
    let end = bad.clone();
    world.block_on(async move {
        let (core, volume) = attach(&seam, "bad", 1, WritePolicy::WriteBack).await;
        let other = attach_to(&core, "good", 2, WritePolicy::WriteBack).await;
        for block in 0..64u64 {
            write(&volume, block * 8192, 4096, block + 1).await;
        }
        bad.vanish();
        assert!(volume.flush().await.is_err(), "a flush of a dead backing does not succeed");
        assert_eq!(volume.stats().dirty_bytes, 64 * 4096, "nothing is dropped");
        assert!(!volume.stats().alerts.is_empty(), "and it is said");
        for block in 0..64u64 {
            assert_eq!(read(&volume, block * 8192, 4096).await, [block + 1; 8], "what is cached is still served");
        }
        write(&other, 0, 65536, 7).await;
        other.flush().await.expect("the other backing lives");
        seam.sleep(Nanos::from_secs(30)).await;
        assert!(core.detach("bad").await.is_err(), "it cannot leave with dirty data");
        assert_eq!(volume.stats().dirty_bytes, 64 * 4096);
        bad.come_back();
        seam.sleep(Nanos::from_secs(30)).await;
        assert_eq!((volume.stats().dirty_bytes, volume.stats().written_bytes), (0, 0), "destage went on by itself");
        core.detach("bad").await.expect("it is back");
    });
    for block in 0..64u64 {
        assert_eq!(end.durable_tag(block * 16), block + 1);
    }
    assert_eq!(good.durable_tag(0), 7);
}
