//! Random scenarios: random shapes, faults on one of the mirrors, several boots, each ended by a crash.

use std::cell::RefCell;
use std::rc::Rc;

use flash::format::FIRST_SEGMENT_BYTES;
use flash::{MemberDisk, OpenOptions, RecoveredRecord, Sabotage, Store, StoreError};
use seam::sim::{CrashMode, Fault, Ops, Rng, Rule, SimDiskSpec, SimSeam, Timing, When, World};
use seam::{DiskOpen, Nanos, Seam};

use crate::member_changes::open_members;
use crate::model::{LogModel, read_all};
use crate::workload::Workload;
use crate::world::{ALL, NAMES, StoreShape, formatted, open, world_after_crash};

/// Runs the scenario of `seed`.
pub fn run_scenario(seed: u64, sabotage: Sabotage) -> Result<(), String> {
    let rng = Rng::new(seed, 50);
    let devices = if rng.below(4) == 0 { 1 } else { 2 + rng.below(2) as usize };
    let shape = StoreShape {
        devices,
        segment_bytes: 4096 << (3 + rng.below(3)),
        segments: 4 + rng.below(6),
        journal_bytes: None,
    };
    // Always the same device: once it is removed, the other has the only copy.
    let victim = NAMES[rng.below(2) as usize];
    let mut world = formatted(seed, shape);
    // A scenario has either faults or changes of the members.
    let changes_members = devices == 3 && rng.coin();
    if changes_members {
        let spec = SimDiskSpec::new(FIRST_SEGMENT_BYTES + (2 + shape.segments) * shape.segment_bytes);
        let timing = Timing::between(Nanos::from_micros(20), Nanos::from_micros(200));
        world.add_disk(ALL[3], SimDiskSpec { timing, ..spec });
    }
    let model = Rc::<RefCell<LogModel>>::default();
    let options = OpenOptions { sabotage, ..OpenOptions::default() };
    for boot in 0..2 + rng.below(4) {
        let has_faults = devices > 1 && !changes_members && plan_faults(&world, &rng, victim);
        let first_error = Rc::<RefCell<Option<String>>>::default();
        let seam = world.seam();
        let (writers, steps, cut_short) = (1 + rng.below(3), 1 + rng.below(30), rng.coin());
        if cut_short {
            world.crash_at_io(world.io_count() + 1 + rng.below(400));
        }
        let ended = world.run_until(async {
            let (store, recovered) = match open_or_accept_missing(&world, &seam, options).await {
                Ok(opened) => opened,
                // A member that fails during the opening may be refused. The next boot tries again without its fault.
                Err(_) if has_faults => return Ok(()),
                Err(error) => return Err(format!("boot {boot}: {error}")),
            };
            let content = read_all(&seam, &store, &recovered).await?;
            model.borrow().check(&content)?;
            model.borrow_mut().adopt_recovered(&recovered, &content);
            let (model, first_error) = (Rc::clone(&model), Rc::clone(&first_error));
            let workload = Workload {
                seam: seam.clone(),
                store: store.clone(),
                model,
                first_error,
                full_without_live_record: Rc::default(),
            };
            if changes_members {
                seam.spawn(change_members(seam.clone(), workload.store.clone(), rng.next()));
            }
            workload.run(rng.next(), writers, steps).await;
            if store.copies() == 0 {
                return Err("both log members are out, and one had no fault".to_owned());
            }
            drop(workload);
            match store.close().await {
                Ok(_) | Err(StoreError::Failed(_)) => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        });
        match ended {
            Ok(ended) => ended?,
            Err(seam::sim::Stop::CrashPoint) => {}
            Err(stop) => return Err(format!("boot {boot}: {stop}")),
        }
        if let Some(error) = first_error.take() {
            return Err(format!("boot {boot}: {error}"));
        }
        world = world_after_crash(rng.next(), world.crash(CrashMode::Any));
    }
    let seam = world.seam();
    let last = world.run_until(async {
        let (store, recovered) =
            open_or_accept_missing(&world, &seam, options).await.map_err(|error| error.to_string())?;
        let content = read_all(&seam, &store, &recovered).await?;
        model.borrow().check(&content)
    });
    last.map_err(|stop| stop.to_string())?
}

/// Opens the store. If a member has lost both of its superblocks, the store is refused, and opened without that member,
/// as the refusal advises.
async fn open_or_accept_missing(
    world: &World,
    seam: &SimSeam,
    options: OpenOptions,
) -> Result<(Store<SimSeam>, Vec<RecoveredRecord>), StoreError> {
    if world.disk(ALL[3]).is_some() {
        return open_members(seam, &ALL, options).await;
    }
    match open(world, seam, options).await {
        Err(StoreError::NoStore { .. }) => open(world, seam, OpenOptions { accept_missing: true, ..options }).await,
        other => other,
    }
}

/// Adds, replaces and removes devices; cancels some of these changes.
async fn change_members(seam: SimSeam, store: Store<SimSeam>, seed: u64) {
    let rng = Rng::new(seed, 60);
    for _ in 0..1 + rng.below(4) {
        let path = ALL[rng.below(4) as usize].into();
        let options = DiskOpen { path, create_bytes: None, read_only: false, lock_wait_ms: 1 };
        // The disk of a member is open already, and cannot be opened again.
        let Ok(new) = seam.open_disk(&options).await else { continue };
        let members = store.members();
        let member = members[rng.below(members.len() as u64) as usize].member;
        if rng.below(4) == 0 {
            let (store, seam, after) = (store.clone(), seam.clone(), Nanos::from_micros(rng.below(5_000)));
            seam.clone().spawn(async move {
                seam.sleep(after).await;
                store.cancel_job();
            });
        }
        let new = MemberDisk::Local(new);
        // Refusals are fine: an existing member, the last copy, another change in progress.
        let _ = match rng.below(3) {
            0 => store.add(new, rng.coin()).await.map(drop),
            1 => store.replace(member, new, rng.coin()).await.map(drop),
            _ => store.remove(member, rng.coin()).await,
        };
    }
}

/// Adds a random fault to one of two members. The other has none, so no data may be lost.
fn plan_faults(world: &World, rng: &Rng, victim: &str) -> bool {
    let control = world.disk(victim).expect("both disks exist");
    let probability = When::PerMillion(1 + rng.below(30_000) as u32);
    let rule = match rng.below(16) {
        0 => Rule::new(Fault::Error, Ops::WRITE, probability),
        1 => Rule::new(Fault::Error, Ops::FLUSH, probability),
        2 => Rule::new(Fault::Vanish, Ops::ALL, When::Nth(rng.below(300))),
        3 => Rule::new(Fault::Reconnect, Ops::ALL, probability),
        4 => Rule::new(Fault::Stall(Nanos::from_millis(20)), Ops::ALL, probability),
        5 => Rule::new(Fault::BitFlip, Ops::READ, probability),
        6 => Rule::new(Fault::Error, Ops::READ, probability),
        7 => Rule::new(Fault::Lost, Ops::WRITE, probability),
        8 => Rule::new(Fault::Torn, Ops::WRITE, probability),
        9 => Rule::new(Fault::BitFlip, Ops::WRITE, probability),
        10 => Rule::new(Fault::Misdirected, Ops::WRITE, probability),
        11 => Rule::new(Fault::FlushLies, Ops::FLUSH, When::PerMillion(300_000)),
        _ => return false,
    };
    control.add_fault(rule);
    true
}

#[test]
fn thousand_random_scenarios_with_faults_lose_nothing() {
    let seeds = std::env::var("HOTSET_FLASH_SEEDS").map_or(1_000, |seeds| seeds.parse().expect("a number of seeds"));
    for seed in 0..seeds {
        run_scenario(seed, Sabotage::None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}
