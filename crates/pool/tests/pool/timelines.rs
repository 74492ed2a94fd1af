//! Timelines: groups that were continued without each other are refused together, and absent ones return.

use std::cell::Cell;
use std::rc::Rc;

use pool::format::superblock::FormerTimeline;
use pool::{
    CheckpointNo, GroupNo, MemberState, OpenOptions, PoolDisk, PoolError, PoolGeneration, TierNo, TierPolicy,
    VolumeSpec,
};
use seam::sim::{CrashMode, DiskImages, Fault, Ops, Rng, Rule, SimDisk, SimSeam, When, World};
use seam::{Disk, Nanos, Piece, Seam};

use crate::crash_points::{at_each_boundary, crashes};
use crate::model::read_sectors;
use crate::world::{ALL, SLICE, SMALL, SimPool, disks, superblocks, with_pool, world_after_crash, write_at};

pub const THREE: [&str; 3] = ["fast-0", "fast-1", "slow-0"];

type SimVolume = PoolDisk<SimSeam, SimDisk>;

pub async fn open(seam: &SimSeam, names: &[&str], accept_missing: bool) -> Result<(SimPool, SimVolume), PoolError> {
    let options = OpenOptions { accept_missing, ..OpenOptions::default() };
    let pool = SimPool::open(seam, &disks(seam, names).await, options).await?;
    let volume = pool.volume(pool.volume_named("a").expect("the volume exists")).expect("the volume exists");
    Ok((pool, volume))
}

/// Disks of a pool with a volume whose only slice lies on `fast-0`, with tag 50.
pub fn filled() -> DiskImages {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let pool = SimPool::open(&seam, &disks(&seam, &THREE).await, OpenOptions::default()).await.expect("it opens");
        let spec = VolumeSpec { policy: TierPolicy::Highest, ..VolumeSpec::thin("a", 4 * SLICE) };
        let id = pool.create_volume(spec).await.expect("sound disks");
        let volume = pool.volume(id).expect("the volume exists");
        write_at(&seam, &volume, 0, 50).await;
        write_at(&seam, &volume, SLICE, 51).await;
        volume.flush().await.expect("sound disks");
    });
    world.crash(CrashMode::LoseAll)
}

/// Opens the pool on these disks alone, and writes a tag to slice 3.
fn continue_on(images: DiskImages, names: &[&str], accept_missing: bool, tag: u64) -> DiskImages {
    // Each opening has other random numbers.
    let world = world_after_crash(tag, images);
    let seam = world.seam();
    world.block_on(async {
        let (_pool, volume) = open(&seam, names, accept_missing).await.expect("the pool opens");
        write_at(&seam, &volume, 3 * SLICE, tag).await;
        volume.flush().await.expect("sound disks");
        seam.sleep(Nanos::from_secs(1)).await;
    });
    world.crash(CrashMode::LoseAll)
}

/// The tag of slice 3 with the pool on these disks.
fn tag_on(images: DiskImages, names: &[&str]) -> Result<u64, PoolError> {
    let world = world_after_crash(3, images);
    let seam = world.seam();
    world.block_on(async {
        let (pool, volume) = open(&seam, names, false).await?;
        assert!(pool.check_open().findings.is_empty());
        Ok(read_sectors(&seam, &volume, 3 * SLICE / 512, 1).await.expect("sound disks")[0])
    })
}

fn timelines(images: DiskImages, name: &str) -> (DiskImages, u64, Vec<FormerTimeline>) {
    let world = world_after_crash(4, images);
    let seam = world.seam();
    let found = world.block_on(async {
        let disk = disks(&seam, &[name]).await.remove(0);
        superblocks(&seam, &disk).await.map(|found| found.expect("an intact superblock"))
    });
    let [first, second] = found;
    assert_eq!((first.timeline, &first.former), (second.timeline, &second.former), "both places have it");
    (world.crash(CrashMode::LoseAll), first.timeline, first.former)
}

#[test]
fn copies_that_were_continued_alone_are_refused_together() {
    // The order of the two, and the number of changes on either side, decide nothing.
    for turns in [["fast-0", "fast-1"], ["fast-1", "fast-0"]] {
        for later in [1, 5] {
            let mut images = continue_on(filled(), &turns[..1], true, 90);
            for turn in 0..later {
                let accepts_one = [turns[1], "slow-0"];
                images = continue_on(images, &accepts_one, false, 91 + turn);
            }
            let error = tag_on(images, &THREE).expect_err("two sides");
            let PoolError::Diverged { sides } = &error else { panic!("{error}") };
            let alone = vec![format!("sim:{}", turns[0])];
            assert!(sides.len() == 2 && sides.contains(&alone), "{error}");
            assert!(error.to_string().contains("Detach the devices of every side but the one"), "{error}");
        }
    }
}

#[test]
fn each_side_opens_without_the_other() {
    let images = continue_on(filled(), &["fast-0"], true, 90);
    let images = continue_on(images, &["fast-1", "slow-0"], false, 91);
    assert_eq!(tag_on(images, &["fast-1", "slow-0"]), Ok(91));
}

#[test]
fn branch_that_gave_the_other_group_up_opens_with_both() {
    let images = continue_on(filled(), &["fast-0"], true, 90);
    let world = world_after_crash(5, images);
    let seam = world.seam();
    world.block_on(async {
        let (pool, _) = open(&seam, &["fast-1", "slow-0"], false).await.expect("two of three groups");
        pool.give_up(GroupNo(0)).await.expect("the other groups are sound");
    });
    let images = world.crash(CrashMode::LoseAll);
    let world = world_after_crash(6, images);
    let seam = world.seam();
    world.block_on(async {
        let (pool, volume) = open(&seam, &THREE, false).await.expect("the group was given up explicitly");
        assert!(matches!(pool.groups()[0].state, MemberState::Lost | MemberState::Removed));
        assert!(pool.take_notices().iter().any(|text| text.contains("given up") || text.contains("removed from")));
        assert_eq!(read_sectors(&seam, &volume, 3 * SLICE / 512, 1).await, Ok(vec![0]));
    });
}

#[test]
fn absent_group_returns_and_its_former_timeline_is_forgotten() {
    let images = continue_on(filled(), &["fast-0", "slow-0"], false, 90);
    let (images, timeline, former) = timelines(images, "fast-0");
    assert!(timeline != 0);
    let all_of = |timeline| FormerTimeline { timeline, last: PoolGeneration(u64::MAX) };
    assert_eq!(former, [all_of(0)]);
    // A second opening without the group goes on with the timeline.
    let images = continue_on(images, &["fast-0", "slow-0"], false, 91);
    let (images, again, _) = timelines(images, "slow-0");
    assert_eq!(again, timeline);
    let images = continue_on(images, &THREE, false, 92);
    let (images, of_returned, former) = timelines(images, "fast-1");
    assert_eq!((of_returned, former), (timeline, vec![all_of(0)]), "the next opening may find the former one");
    let images = continue_on(images, &THREE, false, 93);
    let (images, _, former) = timelines(images, "fast-1");
    assert_eq!(former, []);
    // It leaves again, and another one after it.
    let images = continue_on(images, &["fast-0", "slow-0"], false, 94);
    let (images, second, former) = timelines(images, "fast-0");
    assert!(second != timeline);
    assert_eq!(former, [all_of(timeline)]);
    assert_eq!(tag_on(images, &THREE), Ok(94));
}

#[test]
fn group_that_leaves_many_times_and_one_that_stays_away_both_return() {
    let world = world_after_crash(2, filled());
    let seam = world.seam();
    world.block_on(async {
        let (pool, _) = open(&seam, &THREE, false).await.expect("the pool opens");
        pool.add_group(TierNo(1), disks(&seam, &ALL[3..]).await.remove(0), true).await.expect("the disk joins");
    });
    let mut images = world.crash(CrashMode::LoseAll);
    images = continue_on(images, &["fast-0", "fast-1", "slow-1"], false, 80);
    for turn in 0..9 {
        let world = world_after_crash(20 + turn, images);
        let seam = world.seam();
        world.block_on(async {
            let options = OpenOptions { accept_missing: true, ..OpenOptions::default() };
            let two = disks(&seam, &["fast-0", "slow-1"]).await;
            SimPool::open(&seam, &two, options).await.map(drop).expect("accepted explicitly");
        });
        images = continue_on(world.crash(CrashMode::LoseAll), &["fast-0", "fast-1", "slow-1"], false, 81 + turn);
    }
    assert_eq!(tag_on(images, &ALL), Ok(89));
}

#[test]
fn copy_of_a_group_from_before_its_absence_is_refused() {
    let before = filled();
    let mut copy = filled();
    copy.put("fast-1", &before, "fast-1");
    let mut images = continue_on(before, &["fast-0", "slow-0"], false, 90);
    for tag in [91, 92] {
        images = continue_on(images, &THREE, false, tag);
    }
    images.put("fast-1", &copy, "fast-1");
    let error = tag_on(images, &THREE).expect_err("the copy lacks what the group got since");
    assert!(matches!(error, PoolError::Diverged { .. }), "{error}");
}

#[test]
fn group_without_the_newest_superblock_gets_no_metadata() {
    let world = world_after_crash(2, filled());
    let seam = world.seam();
    world.block_on(async {
        let (pool, _) = open(&seam, &THREE, false).await.expect("the pool opens");
        pool.add_group(TierNo(1), disks(&seam, &ALL[3..]).await.remove(0), true).await.expect("the disk joins");
    });
    let world = world_after_crash(3, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    let rule = Rule { range: Some(0..128 << 10), ..Rule::new(Fault::Error, Ops::WRITE, When::Always) };
    world.disk("slow-0").expect("the disk exists").add_fault(rule);
    world.block_on(async {
        let opened = disks(&seam, &["fast-0", "slow-0", "slow-1"]).await;
        let pool = SimPool::open(&seam, &opened, OpenOptions::default()).await.expect("half of the groups know");
        seam.sleep(Nanos::from_secs(1)).await;
        assert!(!pool.groups()[2].carries_metadata, "{:?}", pool.take_notices());
        let disk = &opened[1];
        let superblock = superblocks(&seam, disk).await[0].clone().expect("the former superblock");
        for area in [0, 1] {
            let at = superblock.checkpoint_offset(CheckpointNo(area));
            let (result, pieces) = disk.read(at, vec![Piece::whole(seam.alloc().expect("a buffer is free"))]).await;
            result.expect("sound reads");
            assert_eq!(pieces[0].block.tags()[..8], [0; 8], "no header of a checkpoint");
        }
    });
}

/// The disks of [`filled`] with a fourth group, which missed the last opening.
fn with_an_absent_group() -> DiskImages {
    let world = world_after_crash(2, filled());
    let seam = world.seam();
    world.block_on(async {
        let (pool, _) = open(&seam, &THREE, false).await.expect("the pool opens");
        pool.add_group(TierNo(1), disks(&seam, &ALL[3..]).await.remove(0), true).await.expect("the disk joins");
    });
    continue_on(world.crash(CrashMode::LoseAll), &THREE, false, 80)
}

/// Opens the pool on some disks and writes, with a crash at each I/O. `check` gets the disks after the crash, and
/// whether the write was acknowledged.
pub fn crash_while_continuing(
    before: DiskImages,
    names: &'static [&'static str],
    accept_missing: bool,
    mut check: impl FnMut(DiskImages, bool) -> Result<(), String>,
) {
    let world = Rc::new(world_after_crash(7, before));
    let (has_ended, is_acknowledged) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let (seam, ended, acknowledged) = (world.seam(), Rc::clone(&has_ended), Rc::clone(&is_acknowledged));
    world.seam().spawn(async move {
        let (_pool, volume) = open(&seam, names, accept_missing).await.expect("the pool opens");
        write_at(&seam, &volume, 3 * SLICE, 90).await;
        volume.flush().await.expect("sound disks");
        acknowledged.set(true);
        seam.sleep(Nanos::from_millis(20)).await;
        ended.set(true);
    });
    let (rng, mut checked) = (Rng::new(8, 8), 0);
    let result = at_each_boundary(&world, &has_ended, |snapshot| {
        for (crash, survivals) in crashes(snapshot, &rng) {
            checked += 1;
            let images = snapshot.images(|number| survivals[number]);
            check(images, is_acknowledged.get()).map_err(|error| format!("{crash}: {error}"))?;
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(checked > 50 && is_acknowledged.get(), "{checked} crashes");
}

#[test]
fn crash_while_one_copy_continues_alone_mixes_nothing() {
    let (mut forks, mut joined) = (0, 0);
    crash_while_continuing(filled(), &["fast-0"], true, |images, is_acknowledged| {
        let world: World = world_after_crash(9, images);
        let images = continue_on(world.crash(CrashMode::LoseAll), &["fast-1", "slow-0"], false, 91);
        match tag_on(images, &THREE) {
            Err(PoolError::Diverged { .. }) => forks += 1,
            Ok(91) if !is_acknowledged => joined += 1,
            other => return Err(format!("{other:?}, acknowledged: {is_acknowledged}")),
        }
        Ok(())
    });
    assert!(forks > 10 && joined > 10, "{forks} refusals, {joined} openings");
}

#[test]
fn crash_while_a_group_is_absent_keeps_all_groups_together() {
    crash_while_continuing(filled(), &["fast-0", "slow-0"], false, |images, is_acknowledged| {
        match tag_on(images, &THREE).map_err(|error| error.to_string())? {
            90 => Ok(()),
            0 if !is_acknowledged => Ok(()),
            other => Err(format!("tag {other}, acknowledged: {is_acknowledged}")),
        }
    });
}

#[test]
fn copies_that_open_alone_after_a_crash_keep_all_groups_together() {
    // The opening with all groups changes their superblocks. After the crash some have the change, and the two groups
    // with the metadata, which may lack it, open without the others. They are no majority, and miss no copy.
    crash_while_continuing(with_an_absent_group(), &ALL, false, |images, _| {
        let world = world_after_crash(9, images);
        let images = continue_on(world.crash(CrashMode::LoseAll), &["fast-0", "fast-1"], false, 91);
        match tag_on(images, &ALL).map_err(|error| error.to_string())? {
            91 => Ok(()),
            other => Err(format!("tag {other}")),
        }
    });
}
