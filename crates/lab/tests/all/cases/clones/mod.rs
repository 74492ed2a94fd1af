//! Volumes that share slices of a pool: a master, its snapshots and its clones under one cache. A block that one of
//! them has in the cache serves the others, as long as both backings store the same bytes.

mod lives;
mod named;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use engine::{Backing, CoreSpec, Volume, VolumeId, VolumeSpec};
use lab::fixture::{Fixture, out_of_order_disk};
use lab::torture::flash::FlashOptions;
use pool::{CreateOptions, OpenOptions, Pool, TierSpec, VolumeSpec as PoolVolumeSpec};
use seam::sim::{CrashMode, SimDisk, SimSeam, WorldSpec};
use seam::{Nanos, Seam};

const MIB: u64 = 1 << 20;
const SLICE_BYTES: u64 = 256 << 10;
const SLICE_BLOCKS: u64 = SLICE_BYTES / 4096;
const BLOCK_SECTORS: u64 = 8;

type SimPool = Pool<SimSeam, SimDisk>;
type Work = Pin<Box<dyn Future<Output = ()>>>;

/// A world with a pool of two tiers, flash, and the volumes of one family.
struct Family {
    fixture: Fixture,
    pool: SimPool,
    /// Identity in the cache of each volume, by name.
    ids: RefCell<BTreeMap<String, VolumeId>>,
    next_id: Cell<u64>,
}

fn world(seed: u64, blocks: usize) -> WorldSpec {
    WorldSpec { blocks, time_max: Nanos::from_secs(1_000_000), ..WorldSpec::new(seed) }
}

fn flash() -> FlashOptions {
    FlashOptions::plain(2, MIB, 24)
}

async fn open_pool(fixture: &Fixture, disks: &[SimDisk]) -> SimPool {
    SimPool::open(&fixture.seam, disks, OpenOptions::default()).await.expect("the metadata is whole")
}

impl Family {
    /// A pool with the empty volume "master" of `slices` slices, under memory of `blocks` blocks. It is not attached.
    fn new(seed: u64, core: CoreSpec, blocks: usize, slices: u64) -> Family {
        let fixture = Fixture::new(world(seed, blocks), core);
        for (name, mib) in [("ssd", 16), ("hdd", 48)] {
            fixture.add_disk(name, out_of_order_disk(mib * MIB));
        }
        flash().add_disks(&fixture.world);
        let disks = ["ssd", "hdd"].map(|name| fixture.open(name));
        let tier = |name: &str, disk: &SimDisk| TierSpec { name: name.to_owned(), disks: vec![disk.clone()] };
        let tiers = [tier("ssd", &disks[0]), tier("hdd", &disks[1])];
        let pool = fixture.world.block_on(async {
            let options = CreateOptions { slice_bytes: SLICE_BYTES, ..CreateOptions::default() };
            SimPool::create(&fixture.seam, &tiers, options).await.expect("the disks are empty");
            let pool = open_pool(&fixture, &disks).await;
            let spec = PoolVolumeSpec::thin("master", slices * SLICE_BYTES);
            pool.create_volume(spec).await.expect("the name is free");
            flash().open(&fixture.seam, &fixture.core, true, false).await.expect("the devices are intact");
            pool
        });
        Family { fixture, pool, ids: RefCell::default(), next_id: Cell::new(1) }
    }

    /// Crashes the machine and opens pool and flash again. The volumes have to be attached anew.
    fn crash(self, seed: u64, blocks: usize) -> Family {
        let Family { fixture, pool, ids, next_id } = self;
        drop(pool);
        let fixture = fixture.crash(CrashMode::LoseAll, world(seed, blocks));
        let disks = ["ssd", "hdd"].map(|name| fixture.open(name));
        let pool = fixture.world.block_on(async {
            let pool = open_pool(&fixture, &disks).await;
            flash().open(&fixture.seam, &fixture.core, false, false).await.expect("the devices are intact");
            pool
        });
        Family { fixture, pool, ids, next_id }
    }

    /// Runs `work` in the world.
    fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.fixture.world.block_on(work)
    }

    /// Attaches a volume of the pool under its identity, and waits until its flash content is checked.
    async fn attach(&self, name: &str) -> Volume<SimSeam> {
        self.attach_with(name, |_| ()).await
    }

    async fn attach_with(&self, name: &str, edit: impl FnOnce(&mut VolumeSpec)) -> Volume<SimSeam> {
        let id = *self.ids.borrow_mut().entry(name.to_owned()).or_insert_with(|| {
            let id = self.next_id.get();
            self.next_id.set(id + 1);
            VolumeId(id)
        });
        let disk = self.pool.volume(self.pool.volume_named(name).expect("it exists")).expect("it exists");
        let mut spec = VolumeSpec::new(name, id);
        edit(&mut spec);
        let volume = self.fixture.core.attach_recovered(spec, Backing::pool(disk)).await.expect("the log is intact");
        while !volume.stats().flash.is_checked {
            self.fixture.seam.sleep(Nanos::from_millis(10)).await;
        }
        volume
    }

    /// Makes a snapshot of a served volume as the daemon does.
    async fn snapshot(&self, volume: &Volume<SimSeam>, name: &str) -> pool::VolumeId {
        let id = self.pool.volume_named(volume.name()).expect("it exists");
        let made =
            volume.run_while_complete(Nanos::from_secs(10), async || self.pool.create_snapshot(id, name, 0).await);
        made.await.expect("sound disks").expect("the rest is destaged in time").expect("sound disks")
    }

    /// Makes a clone of a snapshot and attaches it.
    async fn clone_of(&self, snapshot: pool::VolumeId, name: &str) -> Volume<SimSeam> {
        self.pool.clone_snapshot(snapshot, name).await.expect("the name is free");
        self.ids.borrow_mut().remove(name);
        self.attach(name).await
    }

    /// Rolls a volume back as the daemon does: under a new identity in the cache.
    async fn roll_back(&self, volume: Volume<SimSeam>, snapshot: pool::VolumeId) -> Volume<SimSeam> {
        let name = volume.name().to_owned();
        drop(volume);
        self.fixture.core.detach(&name).await.expect("sound disks");
        self.pool.roll_back(snapshot).await.expect("sound disks");
        self.ids.borrow_mut().remove(&name);
        self.attach(&name).await
    }

    /// Detaches and deletes a volume without snapshots.
    async fn delete(&self, name: &str) {
        self.fixture.core.detach(name).await.expect("sound disks");
        let id = self.pool.volume_named(name).expect("it exists");
        self.pool.remove_volume(id).await.expect("it has no snapshots");
        self.ids.borrow_mut().remove(name);
    }

    /// Runs all of `works` at once and waits for their ends.
    async fn at_once(&self, works: Vec<Work>) {
        let open = Rc::new(Cell::new(works.len()));
        for work in works {
            let open = Rc::clone(&open);
            self.fixture.seam.spawn(async move {
                work.await;
                open.set(open.get() - 1);
            });
        }
        while open.get() > 0 {
            self.fixture.seam.sleep(Nanos::from_micros(50)).await;
        }
    }
}
