//! Flush ends: under full write load, with errors, cut off, two at once; the counts are exact, a clean cache detaches in under a
//! second.

use std::cell::Cell;
use std::rc::Rc;

use lab::random::Random;
use lab::rig::{Rig, durable, lively_disk, write};
use seam::sim::{Fault, Latency, Ops, Rule, SimDiskSpec, Timing, When};
use seam::{Nanos, Seam};

const MIB: u64 = 1 << 20;

#[test]
fn case_20_two_flushes_at_once_under_full_write_load_end_while_the_load_goes_on() {
    let rig = Rig::with_memory(1, 16 * MIB);
    let timing = Timing::between(Nanos::from_millis(2), Nanos::from_millis(6));
    rig.add_disk("disk", SimDiskSpec { timing, ..SimDiskSpec::new(64 * MIB) });
    let volume = rig.attach("disk", |_| ()).unwrap();
    let (stop, written) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0_u64)));
    for writer in 0..4 {
        let (volume, seam) = (volume.clone(), rig.seam.clone());
        let (stop, written) = (Rc::clone(&stop), Rc::clone(&written));
        rig.seam.spawn(async move {
            let mut random = Random::new(20, writer);
            while !stop.get() {
                write(&volume, random.below(16_000) * 8, 8, 1 + writer).await.expect("the disk is whole");
                written.set(written.get() + 1);
                seam.sleep(Nanos::from_micros(20)).await;
            }
        });
    }
    rig.world.run_for(Nanos::from_secs(2)).unwrap();
    for _ in 0..5 {
        let (begun, before, dirty) = (rig.world.now(), written.get(), volume.stats().dirty_bytes);
        let (other, ended) = (volume.clone(), Rc::new(Cell::new(false)));
        let seen = Rc::clone(&ended);
        rig.seam.spawn(async move {
            other.flush().await.expect("the disk is whole");
            seen.set(true);
        });
        rig.world.block_on(volume.flush()).unwrap();
        // 32 writes of 4 ms at once are 8,000 blocks a second; what comes meanwhile is not waited for.
        let bound = Nanos(2 * 1_000_000_000 * (dirty / 4096 + 1000) / 8000);
        let took = rig.world.now().since(begun);
        assert!(took < bound, "{took} for {dirty} bytes");
        assert!(written.get() > before, "all writers waited for the flush");
        rig.world.run_for(Nanos::from_millis(500)).unwrap();
        assert!(ended.get(), "the other flush waits still");
    }
    stop.set(true);
    rig.world.run_for(Nanos::from_secs(1)).unwrap();
    rig.world.block_on(volume.destage_all()).unwrap();
    assert_eq!((volume.stats().dirty_bytes, volume.stats().written_bytes), (0, 0));
}

#[test]
fn case_20_a_failed_flush_says_so_and_the_next_one_writes_all_again() {
    let rig = Rig::with_memory(1, 4 * MIB);
    let disk = rig.add_disk("disk", lively_disk(4 * MIB));
    let volume = rig.attach("disk", |_| ()).unwrap();
    for block in 0..32 {
        rig.world.block_on(write(&volume, block * 8, 8, 9)).unwrap();
    }
    disk.add_fault(Rule::new(Fault::Error, Ops::FLUSH, When::Nth(0)));
    assert!(rig.world.block_on(volume.flush()).is_err());
    assert_eq!(volume.stats().dirty_bytes, 32 * 4096, "what a failed flush leaves is dirty again");
    let writes = disk.counts().writes;
    rig.world.block_on(volume.flush()).unwrap();
    assert!(disk.counts().writes > writes, "and is written again");
    assert_eq!(durable(&disk, 0, 256), [9; 256]);
}

#[test]
fn case_20_a_flush_that_a_reconnect_cuts_off_is_repeated_and_nobody_is_told() {
    let rig = Rig::with_memory(1, 4 * MIB);
    let mut spec = lively_disk(4 * MIB);
    spec.timing.flush = Latency::fixed(Nanos::from_millis(50));
    let disk = rig.add_disk("disk", spec);
    let volume = rig.attach("disk", |_| ()).unwrap();
    rig.world.block_on(write(&volume, 0, 128, 3)).unwrap();
    let (breaker, clock) = (disk.clone(), rig.seam.clone());
    rig.seam.spawn(async move {
        for _ in 0..3 {
            clock.sleep(Nanos::from_millis(20)).await;
            breaker.reconnect();
        }
    });
    rig.world.block_on(volume.flush()).unwrap();
    assert!(disk.counts().flushes > 1, "the flush that was cut off proves nothing");
    assert_eq!(durable(&disk, 0, 128), [3; 128]);
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

#[test]
fn case_20_a_large_flush_leaves_busy_clients_most_of_the_core_and_ends() {
    let took = |busy: bool| {
        let rig = Rig::with_memory(1, 64 * MIB);
        let timing = Timing::between(Nanos::from_micros(5), Nanos::from_micros(15));
        rig.add_disk("dirty", SimDiskSpec { timing, ..SimDiskSpec::new(64 * MIB) });
        rig.add_disk("hit", lively_disk(MIB));
        let (dirty, hit) = (rig.attach("dirty", |_| ()).unwrap(), rig.attach("hit", |_| ()).unwrap());
        rig.world.block_on(async {
            for block in 0..2500 {
                // No two are neighbours, so each is a run of its own.
                write(&dirty, block * 16, 8, 1).await.expect("the disk is whole");
            }
        });
        let stop = Rc::new(Cell::new(!busy));
        let (stopped, seam) = (Rc::clone(&stop), rig.seam.clone());
        rig.seam.spawn(async move {
            while !stopped.get() {
                hit.read(0, 4096, &mut Vec::new()).await.expect("the disk is whole");
                seam.sleep(Nanos::from_micros(100)).await;
            }
        });
        rig.world.run_for(Nanos::from_millis(100)).unwrap();
        let begun = rig.world.now();
        rig.world.block_on(dirty.flush()).unwrap();
        stop.set(true);
        rig.world.now().since(begun)
    };
    let (alone, beside) = (took(false), took(true));
    assert!(alone < Nanos::from_millis(50), "{alone} with nobody to wait for");
    assert!((Nanos::from_millis(90)..Nanos::from_millis(400)).contains(&beside), "{beside} beside busy clients");
}
