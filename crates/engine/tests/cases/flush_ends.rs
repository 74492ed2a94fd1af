//! Case 20: a flush ends, under full write load, with a slow backing, with errors, two at once; a clean cache detaches at once.

use std::cell::Cell;
use std::rc::Rc;

use engine::WritePolicy;
use seam::sim::{Fault, Latency, Ops, Rule, Timing, When};
use seam::{Nanos, Seam};

use crate::setting::{Numbers, attach, disk, world, write};

#[test]
fn flushes_end_while_writers_never_pause() {
    let world = world(4096);
    let control = world.add_disk("disk", disk(64 << 20));
    let seam = world.seam();
    world.block_on(async move {
        let (_core, volume) = attach(&seam, "disk", 1, WritePolicy::WriteBack).await;
        control.set_timing(Timing::between(Nanos::from_millis(2), Nanos::from_millis(6)));
        let stop = Rc::new(Cell::new(false));
        for writer in 0..4u64 {
            let (volume, stop, seam) = (volume.clone(), Rc::clone(&stop), seam.clone());
            seam.clone().spawn(async move {
                let mut numbers = Numbers(writer);
                while !stop.get() {
                    write(&volume, numbers.below(16_000) * 4096, 4096, 1 + writer).await;
                    seam.sleep(Nanos::from_micros(20)).await;
                }
            });
        }
        seam.sleep(Nanos::from_secs(2)).await;
        for _ in 0..5 {
            let begun = seam.now();
            let dirty = volume.stats().dirty_bytes;
            let (first, second) = (volume.clone(), volume.clone());
            let both = Rc::new(Cell::new(0));
            let counted = Rc::clone(&both);
            seam.spawn(async move {
                first.flush().await.expect("the disk is whole");
                counted.set(counted.get() + 1);
            });
            second.flush().await.expect("the disk is whole");
            // 32 writes of 4 ms at once are 8,000 blocks a second; what comes meanwhile is not waited for.
            let bound = Nanos(2 * 1_000_000_000 * (dirty / 4096 + 1000) / 8000);
            assert!(seam.now().since(begun) < bound, "{} for {dirty} bytes", seam.now().since(begun));
            seam.sleep(Nanos::from_millis(500)).await;
            assert_eq!(both.get(), 1, "the other one ended too");
        }
        stop.set(true);
    });
}

#[test]
fn a_flush_that_failed_is_said_and_the_next_one_makes_all_durable() {
    let world = world(1024);
    let control = world.add_disk("disk", disk(4 << 20));
    let seam = world.seam();
    let end = control.clone();
    world.block_on(async move {
        let (core, volume) = attach(&seam, "disk", 1, WritePolicy::WriteBack).await;
        for block in 0..32 {
            write(&volume, block * 4096, 4096, 9).await;
        }
        control.add_fault(Rule::new(Fault::Error, Ops::FLUSH, When::Nth(0)));
        assert!(volume.flush().await.is_err());
        assert_eq!(volume.stats().dirty_bytes, 32 * 4096, "what a failed flush leaves is dirty again");
        let writes = control.counts().writes;
        volume.flush().await.expect("it fails once");
        assert!(control.counts().writes > writes, "and is written again");
        let begun = seam.now();
        core.detach("disk").await.expect("the disk is whole");
        assert!(seam.now().since(begun) < Nanos::from_secs(1), "a clean volume leaves at once");
    });
    assert!((0..256).all(|sector| end.durable_tag(sector) == 9));
}

#[test]
fn a_flush_that_a_reconnect_cuts_off_is_repeated_and_nobody_is_told() {
    let world = world(1024);
    let mut spec = disk(4 << 20);
    spec.timing.flush = Latency::fixed(Nanos::from_millis(50));
    let control = world.add_disk("disk", spec);
    let seam = world.seam();
    let end = control.clone();
    world.block_on(async move {
        let (_core, volume) = attach(&seam, "disk", 1, WritePolicy::WriteBack).await;
        write(&volume, 0, 65536, 3).await;
        let (breaker, clock) = (control.clone(), seam.clone());
        seam.spawn(async move {
            for _ in 0..3 {
                clock.sleep(Nanos::from_millis(20)).await;
                breaker.reconnect();
            }
        });
        volume.flush().await.expect("the backing is back at once");
        assert!(control.counts().flushes > 1, "the flush that was cut off proves nothing");
    });
    assert!((0..128).all(|sector| end.durable_tag(sector) == 3));
}
