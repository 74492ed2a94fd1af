//! A scenario that crashes at every I/O boundary with every loss of writes, and recoveries that crash likewise.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use flash::{MemberStatus, OpenOptions, Sabotage, StoreError};
use seam::sim::{CrashMode, DiskImages, Fault, Ops, Rng, Rule, SimSeam, Snapshot, Stop, Survival, When, World};
use seam::{Nanos, Seam};

use crate::model::{LogModel, RecoveredBlocks, read_all};
use crate::workload::Workload;
use crate::world::{NAMES, SMALL, StoreShape, formatted, open, open_named, world_after_crash};

/// Number of random subsets of the unflushed writes at each boundary.
const SUBSETS: u64 = 8;

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
    }
    for (last, change) in changes.iter().enumerate().filter(|(_, change)| change.last_of_disk) {
        for sectors in 1..change.count {
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

/// Recovers, and checks the recovered blocks against the model.
fn recover(world: &World, model: &LogModel, options: OpenOptions) -> Result<RecoveredBlocks, String> {
    let seam = world.seam();
    let content = world.run_until(async {
        let (store, recovered) = open(world, &seam, options).await.map_err(|error| error.to_string())?;
        let content = read_all(&seam, &store, &recovered).await?;
        model.check(&content).map(|()| content)
    });
    content.map_err(|stop| stop.to_string())?
}

/// Recovers from a crash; with `deep` also from every crash of that recovery. A recovery after a completed one must
/// find the same.
fn recover_deeply(
    images: impl Fn() -> DiskImages,
    model: &LogModel,
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
        return Err(format!("opened again, another content: {content:?}, then {reopened:?}"));
    }
    if !deep {
        return Ok(());
    }
    let world = world_after_crash(rng.next(), images());
    let has_ended = Rc::new(Cell::new(false));
    let (seam, flag) = (world.seam(), Rc::clone(&has_ended));
    world.seam().spawn(async move {
        let _opened = open_named(&seam, &NAMES, options).await;
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
                return Err(format!("{crash} in recovery: {content:?} became {recovered:?}"));
            }
        }
        Ok(())
    })
}

/// R6 and R10: a member in service, by the superblocks, holds everything that was acknowledged. Opened alone, it is
/// refused unless the loss of the other member is accepted, or it is known to be the only copy. A member that was taken
/// out of service is not read, and not opened alone.
fn check_each_mirror_alone(
    images: impl Fn() -> DiskImages,
    model: &LogModel,
    options: OpenOptions,
) -> Result<(), String> {
    let world = world_after_crash(1, images());
    let seam = world.seam();
    let members = world.block_on(async {
        let (store, _) = open(&world, &seam, options).await.map_err(|error| error.to_string())?;
        Ok::<_, String>(store.members())
    })?;
    let serves = |member: usize| members[member].status == MemberStatus::InService;
    for (member, name) in NAMES.into_iter().enumerate() {
        let mut alone = images();
        assert!(alone.remove(NAMES[1 - member]));
        let world = world_after_crash(1, alone);
        let seam = world.seam();
        let refused = world.block_on(async { open_named(&seam, &[name], options).await.err() });
        let missing = matches!(refused, Some(StoreError::MemberMissing { .. }));
        if missing != (!serves(member) || serves(1 - member)) {
            return Err(format!("{name} alone: {refused:?} with {members:?}"));
        }
        if serves(member) {
            let accepting = OpenOptions { accept_missing: true, ..options };
            recover(&world, model, accepting).map_err(|error| format!("{name} alone: {error}"))?;
        }
    }
    Ok(())
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

/// Scenario: two writers and a third volume fill and wrap the log. The store is closed and opened, loses a member, and
/// is opened again with the stale member present.
async fn run_scenario(scenario: Scenario, fail: impl Fn()) {
    let Scenario { seam, model, first_error, seed, options } = scenario;
    for round in 0..3 {
        let (store, recovered) = open_named(&seam, &NAMES, options).await.expect("the store opens");
        let content = read_all(&seam, &store, &recovered).await.expect("live records can be read");
        model.borrow_mut().adopt_recovered(&recovered, &content);
        let (seam, model, first_error) = (seam.clone(), Rc::clone(&model), Rc::clone(&first_error));
        let workload =
            Workload { seam, store: store.clone(), model, first_error, full_without_live_record: Rc::default() };
        workload.run(seed + round, 2, 12).await;
        if round == 1 {
            fail();
            workload.run(seed + 10, 2, 8).await;
        }
        while round == 2 && workload.model.borrow().live() > 0 {
            workload.destage();
        }
        drop(workload);
        store.close().await.expect("a store with a member closes");
    }
}

struct Scenario {
    seam: SimSeam,
    model: Rc<RefCell<LogModel>>,
    first_error: Rc<RefCell<Option<String>>>,
    seed: u64,
    options: OpenOptions,
}

/// Crashes the scenario of `seed` at every I/O boundary. The recovery from every `deep_every`th crash crashes, too.
pub fn crash_at_every_io(
    seed: u64,
    shape: StoreShape,
    sabotage: Sabotage,
    deep_every: u64,
) -> Result<CrashCounts, String> {
    let world = formatted(seed, shape);
    let options = OpenOptions { sabotage, ..OpenOptions::default() };
    let (model, has_ended) = (Rc::<RefCell<LogModel>>::default(), Rc::new(Cell::new(false)));
    let scenario = Scenario { seam: world.seam(), model: Rc::clone(&model), first_error: Rc::default(), seed, options };
    let (first_error, flag) = (Rc::clone(&scenario.first_error), Rc::clone(&has_ended));
    let control = world.disk(NAMES[1]).expect("the disk exists");
    let fail = move || control.add_fault(Rule::new(Fault::Error, Ops::WRITE | Ops::FLUSH, When::Always));
    world.seam().spawn(async move {
        run_scenario(scenario, fail).await;
        flag.set(true);
    });
    let (rng, mut counts) = (Rng::new(seed, 77), CrashCounts::default());
    at_each_boundary(&world, &has_ended, |snapshot| {
        counts.boundaries += 1;
        let lost = || snapshot.images(|_| Survival::Lost);
        check_each_mirror_alone(lost, &model.borrow(), options)?;
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
fn acknowledged_records_survive_a_crash_at_any_io_even_in_recovery() {
    for seed in 0..2 {
        let counts =
            crash_at_every_io(seed, SMALL, Sabotage::None, 160).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        println!("seed {seed}: {counts:?}");
        assert!(counts.boundaries > 300 && counts.crashes > 5_000 && counts.crashes_in_recovery > 1_000, "{counts:?}");
    }
}
