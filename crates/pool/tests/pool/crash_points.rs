//! A life of a pool that crashes at every I/O boundary with every loss of writes, and recoveries that crash likewise.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pool::{OpenOptions, Sabotage, TierNo, TierPolicy, VolumeSpec, unpaced};
use seam::sim::{CrashMode, DiskImages, Rng, SimSeam, Snapshot, Stop, Survival, World};
use seam::{Nanos, Seam};

use crate::model::{Content, Model, read_all, recover};
use crate::workload::Workload;
use crate::world::{ALL, SLICE, SMALL, SimPool, disks, open, with_pool, world_after_crash};

/// Random subsets of the unflushed writes at each boundary.
const SUBSETS: u64 = 3;
/// Torn variants of the last unflushed write of a disk.
const TORN_MAX: usize = 8;

/// Counts of a campaign.
#[derive(Clone, Copy, Debug, Default)]
pub struct CrashCounts {
    pub boundaries: u64,
    pub crashes: u64,
    pub crashes_in_recovery: u64,
}

/// Outcomes that a crash at this moment can have: a description, and the survival of each unflushed write.
pub fn crashes(snapshot: &Snapshot, rng: &Rng) -> Vec<(String, Vec<Survival>)> {
    let changes: Vec<_> = snapshot.changes().collect();
    let all_changes = |survival| vec![survival; changes.len()];
    let mut crashes = vec![("all unflushed lost".to_owned(), all_changes(Survival::Lost))];
    if changes.is_empty() {
        return crashes;
    }
    crashes.push(("all kept".to_owned(), all_changes(Survival::Whole)));
    for lost in 0..changes.len() {
        let mut survivals = all_changes(Survival::Whole);
        survivals[lost] = Survival::Lost;
        crashes.push((format!("{lost} alone lost"), survivals));
        let mut survivals = all_changes(Survival::Lost);
        survivals[lost] = Survival::Whole;
        crashes.push((format!("{lost} alone kept"), survivals));
    }
    for (last, change) in changes.iter().enumerate().filter(|(_, change)| change.last_of_disk) {
        let step = (change.count / TORN_MAX).max(1);
        for sectors in (1..change.count).step_by(step) {
            let mut torn = all_changes(Survival::Whole);
            torn[last] = Survival::First(sectors);
            crashes.push((format!("{last} torn after {sectors} sectors"), torn));
        }
    }
    for _ in 0..SUBSETS {
        let draw = |_| match rng.below(3) {
            0 => Survival::Lost,
            1 => Survival::Whole,
            _ => Survival::Scattered(rng.next()),
        };
        let subset: Vec<_> = (0..changes.len()).map(draw).collect();
        crashes.push((format!("{subset:x?}"), subset));
    }
    crashes
}

/// Recovers from a crash; with `deep` also from every crash of that recovery. A recovery after a completed one must
/// find the same.
fn recover_deeply(
    images: impl Fn() -> DiskImages,
    model: &Model,
    options: OpenOptions,
    deep: bool,
    rng: &Rng,
    counts: &mut CrashCounts,
) -> Result<(), String> {
    let world = world_after_crash(rng.next(), images());
    let content = recover(&world, model, options)?;
    let reopened_world = world_after_crash(rng.next(), world.crash(CrashMode::LoseAll));
    let reopened = recover(&reopened_world, model, options).map_err(|error| format!("opened again: {error}"))?;
    if reopened != content {
        return Err(format!("opened again, another content: {}", difference(&content, &reopened)));
    }
    if !deep {
        return Ok(());
    }
    let world = Rc::new(world_after_crash(rng.next(), images()));
    let has_ended = Rc::new(Cell::new(false));
    let (seam, flag, opened_world) = (world.seam(), Rc::clone(&has_ended), Rc::downgrade(&world));
    world.seam().spawn(async move {
        if let Some(world) = opened_world.upgrade() {
            let pool = open(&world, &seam, options).await;
            drop(world);
            // The repair in the background belongs to the recovery.
            seam.sleep(Nanos::from_millis(20)).await;
            drop(pool);
        }
        flag.set(true);
    });
    at_each_boundary(&world, &has_ended, |snapshot| {
        if snapshot.changes().next().is_none() {
            return Ok(());
        }
        for (crash, survivals) in crashes(snapshot, rng) {
            counts.crashes_in_recovery += 1;
            let world = world_after_crash(1, snapshot.images(|number| survivals[number]));
            let recovered = recover(&world, model, options).map_err(|error| format!("{crash} in recovery: {error}"))?;
            if recovered != content {
                return Err(format!("{crash} in recovery: {}", difference(&content, &recovered)));
            }
        }
        Ok(())
    })
}

/// The first difference of two contents.
fn difference(one: &Content, other: &Content) -> String {
    for (name, tags) in one {
        let Some(others) = other.get(name) else { return format!("{name} is gone") };
        if let Some(sector) = tags.iter().zip(others).position(|(one, other)| one != other) {
            return format!("{name} sector {sector}: {:x} became {:x}", tags[sector], others[sector]);
        }
    }
    format!("{:?} became {:?}", one.keys(), other.keys())
}

/// Runs the world until `has_ended`, and calls `check` at each I/O boundary.
pub fn at_each_boundary(
    world: &World,
    has_ended: &Cell<bool>,
    mut check: impl FnMut(&Snapshot) -> Result<(), String>,
) -> Result<(), String> {
    let seam = world.seam();
    loop {
        world.crash_at_io(world.io_count() + 1);
        let ended = world.run_until(async {
            while !has_ended.get() {
                seam.sleep(Nanos::from_micros(10)).await;
            }
        });
        match ended {
            Ok(()) => return Ok(()),
            Err(Stop::CrashPoint) => {
                check(&world.snapshot()).map_err(|error| format!("I/O {}: {error}", world.io_count()))?
            }
            Err(stop) => return Err(stop.to_string()),
        }
    }
}

/// A snapshot, writes and moves after it, a clone, roll back, deletion.
async fn copy_maps(workload: &Workload, seed: u64, life: Life) {
    let id = workload.pool.volume_named("a").expect("the volume exists");
    workload.delete_snapshots("a").await;
    workload.make_snapshot("a", id, "first").await;
    workload.run(seed + 400, &["a", "b"], life.steps / 3, life.moves / 2).await;
    if let Some(snapshot) = workload.pool.snapshot_named(id, "first") {
        workload.clone_snapshot("a", "first", snapshot, "clone").await;
    }
    workload.roll_back("a").await;
    workload.run(seed + 500, &["a", "clone"], life.steps / 3, life.moves / 2).await;
    workload.delete_snapshots("a").await;
    workload.delete_snapshots("b").await;
    workload.remove("clone").await;
}

/// The life of a pool: volumes are created, written, moved, resized, removed; a group joins, another one leaves.
async fn live(
    seam: SimSeam,
    model: Rc<RefCell<Model>>,
    first_error: Rc<RefCell<Option<String>>>,
    seed: u64,
    life: Life,
) {
    let options = OpenOptions { sabotage: life.sabotage, ..OpenOptions::default() };
    let open_disks = disks(&seam, &ALL[..3]).await;
    let pool = SimPool::open(&seam, &open_disks, options).await.expect("the pool opens");
    let workload = Workload {
        seam: seam.clone(),
        pool: pool.clone(),
        model,
        first_error,
        has_faults: false,
        full: Rc::default(),
        epochs: Rc::default(),
    };
    workload.create(VolumeSpec::thin("a", 3 * SLICE + 4096)).await;
    workload.create(VolumeSpec { policy: TierPolicy::StartHigh, ..VolumeSpec::thin("b", 2 * SLICE) }).await;
    workload.run(seed, &["a", "b"], life.steps, life.moves).await;
    copy_maps(&workload, seed, life).await;
    workload.resize("a", 2 * SLICE - 8192).await;
    workload.run(seed + 100, &["a", "b"], life.steps / 3, life.moves / 3).await;
    workload.remove("clone").await;
    workload.resize("a", 4 * SLICE).await;
    workload.remove("b").await;
    workload.create(VolumeSpec { policy: TierPolicy::Lowest, ..VolumeSpec::thin("c", 3 * SLICE) }).await;
    workload.run(seed + 200, &["a", "c"], life.steps / 2, life.moves / 2).await;
    workload.delete_snapshots("a").await;
    workload.delete_snapshots("c").await;
    workload.remove("clone").await;
    if life.changes_groups {
        let extra = disks(&seam, &ALL[3..]).await.remove(0);
        let added = pool.add_group(TierNo(1), extra, true).await;
        added.unwrap_or_else(|error| panic!("the disk joins: {error}"));
        let (draining, done) = (pool.clone(), Rc::new(Cell::new(false)));
        let flag = Rc::clone(&done);
        seam.spawn(async move {
            let cancelled = draining.clone();
            let (cancelling, drain) =
                (cancelled.cancel_drain(pool::GroupNo(2)), draining.begin_drain(pool::GroupNo(2)));
            drain.await.unwrap_or_else(|error| panic!("the others have room: {error}"));
            cancelling.await.unwrap_or_else(|error| panic!("the group stays: {error}"));
            let report = draining.drain(pool::GroupNo(1), unpaced()).await;
            report.unwrap_or_else(|error| panic!("the group leaves: {error}"));
            flag.set(true);
        });
        workload.run(seed + 300, &["a", "c"], life.steps / 2, 0).await;
        while !done.get() {
            seam.sleep(Nanos::from_micros(50)).await;
        }
    }
    pool.commit().await.expect("sound disks take a commit");
    let report = pool.check_open();
    if !report.findings.is_empty() {
        workload.first_error.borrow_mut().get_or_insert(format!("{:?}", report.findings));
    }
    let content = read_all(&seam, &pool).await.expect("sound disks are read");
    if let Err(error) = workload.model.borrow().check(&content) {
        workload.first_error.borrow_mut().get_or_insert(error);
    }
}

/// Length of a life.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    pub sabotage: Sabotage,
    pub steps: u64,
    pub moves: u64,
    pub changes_groups: bool,
}

/// Crashes the life of `seed` at every I/O boundary. The recovery from every `deep_every`th crash crashes, too.
pub fn crash_at_every_io(seed: u64, life: Life, deep_every: u64) -> Result<CrashCounts, String> {
    let world = with_pool(seed, SMALL);
    let (model, has_ended) = (Rc::<RefCell<Model>>::default(), Rc::new(Cell::new(false)));
    let first_error = Rc::<RefCell<Option<String>>>::default();
    let (flag, running) =
        (Rc::clone(&has_ended), live(world.seam(), Rc::clone(&model), Rc::clone(&first_error), seed, life));
    world.seam().spawn(async move {
        running.await;
        flag.set(true);
    });
    let (rng, mut counts) = (Rng::new(seed, 77), CrashCounts::default());
    let options = OpenOptions { sabotage: life.sabotage, ..OpenOptions::default() };
    at_each_boundary(&world, &has_ended, |snapshot| {
        counts.boundaries += 1;
        if let Some(error) = first_error.borrow().clone() {
            return Err(error);
        }
        for (crash, survivals) in crashes(snapshot, &rng) {
            counts.crashes += 1;
            let deep = counts.crashes.is_multiple_of(deep_every);
            let images = || snapshot.images(|number| survivals[number]);
            recover_deeply(images, &model.borrow(), options, deep, &rng, &mut counts)
                .map_err(|error| format!("{crash}: {error}"))?;
        }
        Ok(())
    })?;
    match first_error.take() {
        Some(error) => Err(error),
        None => Ok(counts),
    }
}

#[test]
fn flushed_writes_survive_a_crash_at_any_io_even_in_recovery() {
    for (seed, steps, changes_groups) in [(0, 24, true), (1, 18, false)] {
        let life = Life { sabotage: Sabotage::None, steps, moves: 6, changes_groups };
        let counts = crash_at_every_io(seed, life, 300).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        println!("seed {seed}: {counts:?}");
        assert!(counts.boundaries > 300 && counts.crashes > 4_000 && counts.crashes_in_recovery > 20, "{counts:?}");
    }
}
