//! Imports of a disk full of data: a crash at any I/O leaves it untouched or imported whole, and only its superblocks
//! change on it before its slices move.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pool::{
    CreateOptions, ExportPlan, ExportStep, GroupNo, ImportReport, MemberState, OpenOptions, PoolError, Sabotage,
    SliceAddress, SliceNo, TierNo, TierPolicy, TierSpec, VolumeSpec, unpaced,
};
use seam::sim::{CrashMode, DiskImages, Fault, Ops, Rng, Rule, SimDisk, SimDiskSpec, SimSeam, When, World};
use seam::{BlockMut, Disk, Nanos, Piece, Seam};

use crate::crash_points::{at_each_boundary, crashes};
use crate::model::{read_sectors, read_volume};
use crate::world::{ALL, SLICE, SLICE_SECTORS, SMALL, SimPool, disks, with_pool, world_after_crash};

/// The disk with data.
const DISK: &str = "data-0";
/// Its size: four slices up to slot 0, three slots, and a part of a slice.
const DISK_BYTES: u64 = 7 * SLICE + (64 << 10) + 512;
const DISK_SECTORS: u64 = DISK_BYTES / 512;
/// Its number as a group.
const GROUP: GroupNo = GroupNo(3);
/// Sectors of the superblocks.
const SUPERBLOCK_SECTORS: [std::ops::Range<u64>; 2] = [0..8, 128..136];
/// The first slice of the volume that stays in place.
const FIRST_IN_PLACE: u32 = 4;

/// Content of a sector of the disk.
fn data(sector: u64) -> u64 {
    0xda7a << 40 | sector
}

fn all_data() -> Vec<u64> {
    (0..DISK_SECTORS).map(data).collect()
}

/// A world with a pool of three disks, and a disk full of data.
fn with_data_disk(seed: u64) -> World {
    let world = with_pool(seed, SMALL);
    add_data_disk(&world, SimDiskSpec::new(DISK_BYTES), data);
    world
}

fn add_data_disk(world: &World, spec: SimDiskSpec, content: impl Fn(u64) -> u64) {
    let sectors = spec.geometry.size_bytes / 512;
    let tags: Vec<u64> = (0..sectors).map(content).collect();
    let disk = world.add_disk(DISK, spec);
    disk.set_tags(0, &tags);
    let seam = world.seam();
    world.block_on(async { disks(&seam, &[DISK]).await[0].flush().await.expect("a sound disk is flushed") });
}

/// The disks of the pool, with or without the imported one.
async fn open(seam: &SimSeam, with_disk: bool, sabotage: Sabotage) -> Result<SimPool, PoolError> {
    let mut names = ALL[..3].to_vec();
    names.extend(with_disk.then_some(DISK));
    SimPool::open(seam, &disks(seam, &names).await, OpenOptions { sabotage, ..OpenOptions::default() }).await
}

async fn import(seam: &SimSeam, pool: &SimPool) -> Result<ImportReport, PoolError> {
    let disk = disks(seam, &[DISK]).await.remove(0);
    pool.import(TierNo(1), disk, "imported", false).await
}

/// True if the disk has its data, but for the superblocks if `except_superblocks`.
fn is_untouched(world: &World, except_superblocks: bool) -> bool {
    let disk = world.disk(DISK).expect("the disk exists");
    let is_left_out =
        |sector: &u64| except_superblocks && SUPERBLOCK_SECTORS.iter().any(|range| range.contains(sector));
    (0..DISK_SECTORS).filter(|sector| !is_left_out(sector)).all(|sector| disk.tag(sector) == data(sector))
}

/// An opening finds a sound pool, and the disk untouched or imported whole. Returns true if it is imported.
fn check_opening(world: &World, must_be_imported: bool) -> Result<bool, String> {
    let seam = world.seam();
    if !is_untouched(world, true) {
        return Err("the disk has changed before the opening".to_owned());
    }
    let is_imported = world.block_on(async {
        let pool = open(&seam, true, Sabotage::None).await.map_err(|error| error.to_string())?;
        let findings = pool.check_open().findings;
        if !findings.is_empty() {
            return Err(format!("{findings:?}"));
        }
        let Some(volume) = pool.volume_named("imported") else {
            let is_left = pool.groups().get(GROUP.index()).is_none_or(|group| group.state == MemberState::Removed);
            return if is_left { Ok(false) } else { Err(format!("{:?}", pool.groups()[GROUP.index()])) };
        };
        if pool.groups()[GROUP.index()].state != MemberState::InService {
            return Err(format!("{:?}", pool.groups()[GROUP.index()]));
        }
        match read_volume(&seam, &pool, volume).await? == all_data() {
            true => Ok(true),
            false => Err("the volume has other content".to_owned()),
        }
    })?;
    if must_be_imported && !is_imported {
        return Err("an import that was reported is gone".to_owned());
    }
    match is_untouched(world, is_imported) {
        true => Ok(is_imported),
        false => Err(format!("the disk has changed; imported: {is_imported}")),
    }
}

/// Counts of crashes by their outcome.
#[derive(Debug, Default)]
struct Outcomes {
    untouched: u64,
    imported: u64,
    in_recovery: u64,
    finished_later: u64,
}

/// Opens after a crash, with the disk and at first without it; with `deep` also after each crash of that opening.
fn check_crash(
    images: &dyn Fn() -> DiskImages,
    must_be_imported: bool,
    deep: bool,
    rng: &Rng,
    outcomes: &mut Outcomes,
) -> Result<(), String> {
    let world = world_after_crash(rng.next(), images());
    let is_imported = check_opening(&world, must_be_imported)?;
    *(if is_imported { &mut outcomes.imported } else { &mut outcomes.untouched }) += 1;
    let world = world_after_crash(rng.next(), world.crash(CrashMode::LoseAll));
    if check_opening(&world, is_imported)? != is_imported {
        return Err("opened again, another outcome".to_owned());
    }
    let world = world_after_crash(rng.next(), images());
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&seam, false, Sabotage::None).await.map_err(|error| error.to_string())?;
        if let Some(volume) = pool.volume_named("imported") {
            let is_marking = pool.groups()[GROUP.index()].state == MemberState::Marking;
            outcomes.finished_later += u64::from(is_marking);
            if is_marking && read_volume(&seam, &pool, volume).await.is_ok() {
                return Err("the volume is used before its import has ended".to_owned());
            }
        }
        Ok::<(), String>(())
    })?;
    let world = world_after_crash(rng.next(), world.crash(CrashMode::LoseAll));
    if check_opening(&world, must_be_imported)? != is_imported {
        return Err("opened without the disk at first, another outcome".to_owned());
    }
    if !deep {
        return Ok(());
    }
    let world = Rc::new(world_after_crash(rng.next(), images()));
    let (seam, has_ended) = (world.seam(), Rc::new(Cell::new(false)));
    let flag = Rc::clone(&has_ended);
    world.seam().spawn(async move {
        let pool = open(&seam, true, Sabotage::None).await;
        seam.sleep(Nanos::from_millis(20)).await;
        drop(pool);
        flag.set(true);
    });
    at_each_boundary(&world, &has_ended, |snapshot| {
        for (crash, survivals) in crashes(snapshot, rng) {
            outcomes.in_recovery += 1;
            let world = world_after_crash(1, snapshot.images(|number| survivals[number]));
            let found = check_opening(&world, must_be_imported).map_err(|error| format!("{crash}: {error}"))?;
            if found != is_imported {
                return Err(format!("{crash} in recovery: another outcome"));
            }
        }
        Ok(())
    })
}

/// Crashes an import at each I/O. The recovery from every `deep_every`th crash crashes, too.
fn crash_at_every_io(sabotage: Sabotage, deep_every: u64) -> Result<Outcomes, String> {
    let world = with_data_disk(1);
    let (has_ended, result) = (Rc::new(Cell::new(false)), Rc::new(RefCell::new(None)));
    let (seam, flag, outcome) = (world.seam(), Rc::clone(&has_ended), Rc::clone(&result));
    world.seam().spawn(async move {
        let pool = open(&seam, false, sabotage).await.expect("the pool opens");
        let imported = import(&seam, &pool).await;
        flag.set(true);
        *outcome.borrow_mut() = Some(imported);
    });
    let (rng, mut outcomes, mut count) = (Rng::new(5, 5), Outcomes::default(), 0_u64);
    at_each_boundary(&world, &has_ended, |snapshot| {
        for (crash, survivals) in crashes(snapshot, &rng) {
            count += 1;
            let images = || snapshot.images(|number| survivals[number]);
            check_crash(&images, has_ended.get(), count.is_multiple_of(deep_every), &rng, &mut outcomes)
                .map_err(|error| format!("{crash}: {error}"))?;
        }
        Ok(())
    })?;
    let report = result.borrow_mut().take().expect("the import has ended").map_err(|error| error.to_string())?;
    assert_eq!((report.group, report.slices_in_place, report.slices_copied), (GROUP, 3, 5));
    let snapshot = world.snapshot();
    for (crash, survivals) in crashes(&snapshot, &rng) {
        let images = || snapshot.images(|number| survivals[number]);
        check_crash(&images, true, false, &rng, &mut outcomes).map_err(|error| format!("{crash}: {error}"))?;
    }
    Ok(outcomes)
}

#[test]
fn crash_at_each_io_of_an_import_leaves_the_disk_untouched_or_whole() {
    let outcomes = crash_at_every_io(Sabotage::None, 150).unwrap_or_else(|error| panic!("{error}"));
    println!("{outcomes:?}");
    let Outcomes { untouched, imported, in_recovery, finished_later } = outcomes;
    assert!(untouched > 200 && imported > 40 && in_recovery > 100 && finished_later > 10, "{outcomes:?}");
}

#[test]
fn superblock_written_before_the_volume_is_complete_is_caught() {
    let error = crash_at_every_io(Sabotage::MarkBeforeMap, u64::MAX).expect_err("a crash leaves a changed disk");
    println!("{error}");
}

#[test]
fn import_that_counts_before_its_map_is_durable_is_caught() {
    let error = crash_at_every_io(Sabotage::ImportBeforeMap, u64::MAX).expect_err("a crash leaves half a volume");
    println!("{error}");
}

/// A world in which an import was interrupted right before the superblocks of the disk.
fn interrupted_at_the_end() -> World {
    let world = with_data_disk(1);
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&seam, false, Sabotage::None).await.expect("the pool opens");
        let control = world.disk(DISK).expect("the disk exists");
        control.add_fault(Rule::new(Fault::Error, Ops::WRITE, When::Always));
        let error = import(&seam, &pool).await.expect_err("the disk takes no superblock");
        assert!(matches!(error, PoolError::Disk { .. }), "{error}");
        assert_eq!(pool.groups()[GROUP.index()].state, MemberState::Marking);
        let volume = pool.volume_named("imported").expect("the volume is complete");
        assert!(read_volume(&seam, &pool, volume).await.is_err(), "it refuses reads");
        assert!(pool.remove_volume(volume).await.is_err(), "its copies are the disk's start");
        assert!(pool.create_snapshot(volume, "one", 1).await.is_err());
        assert!(pool.begin_drain(GROUP).await.is_err());
        let other = disks(&seam, &ALL[3..]).await.remove(0);
        let again = pool.import(TierNo(1), other, "other", false).await.expect_err("one import at a time");
        assert!(again.to_string().contains("was interrupted"), "{again}");
    });
    world_after_crash(2, world.crash(CrashMode::LoseAll))
}

#[test]
fn interrupted_import_takes_no_other_disk() {
    let images = interrupted_at_the_end().crash(CrashMode::LoseAll);
    // Byte 8192 of the start differs, or the last sector, or the size.
    let altered: [(u64, &dyn Fn(u64) -> u64); 3] = [
        (DISK_BYTES, &|sector| data(sector) + u64::from(sector == 16)),
        (DISK_BYTES, &|sector| data(sector) + u64::from(sector == DISK_SECTORS - 1)),
        (DISK_BYTES + 512, &data),
    ];
    for (size_bytes, content) in altered {
        let world = world_after_crash(3, images.clone());
        let mut without = world.crash(CrashMode::LoseAll);
        without.remove(DISK);
        let world = world_after_crash(4, without);
        add_data_disk(&world, SimDiskSpec::new(size_bytes), content);
        let seam = world.seam();
        world.block_on(async {
            let pool = open(&seam, true, Sabotage::None).await.expect("the pool opens without the disk");
            assert_eq!(pool.groups()[GROUP.index()].state, MemberState::Marking);
            let notices = pool.take_notices();
            assert!(notices.iter().any(|text| text.contains("attach the device")), "{notices:?}");
        });
        let disk = world.disk(DISK).expect("the disk exists");
        assert!((0..size_bytes / 512).all(|sector| disk.tag(sector) == content(sector)), "nothing was written to it");
    }
    let world = world_after_crash(5, images);
    assert_eq!(check_opening(&world, true), Ok(true));
}

#[test]
fn interrupted_import_that_is_given_up_frees_its_slices() {
    let world = interrupted_at_the_end();
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&seam, false, Sabotage::None).await.expect("the pool opens");
        assert_eq!(pool.groups()[GROUP.index()].state, MemberState::Marking);
        pool.give_up(GROUP).await.expect("sound disks");
        assert_eq!((pool.groups()[GROUP.index()].state, pool.volumes().len()), (MemberState::Removed, 0));
        assert!(pool.check_open().findings.is_empty());
    });
    let world = world_after_crash(3, world.crash(CrashMode::LoseAll));
    assert_eq!(check_opening(&world, false), Ok(false));
}

async fn write(seam: &SimSeam, disk: &pool::PoolDisk<SimSeam, SimDisk>, sector: u64, tag: u64) {
    let mut block = seam.alloc().expect("a buffer is free");
    (0..8).for_each(|index| block.set_tag(index, tag));
    disk.write(sector * 512, vec![Piece::whole(block.freeze())]).await.expect("room on sound disks");
}

#[test]
fn imported_slices_are_written_moved_and_drained_like_others() {
    let world = with_data_disk(2);
    let seam = world.seam();
    let mut expected = all_data();
    world.block_on(async {
        let pool = open(&seam, false, Sabotage::None).await.expect("the pool opens");
        let report = import(&seam, &pool).await.expect("room for five slices");
        let in_place: Vec<_> = pool.slices_of(report.volume).into_iter().filter(|(_, group)| *group == GROUP).collect();
        assert_eq!(in_place.iter().map(|(slice, _)| slice.0).collect::<Vec<_>>(), [4, 5, 6]);
        let volume = pool.volume(report.volume).expect("the volume exists");
        for sector in [0, 128, 5 * SLICE_SECTORS + 8, 7 * SLICE_SECTORS] {
            write(&seam, &volume, sector, 77).await;
            expected[sector as usize..sector as usize + 8].fill(77);
        }
        volume.flush().await.expect("sound disks");
        let slice = SliceAddress { volume: report.volume, slice: SliceNo(FIRST_IN_PLACE) };
        pool.move_slice(slice, GroupNo(2), unpaced()).await.expect("a free slot");
        assert_eq!(read_volume(&seam, &pool, report.volume).await, Ok(expected.clone()));
        // The freed slot takes a slice of another volume.
        let spec = VolumeSpec { policy: TierPolicy::Tier(TierNo(1)), ..VolumeSpec::thin("other", SLICE) };
        let other = pool.create_volume(spec).await.expect("room");
        let disk = pool.volume(other).expect("the volume exists");
        write(&seam, &disk, 0, 88).await;
        disk.flush().await.expect("sound disks");
        pool.move_slice(SliceAddress { volume: other, slice: SliceNo(0) }, GROUP, unpaced()).await.expect("it is free");
        let read = read_sectors(&seam, &disk, 0, 9).await;
        assert_eq!(read, Ok([vec![88; 8], vec![0]].concat()), "no content of the imported disk shows");
        volume.set_size(8 * SLICE).await.expect("it grows within its last slice");
        expected.resize(8 * SLICE_SECTORS as usize, 0);
        assert!(pool.check_open().findings.is_empty());
    });
    let world = world_after_crash(3, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&seam, true, Sabotage::None).await.expect("the pool opens");
        let volume = pool.volume_named("imported").expect("the volume exists");
        assert_eq!(read_volume(&seam, &pool, volume).await, Ok(expected.clone()));
        let report = pool.drain(GROUP, unpaced()).await.expect("room for three slices");
        assert_eq!((report.moved, report.left), (3, 0));
        assert_eq!(pool.groups()[GROUP.index()].state, MemberState::Removed);
        assert_eq!(read_volume(&seam, &pool, volume).await, Ok(expected.clone()));
    });
    let world = world_after_crash(4, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&seam, false, Sabotage::None).await.expect("the pool opens without the drained disk");
        let volume = pool.volume_named("imported").expect("the volume exists");
        assert_eq!(read_volume(&seam, &pool, volume).await, Ok(expected));
    });
}

/// Imports a disk that fails; returns false if the import ended before.
fn is_failed_import_undone(ops: Ops, when: When) -> bool {
    let world = with_data_disk(3);
    let seam = world.seam();
    let is_undone = world.block_on(async {
        let pool = open(&seam, false, Sabotage::None).await.expect("the pool opens");
        let control = world.disk(DISK).expect("the disk exists");
        control.add_fault(Rule::new(Fault::Error, ops, when));
        if import(&seam, &pool).await.is_ok() {
            return false;
        }
        // Before the disk has a number, nothing is to undo.
        let states: Vec<_> = pool.groups().iter().skip(GROUP.index()).map(|group| group.state).collect();
        assert!(states.iter().all(|state| *state == MemberState::Removed), "{states:?}");
        assert!(pool.volumes().is_empty());
        assert!(pool.check_open().findings.is_empty());
        true
    });
    if is_undone {
        assert!(is_untouched(&world, false));
        let world = world_after_crash(4, world.crash(CrashMode::LoseAll));
        assert_eq!(check_opening(&world, false), Ok(false));
    }
    is_undone
}

#[test]
fn failing_device_undoes_an_import() {
    assert!(is_failed_import_undone(Ops::FLUSH, When::Always));
    let undone = (1..100).take_while(|number| is_failed_import_undone(Ops::READ, When::Nth(*number))).count();
    assert!((10..99).contains(&undone), "{undone} reads of the disk");
}

/// Imports a disk of this kind into a pool on sound disks, and returns the refusal.
fn refusal(spec: SimDiskSpec) -> PoolError {
    let world = with_pool(4, SMALL);
    let size_bytes = spec.geometry.size_bytes;
    add_data_disk(&world, spec, data);
    let seam = world.seam();
    let error = world.block_on(async {
        let pool = open(&seam, false, Sabotage::None).await.expect("the pool opens");
        let error = import(&seam, &pool).await.expect_err("the disk is refused");
        assert_eq!(pool.groups().len(), 3, "no number of a group was used");
        error
    });
    let disk = world.disk(DISK).expect("the disk exists");
    assert!((0..size_bytes / 512).all(|sector| disk.tag(sector) == data(sector)));
    error
}

#[test]
fn disk_of_another_block_size_or_too_small_is_refused_untouched() {
    assert!(matches!(refusal(SimDiskSpec::new(5 * SLICE - 512)), PoolError::TooSmall { .. }));
    let mut spec = SimDiskSpec::new(8 * SLICE);
    (spec.geometry.logical_block, spec.geometry.physical_block) = (4096, 4096);
    let error = refusal(spec).to_string();
    assert!(error.contains("logical block is"), "{error}");
}

#[test]
fn member_of_an_array_is_imported_only_with_force() {
    let world = with_data_disk(6);
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&seam, false, Sabotage::None).await.expect("the pool opens");
        let disk = disks(&seam, &[DISK]).await.remove(0);
        let mut block = seam.alloc().expect("a buffer is free");
        let mut raw = [0; 4096];
        raw[..8].copy_from_slice(&[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0]);
        block.write_metadata(0, &raw);
        disk.write(4096, vec![Piece::whole(block.freeze())]).await.expect("a sound disk");
        let error = pool.import(TierNo(1), disk.clone(), "a", false).await.expect_err("a member").to_string();
        assert!(error.contains("a member of an md array") && error.contains("--force"), "{error}");
        assert_eq!(pool.groups().len(), 3, "no number of a group was used");
        pool.import(TierNo(1), disk, "a", true).await.expect("confirmed");
    });
}

#[test]
fn device_with_a_signature_at_its_end_is_not_empty() {
    let world = with_pool(6, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&seam, false, Sabotage::None).await.expect("the pool opens");
        let disk = disks(&seam, &ALL[3..]).await.remove(0);
        let mut block = seam.alloc().expect("a buffer is free");
        let mut raw = [0; 4096];
        raw[..8].copy_from_slice(&[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0]);
        block.write_metadata(0, &raw);
        let at = (disk.geometry().size_bytes / 512 - 16) / 8 * 8 * 512;
        disk.write(at, vec![Piece::whole(block.freeze())]).await.expect("a sound disk");
        let error = pool.add_group(TierNo(1), disk.clone(), false).await.expect_err("a member of an array");
        assert!(error.to_string().contains("the signature of a member of an md array"), "{error}");
        pool.add_group(TierNo(1), disk, true).await.expect("its content may be destroyed");
    });
}

#[test]
fn import_without_room_or_with_a_used_name_is_refused_untouched() {
    let world = with_data_disk(6);
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&seam, false, Sabotage::None).await.expect("the pool opens");
        let group = disks(&seam, &ALL[3..]).await;
        let tiers = [TierSpec { name: "only".to_owned(), disks: group.clone() }];
        let options = CreateOptions { slice_bytes: SLICE, force: true, ..CreateOptions::default() };
        SimPool::create(&seam, &tiers, options).await.expect("room for a pool");
        let error =
            pool.import(TierNo(1), group[0].clone(), "a", true).await.expect_err("a group of a pool").to_string();
        assert!(error.contains("a group of a pool already"), "{error}");
        let id = pool.create_volume(VolumeSpec::thin("imported", 14 * SLICE)).await.expect("room");
        let error = import(&seam, &pool).await.expect_err("the name is in use").to_string();
        assert!(error.contains("already"), "{error}");
        pool.volume(id).expect("the volume exists").reserve(0, 14 * SLICE).await.expect("room");
        let disk = disks(&seam, &[DISK]).await.remove(0);
        let error =
            pool.import(TierNo(1), disk, "another", false).await.expect_err("three slices are free").to_string();
        assert!(error.contains("need 5 free slices"), "{error}");
        assert_eq!(pool.groups().len(), 3, "no number of a group was used");
    });
    assert!(is_untouched(&world, false));
}

/// Copies the ranges of a plan to the target, whose superblocks come last.
async fn run_plan(seam: &SimSeam, all: &[SimDisk], plan: &ExportPlan, target: &SimDisk) {
    for ExportStep { source, at, len_bytes } in &plan.steps {
        for offset in (0..*len_bytes).step_by(4096) {
            let len = (len_bytes - offset).min(4096) as usize;
            let mut piece = Piece::new(seam.alloc().expect("a buffer is free"), 0, len);
            match source {
                None => piece.block.zero(0, 4096),
                Some((device, from)) => {
                    let source = all.iter().find(|disk| disk.identity() == *device).expect("a device of the pool");
                    let (result, mut pieces) = source.read(from + offset, vec![piece]).await;
                    result.expect("a sound disk is read");
                    piece = pieces.remove(0);
                }
            }
            target.write(at + offset, vec![Piece::new(piece.block.freeze(), 0, len)]).await.expect("a sound disk");
        }
    }
}

#[test]
fn export_plan_rebuilds_the_plain_disk_in_place() {
    let world = with_data_disk(7);
    let seam = world.seam();
    let mut expected = all_data();
    world.block_on(async {
        let pool = open(&seam, false, Sabotage::None).await.expect("the pool opens");
        let report = import(&seam, &pool).await.expect("room for five slices");
        let volume = pool.volume(report.volume).expect("the volume exists");
        write(&seam, &volume, 5 * SLICE_SECTORS, 77).await;
        expected[5 * SLICE_SECTORS as usize..][..8].fill(77);
        // A discarded slice reads as zeroes, and its former content lies on the disk.
        volume.zero(6 * SLICE, SLICE, true).await.expect("sound disks");
        expected[6 * SLICE_SECTORS as usize..][..SLICE_SECTORS as usize].fill(0);
        volume.flush().await.expect("sound disks");
        let slice = SliceAddress { volume: report.volume, slice: SliceNo(FIRST_IN_PLACE) };
        pool.move_slice(slice, GroupNo(2), unpaced()).await.expect("a free slot");
    });
    let images = world.crash(CrashMode::LoseAll);
    let world = world_after_crash(8, images.clone());
    let seam = world.seam();
    world.block_on(async {
        let all = disks(&seam, &["fast-0", "fast-1", "slow-0", DISK]).await;
        let (target, identity) = (&all[3], all[3].identity());
        let plan = SimPool::export_plan(&seam, &all, "imported", Some(&identity)).await.expect("all is in place");
        assert_eq!(plan.size_bytes, DISK_BYTES);
        assert!(plan.steps.iter().all(|step| step.at != 5 * SLICE), "slice 5 is in place: {plan:?}");
        assert_eq!(plan.steps.last().map(|step| step.at), Some(0), "the superblocks stay to the end: {plan:?}");
        // A script that is run twice has the same result.
        run_plan(&seam, &all, &plan, target).await;
        run_plan(&seam, &all, &plan, target).await;
    });
    let disk = world.disk(DISK).expect("the disk exists");
    assert!((0..DISK_SECTORS).all(|sector| disk.tag(sector) == expected[sector as usize]));
    // With a slice of another volume on it, the disk is no target. Another target gets every slice.
    let world = world_after_crash(9, images);
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&seam, true, Sabotage::None).await.expect("the pool opens");
        let other = pool.create_volume(VolumeSpec::thin("other", SLICE)).await.expect("room");
        let disk = pool.volume(other).expect("the volume exists");
        write(&seam, &disk, 0, 88).await;
        disk.flush().await.expect("sound disks");
        pool.move_slice(SliceAddress { volume: other, slice: SliceNo(0) }, GROUP, unpaced()).await.expect("it is free");
    });
    let world = world_after_crash(10, world.crash(CrashMode::LoseAll));
    let control = world.add_disk("plain", SimDiskSpec::new(DISK_BYTES));
    let seam = world.seam();
    world.block_on(async {
        let all = disks(&seam, &["fast-0", "fast-1", "slow-0", DISK]).await;
        let identity = all[3].identity();
        let error = SimPool::export_plan(&seam, &all, "imported", Some(&identity)).await.expect_err("another volume");
        assert!(error.to_string().contains("other volumes"), "{error}");
        let plan = SimPool::export_plan(&seam, &all, "imported", None).await.expect("every device is present");
        run_plan(&seam, &all, &plan, &disks(&seam, &["plain"]).await[0]).await;
    });
    assert!((0..DISK_SECTORS).all(|sector| control.tag(sector) == expected[sector as usize]));
}

#[test]
fn pool_opens_after_any_crash_while_an_import_is_given_up() {
    let images = interrupted_at_the_end().crash(CrashMode::LoseAll);
    let world = world_after_crash(2, images);
    let (has_ended, seam) = (Rc::new(Cell::new(false)), world.seam());
    let flag = Rc::clone(&has_ended);
    world.seam().spawn(async move {
        let pool = open(&seam, false, Sabotage::None).await.expect("the pool opens");
        pool.give_up(GROUP).await.expect("sound disks");
        flag.set(true);
    });
    let (rng, mut count, mut bad) = (Rng::new(5, 5), 0, Vec::new());
    at_each_boundary(&world, &has_ended, |snapshot| {
        for (crash, survivals) in crashes(snapshot, &rng) {
            count += 1;
            let world = world_after_crash(rng.next(), snapshot.images(|number| survivals[number]));
            let seam = world.seam();
            world.block_on(async {
                if let Err(error) = open(&seam, false, Sabotage::None).await {
                    bad.push(format!("{crash}: {error}"));
                }
            });
        }
        Ok(())
    })
    .expect("no failure");
    assert!(count > 100 && bad.is_empty(), "{} of {count} crashes: {:?}", bad.len(), bad.first());
}

#[test]
fn disk_whose_first_block_has_changed_is_not_the_interrupted_one() {
    let images = interrupted_at_the_end().crash(CrashMode::LoseAll);
    let world = world_after_crash(3, images);
    let disk = world.disk(DISK).expect("the disk exists");
    disk.set_tags(2, &[0xbeef, 0xbeef]);
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&seam, true, Sabotage::None).await.expect("the pool opens");
        let state = pool.groups()[GROUP.index()].state;
        assert_eq!(state, MemberState::Marking, "the disk changed");
    });
}
