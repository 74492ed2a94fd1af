//! Flash devices that are removed, fail, are replaced, grow and shrink under a volume: cases 13, 14 and 18 of the fault
//! cases.

use std::cell::Cell;
use std::rc::Rc;

use engine::{CoreSpec, Volume, VolumeId, VolumeSpec};
use flash::{FormatOptions, MemberDisk, MemberNo, MemberStatus, MembershipGeneration, OpenOptions, Store, StoreError};
use lab::fixture::{Fixture, read, write};
use seam::sim::{CrashMode, Fault, Ops, Rule, SimDisk, SimDiskSpec, SimSeam, Stop, When, WorldSpec};
use seam::{Disk, DiskOpen, Nanos, Seam};

const MIB: u64 = 1 << 20;
const SEGMENT_BYTES: u64 = 64 << 10;
/// Number of written blocks.
const BLOCKS: u64 = 60;

fn spec(seed: u64) -> WorldSpec {
    WorldSpec { blocks: 4096, ..WorldSpec::new(seed) }
}

async fn disk(seam: &SimSeam, name: &str) -> SimDisk {
    let open = DiskOpen { path: name.into(), create_bytes: None, read_only: false, lock_wait_ms: 1_000 };
    seam.open_disk(&open).await.expect("the disk exists")
}

async fn device(seam: &SimSeam, name: &str) -> MemberDisk<SimSeam> {
    MemberDisk::Local(disk(seam, name).await)
}

/// Opens the log on the member devices among `names`, and attaches the volume.
async fn serve(fixture: &Fixture, names: &[&str]) -> (Volume<SimSeam>, Store<SimSeam>) {
    let mut disks = Vec::new();
    for name in names {
        disks.push(device(&fixture.seam, name).await);
    }
    let (store, recovered) = loop {
        match Store::open(&fixture.seam, &disks, OpenOptions::default()).await {
            Err(StoreError::NoStore { device, .. }) if disks.len() > 1 => {
                disks.retain(|disk| disk.identity() != device);
            }
            opened => break opened.expect("a store with one intact copy opens"),
        }
    };
    fixture.core.open_log(store.clone(), recovered);
    let backing = engine::Backing::plain(disk(&fixture.seam, "disk").await);
    let volume = fixture.core.attach_recovered(VolumeSpec::new("disk", VolumeId(1)), backing).await;
    (volume.expect("an intact log is readable"), store)
}

/// Creates a world with a new log on the first two of the devices with `segments`, and a volume.
fn first_session(seed: u64, segments: &[u64]) -> (Fixture, Volume<SimSeam>, Store<SimSeam>) {
    let fixture = Fixture::new(spec(seed), CoreSpec::default());
    fixture.add_disk("disk", SimDiskSpec::new(8 * MIB));
    for (name, segments) in ["flash0", "flash1", "flash2"].iter().zip(segments) {
        fixture.world.add_disk(name, SimDiskSpec::new(MIB + segments * SEGMENT_BYTES));
    }
    let (volume, store) = fixture.world.block_on(async {
        let disks = [device(&fixture.seam, "flash0").await, device(&fixture.seam, "flash1").await];
        let options = FormatOptions { segment_bytes: Some(SEGMENT_BYTES), ..FormatOptions::default() };
        Store::format(&fixture.seam, &disks, options).await.expect("empty devices can be formatted");
        drop(disks);
        serve(&fixture, &["flash0", "flash1"]).await
    });
    (fixture, volume, store)
}

async fn write_all(volume: &Volume<SimSeam>, generation: u64) {
    for block in 0..BLOCKS {
        write(volume, block * 24, 8, generation).await.expect("memory has space");
    }
    volume.flush().await.expect("one healthy copy suffices for a flush");
}

/// Checks that every block holds its flushed content or a newer one.
fn check(fixture: &Fixture, volume: &Volume<SimSeam>, flushed: u64, context: &str) {
    for block in 0..BLOCKS {
        let content =
            fixture.world.block_on(read(volume, block * 24, 8)).expect("data with one intact copy is readable");
        assert!(
            content[0] >= flushed && content == [content[0]; 8],
            "{context}: block {block} is {content:?}, not {flushed}"
        );
    }
}

#[test]
fn case_13_device_pulled_at_depth_128_fails_no_request() {
    let (fixture, volume, store) = first_session(1, &[40, 40]);
    fixture.world.block_on(async {
        write_all(&volume, 1).await;
        let (writers_left, failed) = (Rc::new(Cell::new(128)), Rc::new(Cell::new(0)));
        for writer in 0..128 {
            let (volume, writers_left, failed) = (volume.clone(), Rc::clone(&writers_left), Rc::clone(&failed));
            fixture.seam.spawn(async move {
                for round in 0..3 {
                    let written = write(&volume, (BLOCKS + writer) * 24, 8, 10 + round).await.is_ok();
                    if !written || volume.flush().await.is_err() {
                        failed.set(failed.get() + 1);
                    }
                }
                writers_left.set(writers_left.get() - 1);
            });
        }
        fixture.seam.sleep(Nanos::from_micros(300)).await;
        fixture.world.disk("flash0").unwrap().vanish();
        while writers_left.get() > 0 {
            fixture.seam.sleep(Nanos::from_millis(1)).await;
        }
        assert_eq!((failed.get(), store.copies()), (0, 1));
        write_all(&volume, 20).await;
    });
    drop((volume, store));
    let fixture = fixture.crash(CrashMode::LoseAll, spec(2));
    let (volume, store) = fixture.world.block_on(serve(&fixture, &["flash0", "flash1"]));
    assert_eq!(store.members()[0].status, MemberStatus::Stale);
    check(&fixture, &volume, 20, "after the device came back");
}

/// Flushes fail until the removal is recorded: otherwise the next start could open the removed device alone as current.
#[test]
fn flushes_fail_until_the_dropped_device_is_recorded() {
    let (fixture, volume, store) = first_session(3, &[40, 40]);
    let (recorded, may_record) = (Rc::new(Cell::new(MembershipGeneration(0))), Rc::new(Cell::new(false)));
    let (last_recorded, is_allowed) = (Rc::clone(&recorded), Rc::clone(&may_record));
    store.set_generation_recorder(move |generation| {
        let is_allowed = is_allowed.get();
        last_recorded.set(if is_allowed { generation } else { last_recorded.get() });
        Box::pin(async move { if is_allowed { Ok(()) } else { Err("the disk is full".to_owned()) } })
    });
    fixture.world.block_on(async {
        write_all(&volume, 1).await;
        fixture.world.disk("flash0").unwrap().vanish();
        for generation in 2..5 {
            write(&volume, 0, 8, generation).await.expect("memory has space");
            let error = volume.flush().await.expect_err("the dropped device is not recorded").to_string();
            assert!(error.contains("could not be recorded (the disk is full)"), "{error}");
        }
        assert_eq!((recorded.get(), store.copies()), (MembershipGeneration(0), 1));
        may_record.set(true);
        fixture.seam.sleep(Nanos::from_secs(2)).await;
        write_all(&volume, 5).await;
        assert_eq!(recorded.get(), store.generation());
    });
    drop((volume, store));
    let fixture = fixture.crash(CrashMode::LoseAll, spec(4));
    let (volume, _) = fixture.world.block_on(serve(&fixture, &["flash0", "flash1"]));
    check(&fixture, &volume, 5, "after the crash");
}

/// Runs `change` under writes and crashes it after every `every`-th request, until the change ends before the crash.
fn crash_at_every_request(segments: &[u64], every: usize, change: impl AsyncFn(&Fixture, &Store<SimSeam>)) {
    for (number, crash_point) in (0..).step_by(every).enumerate() {
        let (fixture, volume, store) = first_session(number as u64, segments);
        let flushed = Rc::new(Cell::new(1));
        fixture.world.block_on(write_all(&volume, 1));
        fixture.world.crash_at_io(fixture.world.io_count() + 1 + crash_point);
        let ended = fixture.world.run_until(async {
            let (has_ended, stop) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
            let (writer_volume, flushed_by_writer) = (volume.clone(), Rc::clone(&flushed));
            let (writer_done, writer_stop) = (Rc::clone(&has_ended), Rc::clone(&stop));
            fixture.seam.spawn(async move {
                for generation in 2.. {
                    write_all(&writer_volume, generation).await;
                    flushed_by_writer.set(generation);
                    if writer_stop.get() {
                        break;
                    }
                }
                writer_done.set(true);
            });
            change(&fixture, &store).await;
            stop.set(true);
            while !has_ended.get() {
                fixture.seam.sleep(Nanos::from_micros(100)).await;
            }
        });
        let has_ended = match ended {
            Ok(()) => true,
            Err(Stop::CrashPoint) => false,
            Err(stop) => panic!("crash point {crash_point}: {stop}"),
        };
        drop((volume, store));
        let fixture = fixture.crash(CrashMode::Any, spec(1000 + number as u64));
        let (volume, _) = fixture.world.block_on(serve(&fixture, &["flash0", "flash1", "flash2"]));
        check(&fixture, &volume, flushed.get(), &format!("crash point {crash_point}"));
        if has_ended {
            assert!(number > 10, "the change was crashed at only {number} points");
            return;
        }
    }
}

#[test]
fn case_14_mirror_replacement_survives_a_crash_at_any_request() {
    crash_at_every_request(&[40, 40, 30], 11, async |fixture, store| {
        fixture.world.disk("flash1").unwrap().add_fault(Rule::new(
            Fault::Error,
            Ops::CHANGE | Ops::FLUSH,
            When::Always,
        ));
        let new = device(&fixture.seam, "flash2").await;
        while store.copies() == 2 {
            fixture.seam.sleep(Nanos::from_micros(100)).await;
        }
        store.replace(MemberNo(1), new, false).await.expect("a mirror can be replaced");
        assert_eq!(store.copies(), 2);
    });
}

#[test]
fn case_18_flash_resize_under_dirty_data_survives_any_crash() {
    crash_at_every_request(&[24, 24, 12], 13, async |fixture, store| {
        let small = device(&fixture.seam, "flash2").await;
        store.replace(MemberNo(0), small, false).await.expect("a smaller device can replace a mirror");
        assert_eq!((store.copies(), store.room().1), (2, 12));
        let large = device(&fixture.seam, "flash0").await;
        store.replace(MemberNo(2), large, false).await.expect("a larger device can replace a mirror");
        assert_eq!(store.copies(), 2);
    });
}
