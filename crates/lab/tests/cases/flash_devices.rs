//! Flash devices that are pulled, die, are replaced, grow and shrink under a volume: cases 13, 14 and 18 of caches that others broke.

use std::cell::Cell;
use std::rc::Rc;

use engine::{CoreSpec, Volume, VolumeSpec};
use flash::{FormatOptions, MemberStatus, OpenOptions, Store, StoreError};
use lab::rig::{Rig, read, write};
use seam::sim::{CrashMode, Fault, Ops, Rule, SimDisk, SimDiskSpec, SimSeam, Stop, When, WorldSpec};
use seam::{Disk, DiskOpen, Nanos, Seam};

const MIB: u64 = 1 << 20;
const SEGMENT: u64 = 64 << 10;
/// Blocks that are written.
const BLOCKS: u64 = 60;

fn spec(seed: u64) -> WorldSpec {
    WorldSpec { blocks: 4096, ..WorldSpec::new(seed) }
}

async fn disk(seam: &SimSeam, name: &str) -> SimDisk {
    let open = DiskOpen { path: name.into(), create_bytes: None, read_only: false, lock_wait_ms: 1_000 };
    seam.open_disk(&open).await.expect("the disk is there")
}

/// Opens the log on whichever of these devices are members, and the volume over it.
async fn serve(rig: &Rig, names: &[&str]) -> (Volume<SimSeam>, Store<SimSeam>) {
    let mut disks = Vec::new();
    for name in names {
        disks.push(disk(&rig.seam, name).await);
    }
    let (store, found) = loop {
        match Store::open(&rig.seam, &disks, OpenOptions::default()).await {
            Err(StoreError::NoStore { device, .. }) if disks.len() > 1 => {
                disks.retain(|disk| disk.identity() != device);
            }
            opened => break opened.expect("the store opens"),
        }
    };
    rig.core.open_log(store.clone(), found);
    let backing = engine::Backing::plain(disk(&rig.seam, "disk").await);
    let volume = rig.core.attach_recovered(VolumeSpec::new("disk", 1), backing).await;
    (volume.expect("what the log holds is there"), store)
}

/// A world with a backing that takes nothing, so that everything stays in the log, and a new log on the first two of `segments`.
fn first_life(seed: u64, segments: &[u64]) -> (Rig, Volume<SimSeam>, Store<SimSeam>) {
    let rig = Rig::new(spec(seed), CoreSpec::default());
    rig.add_disk("disk", SimDiskSpec::new(8 * MIB));
    for (name, segments) in ["flash0", "flash1", "flash2"].iter().zip(segments) {
        rig.world.add_disk(name, SimDiskSpec::new(MIB + segments * SEGMENT));
    }
    let (volume, store) = rig.world.block_on(async {
        let disks = [disk(&rig.seam, "flash0").await, disk(&rig.seam, "flash1").await];
        let options = FormatOptions { segment_bytes: Some(SEGMENT), ..FormatOptions::default() };
        Store::format(&rig.seam, &disks, options).await.expect("they are empty");
        drop(disks);
        serve(&rig, &["flash0", "flash1"]).await
    });
    (rig, volume, store)
}

async fn write_all(volume: &Volume<SimSeam>, generation: u64) {
    for block in 0..BLOCKS {
        write(volume, block * 24, 8, generation).await.expect("memory takes it");
    }
    volume.flush().await.expect("a copy takes it");
}

/// Every block holds what was flushed, or something newer.
fn check(rig: &Rig, volume: &Volume<SimSeam>, flushed: u64, what: &str) {
    for block in 0..BLOCKS {
        let content = rig.world.block_on(read(volume, block * 24, 8)).expect("a copy is good");
        assert!(
            content[0] >= flushed && content == [content[0]; 8],
            "{what}: block {block} is {content:?}, not {flushed}"
        );
    }
}

#[test]
fn case_13_a_device_pulled_at_depth_128_fails_nobody_and_comes_back_as_stale() {
    let (rig, volume, store) = first_life(1, &[40, 40]);
    rig.world.block_on(async {
        write_all(&volume, 1).await;
        let (left, failed) = (Rc::new(Cell::new(128)), Rc::new(Cell::new(0)));
        for writer in 0..128 {
            let (volume, left, failed) = (volume.clone(), Rc::clone(&left), Rc::clone(&failed));
            rig.seam.spawn(async move {
                for round in 0..3 {
                    let written = write(&volume, (BLOCKS + writer) * 24, 8, 10 + round).await.is_ok();
                    if !written || volume.flush().await.is_err() {
                        failed.set(failed.get() + 1);
                    }
                }
                left.set(left.get() - 1);
            });
        }
        rig.seam.sleep(Nanos::from_micros(300)).await;
        rig.world.disk("flash0").unwrap().vanish();
        while left.get() > 0 {
            rig.seam.sleep(Nanos::from_millis(1)).await;
        }
        assert_eq!((failed.get(), store.copies()), (0, 1));
        write_all(&volume, 20).await;
    });
    drop((volume, store));
    let rig = rig.crash(CrashMode::LoseAll, spec(2));
    let (volume, store) = rig.world.block_on(serve(&rig, &["flash0", "flash1"]));
    assert_eq!(store.members()[0].status, MemberStatus::Stale);
    check(&rig, &volume, 20, "after it came back");
}

/// Without the note the device that is out, alone at the next start, would pass for the last one in service.
#[test]
fn flushes_fail_until_the_owner_has_noted_that_a_device_is_out() {
    let (rig, volume, store) = first_life(3, &[40, 40]);
    let (noted, may_note) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let (note, may) = (Rc::clone(&noted), Rc::clone(&may_note));
    store.note_generations(move |generation| {
        let may = may.get();
        note.set(if may { generation } else { note.get() });
        Box::pin(async move { if may { Ok(()) } else { Err("the disk is full".to_owned()) } })
    });
    rig.world.block_on(async {
        write_all(&volume, 1).await;
        rig.world.disk("flash0").unwrap().vanish();
        for generation in 2..5 {
            write(&volume, 0, 8, generation).await.expect("memory takes it");
            let error = volume.flush().await.expect_err("one copy, and the owner does not know").to_string();
            assert!(error.contains("could not be noted (the disk is full)"), "{error}");
        }
        assert_eq!((noted.get(), store.copies()), (0, 1));
        may_note.set(true);
        rig.seam.sleep(Nanos::from_secs(2)).await;
        write_all(&volume, 5).await;
        assert_eq!(noted.get(), store.generation());
    });
    drop((volume, store));
    let rig = rig.crash(CrashMode::LoseAll, spec(4));
    let (volume, _) = rig.world.block_on(serve(&rig, &["flash0", "flash1"]));
    check(&rig, &volume, 5, "after the crash");
}

/// Lets `change` be made under writes, cut at every so many requests, until a cut comes too late.
fn cut_everywhere(segments: &[u64], every: usize, change: impl AsyncFn(&Rig, &Store<SimSeam>)) {
    for (number, cut) in (0..).step_by(every).enumerate() {
        let (rig, volume, store) = first_life(number as u64, segments);
        let flushed = Rc::new(Cell::new(1));
        rig.world.block_on(write_all(&volume, 1));
        rig.world.crash_at_io(rig.world.io_count() + 1 + cut);
        let ended = rig.world.run_until(async {
            let (writing, own, done) = (volume.clone(), Rc::clone(&flushed), Rc::new(Cell::new(false)));
            let (flag, stop) = (Rc::clone(&done), Rc::new(Cell::new(false)));
            let stops = Rc::clone(&stop);
            rig.seam.spawn(async move {
                for generation in 2.. {
                    write_all(&writing, generation).await;
                    own.set(generation);
                    if stops.get() {
                        break;
                    }
                }
                flag.set(true);
            });
            change(&rig, &store).await;
            stop.set(true);
            while !done.get() {
                rig.seam.sleep(Nanos::from_micros(100)).await;
            }
        });
        let over = match ended {
            Ok(()) => true,
            Err(Stop::CrashPoint) => false,
            Err(stop) => panic!("cut {cut}: {stop}"),
        };
        drop((volume, store));
        let rig = rig.crash(CrashMode::Any, spec(1000 + number as u64));
        let (volume, _) = rig.world.block_on(serve(&rig, &["flash0", "flash1", "flash2"]));
        check(&rig, &volume, flushed.get(), &format!("cut {cut}"));
        if over {
            assert!(number > 10, "it was over before it was cut");
            return;
        }
    }
}

#[test]
fn case_14_one_mirror_dies_and_another_device_takes_its_place_wherever_it_is_cut() {
    cut_everywhere(&[40, 40, 30], 11, async |rig, store| {
        rig.world.disk("flash1").unwrap().add_fault(Rule::new(Fault::Error, Ops::CHANGE | Ops::FLUSH, When::Always));
        let new = disk(&rig.seam, "flash2").await;
        while store.copies() == 2 {
            rig.seam.sleep(Nanos::from_micros(100)).await;
        }
        store.replace(1, new, false).await.expect("it is filled");
        assert_eq!(store.copies(), 2);
    });
}

#[test]
fn case_18_flash_shrinks_and_grows_under_dirty_data_wherever_it_is_cut() {
    cut_everywhere(&[24, 24, 12], 13, async |rig, store| {
        let small = disk(&rig.seam, "flash2").await;
        store.replace(0, small, false).await.expect("what lies past its end is brought to the backing");
        assert_eq!((store.copies(), store.room().1), (2, 12));
        let large = disk(&rig.seam, "flash0").await;
        store.replace(2, large, false).await.expect("it is empty again");
        assert_eq!(store.copies(), 2);
    });
}
