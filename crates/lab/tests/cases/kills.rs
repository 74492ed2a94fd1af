//! The process is killed and its memory is kept: what was acknowledged is there, at any step of its way to the backing.

use std::future::poll_fn;
use std::pin::pin;

use engine::{AttachError, Backing, CoreSpec, Volume, VolumeSpec, WriteFlags, WriteSource};
use lab::rig::{Rig, lively_disk, read, spec, write};
use seam::sim::{CrashMode, Fault, LeftBehind, Ops, Rule, SimBlockMut, SimDiskSpec, SimSeam, When, WorldSpec};
use seam::{Nanos, SECTOR_BYTES, SECTORS_PER_BLOCK, Seam};

const MIB: u64 = 1 << 20;

fn world() -> WorldSpec {
    WorldSpec { blocks: 4096, keeps: true, ..WorldSpec::new(1) }
}

fn rig(disk: SimDiskSpec) -> (Rig, Volume<SimSeam>) {
    let rig = Rig::new(world(), CoreSpec::default());
    rig.add_disk("disk", disk);
    let volume = rig.attach("disk", |_| ()).unwrap();
    (rig, volume)
}

struct Tags([u64; SECTORS_PER_BLOCK]);

impl WriteSource<SimSeam> for Tags {
    fn fill(&mut self, _: usize, block: &mut SimBlockMut, at: usize, len: usize) {
        (at / SECTOR_BYTES..(at + len) / SECTOR_BYTES).for_each(|sector| block.set_tag(sector, self.0[sector]));
    }
}

/// Serves the disk with what is left of it.
fn attach_left(
    rig: &Rig,
    left: &LeftBehind,
    edit: fn(&mut VolumeSpec),
) -> impl Future<Output = Result<(Volume<SimSeam>, u64), AttachError>> + use<> {
    let (core, left) = (rig.core.clone(), left.clone());
    let (spec, backing) = (spec("disk", edit), Backing::plain(rig.open("disk")));
    async move {
        let one = left.sorted().into_values().next().expect("something was left");
        core.attach_left(spec, backing, &one, |place| Tags(left.tags(place))).await
    }
}

/// Kills the process and starts the next one, which is `edit`ed.
fn kill(rig: Rig, volume: Volume<SimSeam>, edit: fn(&mut VolumeSpec)) -> (Rig, Volume<SimSeam>, LeftBehind) {
    let left = rig.world.left_behind();
    drop(volume);
    let rig = rig.crash(CrashMode::Kill, world());
    let (volume, _) = rig.world.block_on(attach_left(&rig, &left, edit)).expect("the backing is well");
    (rig, volume, left)
}

#[test]
fn what_was_only_acknowledged_is_there_after_a_kill_and_after_the_next() {
    let (rig, volume) = rig(SimDiskSpec::new(MIB));
    rig.world.block_on(write(&volume, 3, 20, 7)).unwrap();
    rig.world.block_on(volume.discard(8 * 512, 8 * 512, WriteFlags::default())).unwrap();
    let (rig, volume, _) = kill(rig, volume, |_| ());
    rig.world.block_on(write(&volume, 4, 1, 9)).unwrap();
    let (rig, volume, _) = kill(rig, volume, |_| ());
    let expected = [vec![0; 3], vec![7, 9, 7, 7, 7], vec![0; 8], vec![7; 7], vec![0; 1]].concat();
    assert_eq!(rig.world.block_on(read(&volume, 0, 24)).unwrap(), expected);
}

#[test]
fn zeroes_over_what_is_on_the_backing_outlive_a_kill_and_a_write_into_them_does_too() {
    let (rig, volume) = rig(SimDiskSpec::new(MIB));
    rig.world.block_on(write(&volume, 0, 64, 7)).unwrap();
    rig.world.block_on(volume.flush()).unwrap();
    rig.world.block_on(volume.discard(0, 64 * 512, WriteFlags::default())).unwrap();
    rig.world.block_on(write(&volume, 17, 1, 9)).unwrap();
    let (rig, volume, left) = kill(rig, volume, |_| ());
    assert!(left.is_whole());
    let expected = [vec![0; 17], vec![9], vec![0; 46]].concat();
    assert_eq!(rig.world.block_on(read(&volume, 0, 64)).unwrap(), expected);
}

/// The danger of all: what is clean is the backing's, and an old note must not come back over it.
#[test]
fn what_is_on_the_backing_leaves_no_note_however_it_got_there() {
    let (rig, volume) = rig(lively_disk(MIB));
    rig.world.block_on(async {
        write(&volume, 0, 64, 7).await.unwrap();
        volume.discard(0, 32 * 512, WriteFlags::default()).await.unwrap();
        write(&volume, 5, 1, 8).await.unwrap();
        // Overwritten on its way to the backing, so that a buffer takes another one's place.
        let sending = volume.clone();
        rig.seam.spawn(async move { sending.flush().await.unwrap() });
        rig.seam.sleep(Nanos::from_micros(60)).await;
        write(&volume, 0, 64, 9).await.unwrap();
        volume.flush().await.unwrap();
    });
    assert!(rig.world.left_behind().sorted().is_empty(), "{:?}", rig.world.left_behind());
    assert!(rig.world.violations().is_empty(), "{:?}", rig.world.violations());
}

#[test]
fn a_volume_that_defers_nothing_any_more_has_it_on_the_backing_before_it_is_served() {
    let (rig, volume) = rig(SimDiskSpec::new(MIB));
    rig.world.block_on(write(&volume, 0, 8, 7)).unwrap();
    let (rig, _volume, _) = kill(rig, volume, |spec| spec.policy = engine::WritePolicy::WriteThrough);
    let disk = rig.world.disk("disk").expect("it was adopted");
    assert_eq!(lab::rig::durable(&disk, 0, 8), [7; 8]);
}

/// Who takes it back once more makes notes of his own: with those of the first time beside them, old content would come back later.
#[test]
fn what_could_not_be_taken_back_is_noted_where_it_was_left_alone() {
    let (rig, volume) = rig(SimDiskSpec::new(MIB));
    rig.world.block_on(write(&volume, 0, 8, 7)).unwrap();
    let left = rig.world.left_behind();
    drop(volume);
    let rig = rig.crash(CrashMode::Kill, world());
    let through = |spec: &mut VolumeSpec| spec.policy = engine::WritePolicy::WriteThrough;
    let disk = rig.world.disk("disk").expect("it was adopted");
    disk.add_fault(Rule::new(Fault::Error, Ops::CHANGE | Ops::FLUSH, When::Always));
    let attached = rig.world.block_on(attach_left(&rig, &left, through));
    assert!(matches!(attached, Err(AttachError::LeftInMemory(..))));
    assert!(rig.core.find("disk").is_none());
    assert!(rig.world.left_behind().sorted().is_empty(), "{:?}", rig.world.left_behind());
}

#[test]
fn nobody_finds_a_volume_before_it_has_all_that_was_left() {
    let (rig, volume) = rig(lively_disk(MIB));
    rig.world.block_on(write(&volume, 0, 64, 7)).unwrap();
    let left = rig.world.left_behind();
    drop(volume);
    let rig = rig.crash(CrashMode::Kill, world());
    let attaching = attach_left(&rig, &left, |spec| spec.policy = engine::WritePolicy::WriteThrough);
    rig.world.block_on(async {
        let mut attaching = pin!(attaching);
        let mut looks = 0;
        let (volume, _) = poll_fn(|context| {
            let polled = attaching.as_mut().poll(context);
            looks += usize::from(polled.is_pending());
            assert_eq!(rig.core.find("disk").is_some(), polled.is_ready());
            polled
        })
        .await
        .unwrap();
        assert!(looks > 0, "the backing takes its time");
        assert_eq!(read(&volume, 0, 64).await.unwrap(), [7; 64]);
    });
}

#[test]
fn a_block_past_an_end_that_has_moved_is_not_taken_back() {
    let (rig, volume) = rig(SimDiskSpec::new(MIB));
    rig.world.block_on(write(&volume, 0, 2048, 7)).unwrap();
    let left = rig.world.left_behind();
    drop(volume);
    let rig = rig.crash(CrashMode::Kill, world());
    let volume = rig.attach("disk", |_| ()).unwrap();
    rig.world.block_on(volume.resize(Some(MIB / 2), false)).unwrap();
    drop(volume);
    let rig = rig.crash(CrashMode::Kill, world());
    let (volume, taken) = rig.world.block_on(attach_left(&rig, &left, |_| ())).unwrap();
    assert_eq!(taken, 256, "all were looked at");
    assert_eq!(rig.world.block_on(read(&volume, 1016, 8)).unwrap(), [7; 8]);
}

#[test]
fn zero_ranges_without_room_for_a_note_are_said_to_be_missing() {
    let (rig, volume) = rig(SimDiskSpec::new(64 * MIB));
    for place in 0..200 {
        rig.world.block_on(volume.discard(place * 16_384, 4096, WriteFlags::default())).unwrap();
    }
    assert!(!rig.world.left_behind().is_whole());
}
