//! Devices that join and leave while the store serves: a scenario with every kind of change, crashed at every I/O, and
//! tests of single changes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use flash::format::FIRST_SEGMENT_BYTES;
use flash::format::superblock::Role;
use flash::{
    MemberDisk, MemberNo, MemberReport, MemberStatus, OpenOptions, PageNo, RecoveredRecord, Sabotage, Store,
    StoreError, VolumeId,
};
use seam::sim::{DiskImages, Fault, Ops, Rng, Rule, SimDiskSpec, SimSeam, Timing, When, World};
use seam::{BlockMut, Disk, Nanos, Seam};

use crate::crash_points::{CrashCounts, at_each_boundary, crashes};
use crate::model::{LogModel, read_all};
use crate::workload::Workload;
use crate::world::{ALL, PAGED, SMALL, StoreShape, disks, formatted, world_after_crash};

/// Opens the store on the devices of this list that are members.
pub async fn open_members(
    seam: &SimSeam,
    names: &[&str],
    options: OpenOptions,
) -> Result<(Store<SimSeam>, Vec<RecoveredRecord>), StoreError> {
    let mut disks = disks(seam, names).await;
    loop {
        match Store::open(seam, &disks, options).await {
            Err(StoreError::NoStore { device, .. }) if disks.len() > 1 => {
                disks.retain(|disk| disk.identity() != device);
            }
            result => return result,
        }
    }
}

fn present_names(world: &World) -> Vec<&'static str> {
    ALL.into_iter().filter(|name| world.disk(name).is_some()).collect()
}

/// Checks that the model allows what recovery finds. Returns the members.
pub fn recover(world: &World, model: &LogModel, options: OpenOptions) -> Result<Vec<MemberReport>, String> {
    let seam = world.seam();
    let names = present_names(world);
    let members = world.run_until(async {
        let (store, recovered) = open_members(&seam, &names, options).await.map_err(|error| error.to_string())?;
        let content = read_all(&seam, &store, &recovered).await?;
        model.check(&content).map(|()| store.members())
    });
    members.map_err(|stop| stop.to_string())?
}

/// Opens the store on each log member alone, and checks that it recovers the whole log or is refused.
pub fn check_each_copy_alone(
    images: impl Fn() -> DiskImages,
    members: &[MemberReport],
    model: &LogModel,
    options: OpenOptions,
) -> Result<(), String> {
    let copies = members.iter().filter(|member| member.role == Role::Log && member.status == MemberStatus::InService);
    for copy in copies {
        let world = world_after_crash(1, images());
        let seam = world.seam();
        let names = present_names(&world);
        let identity = copy.device.as_ref().expect("a member in service is present");
        let copy_name = world.block_on(async {
            let disks = disks(&seam, &names).await;
            names.iter().zip(&disks).find(|(_, disk)| disk.identity() == *identity).map(|(name, _)| *name)
        });
        let copy_name = copy_name.expect("the device is one of these");
        let mut alone = images();
        names.iter().filter(|name| **name != copy_name).for_each(|name| assert!(alone.remove(name)));
        let accepting = OpenOptions { accept_missing: true, ..options };
        match recover(&world_after_crash(1, alone), model, accepting) {
            // At the moment of the change the device may still have the state *resyncing*, while the others list it
            // as a member. It is then refused.
            Err(error) if error.contains("still being resynced") || error.contains("carries the log") => {}
            other => drop(other.map_err(|error| format!("{copy_name} alone: {error}"))?),
        }
    }
    Ok(())
}

struct Scenario {
    seam: SimSeam,
    model: Rc<RefCell<LogModel>>,
    first_error: Rc<RefCell<Option<String>>>,
    seed: u64,
    options: OpenOptions,
}

impl Scenario {
    async fn open(&self) -> Store<SimSeam> {
        let (store, recovered) = open_members(&self.seam, &ALL, self.options).await.expect("the store opens");
        let content = read_all(&self.seam, &store, &recovered).await.expect("live records can be read");
        self.model.borrow_mut().adopt_recovered(&recovered, &content);
        store
    }

    fn workload(&self, store: &Store<SimSeam>) -> Workload {
        let (seam, model, first_error) = (self.seam.clone(), Rc::clone(&self.model), Rc::clone(&self.first_error));
        Workload { seam, store: store.clone(), model, first_error, full_without_live_record: Rc::default() }
    }

    /// Runs clients while the members change.
    async fn run_during<T>(&self, store: &Store<SimSeam>, seed_offset: u64, change: impl Future<Output = T>) -> T {
        let (workload, workload_ended) = (self.workload(store), Rc::new(Cell::new(false)));
        let (flag, seed) = (Rc::clone(&workload_ended), self.seed + seed_offset);
        self.seam.spawn(async move {
            workload.run(seed, 2, 5).await;
            flag.set(true);
        });
        let result = change.await;
        while !workload_ended.get() {
            self.seam.sleep(Nanos::from_micros(50)).await;
        }
        result
    }

    async fn disk(&self, number: usize) -> MemberDisk<SimSeam> {
        disks(&self.seam, &ALL[number..=number]).await.pop().expect("one disk was opened")
    }

    /// Scenario: a member is replaced, and its device returns as a member for pages. A log member is lost, then another
    /// one is removed; each time a member for pages takes over the log. `fail` makes the first device fail.
    async fn run(self, fail: impl Fn()) {
        let store = self.open().await;
        self.workload(&store).run(self.seed, 1, 4).await;
        let fourth = self.disk(3).await;
        let new_member = self
            .run_during(&store, 1, store.replace(MemberNo(1), fourth, false))
            .await
            .expect("the member is replaced");
        let second = self.disk(1).await;
        self.run_during(&store, 2, store.add(second, false)).await.expect("the device is added again");
        assert_eq!(store.copies(), 2);
        fail();
        self.run_during(&store, 3, async {}).await;
        while store.copies() < 2 || store.job().is_some() {
            self.workload(&store).run(self.seed + 4, 1, 1).await;
        }
        self.run_during(&store, 5, store.remove(new_member, false)).await.expect("another one carries the log");
        assert_eq!(store.copies(), 2);
        store.close().await.expect("the store closes");
        let store = self.open().await;
        self.workload(&store).run(self.seed + 6, 2, 4).await;
        assert!(store.job().is_none(), "no job is left");
        store.close().await.expect("the store closes");
    }
}

/// A world with three members and a fourth device that is not a member.
fn world_with_another(seed: u64) -> World {
    let world = formatted(seed, StoreShape { devices: 3, ..SMALL });
    let spec = SimDiskSpec::new(FIRST_SEGMENT_BYTES + SMALL.segments * SMALL.segment_bytes);
    let timing = Timing::between(Nanos::from_micros(20), Nanos::from_micros(200));
    world.add_disk(ALL[3], SimDiskSpec { timing, ..spec });
    world
}

/// Crashes the scenario of `seed` at every I/O boundary.
pub fn crash_at_every_io(seed: u64, sabotage: Sabotage) -> Result<CrashCounts, String> {
    let world = world_with_another(seed);
    let options = OpenOptions { sabotage, ..OpenOptions::default() };
    let (model, has_ended) = (Rc::<RefCell<LogModel>>::default(), Rc::new(Cell::new(false)));
    let scenario = Scenario { seam: world.seam(), model: Rc::clone(&model), first_error: Rc::default(), seed, options };
    let (first_error, flag) = (Rc::clone(&scenario.first_error), Rc::clone(&has_ended));
    let control = world.disk(ALL[0]).expect("the disk exists");
    let fail = move || control.add_fault(Rule::new(Fault::Error, Ops::WRITE | Ops::FLUSH, When::Always));
    world.seam().spawn(async move {
        scenario.run(fail).await;
        flag.set(true);
    });
    let (rng, mut counts) = (Rng::new(seed, 77), CrashCounts::default());
    at_each_boundary(&world, &has_ended, |snapshot| {
        counts.boundaries += 1;
        for (crash, survivals) in crashes(snapshot, &rng) {
            counts.crashes += 1;
            let images = || snapshot.images(|number| survivals[number]);
            let members = recover(&world_after_crash(rng.next(), images()), &model.borrow(), options)
                .map_err(|error| format!("{crash}: {error}"))?;
            if counts.crashes.is_multiple_of(4) {
                check_each_copy_alone(images, &members, &model.borrow(), options)
                    .map_err(|error| format!("{crash}: {error}"))?;
            }
        }
        Ok(())
    })?;
    match first_error.take() {
        Some(error) => Err(error),
        None => Ok(counts),
    }
}

#[test]
fn crash_at_any_io_of_member_changes_loses_nothing() {
    for seed in 0..2 {
        let counts = crash_at_every_io(seed, Sabotage::None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        println!("seed {seed}: {counts:?}");
        assert!(counts.boundaries > 200 && counts.crashes > 2_000, "{counts:?}");
    }
}

#[test]
fn join_without_resync_is_caught() {
    let caught = (0..6).find_map(|seed| Some((seed, crash_at_every_io(seed, Sabotage::SkipResync).err()?)));
    let (seed, error) = caught.expect("a copy that lacks the log is detected");
    println!("seed {seed}: {error}");
    crash_at_every_io(seed, Sabotage::None).expect("the same scenario passes without it");
}

/// The outcome of a member change that runs in its own task.
pub type Outcome = Rc<RefCell<Option<Result<MemberNo, StoreError>>>>;

pub fn spawn_change(seam: &SimSeam, change: impl Future<Output = Result<MemberNo, StoreError>> + 'static) -> Outcome {
    let outcome = Outcome::default();
    let task_outcome = Rc::clone(&outcome);
    seam.spawn(async move {
        let result = change.await;
        *task_outcome.borrow_mut() = Some(result);
    });
    outcome
}

pub async fn wait_outcome(seam: &SimSeam, outcome: Outcome) -> Result<MemberNo, StoreError> {
    loop {
        if let Some(result) = outcome.borrow_mut().take() {
            return result;
        }
        seam.sleep(Nanos::from_micros(50)).await;
    }
}

/// Opens the store of a world, and writes records to its log.
async fn store_with_records(world: &World, seam: &SimSeam) -> (Scenario, Store<SimSeam>) {
    let options = OpenOptions::default();
    let scenario = Scenario { seam: seam.clone(), model: Rc::default(), first_error: Rc::default(), seed: 1, options };
    let (store, _) = open_members(seam, &present_names(world), options).await.expect("the store opens");
    scenario.workload(&store).run(1, 2, 8).await;
    (scenario, store)
}

#[test]
fn cancelled_change_is_reported_while_paused_and_leaves_no_trace() {
    let world = world_with_another(1);
    let seam = world.seam();
    world.block_on(async {
        let (scenario, store) = store_with_records(&world, &seam).await;
        let (before, generation) = (store.members(), store.generation());
        let (new, other) = (scenario.disk(3).await, store.clone());
        let replaced = spawn_change(&seam, async move { other.replace(MemberNo(0), new, false).await });
        while store.job().is_none_or(|job| job.total_bytes == 0) {
            seam.sleep(Nanos::from_micros(20)).await;
        }
        assert!(store.set_job_paused(true));
        seam.sleep(Nanos::from_secs(1)).await;
        let job = store.job().expect("the job is paused");
        assert!(job.is_paused && job.done_bytes < job.total_bytes && job.kind == flash::JobKind::Replace, "{job:?}");
        let refused = store.remove(MemberNo(2), false).await;
        assert!(matches!(refused, Err(StoreError::Refused(_))), "one job at a time: {refused:?}");
        scenario.workload(&store).run(2, 2, 8).await;
        assert_eq!(store.job().expect("the job is paused").done_bytes, job.done_bytes);
        assert!(store.cancel_job());
        assert_eq!(wait_outcome(&seam, replaced).await, Err(StoreError::Cancelled));
        assert_eq!((store.members(), store.generation(), store.job()), (before, generation, None));
        let new = scenario.disk(3).await;
        assert_eq!(
            store.replace(MemberNo(0), new, false).await,
            Ok(MemberNo(3)),
            "the same device, which is empty again"
        );
        assert_eq!(scenario.first_error.take(), None);
    });
}

#[test]
fn log_member_is_removed_only_while_another_carries_the_log() {
    let world = formatted(1, StoreShape { devices: 3, ..SMALL });
    let seam = world.seam();
    world.block_on(async {
        let (scenario, store) = store_with_records(&world, &seam).await;
        let started_at = seam.now();
        store.remove(MemberNo(2), false).await.unwrap();
        assert!(seam.now().since(started_at) < Nanos::from_secs(1));
        assert!(matches!(store.remove(MemberNo(0), false).await, Err(StoreError::Refused(_))));
        store.remove(MemberNo(0), true).await.unwrap();
        assert!(matches!(store.remove(MemberNo(1), true).await, Err(StoreError::Refused(_))), "the last copy");
        assert_eq!((store.copies(), store.members().len()), (1, 1));
        // The device returns as another member.
        let first = scenario.disk(0).await;
        assert_eq!(store.add(first, false).await, Ok(MemberNo(3)));
        assert_eq!(store.copies(), 2);
        let third = scenario.disk(2).await;
        assert!(matches!(store.add(third.clone(), false).await, Ok(MemberNo(4))));
        let again = store.add(third, true).await;
        assert!(matches!(again, Err(StoreError::Refused(_))), "a member already: {again:?}");
    });
}

#[test]
fn second_loss_during_a_resync_is_reported_and_fails_appends() {
    let world = formatted(1, StoreShape { devices: 3, ..SMALL });
    let seam = world.seam();
    world.block_on(async {
        let (scenario, store) = store_with_records(&world, &seam).await;
        store.remove(MemberNo(1), true).await.expect("a member for pages takes its place");
        let removed = scenario.disk(1).await;
        let fail = |number: usize| {
            let rule = Rule::new(Fault::Error, Ops::WRITE | Ops::FLUSH, When::Always);
            world.disk(ALL[number]).unwrap().add_fault(rule);
        };
        let (other, change) = (
            store.clone(),
            spawn_change(&seam, {
                let store = store.clone();
                async move { store.replace(MemberNo(2), removed, false).await }
            }),
        );
        while store.job().is_none_or(|job| job.total_bytes == 0) {
            seam.sleep(Nanos::from_micros(20)).await;
        }
        assert!(store.set_job_paused(true));
        fail(0);
        fail(2);
        scenario.workload(&other).run(3, 1, 3).await;
        store.set_job_paused(false);
        assert!(matches!(wait_outcome(&seam, change).await, Err(StoreError::Failed(_))));
        let lost = store.members().iter().filter(|member| matches!(member.status, MemberStatus::Lost(_))).count();
        assert_eq!((lost, store.copies()), (2, 0));
    });
}

/// The grace of a batch ended first, and nothing aborted the requests of the job itself.
#[test]
fn device_that_hangs_while_it_is_filled_ends_its_job_and_no_stop_waits() {
    let world = world_with_another(1);
    let seam = world.seam();
    world.block_on(async {
        let (scenario, store) = store_with_records(&world, &seam).await;
        let (new, other) = (scenario.disk(3).await, store.clone());
        let replaced = spawn_change(&seam, async move { other.replace(MemberNo(0), new, false).await });
        while store.job().is_none_or(|job| job.total_bytes == 0) {
            seam.sleep(Nanos::from_micros(20)).await;
        }
        world.disk(ALL[3]).unwrap().add_fault(Rule::new(Fault::Hang, Ops::WRITE, When::Always));
        scenario.workload(&store).run(2, 1, 3).await;
        seam.sleep(Nanos::from_secs(10)).await;
        let outcome = replaced.borrow_mut().take();
        assert!(matches!(outcome, Some(Err(StoreError::Disk { .. }))), "{outcome:?}");
        assert_eq!((store.copies(), store.job()), (2, None));
        store.close().await.expect("no job keeps the store from closing");
        assert_eq!(scenario.first_error.take(), None);
    });
}

/// The superblocks of a joining device are erased when its job fails. A lost member must not be treated like that.
#[test]
fn member_lost_while_filled_to_take_over_keeps_its_superblocks() {
    for is_cancelled in [false, true] {
        let world = formatted(1, StoreShape { devices: 3, ..PAGED });
        let seam = world.seam();
        world.block_on(async {
            let (scenario, store) = store_with_records(&world, &seam).await;
            let pages = store.pages();
            pages.load().await;
            let volume = pages.volume(VolumeId(7));
            let on_third = || {
                pages.stats().members.iter().any(|member| member.member == MemberNo(2) && member.promotion_bytes > 0)
            };
            for page in (0..400).take_while(|_| !on_third()) {
                let block = seam.alloc().expect("the pool has a free buffer").freeze();
                drop(volume.put(PageNo(page), vec![(0, block)]).await);
                seam.sleep(Nanos::from_micros(10)).await;
            }
            assert!(on_third(), "{:?}", pages.stats());
            // The pages on the third device are flushed before they are dropped. That flush fails.
            world.disk(ALL[2]).unwrap().add_fault(Rule::new(Fault::Error, Ops::FLUSH, When::Nth(0)));
            world.disk(ALL[0]).unwrap().add_fault(Rule::new(Fault::Error, Ops::WRITE, When::Always));
            scenario.workload(&store).run(2, 1, 3).await;
            while !matches!(store.members()[2].status, MemberStatus::Lost(_)) {
                seam.sleep(Nanos::from_micros(20)).await;
            }
            assert!(store.job().is_some(), "a member is being resynced");
            if is_cancelled {
                store.cancel_job();
            }
            while store.job().is_some() {
                seam.sleep(Nanos::from_millis(1)).await;
            }
            assert_eq!(store.copies(), 1);
            drop((pages, volume, scenario, store));
            let (store, _) = open_members(&seam, &ALL[1..3], OpenOptions::default()).await.expect("the store opens");
            assert_eq!(
                store.members()[2].status,
                MemberStatus::Stale,
                "the lost member is still known: {:?}",
                store.members()
            );
        });
    }
}

/// A full pool is normal: the cache above fills it, and the store gets buffers from that cache.
#[test]
fn device_is_added_while_a_cache_holds_all_buffers() {
    let world = world_with_another(1);
    let seam = world.seam();
    world.block_on(async {
        let (scenario, store) = store_with_records(&world, &seam).await;
        let held = RefCell::new(std::iter::from_fn(|| seam.alloc()).collect::<Vec<_>>());
        assert!(held.borrow().len() > 100 && seam.alloc().is_none());
        // Only the cache frees buffers.
        store.set_fallback_buffers(move || held.borrow_mut().pop());
        let fourth = scenario.disk(3).await;
        let added = spawn_change(&seam, {
            let store = store.clone();
            async move { store.add(fourth, false).await }
        });
        for _ in 0..1_000 {
            seam.sleep(Nanos::from_millis(1)).await;
        }
        assert_eq!(added.take(), Some(Ok(MemberNo(3))));
    });
}

/// A device that had the number before is neither written to nor counted as a copy.
#[test]
fn reused_member_number_refers_only_to_its_new_device() {
    let world = formatted(1, StoreShape { devices: 3, ..SMALL });
    let seam = world.seam();
    world.block_on(async {
        let (scenario, store) = store_with_records(&world, &seam).await;
        let workload = scenario.workload(&store);
        for round in 0..12 {
            let members = store.members();
            let carries = |member: &&MemberReport| member.role == Role::Log && member.status == MemberStatus::InService;
            let device = members
                .iter()
                .find(carries)
                .and_then(|member| member.device.clone())
                .expect("a log member is in service");
            let number = (0..3).find(|number| device.ends_with(ALL[*number])).expect("the device is one of these");
            let control = world.disk(ALL[number]).unwrap();
            control.vanish();
            workload.run(round, 1, 3).await;
            while store.copies() != 2 || store.job().is_some() {
                workload.run(100 + round, 1, 1).await;
            }
            control.come_back();
            let back = scenario.disk(number).await;
            store.add(back, true).await.expect("the device is added again");
            assert_eq!((store.copies(), store.members().len()), (2, 3), "{:?}", store.members());
        }
        assert_eq!(scenario.first_error.take(), None);
    });
}

#[test]
fn smaller_device_takes_over_when_the_log_fits_it() {
    let world = formatted(1, StoreShape { devices: 2, segments: 8, ..SMALL });
    world.add_disk(ALL[3], SimDiskSpec::new(FIRST_SEGMENT_BYTES + 5 * SMALL.segment_bytes));
    let seam = world.seam();
    let options = OpenOptions::default();
    world.block_on(async {
        let scenario =
            Scenario { seam: seam.clone(), model: Rc::default(), first_error: Rc::default(), seed: 1, options };
        let names = [ALL[0], ALL[1]];
        let (store, _) = open_members(&seam, &names, options).await.unwrap();
        let workload = scenario.workload(&store);
        let disks = disks(&seam, &[ALL[3]]).await;
        let other = store.clone();
        workload.run(1, 2, 30).await;
        let replaced = spawn_change(&seam, async move { other.replace(MemberNo(1), disks[0].clone(), false).await });
        workload.run(2, 2, 60).await;
        while replaced.borrow().is_none() {
            workload.destage();
            workload.run(3, 1, 1).await;
        }
        assert_eq!(wait_outcome(&seam, replaced).await, Ok(MemberNo(2)));
        assert_eq!((store.copies(), store.room().1), (2, 5));
        workload.run(4, 2, 30).await;
        assert_eq!(scenario.first_error.take(), None);
        drop(workload);
        drop(store);
        let (store, recovered) = open_members(&seam, &[ALL[0], ALL[3]], options).await.unwrap();
        let content = read_all(&seam, &store, &recovered).await.unwrap();
        scenario.model.borrow().check(&content).unwrap();
    });
}

#[test]
fn removed_device_that_was_used_alone_is_never_taken_as_a_member() {
    let world = world_with_another(1);
    let seam = world.seam();
    world.block_on(async {
        let (scenario, store) = store_with_records(&world, &seam).await;
        // The device is unreachable while it is removed, so its superblocks still call it a member.
        let second = world.disk(ALL[1]).unwrap();
        second.vanish();
        let fourth = scenario.disk(3).await;
        scenario.workload(&store).run(5, 1, 3).await;
        while store.copies() < 2 || store.job().is_some() {
            seam.sleep(Nanos::from_millis(1)).await;
        }
        assert_eq!(store.add(fourth, false).await, Ok(MemberNo(3)));
        let known_generation = Some((store.uuid(), store.generation()));
        store.close().await.unwrap();
        second.come_back();
        let accept = OpenOptions { accept_missing: true, ..OpenOptions::default() };
        let known = OpenOptions { known_generation, ..accept };
        assert!(matches!(open_members(&seam, &[ALL[1]], known).await, Err(StoreError::Outdated { .. })));
        let (store, _) = open_members(&seam, &ALL, OpenOptions::default()).await.unwrap();
        assert!(
            store.members().iter().all(|member| member.status == MemberStatus::InService),
            "the removed device is ignored"
        );
        drop(store);
        // Without a known generation it opens alone. Then it is not mixed with the other devices.
        let (store, _) = open_members(&seam, &[ALL[1]], accept).await.unwrap();
        drop(store);
        for options in [OpenOptions::default(), accept] {
            assert_eq!(open_members(&seam, &ALL, options).await.err(), Some(StoreError::Diverged));
        }
    });
}
