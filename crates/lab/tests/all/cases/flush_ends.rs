//! Flushes end under full write load, with errors, when cut off, and two at once. The counters are exact, and a clean
//! cache detaches in under a second.

use std::cell::Cell;
use std::rc::Rc;

use engine::ByteOffset;
use lab::fixture::{Fixture, durable_tags, out_of_order_disk, write};
use lab::random::Random;
use seam::sim::{Fault, Latency, Ops, Rule, SimDiskSpec, Timing, When};
use seam::{Nanos, Seam};

const MIB: u64 = 1 << 20;

#[test]
fn case_20_two_flushes_end_under_full_write_load() {
    let fixture = Fixture::with_memory(1, 16 * MIB);
    let timing = Timing::between(Nanos::from_millis(2), Nanos::from_millis(6));
    fixture.add_disk("disk", SimDiskSpec { timing, ..SimDiskSpec::new(64 * MIB) });
    let volume = fixture.attach("disk", |_| ()).unwrap();
    let (stop, written) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0_u64)));
    for writer in 0..4 {
        let (volume, seam) = (volume.clone(), fixture.seam.clone());
        let (stop, written) = (Rc::clone(&stop), Rc::clone(&written));
        fixture.seam.spawn(async move {
            let mut random = Random::new(20, writer);
            while !stop.get() {
                write(&volume, random.below(16_000) * 8, 8, 1 + writer)
                    .await
                    .expect("a disk without faults does not fail");
                written.set(written.get() + 1);
                seam.sleep(Nanos::from_micros(20)).await;
            }
        });
    }
    fixture.world.run_for(Nanos::from_secs(2)).unwrap();
    for _ in 0..5 {
        let (start, before, dirty) = (fixture.world.now(), written.get(), volume.stats().dirty_bytes);
        let (other, ended) = (volume.clone(), Rc::new(Cell::new(false)));
        let seen = Rc::clone(&ended);
        fixture.seam.spawn(async move {
            other.flush().await.expect("a disk without faults does not fail");
            seen.set(true);
        });
        fixture.world.block_on(volume.flush()).unwrap();
        // 32 concurrent writes of 4 ms each are 8,000 blocks per second; the flush does not wait for later writes.
        let bound = Nanos(2 * 1_000_000_000 * (dirty / 4096 + 1000) / 8000);
        let elapsed = fixture.world.now().since(start);
        assert!(elapsed < bound, "{elapsed} for {dirty} bytes");
        assert!(written.get() > before, "all writers waited for the flush");
        fixture.world.run_for(Nanos::from_millis(500)).unwrap();
        assert!(ended.get(), "the other flush is still waiting");
    }
    stop.set(true);
    fixture.world.run_for(Nanos::from_secs(1)).unwrap();
    fixture.world.block_on(volume.destage_all()).unwrap();
    assert_eq!((volume.stats().dirty_bytes, volume.stats().written_bytes), (0, 0));
}

#[test]
fn case_20_failed_flush_reports_and_the_next_rewrites_all() {
    let fixture = Fixture::with_memory(1, 4 * MIB);
    let disk = fixture.add_disk("disk", out_of_order_disk(4 * MIB));
    let volume = fixture.attach("disk", |_| ()).unwrap();
    for block in 0..32 {
        fixture.world.block_on(write(&volume, block * 8, 8, 9)).unwrap();
    }
    disk.add_fault(Rule::new(Fault::Error, Ops::FLUSH, When::Nth(0)));
    assert!(fixture.world.block_on(volume.flush()).is_err());
    assert_eq!(volume.stats().dirty_bytes, 32 * 4096, "after a failed flush the data is dirty again");
    let writes = disk.counts().writes;
    fixture.world.block_on(volume.flush()).unwrap();
    assert!(disk.counts().writes > writes, "the data is written again");
    assert_eq!(durable_tags(&disk, 0, 256), [9; 256]);
}

#[test]
fn case_20_flush_cut_off_by_a_reconnect_is_repeated_silently() {
    let fixture = Fixture::with_memory(1, 4 * MIB);
    let mut spec = out_of_order_disk(4 * MIB);
    spec.timing.flush = Latency::fixed(Nanos::from_millis(50));
    let disk = fixture.add_disk("disk", spec);
    let volume = fixture.attach("disk", |_| ()).unwrap();
    fixture.world.block_on(write(&volume, 0, 128, 3)).unwrap();
    let (reconnecting_disk, seam) = (disk.clone(), fixture.seam.clone());
    fixture.seam.spawn(async move {
        for _ in 0..3 {
            seam.sleep(Nanos::from_millis(20)).await;
            reconnecting_disk.reconnect();
        }
    });
    fixture.world.block_on(volume.flush()).unwrap();
    assert!(disk.counts().flushes > 1, "the interrupted flush was not repeated");
    assert_eq!(durable_tags(&disk, 0, 128), [3; 128]);
}

#[test]
fn case_20_clean_cache_detaches_in_under_a_second() {
    let fixture = Fixture::with_memory(1, 64 * MIB);
    fixture.add_disk("disk", SimDiskSpec::new(32 * MIB));
    let volume = fixture.attach("disk", |_| ()).unwrap();
    fixture.world.block_on(volume.prefetch(ByteOffset::ZERO, 32 * MIB)).unwrap();
    let start = fixture.world.now();
    fixture.world.block_on(fixture.core.detach("disk")).unwrap();
    assert!(fixture.world.now().since(start) < Nanos::from_secs(1));
}

#[test]
fn case_20_large_flush_yields_the_core_and_ends() {
    let flush_time = |has_busy_clients: bool| {
        let fixture = Fixture::with_memory(1, 64 * MIB);
        let timing = Timing::between(Nanos::from_micros(5), Nanos::from_micros(15));
        fixture.add_disk("dirty", SimDiskSpec { timing, ..SimDiskSpec::new(64 * MIB) });
        fixture.add_disk("hit", out_of_order_disk(MIB));
        let (dirty, hit) = (fixture.attach("dirty", |_| ()).unwrap(), fixture.attach("hit", |_| ()).unwrap());
        fixture.world.block_on(async {
            for block in 0..2500 {
                // No two blocks are adjacent, so each is a separate run.
                write(&dirty, block * 16, 8, 1).await.expect("a disk without faults does not fail");
            }
        });
        let stop = Rc::new(Cell::new(!has_busy_clients));
        let (stopped, seam) = (Rc::clone(&stop), fixture.seam.clone());
        fixture.seam.spawn(async move {
            while !stopped.get() {
                hit.read(ByteOffset::ZERO, 4096, &mut Vec::new()).await.expect("a disk without faults does not fail");
                seam.sleep(Nanos::from_micros(100)).await;
            }
        });
        fixture.world.run_for(Nanos::from_millis(100)).unwrap();
        let start = fixture.world.now();
        fixture.world.block_on(dirty.flush()).unwrap();
        stop.set(true);
        fixture.world.now().since(start)
    };
    let (idle, busy) = (flush_time(false), flush_time(true));
    assert!(idle < Nanos::from_millis(50), "{idle} without busy clients");
    assert!((Nanos::from_millis(90)..Nanos::from_millis(400)).contains(&busy), "{busy} beside busy clients");
}
