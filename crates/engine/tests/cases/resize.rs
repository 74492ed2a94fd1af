//! Case 19: a volume grown and shrunk. Shrinking below dirty data brings it to the backing first; the blocks of a removed volume
//! never appear under a new one.

use engine::WritePolicy;

use crate::setting::{attach, attach_to, disk, read, world, write};

#[test]
fn shrinking_destages_first_and_what_grows_back_reads_as_zeroes() {
    let world = world(1024);
    let control = world.add_disk("disk", disk(1 << 20));
    let seam = world.seam();
    let end = control.clone();
    world.block_on(async move {
        let (_core, volume) = attach(&seam, "disk", 1, WritePolicy::WriteBack).await;
        write(&volume, 0, 1 << 18, 1).await;
        write(&volume, (1 << 20) - 65536, 65536, 2).await;
        assert_eq!(volume.resize(Some(1 << 19), false).await, Ok(1 << 19));
        assert_eq!(control.durable_tag(0), 1, "dirty data went to the backing first");
        assert!(volume.read((1 << 20) - 65536, 512, &mut Vec::new()).await.is_err(), "past the end");
        assert_eq!(volume.resize(Some(1 << 20), false).await, Ok(1 << 20));
        assert_eq!(read(&volume, (1 << 20) - 65536, 65536).await, [0; 128], "what was cut off is gone");
        assert_eq!(read(&volume, 0, 1 << 18).await, [1; 512]);
        write(&volume, (1 << 20) - 4096, 4096, 3).await;
        assert_eq!(volume.resize(Some((1 << 20) + 512), false).await, Ok((1 << 20) + 512));
        write(&volume, 1 << 20, 512, 4).await;
        assert_eq!(volume.resize(Some((1 << 20) + 8192), false).await, Ok((1 << 20) + 8192));
        assert_eq!(read(&volume, (1 << 20) - 4096, 8192).await, [[3; 8], [4, 0, 0, 0, 0, 0, 0, 0]].concat());
        volume.destage_all().await.expect("the disk is whole");
    });
    assert_eq!((end.durable_tag(2047), end.durable_tag(2048), end.durable_tag(2049)), (3, 4, 0));
}

#[test]
fn a_new_volume_sees_nothing_of_a_removed_one() {
    let world = world(1024);
    world.add_disk("old", disk(1 << 20));
    world.add_disk("new", disk(1 << 20));
    let seam = world.seam();
    world.block_on(async move {
        let (core, old) = attach(&seam, "old", 1, WritePolicy::WriteBack).await;
        write(&old, 0, 1 << 18, 1).await;
        core.detach("old").await.expect("the disk is whole");
        assert!(old.read(0, 512, &mut Vec::new()).await.is_err(), "it serves no more");
        let new = attach_to(&core, "new", 2, WritePolicy::WriteBack).await;
        assert_eq!(read(&new, 0, 1 << 18).await, [0; 512]);
        assert_eq!(new.stats().memory_hits, 0);
    });
}
