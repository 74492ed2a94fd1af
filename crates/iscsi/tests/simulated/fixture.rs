//! A world with one disk, one unit in front of it, and one server.

use std::rc::Rc;

use engine::{Backing, Core, CoreSpec, VolumeId, VolumeSpec, WritePolicy};
use iscsi::{Options, Server};
use scsi::{AccessList, Identity, Lun, ReservationStore, StoreFuture, Target, UnitSpec};
use seam::sim::{DiskControl, Latency, SimDiskSpec, SimSeam, TaskOrder, WireSpec, World, WorldSpec};
use seam::{Address, DiskOpen, Nanos, Seam};

/// Size of the volume in bytes.
pub const VOLUME_BYTES: u64 = 64 << 20;
/// The target's name.
pub const TARGET: &str = "iqn.2026-11.io.hotset:lab";

/// Address that the server listens on.
pub fn address() -> Address {
    Address::Tcp("10.0.0.7".into(), 3260)
}

/// A world with random task order and with streams that deliver in small pieces.
pub fn world(seed: u64) -> World {
    let world =
        World::new(WorldSpec { order: TaskOrder::Seeded, time_max: Nanos::from_secs(3600), ..WorldSpec::new(seed) });
    world.set_wires(WireSpec {
        delay: Latency::between(Nanos::from_micros(1), Nanos::from_micros(200)),
        chunk_bytes_max: 9_000,
        window_bytes: 64 << 10,
    });
    world.add_disk("/disk", SimDiskSpec::new(VOLUME_BYTES));
    world
}

/// The disk under the unit.
pub fn disk(world: &World) -> DiskControl {
    world.disk("/disk").expect("the world has this disk")
}

struct NullReservationStore;

impl ReservationStore for NullReservationStore {
    fn store(&self, _: VolumeId, _: Vec<u8>) -> StoreFuture {
        Box::pin(async { Ok(()) })
    }
}

/// A target with the disk as unit 0, open to all initiators, without write-back caching.
pub async fn target(seam: &SimSeam) -> Target<SimSeam> {
    let open = DiskOpen { path: "/disk".into(), create_bytes: None, read_only: false, lock_wait_ms: 1000 };
    let disk = seam.open_disk(&open).await.expect("the disk exists");
    let core = Core::new(seam.clone(), CoreSpec::default());
    let spec = VolumeSpec { policy: WritePolicy::None, ..VolumeSpec::new("vm1", VolumeId(1)) };
    let volume = core.attach(spec, Backing::plain(disk)).expect("the name is free");
    let target = Target::new(seam.clone(), TARGET, 1, Rc::new(NullReservationStore));
    let (lun, identity, access) = (Lun::ZERO, Identity::of(1, 1), AccessList::default());
    let unit = UnitSpec {
        lun,
        volume,
        identity,
        access,
        read_only: false,
        physical_4k: true,
        reservation_record: Vec::new(),
        thin_pool: None,
    };
    target.add(unit).expect("the number is free");
    target
}

/// Starts a listening server.
pub async fn serve(seam: &SimSeam, options: Options) -> Server<SimSeam> {
    let server = Server::new(seam.clone(), target(seam).await, options);
    let (listener, accepting) = (seam.listen(&address()).await.expect("the address is free"), server.clone());
    seam.spawn(async move { accepting.accept(listener).await });
    server
}

/// Runs `test` in a world with a server.
pub fn with_server(seed: u64, options: Options, test: impl AsyncFnOnce(SimSeam, Server<SimSeam>, &World)) {
    let world = world(seed);
    let seam = world.seam();
    world.block_on(async {
        let server = serve(&seam, options).await;
        test(seam.clone(), server, &world).await;
    });
    assert_eq!(world.violations(), Vec::<String>::new());
}
