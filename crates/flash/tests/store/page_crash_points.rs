//! A scenario with pages that crashes at every I/O boundary with every loss of writes, and recoveries that crash
//! likewise.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use flash::{OpenOptions, Sabotage};
use seam::sim::{CrashMode, DiskImages, Fault, Ops, Rng, Rule, When, World};
use seam::{Nanos, Seam};

use crate::crash_points::{at_each_boundary, crashes};
use crate::paged::{Backing, PagedWorkload, check_all};
use crate::world::{NAMES, PAGED, StoreShape, formatted, open, open_named, world_after_crash};

/// Counts of a campaign.
#[derive(Clone, Copy, Debug, Default)]
pub struct CrashCounts {
    pub boundaries: u64,
    pub crashes: u64,
    pub crashes_in_recovery: u64,
    pub served: u64,
    pub suspect: u64,
    pub dropped: u64,
}

/// Recovers and checks the served blocks.
fn recover(
    world: &World,
    backing: &Backing,
    options: OpenOptions,
    rng: &Rng,
    counts: &mut CrashCounts,
) -> Result<(), String> {
    let seam = world.seam();
    let outcome = world.run_until(async {
        let (store, _) = open(world, &seam, options).await.map_err(|error| error.to_string())?;
        let pages = store.pages();
        let loaded = pages.load().await;
        let (served, suspect) = check_all(&seam, &pages, backing, rng, true).await?;
        Ok::<_, String>((served, suspect, loaded.drop_reason))
    });
    let (served, suspect, dropped) = outcome.map_err(|stop| stop.to_string())??;
    counts.served += served;
    counts.suspect += suspect;
    counts.dropped += u64::from(dropped.is_some());
    Ok(())
}

/// Recovers from a crash; with `deep` also from every crash of that recovery.
fn recover_deeply(
    images: impl Fn() -> DiskImages,
    backing: &Backing,
    options: OpenOptions,
    deep: bool,
    rng: &Rng,
    counts: &mut CrashCounts,
) -> Result<(), String> {
    recover(&world_after_crash(rng.next(), images()), backing, options, rng, counts)?;
    if !deep {
        return Ok(());
    }
    let world = world_after_crash(rng.next(), images());
    let has_ended = Rc::new(Cell::new(false));
    let (seam, flag) = (world.seam(), Rc::clone(&has_ended));
    world.seam().spawn(async move {
        if let Ok((store, _)) = open_named(&seam, &NAMES, options).await {
            store.pages().load().await;
            // Give the journal time for its writes.
            seam.sleep(Nanos::from_millis(20)).await;
        }
        flag.set(true);
    });
    at_each_boundary(&world, &has_ended, |snapshot| {
        for (crash, survivals) in crashes(snapshot, rng) {
            counts.crashes_in_recovery += 1;
            let world = world_after_crash(rng.next(), snapshot.images(|number| survivals[number]));
            recover(&world, backing, options, rng, counts).map_err(|error| format!("{crash} in recovery: {error}"))?;
        }
        Ok(())
    })
}

/// Scenario: pages are put and evicted, the log grows into their segments and shrinks again, checkpoints, a restart,
/// the loss of a member.
async fn run_scenario(scenario: Scenario, fail: impl Fn()) {
    for round in 0..3 {
        let (store, recovered) = open_named(&scenario.seam, &NAMES, scenario.options).await.expect("the store opens");
        let pages = store.pages();
        pages.load().await;
        let logged = Rc::new(RefCell::new(recovered.iter().map(|record| record.position).collect()));
        let (seam, backing, first_error) =
            (scenario.seam.clone(), Rc::clone(&scenario.backing), Rc::clone(&scenario.first_error));
        let paged = PagedWorkload { seam, store: store.clone(), pages, backing, first_error, logged };
        paged.run(scenario.seed * 10 + round, 2, scenario.steps).await;
        if round == 1 {
            fail();
            paged.run(scenario.seed * 10 + 7, 2, scenario.steps).await;
        }
        drop(paged);
        store.close().await.expect("a store with a member closes");
    }
}

struct Scenario {
    seam: seam::sim::SimSeam,
    backing: Rc<RefCell<Backing>>,
    first_error: Rc<RefCell<Option<String>>>,
    seed: u64,
    steps: u64,
    options: OpenOptions,
}

/// Crashes the scenario of `seed` at every I/O boundary. The recovery from every `deep_every`th crash crashes, too.
pub fn crash_at_every_io(seed: u64, steps: u64, sabotage: Sabotage, deep_every: u64) -> Result<CrashCounts, String> {
    let world = formatted(seed, StoreShape { segments: 7, ..PAGED });
    let options = OpenOptions { sabotage, ..OpenOptions::default() };
    let (backing, has_ended) = (Rc::<RefCell<Backing>>::default(), Rc::new(Cell::new(false)));
    let scenario =
        Scenario { seam: world.seam(), backing: Rc::clone(&backing), first_error: Rc::default(), seed, steps, options };
    let (first_error, flag) = (Rc::clone(&scenario.first_error), Rc::clone(&has_ended));
    let control = world.disk(NAMES[1]).expect("the disk exists");
    let fail = move || control.add_fault(Rule::new(Fault::Error, Ops::WRITE | Ops::FLUSH, When::Always));
    world.seam().spawn(async move {
        run_scenario(scenario, fail).await;
        flag.set(true);
    });
    let (rng, mut counts) = (Rng::new(seed, 78), CrashCounts::default());
    at_each_boundary(&world, &has_ended, |snapshot| {
        counts.boundaries += 1;
        if let Some(error) = first_error.take() {
            return Err(error);
        }
        for (crash, survivals) in crashes(snapshot, &rng) {
            counts.crashes += 1;
            let deep = counts.crashes.is_multiple_of(deep_every);
            let images = || snapshot.images(|number| survivals[number]);
            recover_deeply(images, &backing.borrow(), options, deep, &rng, &mut counts)
                .map_err(|error| format!("{crash}: {error}"))?;
        }
        Ok(())
    })?;
    let last = world_after_crash(1, world.crash(CrashMode::LoseAll));
    recover(&last, &backing.borrow(), options, &rng, &mut counts)?;
    match first_error.take() {
        Some(error) => Err(error),
        None => Ok(counts),
    }
}

#[test]
fn served_pages_equal_the_backing_after_a_crash_at_any_io() {
    let seeds = std::env::var("HOTSET_PAGE_CUTS").map_or(1, |seeds| seeds.parse().expect("a number of seeds"));
    for seed in 0..seeds {
        let counts =
            crash_at_every_io(seed, 8, Sabotage::None, 1_000).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        println!("seed {seed}: {counts:?}");
        assert!(counts.boundaries > 200 && counts.crashes_in_recovery > 2_000, "{counts:?}");
        assert!(counts.served > 10_000 && counts.suspect > 1_000, "{counts:?}");
    }
}
