//! Flush ends: under load, with errors, two at once; the counts are exact, a clean cache detaches in under a second.

use std::cell::Cell;
use std::rc::Rc;

use lab::rig::{Rig, Target, write};
use lab::workload::{Load, Pattern, play};
use seam::sim::{Fault, Ops, Rule, SimDiskSpec, When};
use seam::{Nanos, Seam};

const MIB: u64 = 1 << 20;

#[test]
fn case_20_a_flush_under_full_write_load_ends_while_the_load_goes_on() {
    let rig = Rig::with_memory(1, 16 * MIB);
    rig.add_disk("disk", SimDiskSpec::new(64 * MIB));
    let volume = rig.attach("disk", |_| ()).unwrap();
    let load = Load { pattern: Pattern::random(64 * MIB, 4096, 0), depth: 8, time: Nanos::from_secs(5), seed: 3 };
    let flushed = Rc::new(Cell::new(0_u32));
    let (seam, other, count) = (rig.seam.clone(), volume.clone(), Rc::clone(&flushed));
    rig.seam.spawn(async move {
        for _ in 0..10 {
            seam.sleep(Nanos::from_millis(200)).await;
            if other.flush().await.is_ok() {
                count.set(count.get() + 1);
            }
        }
    });
    let figures = rig.world.block_on(play(&rig.seam, &Target::Volume(volume.clone()), &load));
    assert_eq!((figures.errors, flushed.get()), (0, 10));
    rig.world.block_on(volume.destage_all()).unwrap();
    assert_eq!((volume.stats().dirty_bytes, volume.stats().written_bytes), (0, 0));
}

#[test]
fn case_20_a_failed_flush_says_so_and_the_next_one_succeeds() {
    let rig = Rig::with_memory(1, 16 * MIB);
    let disk = rig.add_disk("disk", SimDiskSpec::new(8 * MIB));
    let volume = rig.attach("disk", |_| ()).unwrap();
    rig.world.block_on(write(&volume, 0, 8, 5)).unwrap();
    disk.add_fault(Rule::new(Fault::Error, Ops::FLUSH, When::Nth(0)));
    assert!(rig.world.block_on(volume.flush()).is_err());
    rig.world.block_on(volume.flush()).unwrap();
    assert_eq!(disk.durable_tag(0), 5);
}

#[test]
fn case_20_a_clean_cache_detaches_in_under_a_second() {
    let rig = Rig::with_memory(1, 64 * MIB);
    rig.add_disk("disk", SimDiskSpec::new(32 * MIB));
    let volume = rig.attach("disk", |_| ()).unwrap();
    rig.world.block_on(volume.prefetch(0, 32 * MIB)).unwrap();
    let begun = rig.world.now();
    rig.world.block_on(rig.core.detach("disk")).unwrap();
    assert!(rig.world.now().since(begun) < Nanos::from_secs(1));
}
