//! A scenario, cut at every I/O boundary in every way, and each recovery from it cut in turn.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use flash::{MemberStatus, OpenOptions, Sabotage, StoreError};
use seam::sim::{CrashMode, DiskImages, Fault, Ops, Rng, Rule, SimSeam, Snapshot, Stop, Survival, When, World};
use seam::{Nanos, Seam};

use crate::model::{Found, Model, read_all};
use crate::workload::Workload;
use crate::world::{NAMES, SMALL, after, formatted, open, open_named};

/// Number of random subsets of the unflushed writes at each boundary.
const SUBSETS: u64 = 8;

/// Counts of a campaign.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub boundaries: u64,
    pub crashes: u64,
    pub crashes_in_recovery: u64,
}

/// Every outcome that a crash at this moment can have: the survival of each unflushed write.
pub fn crashes(cut: &Snapshot, rng: &Rng) -> Vec<(String, Vec<Survival>)> {
    let changes: Vec<_> = cut.changes().collect();
    let all = |survival| vec![survival; changes.len()];
    let mut crashes = vec![("all unflushed lost".to_owned(), all(Survival::Lost))];
    if changes.is_empty() {
        return crashes;
    }
    crashes.push(("all kept".to_owned(), all(Survival::Whole)));
    for lost in 0..changes.len() {
        let mut survivals = all(Survival::Whole);
        survivals[lost] = Survival::Lost;
        crashes.push((format!("{lost} alone lost"), survivals));
    }
    for (last, change) in changes.iter().enumerate().filter(|(_, change)| change.last_of_disk) {
        for sectors in 1..change.count {
            let mut torn = all(Survival::Whole);
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

/// Recovers and checks what is found against the model.
fn recover(world: &World, model: &Model, options: OpenOptions) -> Result<Found, String> {
    let seam = world.seam();
    let found = world.run_until(async {
        let (store, recovered) = open(world, &seam, options).await.map_err(|error| error.to_string())?;
        let found = read_all(&seam, &store, &recovered).await?;
        model.check(&found).map(|()| found)
    });
    found.map_err(|stop| stop.to_string())?
}

/// Recovers from a crash; with `deep` also from every crash of that recovery. A recovery after a completed one must
/// find the same.
fn recover_deeply(
    images: impl Fn() -> DiskImages,
    model: &Model,
    options: OpenOptions,
    deep: bool,
    rng: &Rng,
    counts: &mut Counts,
) -> Result<(), String> {
    let world = after(rng.next(), images());
    let found = recover(&world, model, options)?;
    let again = after(rng.next(), world.crash(CrashMode::LoseAll));
    let later = recover(&again, model, options).map_err(|error| format!("opened again: {error}"))?;
    if later != found {
        return Err(format!("opened again, another content: {found:?}, then {later:?}"));
    }
    if !deep {
        return Ok(());
    }
    let world = after(rng.next(), images());
    let done = Rc::new(Cell::new(false));
    let (seam, flag) = (world.seam(), Rc::clone(&done));
    world.seam().spawn(async move {
        let _opened = open_named(&seam, &NAMES, options).await;
        flag.set(true);
    });
    at_each_boundary(&world, &done, |cut| {
        if cut.changes().next().is_none() {
            return Ok(());
        }
        for (how, survivals) in crashes(cut, rng) {
            counts.crashes_in_recovery += 1;
            let world = after(1, cut.images(|number| survivals[number]));
            let again = recover(&world, model, options).map_err(|error| format!("{how} in recovery: {error}"))?;
            if again != found {
                return Err(format!("{how} in recovery: {found:?} became {again:?}"));
            }
        }
        Ok(())
    })
}

/// R6 and R10: a member in service, by the superblocks, holds everything that was acknowledged. Alone it is refused
/// unless that is accepted, or it is known to be the only copy. A member that was taken out is not read, and not opened
/// alone.
fn each_mirror_alone(images: impl Fn() -> DiskImages, model: &Model, options: OpenOptions) -> Result<(), String> {
    let world = after(1, images());
    let seam = world.seam();
    let members = world.block_on(async {
        let (store, _) = open(&world, &seam, options).await.map_err(|error| error.to_string())?;
        Ok::<_, String>(store.members())
    })?;
    let serves = |member: usize| members[member].status == MemberStatus::InService;
    for (member, name) in NAMES.into_iter().enumerate() {
        let mut alone = images();
        assert!(alone.remove(NAMES[1 - member]));
        let world = after(1, alone);
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

/// Runs the world until `done`, and calls `each` at each I/O boundary.
pub fn at_each_boundary(
    world: &World,
    done: &Cell<bool>,
    mut each: impl FnMut(&Snapshot) -> Result<(), String>,
) -> Result<(), String> {
    let seam = world.seam();
    loop {
        world.crash_at_io(world.io_count() + 1);
        let ended = world.run_until(async {
            while !done.get() {
                seam.sleep(Nanos::from_micros(10)).await;
            }
        });
        match ended {
            Ok(()) => return Ok(()),
            Err(Stop::CrashPoint) => {
                each(&world.snapshot()).map_err(|error| format!("I/O {}: {error}", world.io_count()))?
            }
            Err(stop) => return Err(stop.to_string()),
        }
    }
}

/// Scenario: two writers and a third volume fill and wrap the log. The store is closed and opened, loses a member, and
/// is opened again with the stale member present.
async fn run_script(script: Script, fail: impl Fn()) {
    let Script { seam, model, first_error, seed, options } = script;
    for round in 0..3 {
        let (store, recovered) = open_named(&seam, &NAMES, options).await.expect("the store opens");
        let found = read_all(&seam, &store, &recovered).await.expect("live records can be read");
        model.borrow_mut().adopt_recovered(&recovered, &found);
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

struct Script {
    seam: SimSeam,
    model: Rc<RefCell<Model>>,
    first_error: Rc<RefCell<Option<String>>>,
    seed: u64,
    options: OpenOptions,
}

/// Cuts the scenario of `seed` at every I/O boundary. The recovery of every `deep_every`th crash is cut, too.
pub fn campaign(seed: u64, sabotage: Sabotage, deep_every: u64) -> Result<Counts, String> {
    let world = formatted(seed, SMALL);
    let options = OpenOptions { sabotage, ..OpenOptions::default() };
    let (model, done) = (Rc::<RefCell<Model>>::default(), Rc::new(Cell::new(false)));
    let script = Script { seam: world.seam(), model: Rc::clone(&model), first_error: Rc::default(), seed, options };
    let (first_error, flag) = (Rc::clone(&script.first_error), Rc::clone(&done));
    let control = world.disk(NAMES[1]).expect("the disk exists");
    let fail = move || control.add_fault(Rule::new(Fault::Error, Ops::WRITE | Ops::FLUSH, When::Always));
    world.seam().spawn(async move {
        run_script(script, fail).await;
        flag.set(true);
    });
    let (rng, mut counts) = (Rng::new(seed, 77), Counts::default());
    at_each_boundary(&world, &done, |cut| {
        counts.boundaries += 1;
        let lost = || cut.images(|_| Survival::Lost);
        each_mirror_alone(lost, &model.borrow(), options)?;
        for (how, survivals) in crashes(cut, &rng) {
            counts.crashes += 1;
            let deep = counts.crashes.is_multiple_of(deep_every);
            let images = || cut.images(|number| survivals[number]);
            recover_deeply(images, &model.borrow(), options, deep, &rng, &mut counts)
                .map_err(|error| format!("{how}: {error}"))?;
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
        let counts = campaign(seed, Sabotage::None, 160).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        println!("seed {seed}: {counts:?}");
        assert!(counts.boundaries > 300 && counts.crashes > 5_000 && counts.crashes_in_recovery > 1_000, "{counts:?}");
    }
}
