//! All dirty, backing at 100 IOPS: writers slowed smoothly, another volume's reads unhurt.

use lab::rig::{Rig, Target};
use lab::workload::{Load, Pattern, play, quantile};
use seam::model::{ArraySpec, DiskType, RaidLevel};
use seam::sim::SimDiskSpec;
use seam::{Nanos, Seam};

const MIB: u64 = 1 << 20;

fn load(seed: u64, read_percent: u32, depth: u32, seconds: u64) -> Load {
    let pattern = Pattern::random(64 * MIB, 4096, read_percent);
    Load { pattern, depth, time: Nanos::from_secs(seconds), seed }
}

#[test]
fn case_23_writers_are_slowed_smoothly_when_all_is_dirty_and_another_volumes_reads_are_unhurt() {
    let rig = Rig::with_memory(1, 32 * MIB);
    let slow = rig.on_array(ArraySpec::new(RaidLevel::Raid0, 1, DiskType::NlSas), &[64 * MIB]).remove(0);
    let writer = rig.attach_disk("slow", slow, |_| ()).unwrap();
    rig.add_disk("fast", SimDiskSpec::new(64 * MIB));
    let reader = rig.attach("fast", |_| ()).unwrap();
    let alone = rig.world.block_on(play(&rig.seam, &Target::Volume(reader.clone()), &load(1, 100, 2, 1)));
    // Until everything that may be dirty is.
    rig.world.block_on(play(&rig.seam, &Target::Volume(writer.clone()), &load(2, 0, 4, 30)));
    let (seam, target) = (rig.seam.clone(), Target::Volume(reader));
    let beside = std::rc::Rc::new(std::cell::RefCell::new(None));
    let kept = std::rc::Rc::clone(&beside);
    rig.seam.spawn(async move {
        let figures = play(&seam, &target, &load(3, 100, 2, 1)).await;
        *kept.borrow_mut() = Some(figures);
    });
    let figures = rig.world.block_on(play(&rig.seam, &Target::Volume(writer.clone()), &load(4, 0, 4, 60)));
    assert_eq!(figures.errors, 0);
    let (median, worst) = (quantile(&figures.write_us, 500), quantile(&figures.write_us, 999));
    assert!(writer.stats().throttled_us > 0, "nobody was slowed: the bound was never reached");
    assert!(worst < 1_000_000, "p99.9 of writes {worst} us, median {median} us");
    assert!(figures.pause_max < Nanos::from_secs(1), "no write ended for {}", figures.pause_max);
    let beside = beside.take().expect("the reader ended long ago");
    let (before, after) = (quantile(&alone.read_us, 990), quantile(&beside.read_us, 990));
    assert!(after <= 2 * before + 1_000, "p99 of the other volume's reads {before} us alone, {after} us beside");
}
