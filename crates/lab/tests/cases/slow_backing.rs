//! All dirty, backing at 100 IOPS: writers slowed smoothly, another volume's reads unhurt.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use lab::random::Random;
use lab::rig::{Rig, Target, lively_disk, read, write};
use lab::workload::{Load, Pattern, play, quantile};
use seam::model::{ArraySpec, DiskType, RaidLevel};
use seam::sim::{SimDiskSpec, Timing};
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
    let beside = Rc::new(RefCell::new(None));
    let kept = Rc::clone(&beside);
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

#[test]
fn case_23_writers_at_the_bound_get_what_destage_achieves_one_after_the_other_and_a_neighbours_hits_feel_nothing() {
    let rig = Rig::with_memory(1, 8 * MIB);
    let disk = rig.add_disk("slow", lively_disk(64 * MIB));
    rig.add_disk("quick", lively_disk(64 * MIB));
    let volume = rig.attach("slow", |_| ()).unwrap();
    let quick = rig.attach("quick", |_| ()).unwrap();
    for block in 0..256 {
        rig.world.block_on(read(&quick, block * 8, 8)).unwrap();
    }
    // 32 at once, 320 ms each: 100 a second.
    disk.set_timing(Timing::between(Nanos::from_millis(320), Nanos::from_millis(320)));
    let stop = Rc::new(Cell::new(false));
    // When each write ended, and how long it took.
    let writes = Rc::new(RefCell::new(Vec::new()));
    for writer in 0..8 {
        let (volume, seam) = (volume.clone(), rig.seam.clone());
        let (writes, stop) = (Rc::clone(&writes), Rc::clone(&stop));
        rig.seam.spawn(async move {
            let mut random = Random::new(23, writer);
            while !stop.get() {
                let begun = seam.now();
                write(&volume, random.below(8_000) * 16, 8, 1).await.expect("a slow disk is a whole one");
                writes.borrow_mut().push((seam.now(), seam.now().since(begun)));
                seam.sleep(Nanos::from_micros(100)).await;
            }
        });
    }
    rig.world.run_for(Nanos::from_secs(60)).unwrap();
    writes.borrow_mut().clear();
    let (mut slowest_read, mut reads, mut random) = (Nanos::ZERO, 0, Random::new(99, 0));
    let begun = rig.world.now();
    while rig.world.now().since(begun) < Nanos::from_secs(60) {
        let before = rig.world.now();
        rig.world.block_on(read(&quick, random.below(256) * 8, 8)).unwrap();
        slowest_read = slowest_read.max(rig.world.now().since(before));
        reads += 1;
        rig.world.run_for(Nanos::from_millis(1)).unwrap();
    }
    stop.set(true);
    let writes = writes.take();
    let standstill = writes.windows(2).map(|pair| pair[1].0.since(pair[0].0)).max().expect("there were writes");
    let mut waits: Vec<Nanos> = writes.into_iter().map(|(_, wait)| wait).collect();
    waits.sort();
    let worst = waits[waits.len() * 999 / 1_000];
    assert!((4_000..9_000).contains(&waits.len()), "{} writes in a minute of 6,000 destaged", waits.len());
    assert!(worst < Nanos::from_secs(2), "p99.9 of writes is {worst}");
    assert!(standstill < Nanos::from_millis(700), "all writers stood still for {standstill}");
    let slowest_hit = format!("the neighbour's slowest of {reads} hits took {slowest_read}");
    assert!(reads > 50_000 && slowest_read < Nanos::from_millis(1), "{slowest_hit}");
}
