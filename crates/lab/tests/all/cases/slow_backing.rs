//! A backing at 100 IOPS with dirty data at the bound: writers are throttled smoothly, and another volume's reads are
//! unaffected.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use lab::fixture::{Fixture, Target, out_of_order_disk, read, write};
use lab::random::Random;
use lab::workload::{Load, Pattern, quantile, run_load};
use seam::model::{ArraySpec, DiskType, RaidLevel};
use seam::sim::{SimDiskSpec, Timing};
use seam::{Nanos, Seam};

const MIB: u64 = 1 << 20;

fn load(seed: u64, read_percent: u32, depth: u32, seconds: u64) -> Load {
    let pattern = Pattern::random(64 * MIB, 4096, read_percent);
    Load { pattern, depth, time: Nanos::from_secs(seconds), seed }
}

#[test]
fn case_23_throttling_is_smooth_and_spares_other_volumes() {
    let fixture = Fixture::with_memory(1, 32 * MIB);
    let slow = fixture.add_disks_on_array(ArraySpec::new(RaidLevel::Raid0, 1, DiskType::NlSas), &[64 * MIB]).remove(0);
    let writer = fixture.attach_disk("slow", slow, |_| ()).unwrap();
    fixture.add_disk("fast", SimDiskSpec::new(64 * MIB));
    let reader = fixture.attach("fast", |_| ()).unwrap();
    let alone = fixture.world.block_on(run_load(&fixture.seam, &Target::Volume(reader.clone()), &load(1, 100, 2, 1)));
    // Writes until the dirty bound is reached.
    fixture.world.block_on(run_load(&fixture.seam, &Target::Volume(writer.clone()), &load(2, 0, 4, 30)));
    let (seam, target) = (fixture.seam.clone(), Target::Volume(reader));
    let concurrent = Rc::new(RefCell::new(None));
    let result = Rc::clone(&concurrent);
    fixture.seam.spawn(async move {
        let figures = run_load(&seam, &target, &load(3, 100, 2, 1)).await;
        *result.borrow_mut() = Some(figures);
    });
    let figures = fixture.world.block_on(run_load(&fixture.seam, &Target::Volume(writer.clone()), &load(4, 0, 4, 60)));
    assert_eq!(figures.errors, 0);
    let (median, worst) = (quantile(&figures.write_us, 500), quantile(&figures.write_us, 999));
    assert!(writer.stats().throttled_us > 0, "no writer was throttled: the bound was never reached");
    assert!(worst < 1_000_000, "p99.9 of writes {worst} us, median {median} us");
    assert!(figures.pause_max < Nanos::from_secs(1), "no write ended for {}", figures.pause_max);
    let concurrent = concurrent.take().expect("the reader has ended");
    let (before, after) = (quantile(&alone.read_us, 990), quantile(&concurrent.read_us, 990));
    assert!(after <= 2 * before + 1_000, "p99 of the other volume's reads {before} us alone, {after} us concurrently");
}

#[test]
fn case_23_throttled_writers_get_the_destage_rate_fairly() {
    let fixture = Fixture::with_memory(1, 8 * MIB);
    let disk = fixture.add_disk("slow", out_of_order_disk(64 * MIB));
    fixture.add_disk("quick", out_of_order_disk(64 * MIB));
    let volume = fixture.attach("slow", |_| ()).unwrap();
    let quick = fixture.attach("quick", |_| ()).unwrap();
    for block in 0..256 {
        fixture.world.block_on(read(&quick, block * 8, 8)).unwrap();
    }
    // 32 concurrent writes of 320 ms each: 100 per second.
    disk.set_timing(Timing::between(Nanos::from_millis(320), Nanos::from_millis(320)));
    let stop = Rc::new(Cell::new(false));
    // Completion time and latency of each write.
    let writes = Rc::new(RefCell::new(Vec::new()));
    for writer in 0..8 {
        let (volume, seam) = (volume.clone(), fixture.seam.clone());
        let (writes, stop) = (Rc::clone(&writes), Rc::clone(&stop));
        fixture.seam.spawn(async move {
            let mut random = Random::new(23, writer);
            while !stop.get() {
                let start = seam.now();
                write(&volume, random.below(8_000) * 16, 8, 1).await.expect("a disk without faults does not fail");
                writes.borrow_mut().push((seam.now(), seam.now().since(start)));
                seam.sleep(Nanos::from_micros(100)).await;
            }
        });
    }
    fixture.world.run_for(Nanos::from_secs(60)).unwrap();
    writes.borrow_mut().clear();
    let (mut slowest_read, mut reads, mut random) = (Nanos::ZERO, 0, Random::new(99, 0));
    let start = fixture.world.now();
    while fixture.world.now().since(start) < Nanos::from_secs(60) {
        let before = fixture.world.now();
        fixture.world.block_on(read(&quick, random.below(256) * 8, 8)).unwrap();
        slowest_read = slowest_read.max(fixture.world.now().since(before));
        reads += 1;
        fixture.world.run_for(Nanos::from_millis(1)).unwrap();
    }
    stop.set(true);
    let writes = writes.take();
    let longest_pause =
        writes.windows(2).map(|pair| pair[1].0.since(pair[0].0)).max().expect("the writers completed writes");
    let mut waits: Vec<Nanos> = writes.into_iter().map(|(_, wait)| wait).collect();
    waits.sort();
    let worst = waits[waits.len() * 999 / 1_000];
    assert!((4_000..9_000).contains(&waits.len()), "{} writes in a minute, in which 6,000 were destaged", waits.len());
    assert!(worst < Nanos::from_secs(2), "p99.9 of writes is {worst}");
    assert!(longest_pause < Nanos::from_millis(700), "no write completed for {longest_pause}");
    let slowest_hit = format!("the neighbour's slowest of {reads} hits took {slowest_read}");
    assert!(reads > 50_000 && slowest_read < Nanos::from_millis(1), "{slowest_hit}");
}
