//! A world with two disks, a volume on each, and a target with a unit for each volume.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use engine::{Backing, Core, CoreSpec, Volume, VolumeId, VolumeSpec, WritePolicy};
use scsi::{AccessList, Identity, Lun, ReservationStore, StoreFuture, Target, UnitSpec};
use seam::sim::{DiskControl, SimDiskSpec, SimSeam, TaskOrder, Timing, World, WorldSpec};
use seam::{DiskOpen, Nanos, Seam};

/// Size of a volume in bytes.
pub const VOLUME_BYTES: u64 = 16 << 20;
/// Blocks of a volume.
pub const BLOCKS: u64 = VOLUME_BYTES / 512;

/// Name of the pool of unit 0. Its space is unknown until a test sets it.
pub const POOL: &str = "tank";

/// A world with random task order and slow disks.
pub fn world(seed: u64) -> World {
    world_of(WorldSpec::new(seed))
}

fn world_of(spec: WorldSpec) -> World {
    let world = World::new(WorldSpec { order: TaskOrder::Seeded, time_max: Nanos::from_secs(3600), ..spec });
    for name in ["one", "two"] {
        let timing = Timing::between(Nanos::from_micros(1), Nanos::from_micros(400));
        world.add_disk(name, SimDiskSpec { timing, ..SimDiskSpec::new(VOLUME_BYTES) });
    }
    world
}

/// The disk under a volume.
pub fn disk(world: &World, name: &str) -> DiskControl {
    world.disk(name).expect("the world has this disk")
}

/// Stores records in memory with random delays; a simulated restart reads them.
#[derive(Clone)]
pub struct RecordStore {
    pub seam: SimSeam,
    pub stored: Rc<RefCell<BTreeMap<VolumeId, Vec<u8>>>>,
    /// True if every store fails.
    pub fails: Rc<RefCell<bool>>,
}

impl ReservationStore for RecordStore {
    fn store(&self, volume_id: VolumeId, record: Vec<u8>) -> StoreFuture {
        let records = self.clone();
        Box::pin(async move {
            let delay = async || records.seam.sleep(Nanos::from_micros(records.seam.random() % 300)).await;
            delay().await;
            if *records.fails.borrow() {
                return Err("no space".to_owned());
            }
            records.stored.borrow_mut().insert(volume_id, record);
            delay().await;
            Ok(())
        })
    }
}

/// A target with the core, volumes and record store under it.
pub struct Fixture {
    pub seam: SimSeam,
    pub target: Target<SimSeam>,
    pub core: Core<SimSeam>,
    pub records: RecordStore,
}

/// Specification of a write-back volume.
pub fn write_back_spec(name: &str, volume_id: VolumeId) -> VolumeSpec {
    VolumeSpec { policy: WritePolicy::WriteBack, ..VolumeSpec::new(name, volume_id) }
}

/// The unit number `number`.
pub fn lun(number: u16) -> Lun {
    Lun::new(number).expect("the number is valid")
}

/// Specification of a unit in front of a volume.
pub fn unit(volume: Volume<SimSeam>, number: u16, reservation_record: Vec<u8>) -> UnitSpec<SimSeam> {
    let identity = Identity::of(77, volume.spec().volume_id.0);
    let access = AccessList::default();
    UnitSpec {
        lun: lun(number),
        volume,
        identity,
        access,
        read_only: false,
        physical_4k: true,
        reservation_record,
        thin_pool: (number == 0).then(|| POOL.to_owned()),
    }
}

impl Fixture {
    /// A target with unit 0 on disk `one` and unit 1 on disk `two`.
    pub async fn new(seam: &SimSeam) -> Fixture {
        let fixture = Self::empty(seam, Rc::default()).await;
        for (number, name) in [(0, "one"), (1, "two")] {
            fixture.add(number, name);
        }
        fixture
    }

    /// A target with volumes and without units.
    pub async fn empty(seam: &SimSeam, stored: Rc<RefCell<BTreeMap<VolumeId, Vec<u8>>>>) -> Fixture {
        let core = Core::new(seam.clone(), CoreSpec::default());
        for (name, volume_id) in [("one", VolumeId(11)), ("two", VolumeId(12))] {
            let open = DiskOpen { path: name.into(), create_bytes: None, read_only: false, lock_wait_ms: 1000 };
            let disk = seam.open_disk(&open).await.expect("the disk exists");
            core.attach(write_back_spec(name, volume_id), Backing::plain(disk)).expect("the name is free");
        }
        let records = RecordStore { seam: seam.clone(), stored, fails: Rc::default() };
        let target = Target::new(seam.clone(), "iqn.2026-11.io.hotset:lab", 2, Rc::new(records.clone()));
        Fixture { seam: seam.clone(), target, core, records }
    }

    /// Adds a unit in front of a volume.
    pub fn add(&self, number: u16, name: &str) {
        let volume = self.volume(name);
        let record = self.records.stored.borrow().get(&volume.spec().volume_id).cloned().unwrap_or_default();
        self.target.add(unit(volume, number, record)).expect("the number is free");
    }

    /// The volume of this name.
    pub fn volume(&self, name: &str) -> Volume<SimSeam> {
        self.core.find(name).expect("the volume is attached")
    }
}

/// Runs `test` in a world with a target of two units.
pub fn with_target<F: Future<Output = ()>>(seed: u64, test: impl FnOnce(Rc<World>, Rc<Fixture>) -> F) {
    with_target_in(world(seed), test);
}

/// Like [`with_target`], with so little memory that writes wait for memory.
pub fn with_small_pool<F: Future<Output = ()>>(seed: u64, test: impl FnOnce(Rc<World>, Rc<Fixture>) -> F) {
    with_target_in(world_of(WorldSpec { blocks: 512, ..WorldSpec::new(seed) }), test);
}

fn with_target_in<F: Future<Output = ()>>(world: World, test: impl FnOnce(Rc<World>, Rc<Fixture>) -> F) {
    let world = Rc::new(world);
    let seam = world.seam();
    world.block_on(async {
        let fixture = Fixture::new(&seam).await;
        test(Rc::clone(&world), Rc::new(fixture)).await;
    });
    assert_eq!(world.violations(), Vec::<String>::new());
}
