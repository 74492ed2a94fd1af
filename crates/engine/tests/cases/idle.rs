//! Case 21: clean is never written back, idle is idle.

use engine::{WriteFlags, WritePolicy};
use seam::{Nanos, Seam};

use crate::setting::{Tag, attach, disk, read, world, write};

#[test]
fn reads_write_nothing_and_a_drained_cache_does_nothing() {
    let world = world(1024);
    let control = world.add_disk("disk", disk(8 << 20));
    let seam = world.seam();
    world.block_on(async move {
        let (_core, volume) = attach(&seam, "disk", 1, WritePolicy::WriteBack).await;
        for page in 0..128 {
            read(&volume, page * 65536, 65536).await;
        }
        seam.sleep(Nanos::from_secs(60)).await;
        let counts = control.counts();
        assert_eq!((counts.writes, counts.zeroes, counts.flushes), (0, 0, 0), "clean is never written back");
        write(&volume, 0, 65536, 5).await;
        volume.write(1 << 20, 4096, WriteFlags { fua: true }, &mut Tag(6)).await.expect("the disk is whole");
        seam.sleep(Nanos::from_secs(60)).await;
        let drained = control.counts();
        seam.sleep(Nanos::from_secs(600)).await;
        assert_eq!(control.counts(), drained, "without clients and without dirty data nothing happens");
        assert_eq!(control.durable_tag(0), 5, "dirty data went by itself");
    });
}
