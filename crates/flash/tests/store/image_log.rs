//! A store whose log lies on one image, with local devices for pages beside it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use flash::format::FIRST_SEGMENT_BYTES;
use flash::{FormatOptions, MemberDisk, MemberNo, OpenOptions, Role, Sabotage, Store, StoreError};
use seam::sim::{CrashMode, Fault, Ops, Rng, Rule, SimDiskSpec, SimSeam, Stop, Timing, When, World};
use seam::{DiskOpen, Nanos, Seam};

use crate::model::{LogModel, read_all};
use crate::pages::{load_pages, put, read_tags};
use crate::service::{append, read};
use crate::workload::Workload;
use crate::world::{PAGED, SMALL, StoreShape, disks, empty, world_after_crash};

const IMAGE: &str = "image";
const LOCAL: &str = "flash-1";

async fn open_image(seam: &SimSeam, name: &str) -> MemberDisk<SimSeam> {
    let open = DiskOpen { path: name.into(), create_bytes: None, read_only: false, lock_wait_ms: 10 };
    MemberDisk::SimulatedImage(seam.open_disk(&open).await.expect("the image exists"))
}

/// Opens the image, and the local device if it is there.
async fn members(world: &World, seam: &SimSeam) -> Vec<MemberDisk<SimSeam>> {
    let mut members = vec![open_image(seam, IMAGE).await];
    if world.disk(LOCAL).is_some() {
        members.extend(disks(seam, &[LOCAL]).await);
    }
    members
}

async fn open(world: &World, seam: &SimSeam, options: OpenOptions) -> Store<SimSeam> {
    Store::open(seam, &members(world, seam).await, options).await.expect("the image has the whole log").0
}

fn add_disk(world: &World, name: &str, shape: StoreShape) {
    let timing = Timing::between(Nanos::from_micros(20), Nanos::from_micros(200));
    let spec = SimDiskSpec::new(FIRST_SEGMENT_BYTES + shape.segments * shape.segment_bytes);
    world.add_disk(name, SimDiskSpec { timing, ..spec });
}

/// A world with a new store. The local device comes first in the list: its kind decides, not its place.
fn formatted(seed: u64, shape: StoreShape) -> World {
    let world = empty(seed);
    [IMAGE, LOCAL].iter().for_each(|name| add_disk(&world, name, shape));
    let seam = world.seam();
    world.block_on(async {
        let mut members = members(&world, &seam).await;
        members.reverse();
        let (segment_bytes, journal_bytes) = (Some(shape.segment_bytes), shape.journal_bytes);
        let options = FormatOptions { segment_bytes, force: false, journal_bytes };
        Store::format(&seam, &members, options).await.expect("empty devices are formatted");
    });
    world
}

/// Numbers of the members: the order of the list at the format.
const LOCAL_MEMBER: MemberNo = MemberNo(0);
const IMAGE_MEMBER: MemberNo = MemberNo(1);

#[test]
fn image_alone_carries_the_log() {
    let world = formatted(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let store = open(&world, &seam, OpenOptions::default()).await;
        let roles: Vec<_> = store.members().iter().map(|member| (member.member, member.role)).collect();
        assert_eq!(roles, [(LOCAL_MEMBER, Role::Pages), (IMAGE_MEMBER, Role::Log)]);
        assert_eq!((store.copies(), store.log_successor(IMAGE_MEMBER)), (1, None));
        let position = append(&seam, &store, 1).await;
        assert_eq!(read(&seam, &store, 1, position).await, 101);
        seam.sleep(Nanos::from_secs(10)).await;
        assert_eq!(store.members()[0].role, Role::Pages, "no take-over begins, although the log has a single copy");
    });
}

#[test]
fn local_device_never_takes_over_the_log_of_a_failed_image() {
    let world = formatted(2, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let store = open(&world, &seam, OpenOptions::default()).await;
        append(&seam, &store, 1).await;
        let (image, local) = (store.members()[1].clone(), new_device(&world, &seam).await);
        let replaced = store.replace(image.member, local, false).await;
        assert!(matches!(&replaced, Err(StoreError::Refused(text)) if text.contains("stays there")), "{replaced:?}");
        let removed = store.remove(IMAGE_MEMBER, true).await;
        assert!(matches!(removed, Err(StoreError::Refused(_))), "{removed:?}");
        world.disk(IMAGE).expect("it exists").vanish();
        let record = crate::service::record(&seam, 2);
        assert!(matches!(store.append(vec![record]).await, Err(StoreError::Failed(_))));
        seam.sleep(Nanos::from_secs(10)).await;
        assert_eq!((store.copies(), store.members()[0].role), (0, Role::Pages));
    });
}

/// A new local device.
async fn new_device(world: &World, seam: &SimSeam) -> MemberDisk<SimSeam> {
    add_disk(world, "new", SMALL);
    disks(seam, &["new"]).await.pop().expect("one disk was opened")
}

#[test]
fn added_local_device_holds_pages_and_images_do_not_join() {
    let world = formatted(3, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let store = open(&world, &seam, OpenOptions::default()).await;
        let local = new_device(&world, &seam).await;
        let added = store.add(local, false).await.expect("it holds pages");
        let roles: Vec<_> = store.members().iter().map(|member| (member.member, member.role)).collect();
        assert_eq!(roles, [(LOCAL_MEMBER, Role::Pages), (IMAGE_MEMBER, Role::Log), (added, Role::Pages)]);
        add_disk(&world, "other image", SMALL);
        let refused = store.add(open_image(&seam, "other image").await, false).await;
        assert!(matches!(&refused, Err(StoreError::Refused(text)) if text.contains("already")), "{refused:?}");
    });
}

#[test]
fn image_does_not_join_a_store_on_local_devices() {
    let world = crate::world::formatted(4, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = crate::world::open(&world, &seam, OpenOptions::default()).await.expect("it opens");
        add_disk(&world, IMAGE, SMALL);
        let refused = store.add(open_image(&seam, IMAGE).await, false).await;
        assert!(matches!(&refused, Err(StoreError::Refused(text)) if text.contains("new store only")), "{refused:?}");
    });
}

#[test]
fn hung_image_is_waited_for() {
    let world = formatted(5, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let store = open(&world, &seam, OpenOptions::default()).await;
        append(&seam, &store, 1).await;
        let image = world.disk(IMAGE).expect("it exists");
        image.add_fault(Rule::new(Fault::Hang, Ops::WRITE, When::Nth(0)));
        let appended = Rc::new(Cell::new(false));
        let (other, writer, is_done) = (store.clone(), seam.clone(), Rc::clone(&appended));
        seam.spawn(async move {
            append(&writer, &other, 2).await;
            is_done.set(true);
        });
        seam.sleep(Nanos::from_secs(600)).await;
        assert_eq!((store.copies(), appended.get()), (1, false));
        image.complete_hung(Nanos::ZERO);
        seam.sleep(Nanos::from_secs(1)).await;
        assert!(appended.get());
    });
}

#[test]
fn pages_lie_on_the_local_device_alone() {
    let world = formatted(6, PAGED);
    let seam = world.seam();
    world.block_on(async {
        let store = open(&world, &seam, OpenOptions::default()).await;
        let pages = load_pages(&store).await;
        for page in 0..8 {
            put(&seam, &pages, 1, page, 100 * page).await;
        }
        assert_eq!((pages.pages_on(LOCAL_MEMBER), pages.pages_on(IMAGE_MEMBER)), (8, 0));
        assert_eq!(read_tags(&seam, &pages, 1, 3).await[2], Some(302));
        store.close().await.expect("it closes");
    });
    // Without the local device nothing but pages is missing.
    let mut images = world.crash(CrashMode::Any);
    assert!(images.remove(LOCAL));
    let world = world_after_crash(7, images);
    let seam = world.seam();
    world.block_on(async {
        let store = open(&world, &seam, OpenOptions::default()).await;
        append(&seam, &store, 1).await;
    });
}

/// A random life: boots that end with a crash, reconnects of the image that lose unflushed data, any faults of the
/// local device. One client: a simulated disk fails reads at a reconnect, which the client of a server repeats.
fn run_life(seed: u64, sabotage: Sabotage) -> Result<(), String> {
    let rng = Rng::new(seed, 51);
    let shape = StoreShape { segment_bytes: 4096 << (3 + rng.below(3)), segments: 4 + rng.below(6), ..SMALL };
    let mut world = formatted(seed, shape);
    let model = Rc::<RefCell<LogModel>>::default();
    let options = OpenOptions { sabotage, ..OpenOptions::default() };
    for boot in 0..=2 + rng.below(4) {
        let probability = When::PerMillion(1 + rng.below(60_000) as u32);
        let image = world.disk(IMAGE).expect("it exists");
        match rng.below(3) {
            0 => image.add_fault(Rule::new(Fault::Stall(Nanos::from_millis(20)), Ops::ALL, probability)),
            _ => image.add_fault(Rule::new(Fault::Reconnect, Ops::WRITE | Ops::FLUSH, probability)),
        }
        if rng.below(4) == 0 {
            let fault = [Fault::Vanish, Fault::Error, Fault::BitFlip][rng.below(3) as usize];
            world.disk(LOCAL).expect("it exists").add_fault(Rule::new(fault, Ops::ALL, probability));
        }
        let (seam, first_error) = (world.seam(), Rc::<RefCell<Option<String>>>::default());
        let steps = 1 + rng.below(60);
        if rng.coin() {
            world.crash_at_io(world.io_count() + 1 + rng.below(400));
        }
        let ended = world.run_until(async {
            let mut opened = Store::open(&seam, &members(&world, &seam).await, options).await;
            // A local device without readable superblocks is left out, as the refusal advises.
            if matches!(opened, Err(StoreError::NoStore { .. })) {
                opened = Store::open(&seam, &[open_image(&seam, IMAGE).await], options).await;
            }
            let (store, recovered) = match opened {
                Ok(opened) => opened,
                // The image keeps reconnecting.
                Err(StoreError::Failed(_) | StoreError::Disk { .. }) => return Ok(()),
                Err(error) => return Err(format!("boot {boot}: {error}")),
            };
            let content = read_all(&seam, &store, &recovered).await?;
            model.borrow().check(&content)?;
            model.borrow_mut().adopt_recovered(&recovered, &content);
            let workload = Workload {
                seam: seam.clone(),
                store: store.clone(),
                model: Rc::clone(&model),
                first_error: Rc::clone(&first_error),
                full_without_live_record: Rc::default(),
            };
            workload.run(rng.next(), 1, steps).await;
            drop(workload);
            // A reconnect may fail the request during which it happens, and the image with it.
            if store.copies() == 0 {
                first_error.take();
            }
            match store.close().await {
                Ok(_) | Err(StoreError::Failed(_)) => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        });
        match ended {
            Ok(ended) => ended?,
            Err(Stop::CrashPoint) => {}
            Err(stop) => return Err(format!("boot {boot}: {stop}")),
        }
        if let Some(error) = first_error.take() {
            return Err(format!("boot {boot}: {error}"));
        }
        world = world_after_crash(rng.next(), world.crash(CrashMode::Any));
    }
    Ok(())
}

#[test]
fn random_lives_with_reconnects_lose_nothing() {
    for seed in 0..300 {
        run_life(seed, Sabotage::None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

#[test]
fn skipped_flush_of_an_image_is_caught() {
    let caught = (0..100).find_map(|seed| run_life(seed, Sabotage::SkipFlush).err());
    assert!(caught.is_some(), "no life found it");
}
