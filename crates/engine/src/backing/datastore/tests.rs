//! Waiting requests when backings hang, volumes are removed and clients cancel.

use std::cell::RefCell;
use std::future::Future;

use qos::Threshold;
use seam::sim::{SimSeam, World, WorldSpec};

use super::*;

/// A datastore that counts as congested from the start, with volumes 0, 1, ...
fn congested_datastore(volumes: u32) -> (World, SimSeam, Rc<Datastore<SimSeam>>) {
    let world = World::new(WorldSpec::new(1));
    let seam = world.seam();
    let spec = DatastoreSpec { threshold: Threshold::Latency(Nanos::ZERO), ..DatastoreSpec::new("shelf") };
    let datastore = Datastore::new(seam.clone(), &spec);
    for number in 0..volumes {
        datastore.set_volume(number, &format!("volume{number}"), Entitlement { shares: 1_000, reservation: 0 });
    }
    (world, seam, datastore)
}

/// Runs the futures that `make_future` returns, one after another without end. Returns the count of completed ones.
fn repeat<F: Future<Output = ()> + 'static>(seam: &SimSeam, make_future: impl Fn() -> F + 'static) -> Rc<Cell<u64>> {
    let count = Rc::new(Cell::new(0));
    let ended = Rc::clone(&count);
    seam.spawn(async move {
        loop {
            make_future().await;
            ended.set(ended.get() + 1);
        }
    });
    count
}

/// Background work of a volume that occupies the disks for `time`.
fn background(
    seam: &SimSeam,
    datastore: &Rc<Datastore<SimSeam>>,
    number: u32,
    cost: Cost,
    time: Nanos,
) -> Rc<Cell<u64>> {
    let (task_seam, datastore) = (seam.clone(), Rc::clone(datastore));
    repeat(seam, move || {
        let (seam, datastore) = (task_seam.clone(), Rc::clone(&datastore));
        async move {
            let _slot = datastore.acquire_slot(number, cost, Priority::Background).await;
            seam.sleep(time).await;
        }
    })
}

/// A client whose requests occupy the disks for `time`.
fn client(seam: &SimSeam, datastore: &Rc<Datastore<SimSeam>>, number: u32, cost: Cost, time: Nanos) -> Rc<Cell<u64>> {
    let (task_seam, datastore) = (seam.clone(), Rc::clone(datastore));
    repeat(seam, move || {
        let (seam, datastore) = (task_seam.clone(), Rc::clone(&datastore));
        async move {
            let _slot = datastore.acquire_slot(number, cost, Priority::Foreground).await;
            seam.sleep(time).await;
        }
    })
}

/// Runs the world for `time`.
fn advance(world: &World, seam: &SimSeam, time: Nanos) {
    world.block_on(seam.sleep(time));
}

#[test]
fn other_volumes_proceed_while_one_backing_hangs() {
    let (world, seam, datastore) = congested_datastore(3);
    let large = Cost(4 * Cost::ONE.0);
    let others: Vec<_> =
        (0..8).map(|number| client(&seam, &datastore, 1 + number % 2, large, Nanos::from_millis(10))).collect();
    advance(&world, &seam, Nanos::from_millis(100));
    let hung: Vec<_> = (0..8).map(|_| client(&seam, &datastore, 0, large, Nanos::from_secs(3_600))).collect();
    advance(&world, &seam, Nanos::from_secs(10));
    let before: u64 = others.iter().map(|count| count.get()).sum();
    advance(&world, &seam, Nanos::from_secs(10));
    let completed = others.iter().map(|count| count.get()).sum::<u64>() - before;
    assert!(completed > 500, "{completed} requests in ten seconds beside a hung backing");
    assert!(hung.iter().all(|count| count.get() == 0));
    let stats = datastore.stats();
    assert!(
        stats.outstanding_accesses < 16.0,
        "{} outstanding: the hung volume took all free slots",
        stats.outstanding_accesses
    );
}

#[test]
fn waiting_volume_stays_active() {
    let (world, seam, datastore) = congested_datastore(2);
    let flood: Vec<_> = (0..64).map(|_| client(&seam, &datastore, 0, Cost::ONE, Nanos::from_millis(500))).collect();
    let _one = client(&seam, &datastore, 1, Cost(8 * Cost::ONE.0), Nanos::from_secs(5));
    advance(&world, &seam, Nanos::from_secs(30));
    let completed: u64 = flood.iter().map(|count| count.get()).sum();
    // All 64 in parallel would complete 128 a second.
    assert!(completed < 1_000, "{completed} requests: the waiting volume was taken for inactive");
}

#[test]
fn removed_volume_releases_only_its_own_waiting_requests() {
    let (world, seam, datastore) = congested_datastore(3);
    for number in 0..3 {
        for _ in 0..16 {
            let (task_seam, datastore) = (seam.clone(), Rc::clone(&datastore));
            seam.spawn(async move {
                let _slot = datastore.acquire_slot(number, Cost::ONE, Priority::Foreground).await;
                task_seam.sleep(Nanos::from_millis(20)).await;
            });
        }
    }
    advance(&world, &seam, Nanos::from_millis(5));
    let before = datastore.stats().outstanding_accesses;
    datastore.remove_volume(2);
    advance(&world, &seam, Nanos::from_millis(1));
    let after = datastore.stats().outstanding_accesses;
    assert!(after >= before + 10.0, "{before} outstanding, {after} with the waiting requests");
    advance(&world, &seam, Nanos::from_secs(5));
    assert_eq!(datastore.stats().outstanding_accesses, 0.0);
}

#[test]
fn cancelled_wait_returns_its_slot() {
    let (world, seam, datastore) = congested_datastore(2);
    let _flood: Vec<_> = (0..8).map(|_| client(&seam, &datastore, 0, Cost::ONE, Nanos::from_millis(10))).collect();
    let large = Cost(4 * Cost::ONE.0);
    world.block_on(async {
        for wait in 0..200 {
            let mut slot = Box::pin(datastore.acquire_slot(1, large, Priority::Foreground));
            let is_granted =
                std::future::poll_fn(|context| std::task::Poll::Ready(slot.as_mut().poll(context).is_ready())).await;
            // Some are granted their slot and are dropped before they take it.
            seam.sleep(Nanos::from_millis(wait % 7 * 5)).await;
            drop((is_granted, slot));
        }
        seam.sleep(Nanos::from_secs(1)).await;
    });
    let stats = datastore.stats();
    assert_eq!(stats.volumes[1].waiting_requests, 0);
    assert!(stats.outstanding_accesses <= 4.0, "{} outstanding", stats.outstanding_accesses);
}

#[test]
fn congestion_ends_when_requests_stop() {
    let (world, seam, _) = congested_datastore(0);
    let spec = DatastoreSpec { threshold: Threshold::Latency(Nanos::from_millis(5)), ..DatastoreSpec::new("shelf") };
    let datastore = Datastore::new(seam.clone(), &spec);
    let stop = Rc::new(Cell::new(false));
    let completed = Rc::new(RefCell::new(0));
    for number in 0..2 {
        datastore.set_volume(number, "volume", Entitlement { shares: 1_000, reservation: 0 });
        for _ in 0..16 {
            let (task_seam, datastore, stop, completed) =
                (seam.clone(), Rc::clone(&datastore), Rc::clone(&stop), Rc::clone(&completed));
            seam.spawn(async move {
                while !stop.get() {
                    let _slot = datastore.acquire_slot(number, Cost::ONE, Priority::Foreground).await;
                    task_seam.sleep(Nanos::from_millis(20)).await;
                    *completed.borrow_mut() += 1;
                }
            });
        }
    }
    advance(&world, &seam, Nanos::from_secs(2));
    assert!(datastore.stats().is_congested && *completed.borrow() > 0);
    stop.set(true);
    advance(&world, &seam, Nanos::from_secs(4));
    let stats = datastore.stats();
    assert!(!stats.is_congested && stats.recent_episodes.iter().all(|episode| episode.ended_at.is_some()), "{stats:?}");
}

#[test]
fn background_work_leaves_clients_their_window_and_is_not_starved() {
    let run_with = |background_tasks: usize| {
        let (world, seam, datastore) = congested_datastore(2);
        let time = Nanos::from_millis(10);
        let clients: Vec<_> = (0..32).map(|number| client(&seam, &datastore, number % 2, Cost::ONE, time)).collect();
        let large = Cost(4 * Cost::ONE.0);
        let works: Vec<_> = (0..background_tasks).map(|_| background(&seam, &datastore, 1, large, time)).collect();
        advance(&world, &seam, Nanos::from_secs(10));
        let sum = |counts: &[Rc<Cell<u64>>]| counts.iter().map(|count| count.get()).sum::<u64>();
        (sum(&clients), sum(&works))
    };
    let ((alone, _), (beside, works)) = (run_with(0), run_with(16));
    assert!(beside * 100 >= alone * 97, "{beside} requests of clients beside background work, {alone} without");
    // One at a time.
    assert!((900..=1_000).contains(&works), "{works} pieces of background work in ten seconds");
}

#[test]
fn expedited_work_competes_with_client_requests() {
    let ended_within = |expedites: bool| {
        let (world, seam, datastore) = congested_datastore(2);
        let time = Nanos::from_millis(10);
        let _flood: Vec<_> = (0..32).map(|_| client(&seam, &datastore, 0, Cost::ONE, time)).collect();
        let ended = Rc::new(Cell::new(0));
        for _ in 0..100 {
            let (task_seam, datastore, ended) = (seam.clone(), Rc::clone(&datastore), Rc::clone(&ended));
            seam.spawn(async move {
                let _slot = datastore.acquire_slot(1, Cost::ONE, Priority::Background).await;
                task_seam.sleep(time).await;
                ended.set(ended.get() + 1);
            });
        }
        advance(&world, &seam, Nanos::from_millis(50));
        if expedites {
            datastore.expedite(1);
        }
        advance(&world, &seam, Nanos::from_millis(400));
        ended.get()
    };
    let (slow, quick) = (ended_within(false), ended_within(true));
    assert!((40..=45).contains(&slow), "{slow} of 100 in the background, one at a time");
    assert!(quick >= slow * 5 / 4, "{quick} of 100 expedited, {slow} in the background");
}

#[test]
fn processor_stalls_are_not_congestion() {
    let (world, seam, _) = congested_datastore(0);
    let spec = DatastoreSpec { threshold: Threshold::Latency(Nanos::from_millis(30)), ..DatastoreSpec::new("shelf") };
    let datastore = Datastore::new(seam.clone(), &spec);
    for number in 0..2 {
        datastore.set_volume(number, "volume", Entitlement { shares: 1_000, reservation: 0 });
    }
    let clients: Vec<_> =
        (0..32).map(|number| client(&seam, &datastore, number % 2, Cost::ONE, Nanos::from_millis(10))).collect();
    let task_seam = seam.clone();
    seam.spawn(async move {
        loop {
            task_seam.sleep(Nanos::from_millis(100)).await;
            task_seam.spend(Nanos::from_millis(200));
        }
    });
    advance(&world, &seam, Nanos::from_secs(30));
    let stats = datastore.stats();
    assert_eq!((stats.episode_count, stats.congested_time), (0, Nanos::ZERO), "{stats:?}");
    let latency = stats.latency;
    assert!((8..=13).contains(&latency.as_millis()), "{latency} of 10 ms that the disks take");
    assert!(clients.iter().all(|count| count.get() > 500));
}
