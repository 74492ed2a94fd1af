//! A finished world frees all its memory, so that a campaign of any length does not grow.

use lab::fixture::{Fixture, read, write};
use seam::sim::{CrashMode, LeakCheck, SimDiskSpec};
use seam::{Nanos, Seam};

const MIB: u64 = 1 << 20;

/// An engine with work in flight: clean and dirty blocks, a write and a read in flight, a detached volume.
fn busy_world() -> (Fixture, LeakCheck) {
    let fixture = Fixture::with_memory(1, 16 * MIB);
    let leak_check = fixture.world.leak_check();
    for name in ["one", "two", "detached"] {
        fixture.add_disk(name, SimDiskSpec::new(8 * MIB));
        let volume = fixture.attach(name, |_| ()).unwrap();
        fixture.world.block_on(write(&volume, 0, 512, 1)).unwrap();
        fixture.world.block_on(read(&volume, 4_096, 512)).unwrap();
        fixture.seam.spawn(async move { volume.flush().await.expect("a disk without faults does not fail") });
    }
    fixture.world.block_on(fixture.core.detach("detached")).unwrap();
    let two = fixture.core.find("two").unwrap();
    fixture.seam.spawn(async move { drop(read(&two, 12_288, 64).await) });
    fixture.world.run_for(Nanos::from_micros(10)).unwrap();
    (fixture, leak_check)
}

#[test]
fn crashed_busy_world_is_freed() {
    for mode in CrashMode::ALL {
        let (fixture, leak_check) = busy_world();
        assert!(leak_check.world() > 0 && leak_check.buffers() > 256, "the world has buffers in use");
        let images = fixture.crash_disks(mode);
        assert_eq!(leak_check.buffers(), 0, "{mode:?}");
        let next = Fixture::with_memory(2, MIB);
        next.world.adopt(images);
        assert_eq!(leak_check.world(), 0, "{mode:?}");
    }
}

#[test]
fn dropped_world_is_freed_in_any_drop_order() {
    let (fixture, leak_check) = busy_world();
    drop(fixture);
    assert_eq!((leak_check.world(), leak_check.buffers()), (0, 0));
    let (Fixture { world, seam, core }, leak_check) = busy_world();
    drop((world, seam));
    assert!(leak_check.buffers() > 256, "the engine owns its buffers");
    drop(core);
    assert_eq!((leak_check.world(), leak_check.buffers()), (0, 0));
}

#[test]
fn volume_handle_keeps_its_buffers() {
    let (fixture, leak_check) = busy_world();
    let volume = fixture.core.find("one").unwrap();
    drop(fixture.crash_disks(CrashMode::KeepAll));
    assert!(leak_check.buffers() > 256);
    drop(volume);
    assert_eq!((leak_check.world(), leak_check.buffers()), (0, 0));
}
