//! Case 23: all dirty, the backing at 100 requests a second. Writers are slowed smoothly, nobody stalls, another volume's reads are
//! unhurt.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use engine::WritePolicy;
use seam::sim::Timing;
use seam::{Nanos, Seam};

use crate::setting::{Numbers, attach, attach_to, disk, read, world, write};

#[test]
fn writers_on_a_slow_backing_are_slowed_one_after_the_other_and_neighbours_feel_nothing() {
    let world = world(2048);
    let slow = world.add_disk("slow", disk(64 << 20));
    world.add_disk("quick", disk(64 << 20));
    let seam = world.seam();
    world.block_on(async move {
        let (core, volume) = attach(&seam, "slow", 1, WritePolicy::WriteBack).await;
        let quick = attach_to(&core, "quick", 2, WritePolicy::WriteBack).await;
        for block in 0..256 {
            read(&quick, block * 4096, 4096).await;
        }
        // 32 at once, 320 ms each: 100 a second.
        slow.set_timing(Timing::between(Nanos::from_millis(320), Nanos::from_millis(320)));
        let (waits, stop) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(false)));
        let ends = Rc::new(RefCell::new(Vec::new()));
        for writer in 0..8u64 {
            let (volume, waits, stop, seam) = (volume.clone(), Rc::clone(&waits), Rc::clone(&stop), seam.clone());
            let ends = Rc::clone(&ends);
            seam.clone().spawn(async move {
                let mut numbers = Numbers(writer);
                while !stop.get() {
                    let begun = seam.now();
                    write(&volume, numbers.below(8000) * 8192, 4096, 1).await;
                    waits.borrow_mut().push(seam.now().since(begun));
                    ends.borrow_mut().push(seam.now());
                    seam.sleep(Nanos::from_micros(100)).await;
                }
            });
        }
        seam.sleep(Nanos::from_secs(60)).await;
        waits.borrow_mut().clear();
        ends.borrow_mut().clear();
        let (mut slowest_read, mut reads) = (Nanos::ZERO, 0u64);
        let mut numbers = Numbers(99);
        let begun = seam.now();
        while seam.now().since(begun) < Nanos::from_secs(60) {
            let before = seam.now();
            read(&quick, numbers.below(256) * 4096, 4096).await;
            slowest_read = slowest_read.max(seam.now().since(before));
            reads += 1;
            seam.sleep(Nanos::from_millis(1)).await;
        }
        stop.set(true);
        let ended = std::mem::take(&mut *ends.borrow_mut());
        let standstill = ended.windows(2).map(|pair| pair[1].since(pair[0])).max().expect("there were writes");
        let mut waits = waits.take();
        waits.sort();
        let at = |part: usize| waits[waits.len() * part / 1000];
        println!(
            "{} writes in 60 s; waits: median {}, p99.9 {}; longest standstill {standstill}",
            waits.len(),
            at(500),
            at(999)
        );
        assert!((4000..9000).contains(&waits.len()), "{} writes in a minute of 6,000 destaged", waits.len());
        assert!(at(999) < Nanos::from_secs(2), "p99.9 is {}", at(999));
        assert!(standstill < Nanos::from_millis(700), "all writers stood still for {standstill}");
        assert!(
            reads > 50_000 && slowest_read < Nanos::from_millis(1),
            "the neighbour's slowest hit took {slowest_read}"
        );
    });
}
