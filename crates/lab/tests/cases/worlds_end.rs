//! A world that ended leaves nothing in memory, so that a campaign of any length does not grow.

use lab::rig::{Rig, read, write};
use seam::sim::{CrashMode, Remains, SimDiskSpec};
use seam::{Nanos, Seam};

const MIB: u64 = 1 << 20;

/// An engine in the middle of its work: clean and dirty blocks, a write and a read on their way, a detached volume.
fn busy() -> (Rig, Remains) {
    let rig = Rig::with_memory(1, 16 * MIB);
    let remains = rig.world.remains();
    for name in ["one", "two", "gone"] {
        rig.add_disk(name, SimDiskSpec::new(8 * MIB));
        let volume = rig.attach(name, |_| ()).unwrap();
        rig.world.block_on(write(&volume, 0, 512, 1)).unwrap();
        rig.world.block_on(read(&volume, 4_096, 512)).unwrap();
        rig.seam.spawn(async move { volume.flush().await.expect("a disk without faults") });
    }
    rig.world.block_on(rig.core.detach("gone")).unwrap();
    let two = rig.core.find("two").unwrap();
    rig.seam.spawn(async move { drop(read(&two, 12_288, 64).await) });
    rig.world.run_for(Nanos::from_micros(10)).unwrap();
    (rig, remains)
}

#[test]
fn a_world_that_crashed_in_the_middle_of_its_work_is_freed() {
    for mode in CrashMode::ALL {
        let (rig, remains) = busy();
        assert!(remains.world() > 0 && remains.buffers() > 256, "nothing is under way");
        let images = rig.end(mode);
        assert_eq!(remains.buffers(), 0, "{mode:?}");
        let next = Rig::with_memory(2, MIB);
        next.world.adopt(images);
        assert_eq!(remains.world(), 0, "{mode:?}");
    }
}

#[test]
fn a_world_that_is_dropped_is_freed_whoever_goes_first() {
    let (rig, remains) = busy();
    drop(rig);
    assert_eq!((remains.world(), remains.buffers()), (0, 0));
    let (Rig { world, seam, core }, remains) = busy();
    drop((world, seam));
    assert!(remains.buffers() > 256, "the engine holds its buffers");
    drop(core);
    assert_eq!((remains.world(), remains.buffers()), (0, 0));
}

#[test]
fn a_volume_that_somebody_still_holds_keeps_its_buffers() {
    let (rig, remains) = busy();
    let volume = rig.core.find("one").unwrap();
    drop(rig.end(CrashMode::KeepAll));
    assert!(remains.buffers() > 256);
    drop(volume);
    assert_eq!((remains.world(), remains.buffers()), (0, 0));
}
