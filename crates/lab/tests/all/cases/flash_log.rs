//! The flash log under the engine: the durability of a flush without the backing, and the records that a recovery must
//! or must not return.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use engine::evidence::DestagedComparison;
use engine::{BlockNo, ByteOffset, CacheMode, CoreSpec, Volume, VolumeId, VolumeSpec, WriteFlags, WritePolicy};
use lab::fixture::{Fixture, durable_tags, read, write, write_evidence};
use lab::torture::flash::FlashOptions;
use seam::sim::{CrashMode, Fault, Ops, Rule, SimDiskSpec, SimSeam, Timing, When, WorldSpec};
use seam::{DiskOpen, Nanos, Seam};

const MIB: u64 = 1 << 20;

fn log(segments: u64) -> FlashOptions {
    FlashOptions::plain(2, 64 << 10, segments)
}

fn spec(seed: u64) -> WorldSpec {
    WorldSpec { blocks: 4096, ..WorldSpec::new(seed) }
}

/// Creates a world with a disk of 8 MiB, a log, and a volume over both.
fn first_session(seed: u64, segments: u64) -> (Fixture, Volume<SimSeam>) {
    let fixture = Fixture::new(spec(seed), CoreSpec::default());
    fixture.add_disk("disk", SimDiskSpec::new(8 * MIB));
    log(segments).add_disks(&fixture.world);
    let volume = serve(&fixture, segments, true);
    (fixture, volume)
}

/// Crashes the world and serves the volume in the next one.
fn next_session(fixture: Fixture, mode: CrashMode, seed: u64, segments: u64) -> (Fixture, Volume<SimSeam>) {
    let fixture = fixture.crash(mode, spec(seed));
    let volume = serve(&fixture, segments, false);
    (fixture, volume)
}

/// Opens the log, which the first session formats, and attaches the volume.
fn serve(fixture: &Fixture, segments: u64, first: bool) -> Volume<SimSeam> {
    let open = DiskOpen { path: "disk".into(), create_bytes: None, read_only: false, lock_wait_ms: 1_000 };
    fixture.world.block_on(async {
        log(segments).open(&fixture.seam, &fixture.core, first, false).await.expect("the devices are intact");
        let disk = fixture.seam.open_disk(&open).await.expect("the disk exists");
        fixture
            .core
            .attach_recovered(VolumeSpec::new("disk", VolumeId(1)), engine::Backing::plain(disk))
            .await
            .expect("an intact log is readable")
    })
}

#[test]
fn flush_succeeds_without_the_backing_and_survives_a_power_cut() {
    let (fixture, volume) = first_session(1, 16);
    fixture.world.disk("disk").unwrap().add_fault(Rule::new(Fault::Error, Ops::CHANGE, When::Always));
    fixture.world.block_on(async {
        for block in 0..40 {
            write(&volume, block * 24, 8, 7).await.unwrap();
        }
        volume.flush().await.expect("the log has the data");
        write(&volume, 0, 8, 8).await.unwrap();
    });
    let members = fixture.core.pages().unwrap().stats().members;
    let written: Vec<u64> = members.iter().map(|member| member.log_bytes).collect();
    assert!(written.len() == 2 && written.iter().all(|bytes| (40 * 4096..60 * 4096).contains(bytes)), "{written:?}");
    drop(volume);
    let (fixture, volume) = next_session(fixture, CrashMode::LoseAll, 2, 16);
    let content = |block: u64| fixture.world.block_on(read(&volume, block * 24, 8)).unwrap();
    assert!((0..40).all(|block| content(block) == [7; 8]), "the flushed content, without the unflushed write");
    let disk = fixture.world.disk("disk").unwrap();
    let destaged = || (0..40).filter(|block| durable_tags(&disk, block * 24, 8) == [7; 8]).count();
    assert!(destaged() <= 4, "the backing failed all writes before; now it gets evidence");
    fixture.world.block_on(volume.destage_all()).unwrap();
    assert_eq!(destaged(), 40);
}

#[test]
fn flush_continues_on_one_device_and_ignores_the_stale_one() {
    let (fixture, volume) = first_session(3, 16);
    fixture.world.block_on(async {
        write(&volume, 0, 8, 1).await.unwrap();
        volume.flush().await.unwrap();
    });
    fixture.world.disk("flash1").unwrap().add_fault(Rule::new(Fault::Error, Ops::ALL, When::Always));
    fixture.world.disk("disk").unwrap().add_fault(Rule::new(Fault::Error, Ops::CHANGE, When::Always));
    fixture.world.block_on(async {
        write(&volume, 0, 8, 2).await.unwrap();
        volume.flush().await.expect("the other device has the data");
    });
    drop(volume);
    let (fixture, volume) = next_session(fixture, CrashMode::LoseAll, 4, 16);
    assert_eq!(fixture.world.block_on(read(&volume, 0, 8)).unwrap(), [2; 8]);
}

/// Found by torture (seed 90): a destage had promised durable zeroes, but an older log record was recovered over them.
#[test]
fn destage_all_is_not_undone_by_an_older_record() {
    let (fixture, volume) = first_session(5, 16);
    fixture.world.block_on(async {
        write(&volume, 0, 8, 1).await.unwrap();
        volume.flush().await.unwrap();
        write(&volume, 0, 8, 2).await.unwrap();
        volume.destage_all().await.unwrap();
    });
    drop(volume);
    let (fixture, volume) = next_session(fixture, CrashMode::LoseAll, 6, 16);
    assert_eq!(fixture.world.block_on(read(&volume, 0, 8)).unwrap(), [2; 8]);
}

/// Found by torture (seed 10067613): after a shrink inside a block, the block's log record brought back the data past
/// the end.
#[test]
fn data_cut_off_by_a_shrink_is_not_recovered_from_the_log() {
    let (fixture, volume) = first_session(7, 16);
    fixture.world.block_on(async {
        write(&volume, 800, 8, 7).await.unwrap();
        volume.flush().await.unwrap();
        volume.resize(Some(802 * 512), false).await.unwrap();
        volume.resize(Some(8 * MIB), false).await.unwrap();
        volume.destage_all().await.unwrap();
    });
    drop(volume);
    let (fixture, volume) = next_session(fixture, CrashMode::LoseAll, 8, 16);
    assert_eq!(fixture.world.block_on(read(&volume, 800, 8)).unwrap(), [7, 7, 0, 0, 0, 0, 0, 0]);
}

/// Found by torture (seed 10149725): the size had changed, but the shrink was reported as failed.
#[test]
fn shrink_succeeds_without_the_log_and_the_next_flush_fails() {
    let (fixture, volume) = first_session(11, 16);
    fixture.world.block_on(async {
        write(&volume, 800, 8, 7).await.unwrap();
        volume.flush().await.unwrap();
    });
    for name in ["flash1", "flash2"] {
        fixture.world.disk(name).unwrap().add_fault(Rule::new(Fault::Error, Ops::CHANGE, When::Always));
    }
    assert_eq!(fixture.world.block_on(volume.resize(Some(4096), true)), Ok(4096));
    assert_eq!(volume.size_bytes(), 4096);
    assert!(fixture.world.block_on(volume.flush()).is_err(), "the record of the dropped data is still in the log");
}

/// Found by torture (seed 205017897): a read of the backing for the ring of recent writes ended during a shrink and
/// added a block past the new end. After a growth, the ring and the zeroes on the backing differed, and the pages were
/// dropped.
#[test]
fn shrink_leaves_no_recent_write_past_the_new_end() {
    let mut found_unproven = 0;
    for delay in 0..100 {
        let fixture = Fixture::new(spec(delay), CoreSpec::default());
        let timing = Timing::between(Nanos::from_micros(900), Nanos::from_micros(900));
        fixture.add_disk("disk", SimDiskSpec { timing, ..SimDiskSpec::new(8 * MIB) });
        log(16).add_disks(&fixture.world);
        let volume = serve(&fixture, 16, true);
        fixture.world.block_on(async {
            write(&volume, 12_000, 32, 7).await.unwrap();
            volume.destage_all().await.unwrap();
            fixture.seam.sleep(Nanos::from_secs(2)).await;
            // The region of the recorded blocks becomes dirty and is still dirty at the crash.
            write(&volume, 12_000, 8, 8).await.unwrap();
            volume.destage_all().await.unwrap();
        });
        drop(volume);
        let (fixture, volume) = next_session(fixture, CrashMode::LoseAll, delay, 16);
        fixture.world.run_for(Nanos::from_micros(delay * 50)).unwrap();
        let pages = fixture.core.pages().unwrap().volume(VolumeId(1));
        found_unproven += usize::from(!pages.unproven_blocks().is_empty());
        fixture.world.block_on(volume.resize(Some(4 * MIB), true)).unwrap();
        fixture.world.run_for(Nanos::from_secs(1)).unwrap();
        assert!(pages.recent_writes().iter().all(|(block, _)| block.0 < 1_024), "delay {delay}");
    }
    assert!(found_unproven > 10, "too few shrinks began before the ring was complete: {found_unproven}");
}

/// Found by torture (seed 102196): records of discarded blocks filled the log and left no space for their tombstones.
#[test]
fn log_full_of_discarded_records_frees_space() {
    let (fixture, volume) = first_session(7, 6);
    fixture.world.block_on(async {
        for round in 0..20 {
            for block in 0..60 {
                write(&volume, block * 8, 8, round + 1).await.unwrap();
            }
            volume.flush().await.unwrap_or_else(|error| panic!("round {round}: {error}"));
            volume.discard(ByteOffset::ZERO, 60 * 4096, WriteFlags::default()).await.unwrap();
        }
        volume.flush().await.unwrap();
    });
    drop(volume);
    let (fixture, volume) = next_session(fixture, CrashMode::LoseAll, 8, 6);
    assert_eq!(fixture.world.block_on(read(&volume, 0, 480)).unwrap(), [0; 480]);
}

/// Found by torture (seed 516996): the zeroes were on the backing alone, and an older copy of it was served.
#[test]
fn flushed_zeroes_need_no_backing_and_survive_a_power_cut() {
    for is_fua in [false, true] {
        let (fixture, volume) = first_session(51, 16);
        let disk = fixture.world.disk("disk").unwrap();
        fixture.world.block_on(async {
            write(&volume, 0, 160, 7).await.unwrap();
            volume.flush().await.unwrap();
            volume.destage_all().await.unwrap();
            disk.add_fault(Rule::new(Fault::Error, Ops::CHANGE, When::Always));
            // Blocks 1 and 18 are zeroed in part.
            volume
                .discard(ByteOffset(13 * 512), 136 * 512, WriteFlags { fua: is_fua, ..Default::default() })
                .await
                .unwrap();
            if !is_fua {
                volume.flush().await.expect("the log has the zeroes");
            }
            write(&volume, 80, 8, 9).await.unwrap();
            volume.flush().await.unwrap();
            write(&volume, 88, 8, 10).await.unwrap();
        });
        let expected = [&[7; 13][..], &[0; 67], &[9; 8], &[0; 61], &[7; 11]].concat();
        drop(volume);
        let (fixture, volume) = next_session(fixture, CrashMode::LoseAll, 52, 16);
        let disk = fixture.world.disk("disk").unwrap();
        assert_eq!(fixture.world.block_on(read(&volume, 0, 160)).unwrap(), expected);
        assert_eq!(durable_tags(&disk, 0, 160), [7; 160], "the backing failed all changes");
        // The first flush after a start must not make the adopted records worthless.
        fixture.world.block_on(async {
            write(&volume, 0, 1, 11).await.unwrap();
            volume.flush().await.unwrap();
        });
        drop(volume);
        let (fixture, volume) = next_session(fixture, CrashMode::LoseAll, 53, 16);
        let expected = [&[11][..], &expected[1..]].concat();
        assert_eq!(fixture.world.block_on(read(&volume, 0, 160)).unwrap(), expected);
        fixture.world.block_on(volume.destage_all()).unwrap();
        assert_eq!(durable_tags(&fixture.world.disk("disk").unwrap(), 0, 160), expected);
    }
}

/// Found by torture (seed 20000683): records of zeroes over changed blocks kept a full log full.
#[test]
fn log_full_of_zero_records_frees_space() {
    let (fixture, volume) = first_session(54, 6);
    let disk = fixture.world.disk("disk").unwrap();
    fixture.world.block_on(async {
        for round in 0..600 {
            write(&volume, round % 7 * 64, 64, round + 1).await.unwrap();
            volume.discard(ByteOffset(round % 5 * 32_768), 65_536, WriteFlags::default()).await.unwrap();
            volume.flush().await.unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        volume.destage_all().await.unwrap();
    });
    let content = fixture.world.block_on(read(&volume, 0, 512)).unwrap();
    assert_eq!(durable_tags(&disk, 0, 512), content);
    drop(volume);
    let (fixture, volume) = next_session(fixture, CrashMode::LoseAll, 55, 6);
    assert_eq!(fixture.world.block_on(read(&volume, 0, 512)).unwrap(), content);
}

/// A discard before the backing was restored by hand must not be recovered over the restored content.
#[test]
fn zeroes_given_up_with_cached_data_are_not_logged() {
    for is_durable in [false, true] {
        let (fixture, volume) = first_session(56, 16);
        fixture.world.block_on(async {
            write(&volume, 0, 160, 7).await.unwrap();
            volume.destage_all().await.unwrap();
            write(&volume, 800, 8, 1).await.unwrap();
            volume.flush().await.unwrap();
            volume.discard(ByteOffset::ZERO, 65_536, WriteFlags::default()).await.unwrap();
            if is_durable {
                volume.destage_all().await.unwrap();
            }
        });
        let disk = fixture.world.disk("disk").unwrap();
        fixture.world.block_on(async {
            volume.drop_cached_data(!is_durable).await.unwrap();
            write(&volume, 1_600, 8, 2).await.unwrap();
            volume.flush().await.unwrap();
        });
        let content = durable_tags(&disk, 0, 160);
        drop(volume);
        let (fixture, volume) = next_session(fixture, CrashMode::LoseAll, 57, 16);
        assert_eq!(fixture.world.block_on(read(&volume, 0, 160)).unwrap(), content);
        fixture.world.block_on(volume.destage_all()).unwrap();
        assert_eq!(durable_tags(&fixture.world.disk("disk").unwrap(), 0, 160), content);
    }
}

/// An idle volume never flushed again, and a recovery wrote the records over the changed backing.
#[test]
fn records_of_dropped_data_do_not_return_over_a_changed_backing() {
    let (fixture, volume) = first_session(70, 16);
    let disk = fixture.world.disk("disk").unwrap();
    fixture.world.block_on(async {
        write(&volume, 0, 8, 7).await.unwrap();
        volume.flush().await.unwrap();
        fixture.seam.sleep(Nanos::from_secs(30)).await;
    });
    assert_eq!(durable_tags(&disk, 0, 8), [7; 8], "an idle volume is destaged");
    disk.set_tags(0, &[9; 8]);
    fixture.world.block_on(volume.drop_cached_data(false)).unwrap();
    drop(volume);
    let (fixture, volume) = next_session(fixture, CrashMode::KeepAll, 71, 16);
    assert_eq!(fixture.world.block_on(read(&volume, 0, 8)).unwrap(), [9; 8]);
}

/// A flush during the change was acknowledged without its data, and the change failed.
#[test]
fn flush_during_a_failed_change_to_volatile_keeps_its_data() {
    let (fixture, volume) = first_session(72, 16);
    let disk = fixture.world.disk("disk").unwrap();
    fixture.world.block_on(async {
        write(&volume, 0, 8, 7).await.unwrap();
        volume.flush().await.unwrap();
        disk.add_fault(Rule::new(Fault::Stall(Nanos::from_secs(5)), Ops::CHANGE, When::Always));
        let change = volume.clone();
        fixture.seam.spawn(async move { drop(change.set_policy(WritePolicy::WriteBackVolatile).await) });
        fixture.seam.sleep(Nanos::from_millis(100)).await;
        assert!(volume.is_changing());
        write(&volume, 800, 8, 8).await.unwrap();
        volume.flush().await.unwrap();
    });
    drop(volume);
    let (fixture, volume) = next_session(fixture, CrashMode::LoseAll, 73, 16);
    assert_eq!(fixture.world.block_on(read(&volume, 800, 8)).unwrap(), [8; 8]);
}

/// The log answered flushes with one copy for as long as the destage of the change took.
#[test]
fn flush_during_a_change_to_write_back_relies_on_no_single_copy() {
    let (fixture, volume) = first_session(74, 16);
    let disk = fixture.world.disk("disk").unwrap();
    let is_flushed = Rc::new(Cell::new(false));
    fixture.world.block_on(async {
        volume.set_policy(WritePolicy::WriteBackVolatile).await.unwrap();
        disk.add_fault(Rule::new(Fault::Stall(Nanos::from_secs(20)), Ops::CHANGE, When::Always));
        write(&volume, 0, 8, 7).await.unwrap();
        let change = volume.clone();
        fixture.seam.spawn(async move { change.set_policy(WritePolicy::WriteBack).await.expect("the disk answers") });
        fixture.seam.sleep(Nanos::from_millis(100)).await;
        assert!(volume.is_changing());
        fixture.world.disk("flash1").unwrap().add_fault(Rule::new(Fault::Error, Ops::ALL, When::Always));
        write(&volume, 800, 8, 8).await.unwrap();
        let (flush, flushed) = (volume.clone(), Rc::clone(&is_flushed));
        fixture.seam.spawn(async move { flushed.set(flush.flush().await.is_ok()) });
        fixture.seam.sleep(Nanos::from_secs(5)).await;
        assert!(!is_flushed.get() && volume.policy() == WritePolicy::WriteBackVolatile);
        fixture.seam.sleep(Nanos::from_secs(60)).await;
    });
    assert!(is_flushed.get() && volume.policy() == WritePolicy::WriteBack);
    assert_eq!(durable_tags(&disk, 800, 8), [8; 8], "the flush waited for the backing");
}

/// Blocks whose content only the log has are dirty data, too.
#[test]
fn cached_data_is_not_dropped_while_the_log_alone_has_content() {
    let (fixture, volume) = first_session(59, 16);
    fixture.world.disk("disk").unwrap().add_fault(Rule::new(Fault::Error, Ops::CHANGE, When::Always));
    fixture.world.block_on(async {
        write(&volume, 0, 80, 7).await.unwrap();
        volume.flush().await.unwrap();
    });
    drop(volume);
    let (fixture, volume) = next_session(fixture, CrashMode::LoseAll, 60, 16);
    fixture.world.block_on(async {
        let refused = volume.drop_cached_data(false).await;
        assert_eq!(refused, Err(engine::RequestError::Dirty(10 * 4_096)));
        write(&volume, 800, 8, 1).await.unwrap();
        volume.flush().await.unwrap();
        assert_eq!(read(&volume, 0, 80).await.unwrap(), [7; 80]);
    });
}

/// Records of zeroes of a volume that is idle and clean must not fill the log for the others.
#[test]
fn idle_volume_with_many_discards_leaves_the_log() {
    let (fixture, volume) = first_session(58, 16);
    fixture.add_disk("other", SimDiskSpec::new(64 * MIB));
    let other = fixture.attach("other", |spec| spec.volume_id = VolumeId(2)).unwrap();
    fixture.world.block_on(async {
        write_evidence(&fixture.seam, &volume, 2_000).await;
        for range in 0..900 {
            other.discard(ByteOffset(range * 65_536), 4_096, WriteFlags::default()).await.unwrap();
        }
        other.flush().await.unwrap();
        other.destage_all().await.unwrap();
        for round in 0..200 {
            for block in 0..20 {
                write(&volume, block * 80, 8, round + 1).await.unwrap();
            }
            volume.flush().await.unwrap();
        }
    });
    let logged = volume.stats().flash.logged_bytes;
    assert_eq!(logged, 200 * 20 * 4_096, "a flush left the log");
}

/// Two volumes over one log: "disk", and "other", whose backing fails all writes and whose flushed blocks fill the log.
fn filled_by_another(seed: u64) -> (Fixture, Volume<SimSeam>, Volume<SimSeam>) {
    let (fixture, volume) = first_session(seed, 30);
    let other = fixture.add_disk("other", SimDiskSpec::new(64 * MIB));
    other.add_fault(Rule::new(Fault::Error, Ops::CHANGE, When::Always));
    let other = fixture.attach("other", |spec| spec.volume_id = VolumeId(2)).unwrap();
    fixture.world.block_on(async {
        write(&volume, 0, 8, 1).await.unwrap();
        volume.flush().await.unwrap();
        let mut block = 0;
        loop {
            for _ in 0..16 {
                write(&other, block * 16, 8, 7).await.unwrap();
                block += 1;
            }
            if other.flush().await.is_err() {
                break;
            }
            assert!(block < 10_000, "the log is finite");
        }
    });
    (fixture, volume, other)
}

/// Found by torture (seed 20094254): flushes of other volumes waited a minute for space in the log and failed.
#[test]
fn log_filled_by_another_volume_fails_no_flush() {
    for round in 0..3 {
        let (fixture, volume, other) = filled_by_another(31 + round);
        fixture.world.block_on(async {
            for tag in 2..40 {
                write(&volume, 0, 8, tag).await.unwrap();
                write(&volume, tag * 8, 8, tag).await.unwrap();
                volume.flush().await.unwrap_or_else(|error| panic!("flush {tag}: {error}"));
            }
            write(&volume, 0, 8, 50).await.unwrap();
        });
        let disk = fixture.world.disk("disk").unwrap();
        assert_eq!(durable_tags(&disk, 0, 8), [39; 8], "data without space in the log is on the backing");
        drop((volume, other));
        let (fixture, volume) = next_session(fixture, CrashMode::LoseAll, 40 + round, 30);
        assert_eq!(fixture.world.block_on(read(&volume, 0, 8)).unwrap(), [39; 8], "no older record is recovered");
        // The other volume's blocks still fill the log, and the other volume is not attached.
        fixture.world.block_on(async {
            write(&volume, 0, 8, 60).await.unwrap();
            volume.flush().await.expect("a backing without faults does not fail");
            volume.set_policy(WritePolicy::WriteThrough).await.expect("the volume has no data in the log");
        });
    }
}

/// The second change appended tombstones of data that the first one was still destaging.
#[test]
fn second_policy_change_keeps_data_that_is_not_destaged_yet() {
    for (round, second) in [WritePolicy::WriteThrough, WritePolicy::None, WritePolicy::WriteAround].iter().enumerate() {
        let seed = 50 + 2 * round as u64;
        let (fixture, volume) = first_session(seed, 16);
        let disk = fixture.world.disk("disk").unwrap();
        disk.add_fault(Rule::new(Fault::Stall(Nanos::from_secs(20)), Ops::CHANGE, When::Always));
        fixture.world.block_on(async {
            for block in 0..40 {
                write(&volume, block * 24, 8, 7).await.expect("memory has space");
            }
            volume.flush().await.expect("the log has the data");
        });
        for policy in [WritePolicy::WriteThrough, *second] {
            let volume = volume.clone();
            fixture.seam.spawn(async move { drop(volume.set_policy(policy).await) });
        }
        fixture.world.block_on(fixture.seam.sleep(Nanos::from_secs(10)));
        assert_eq!(durable_tags(&disk, 0, 8), [0; 8], "destage takes longer than this");
        drop(volume);
        let (fixture, volume) = next_session(fixture, CrashMode::LoseAll, seed + 1, 16);
        for block in 0..40 {
            let content = fixture.world.block_on(read(&volume, block * 24, 8)).expect("the log is intact");
            assert_eq!(content, [7; 8], "block {block}, then {second}");
        }
    }
}

#[test]
fn policy_changes_and_modes_run_one_after_the_other() {
    let (fixture, volume) = first_session(57, 16);
    let disk = fixture.world.disk("disk").unwrap();
    disk.add_fault(Rule::new(Fault::Stall(Nanos::from_secs(5)), Ops::CHANGE, When::Always));
    fixture.world.block_on(async {
        write(&volume, 0, 8, 7).await.expect("memory has space");
        volume.flush().await.expect("the log has the data");
    });
    let change = volume.clone();
    fixture.seam.spawn(async move { change.set_mode(CacheMode::Paused).await.expect("the backing answers") });
    fixture.world.block_on(async {
        fixture.seam.sleep(Nanos::from_secs(1)).await;
        assert!(volume.is_changing());
        volume.set_policy(WritePolicy::WriteThrough).await.expect("the backing answers");
        assert!(!volume.is_changing());
    });
    assert_eq!((volume.mode(), durable_tags(&disk, 0, 8)), (CacheMode::Paused, vec![7; 8]));
}

/// A stop recorded a volume as clean whose newest zeroes were only in the log.
#[test]
fn zeroes_that_are_only_in_the_log_need_the_log() {
    let (fixture, volume) = first_session(59, 16);
    let disk = fixture.world.disk("disk").unwrap();
    fixture.world.block_on(async {
        write(&volume, 0, 8, 7).await.expect("memory has space");
        volume.destage_all().await.expect("the backing answers");
        assert!(!fixture.core.needs_log());
        disk.add_fault(Rule::new(Fault::Stall(Nanos::from_secs(20)), Ops::CHANGE, When::Always));
        volume.discard(ByteOffset::ZERO, 4096, WriteFlags::default()).await.expect("memory has space");
        assert!(volume.leave_in_log().await.expect("the log answers"), "the log has a record");
        assert_eq!(volume.stats().flash_dirty_bytes, 0);
        assert!(fixture.core.needs_log());
    });
}

#[test]
fn flush_in_a_full_log_waits_for_the_tail_only() {
    let fixture = Fixture::new(spec(21), CoreSpec::default());
    let slow = Timing::between(Nanos::from_millis(200), Nanos::from_millis(220));
    let disk = fixture.add_disk("disk", SimDiskSpec { timing: slow, ..SimDiskSpec::new(64 * MIB) });
    log(40).add_disks(&fixture.world);
    let volume = serve(&fixture, 40, true);
    let mut dirty_after = Vec::new();
    fixture.world.block_on(async {
        for round in 0..60 {
            for block in 0..20 {
                // The blocks are far apart, so that no writes are merged.
                write(&volume, (round * 20 + block) * 80, 8, round + 1).await.unwrap();
            }
            let start = fixture.seam.now();
            volume.flush().await.expect("the log frees space");
            if fixture.seam.now().since(start) >= Nanos::from_millis(50) {
                dirty_after.push(volume.stats().dirty_bytes);
            }
        }
    });
    println!("dirty after flushes that had to free space: {dirty_after:?}");
    assert!(
        !dirty_after.is_empty() && dirty_after.iter().all(|bytes| *bytes > 0),
        "a flush waited for all dirty data: {dirty_after:?}"
    );
    let expected: Vec<u64> = (0..1200).map(|position| position / 20 + 1).collect();
    drop(volume);
    let fixture = fixture.crash(CrashMode::LoseAll, spec(22));
    let volume = serve(&fixture, 40, false);
    for (position, tag) in (0..).zip(expected) {
        assert_eq!(fixture.world.block_on(read(&volume, position * 80, 8)).unwrap(), [tag; 8], "block {position}");
    }
    drop(disk);
}

#[test]
fn drain_empties_the_log_and_leave_in_log_keeps_dirty_data() {
    for leaves_in_log in [false, true] {
        let (fixture, volume) = first_session(9, 16);
        fixture.world.block_on(async {
            write(&volume, 0, 64, 1).await.unwrap();
            volume.flush().await.unwrap();
            write(&volume, 64, 64, 2).await.unwrap();
            match leaves_in_log {
                true => assert_eq!(volume.leave_in_log().await, Ok(true)),
                false => volume.drain().await.unwrap(),
            }
        });
        drop(volume);
        let fixture = fixture.crash(CrashMode::LoseAll, spec(10));
        let content = durable_tags(&fixture.world.disk("disk").unwrap(), 0, 128);
        let complete = [[1; 64], [2; 64]].concat();
        assert_eq!(content == complete, !leaves_in_log, "{content:?}");
        let volume = serve(&fixture, 16, false);
        assert_eq!(fixture.world.block_on(read(&volume, 0, 128)).unwrap(), complete);
    }
}

/// `hotset volume flush` during a removal: a record behind the volume's tombstones would belong to no volume, or be
/// recovered over the data of one that is added again.
#[test]
fn flush_command_during_a_removal_appends_no_record() {
    let (fixture, volume) = first_session(76, 16);
    let disk = fixture.world.disk("disk").unwrap();
    fixture.world.block_on(async {
        write(&volume, 0, 128, 1).await.unwrap();
        volume.flush().await.unwrap();
        volume.discard(ByteOffset(0), 65_536, WriteFlags::default()).await.unwrap();
        write(&volume, 800, 64, 2).await.unwrap();
        disk.add_fault(Rule::new(Fault::Stall(Nanos::from_secs(2)), Ops::CHANGE, When::Always));
        let core = fixture.core.clone();
        fixture.seam.spawn(async move { core.detach("disk").await.expect("the backing answers") });
        fixture.seam.sleep(Nanos::from_millis(1)).await;
        volume.destage_all().await.expect("the backing answers");
        fixture.seam.sleep(Nanos::from_secs(60)).await;
        assert!(fixture.core.find("disk").is_none());
    });
    drop(volume);
    let fixture = fixture.crash(CrashMode::LoseAll, spec(77));
    let unclaimed = fixture.world.block_on(async {
        log(16).open(&fixture.seam, &fixture.core, false, false).await.expect("the devices are intact");
        fixture.core.unclaimed()
    });
    assert!(unclaimed.is_empty(), "{unclaimed:?}");
}

/// Zeroes prove nothing about the backing at the next start (seed 192139665).
#[test]
fn stop_destages_zeroes_that_are_all_a_volume_has() {
    let (fixture, volume) = first_session(78, 16);
    fixture.world.block_on(async {
        volume.discard(ByteOffset(0), 65_536, WriteFlags::default()).await.unwrap();
        volume.flush().await.unwrap();
        assert!(fixture.core.needs_log());
        assert_eq!(volume.leave_in_log().await, Ok(false), "the log holds no record");
        assert!(!fixture.core.needs_log());
    });
}

/// A stop leaves evidence about the backing: a few blocks of a volume of which nothing was destaged before (seed
/// 90011153), and the content of blocks of which only a part was written (seed 90015665).
#[test]
fn stop_records_destaged_blocks_of_every_volume() {
    let (fixture, volume) = first_session(13, 16);
    fixture.world.block_on(async {
        write(&volume, 0, 80, 1).await.unwrap();
        assert_eq!(fixture.core.provable_recent_writes(VolumeId(1)), 0);
        assert_eq!(volume.leave_in_log().await, Ok(true));
    });
    let content = durable_tags(&fixture.world.disk("disk").unwrap(), 0, 80);
    let destaged = content.iter().filter(|tag| **tag == 1).count() as u64 / 8;
    assert_eq!((destaged, fixture.core.provable_recent_writes(VolumeId(1))), (4, 4), "{content:?}");
    let (fixture, volume) = first_session(14, 16);
    fixture.world.block_on(async {
        write(&volume, 8, 3, 2).await.unwrap();
        volume.destage_all().await.unwrap();
        assert_eq!(fixture.core.provable_recent_writes(VolumeId(1)), 0, "memory has a part of the block");
        volume.leave_in_log().await.unwrap();
    });
    assert_eq!(fixture.core.provable_recent_writes(VolumeId(1)), 1);
}

/// A stop makes destaged blocks durable on the backing, but their records stay in the log.
#[test]
fn stop_counts_fewer_blocks_than_the_next_start_recovers() {
    let (fixture, volume) = first_session(15, 16);
    let left = fixture.world.block_on(async {
        write(&volume, 0, 80, 1).await.unwrap();
        assert_eq!(volume.leave_in_log().await, Ok(true));
        volume.stats()
    });
    assert_eq!((left.flash_dirty_bytes, left.undestaged_bytes()), (6 * 4096, 6 * 4096));
    drop(volume);
    let fixture = fixture.crash(CrashMode::LoseAll, spec(16));
    let volume = serve(&fixture, 16, false);
    assert_eq!(volume.stats().flash_dirty_bytes, 10 * 4096);
}

/// Number of destaged blocks that a start finds different on the disk, after the stop of `fixture` and with older
/// content of one block.
fn different_after_rollback(fixture: Fixture, block: u64, seed: u64) -> u64 {
    let fixture = fixture.crash(CrashMode::LoseAll, spec(seed));
    fixture.world.disk("disk").unwrap().set_tags(block * 8, &[0; 8]);
    let open = DiskOpen { path: "disk".into(), create_bytes: None, read_only: false, lock_wait_ms: 1_000 };
    fixture.world.block_on(async {
        log(16).open(&fixture.seam, &fixture.core, false, false).await.expect("the devices are intact");
        let disk = fixture.seam.open_disk(&open).await.expect("the disk exists");
        let comparison = fixture.core.compare_destaged(VolumeId(1), &engine::Backing::plain(disk)).await;
        assert!(comparison.matching_blocks > 0, "{comparison:?}");
        comparison.different_blocks
    })
}

/// Blocks past the end of a disk prove nothing, and are counted.
#[test]
fn destaged_blocks_past_the_end_are_counted_and_not_compared() {
    let (fixture, volume) = first_session(79, 16);
    fixture.add_disk("short", SimDiskSpec::new(4 * MIB));
    let open = DiskOpen { path: "short".into(), create_bytes: None, read_only: false, lock_wait_ms: 1_000 };
    let comparison = fixture.world.block_on(async {
        write(&volume, 4 * MIB / 512, 24, 5).await.unwrap();
        volume.destage_all().await.unwrap();
        let disk = fixture.seam.open_disk(&open).await.expect("the disk exists");
        fixture.core.compare_destaged(VolumeId(1), &engine::Backing::plain(disk)).await
    });
    assert_eq!(comparison, DestagedComparison { past_end_blocks: 3, ..DestagedComparison::default() });
}

async fn stop(fixture: &Fixture, volume: Volume<SimSeam>) {
    assert_eq!(volume.leave_in_log().await, Ok(true), "the log has data");
    drop(volume);
    fixture.core.log().expect("the engine has a log").close().await.expect("the devices are healthy");
}

/// The blocks that a stop reads back count as the newest ones, and do not hide an older copy of the disk that differs
/// in a block that was written whole.
#[test]
fn blocks_read_back_at_a_stop_do_not_hide_a_rollback() {
    let (fixture, volume) = first_session(17, 16);
    fixture.world.block_on(async {
        write(&volume, 800, 8, 5).await.unwrap();
        volume.destage_all().await.unwrap();
        for block in 0..32 {
            write(&volume, block * 8, 3, 6).await.unwrap();
        }
        volume.destage_all().await.unwrap();
        write(&volume, 1_600, 8, 7).await.unwrap();
        stop(&fixture, volume).await;
    });
    assert_eq!(different_after_rollback(fixture, 100, 18), 1);
}

/// A stop before the start has read the blocks of dirty regions again keeps them as evidence.
#[test]
fn stop_soon_after_a_crash_keeps_the_evidence() {
    let fixture = Fixture::new(spec(19), CoreSpec::default());
    let timing = Timing::between(Nanos::from_millis(40), Nanos::from_millis(40));
    fixture.add_disk("disk", SimDiskSpec { timing, ..SimDiskSpec::new(8 * MIB) });
    log(16).add_disks(&fixture.world);
    let volume = serve(&fixture, 16, true);
    fixture.world.block_on(async {
        for block in [100, 102, 2_000] {
            write(&volume, block * 8, 8, 5).await.unwrap();
        }
        volume.destage_all().await.unwrap();
        fixture.seam.sleep(Nanos::from_secs(2)).await;
        // The region of the recorded blocks becomes dirty and is still dirty at the crash.
        write(&volume, 102 * 8, 8, 6).await.unwrap();
        volume.destage_all().await.unwrap();
    });
    drop(volume);
    let (fixture, volume) = next_session(fixture, CrashMode::LoseAll, 20, 16);
    fixture.world.block_on(async {
        write(&volume, 1_600, 8, 7).await.unwrap();
        stop(&fixture, volume).await;
    });
    assert_eq!(different_after_rollback(fixture, 100, 21), 1);
}

/// Some records may be retired by an attach that is given up: the volume is refused until the next start.
#[test]
fn dropped_attach_leaves_the_records_to_the_next_start() {
    let (fixture, volume) = first_session(15, 16);
    fixture.world.block_on(async {
        write(&volume, 0, 8, 1).await.unwrap();
        write(&volume, 16_000, 8, 2).await.unwrap();
        volume.flush().await.unwrap();
    });
    drop(volume);
    let mut images = fixture.crash_disks(CrashMode::LoseAll);
    images.resize("disk", 4 * MIB);
    let fixture = Fixture::new(spec(16), CoreSpec::default());
    fixture.world.adopt(images);
    let open = DiskOpen { path: "disk".into(), create_bytes: None, read_only: false, lock_wait_ms: 1_000 };
    fixture.world.block_on(async {
        log(16).open(&fixture.seam, &fixture.core, false, false).await.expect("the devices are intact");
        let disk = fixture.seam.open_disk(&open).await.expect("the disk exists");
        let attach = || {
            let spec = VolumeSpec::new("disk", VolumeId(1));
            fixture.core.attach_recovered(spec, engine::Backing::plain(disk.clone()))
        };
        {
            let mut dropped = pin!(attach());
            for step in ["mark", "tombstone for the data past the end"] {
                fixture.seam.sleep(Nanos::from_micros(60)).await;
                let polled = poll_fn(|context| Poll::Ready(dropped.as_mut().poll(context))).await;
                assert!(polled.is_pending(), "no {step} is written");
            }
        }
        assert!(matches!(attach().await, Err(engine::AttachError::PartiallyRecovered(_))), "some may be retired");
        let error = fixture.core.discard_unclaimed("disk", VolumeId(1), BlockNo(1)).await.expect_err("as before");
        assert!(matches!(error, engine::AttachError::PartiallyRecovered(_)), "{error}");
    });
}

/// Data past the end of a shrunk backing is discarded before the volume is attached. If the attach then fails, and the
/// backing grows, the data does not come back, also after a power cut (torture seed 170055908).
#[test]
fn unclaimed_data_past_an_end_stays_discarded_without_an_attach() {
    let (fixture, volume) = first_session(23, 16);
    fixture.world.block_on(async {
        write(&volume, 90 * 8, 160, 5).await.unwrap();
        volume.destage_all().await.unwrap();
        volume.flush().await.unwrap();
        fixture.world.disk("disk").unwrap().add_fault(Rule::new(Fault::Error, Ops::CHANGE, When::Always));
        volume.discard(ByteOffset(90 * 4096), 20 * 4096, WriteFlags::default()).await.unwrap();
        write(&volume, 120 * 8, 8, 7).await.unwrap();
        volume.flush().await.unwrap();
    });
    drop(volume);
    let fixture = fixture.crash(CrashMode::LoseAll, spec(24));
    fixture.world.block_on(async {
        log(16).open(&fixture.seam, &fixture.core, false, false).await.expect("the devices are intact");
        assert_eq!(fixture.core.waiting_in_log(VolumeId(1), BlockNo(100)).past_end_blocks, 11);
        fixture.core.discard_unclaimed("disk", VolumeId(1), BlockNo(100)).await.expect("the log has room");
        let waiting = fixture.core.waiting_in_log(VolumeId(1), BlockNo(100));
        assert_eq!((waiting.total_blocks, waiting.past_end_blocks), (10, 0));
    });
    let (fixture, volume) = next_session(fixture, CrashMode::LoseAll, 25, 16);
    let read = |block: u64| fixture.world.block_on(read(&volume, block * 8, 8)).unwrap();
    assert_eq!([90, 99, 100, 109, 120].map(read), [[0; 8], [0; 8], [5; 8], [5; 8], [0; 8]]);
}
