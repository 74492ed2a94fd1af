//! A log that fills: what is written again stays there, what is not goes to its backing in turn, oldest first, whatever one volume or one block is
//! up to, and writers are slowed no more than they must be.

use std::cell::Cell;
use std::rc::Rc;

use engine::{CoreSpec, Volume, VolumeSpec};
use lab::rig::{Rig, durable, read, write};
use lab::torture::flash::FlashOptions;
use seam::sim::{CrashMode, Fault, Ops, Rule, SimDiskSpec, SimSeam, Timing, When, WorldSpec};
use seam::{DiskOpen, Nanos, Seam};

const MIB: u64 = 1 << 20;

fn log() -> FlashOptions {
    FlashOptions::plain(2, 256 << 10, 100)
}

/// A disk of which 32 requests take so many milliseconds, about.
#[derive(Clone, Copy)]
struct Disk<'a>(&'a str, u64);

/// A rig with the log, and a volume on each of these disks.
fn rig(seed: u64, disks: &[Disk]) -> (Rig, Vec<Volume<SimSeam>>) {
    let rig = Rig::new(WorldSpec { blocks: 2_048, ..WorldSpec::new(seed) }, CoreSpec::default());
    for Disk(name, ms) in disks {
        let timing = Timing::between(Nanos::from_millis(ms - ms / 10), Nanos::from_millis(ms + ms / 10));
        rig.add_disk(name, SimDiskSpec { timing, ..SimDiskSpec::new(8_192 * MIB) });
    }
    log().add_disks(&rig.world);
    let volumes = serve(&rig, disks, true);
    (rig, volumes)
}

fn serve(rig: &Rig, disks: &[Disk], first: bool) -> Vec<Volume<SimSeam>> {
    rig.world.block_on(async {
        log().open(&rig.seam, &rig.core, first, false).await.expect("the devices are whole");
        let mut volumes = Vec::new();
        for (number, Disk(name, _)) in disks.iter().enumerate() {
            let open = DiskOpen { path: (*name).into(), create_bytes: None, read_only: false, lock_wait_ms: 1_000 };
            let disk = engine::Backing::plain(rig.seam.open_disk(&open).await.expect("the disk is there"));
            let spec = VolumeSpec::new(name, 1 + number as u64);
            volumes.push(rig.core.attach_recovered(spec, disk).await.expect("the log was read"));
        }
        volumes
    })
}

const HOT: [Disk; 1] = [Disk("disk", 1)];

/// How many of the first `count` blocks that [`write_anew`] writes are on the disk.
fn arrived(rig: &Rig, disk: &str, count: u64) -> u64 {
    let disk = rig.world.disk(disk).unwrap();
    (0..count).filter(|block| durable(&disk, block * 16, 8) == [7; 8]).count() as u64
}

/// Writes blocks that were never written and are nobody's neighbours until `end`, flushed in twenties, `pause` after each; how many.
async fn write_anew(seam: SimSeam, volume: Volume<SimSeam>, end: Nanos, pause: Nanos) -> u64 {
    let mut block = 0;
    while seam.now() < end {
        for _ in 0..20 {
            write(&volume, block * 16, 8, 7).await.unwrap();
            block += 1;
        }
        volume.flush().await.unwrap();
        seam.sleep(pause).await;
    }
    block
}

/// Writes the same twenty blocks again and again until `end`, flushed after each round.
async fn write_again(seam: SimSeam, volume: Volume<SimSeam>, end: Nanos, pause: Nanos) {
    while seam.now() < end {
        for block in 0..20 {
            write(&volume, block * 16, 8, 7).await.unwrap();
        }
        volume.flush().await.unwrap();
        seam.sleep(pause).await;
    }
}

#[test]
fn what_is_written_again_stays_in_the_log_and_what_is_not_goes_to_the_backing() {
    let rounds = 2_000;
    let (rig, volumes) = rig(11, &HOT);
    let volume = &volumes[0];
    // Clients that never pause: every round twenty blocks are written again, and one that never will be.
    rig.world.block_on(async {
        // So long after the start that what is recalled counts as old.
        rig.seam.sleep(Nanos::from_secs(1_000)).await;
        for round in 0..rounds {
            for hot in 0..20 {
                write(volume, hot * 8, 8, 10_000 + round).await.unwrap();
            }
            write(volume, (100 + round) * 8, 8, 7).await.unwrap();
            volume.flush().await.unwrap();
            rig.seam.sleep(Nanos::from_millis(20)).await;
        }
    });
    let written = volume.stats().backing_write_bytes / 4096;
    let disk = rig.world.disk("disk").unwrap();
    let brought = (0..rounds).filter(|round| durable(&disk, (100 + round) * 8, 8) == [7; 8]).count() as u64;
    println!("{written} blocks of {} to the backing, {brought} of {rounds} cold ones are there", 21 * rounds);
    assert!(brought > rounds / 2, "{brought} of those that are not written again have made room");
    assert!(written < brought + 20 * rounds / 10, "nine in ten writes of the others were spared: {written}");
    let dirty = volume.stats().flash_dirty_bytes;
    assert!(dirty < log().segments * log().segment_bytes / 4, "{dirty} bytes: most of flash is for clean pages");
    drop(volumes);
    let rig = rig.crash(CrashMode::LoseAll, WorldSpec { blocks: 2_048, ..WorldSpec::new(12) });
    let volume = &serve(&rig, &HOT, false)[0];
    rig.world.block_on(async {
        for hot in 0..20 {
            assert_eq!(read(volume, hot * 8, 8).await.unwrap(), [10_000 + rounds - 1; 8]);
        }
        for round in 0..rounds {
            assert_eq!(read(volume, (100 + round) * 8, 8).await.unwrap(), [7; 8], "round {round}");
        }
    });
}

#[test]
fn what_nobody_flushes_is_in_the_log_before_it_is_old() {
    let (rig, volumes) = rig(13, &HOT);
    rig.world.disk("disk").unwrap().add_fault(Rule::new(Fault::Error, Ops::CHANGE, When::Always));
    rig.world.block_on(async {
        write(&volumes[0], 0, 8, 5).await.unwrap();
        for _ in 0..130 {
            // Never idle, or it would go to the backing.
            read(&volumes[0], 800, 8).await.unwrap();
            rig.seam.sleep(Nanos::from_millis(100)).await;
        }
    });
    drop(volumes);
    let rig = rig.crash(CrashMode::LoseAll, WorldSpec { blocks: 2_048, ..WorldSpec::new(14) });
    let volume = &serve(&rig, &HOT, false)[0];
    assert_eq!(rig.world.block_on(read(volume, 0, 8)).unwrap(), [5; 8]);
}

#[test]
fn what_is_old_goes_to_the_backing_although_nothing_more_is_written_and_nobody_is_idle() {
    let (rig, volumes) = rig(15, &HOT);
    rig.world.block_on(async {
        write(&volumes[0], 0, 8, 7).await.unwrap();
        volumes[0].flush().await.unwrap();
        for _ in 0..7_000 {
            read(&volumes[0], 800, 8).await.unwrap();
            rig.seam.sleep(Nanos::from_millis(100)).await;
        }
    });
    assert_eq!(arrived(&rig, "disk", 1), 1, "after 700 s");
}

#[test]
fn writers_are_slowed_to_what_the_backing_takes_long_before_the_log_is_full() {
    let (rig, volumes) = rig(17, &[Disk("slow", 100)]);
    let log_bytes = log().segments * log().segment_bytes;
    let (seam, volume, fullest) = (rig.seam.clone(), volumes[0].clone(), Rc::new(Cell::new(0)));
    let seen = Rc::clone(&fullest);
    rig.seam.spawn(async move {
        loop {
            seam.sleep(Nanos::from_millis(10)).await;
            seen.set(seen.get().max(volume.stats().flash_dirty_bytes));
        }
    });
    let work = write_anew(rig.seam.clone(), volumes[0].clone(), Nanos::from_secs(120), Nanos::from_millis(5));
    let a_second = rig.world.block_on(work) / 120;
    println!("{a_second} blocks a second; the log held {} % at most", fullest.get() * 100 / log_bytes);
    assert!(fullest.get() < log_bytes / 2, "{} of {log_bytes} bytes: the log fills", fullest.get());
    assert!((250..400).contains(&a_second), "{a_second} blocks a second where the backing takes 320");
}

/// Blocks a second that a volume writes for 90 s, beside others that are at work for a minute already if they are `busy`.
fn beside(seed: u64, busy: bool) -> u64 {
    let (rig, volumes) = rig(seed, &[Disk("slow", 100), Disk("fast", 1)]);
    if busy {
        let work = write_anew(rig.seam.clone(), volumes[0].clone(), Nanos::from_secs(1_000), Nanos::from_millis(5));
        rig.seam.spawn(async move {
            work.await;
        });
    }
    rig.world.run_for(Nanos::from_secs(60)).unwrap();
    let work = write_anew(rig.seam.clone(), volumes[1].clone(), Nanos::from_secs(150), Nanos::from_millis(20));
    rig.world.block_on(work) / 90
}

#[test]
fn a_volume_whose_backing_is_behind_slows_its_own_writers_alone() {
    let [alone, beside] = [false, true].map(|busy| beside(18, busy));
    println!("{alone} blocks a second alone, {beside} beside");
    // They share the batches of the log; slowed as the other one it would have a third.
    assert!(beside * 10 > alone * 6, "{alone} blocks a second alone, {beside} beside");
}

#[test]
fn each_volume_has_its_turn_to_bring_what_it_holds() {
    let names: Vec<String> = (0..12).map(|number| format!("disk{number}")).collect();
    let disks: Vec<Disk> = names.iter().map(|name| Disk(name, 100)).collect();
    let (rig, volumes) = rig(19, &disks);
    // The last one begins, and holds the oldest; the others have something to bring at any time.
    let (last, first) = volumes.split_last().unwrap();
    let begun = write_anew(rig.seam.clone(), last.clone(), Nanos::from_millis(500), Nanos::ZERO);
    let count = rig.world.block_on(begun);
    for volume in first {
        let work = write_anew(rig.seam.clone(), volume.clone(), Nanos::from_secs(1_000), Nanos::from_millis(20));
        rig.seam.spawn(async move {
            work.await;
        });
    }
    // Never idle, and nothing new.
    let (seam, reader) = (rig.seam.clone(), last.clone());
    rig.seam.spawn(async move {
        loop {
            read(&reader, 800_000, 8).await.unwrap();
            seam.sleep(Nanos::from_millis(50)).await;
        }
    });
    rig.world.run_for(Nanos::from_secs(60)).unwrap();
    let there = arrived(&rig, "disk11", count);
    println!("{there} of {count} of the last volume are on its backing");
    assert_eq!(there, count, "a minute later");
}

#[test]
fn a_block_that_cannot_be_written_stops_none_behind_it() {
    let (rig, volumes) = rig(20, &HOT);
    let bad = Rule { range: Some(0..4096), ..Rule::new(Fault::Error, Ops::WRITE, When::Always) };
    rig.world.disk("disk").unwrap().add_fault(bad);
    let count =
        rig.world.block_on(write_anew(rig.seam.clone(), volumes[0].clone(), Nanos::from_millis(200), Nanos::ZERO));
    let work = write_again(rig.seam.clone(), volumes[0].clone(), Nanos::from_secs(10), Nanos::from_millis(100));
    rig.world.block_on(work);
    let there = arrived(&rig, "disk", count);
    println!("{there} of {count} are on the backing");
    assert!(there > count / 4, "{there} of {count}: what was written first, but for one block, is there");
}

#[test]
fn a_backing_that_hangs_holds_up_nobody_else_and_gets_everything_when_it_answers() {
    let (rig, volumes) = rig(21, &[Disk("hangs", 1), Disk("fast", 1)]);
    let hang = Fault::Stall(Nanos::from_secs(100));
    let for_a_while = When::Between(Nanos::ZERO, Nanos::from_secs(100));
    rig.world.disk("hangs").unwrap().add_fault(Rule::new(hang, Ops::CHANGE, for_a_while));
    let count =
        rig.world.block_on(write_anew(rig.seam.clone(), volumes[0].clone(), Nanos::from_millis(100), Nanos::ZERO));
    let work = write_anew(rig.seam.clone(), volumes[1].clone(), Nanos::from_secs(90), Nanos::from_millis(20));
    let beside = rig.world.block_on(work);
    println!("{count} blocks to the one that hangs, {beside} to the other");
    assert!(arrived(&rig, "fast", beside) > beside / 2, "what the other volume wrote goes to its backing");
    rig.world.block_on(volumes[0].destage_all()).expect("it answers again");
    assert_eq!(arrived(&rig, "hangs", count), count);
}
