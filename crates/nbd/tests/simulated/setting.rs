//! A world with one disk, one volume and one server, and clients of it.

use engine::{Backing, Core, CoreSpec, VolumeSpec, WritePolicy};
use nbd::{Options, Server};
use seam::sim::{DiskControl, Latency, SimDiskSpec, SimSeam, TaskOrder, WireSpec, World, WorldSpec};
use seam::{Address, DiskOpen, Nanos, Seam};

use crate::client::Client;

/// Bytes of the volume.
pub const SIZE: u64 = 64 << 20;

/// Where the server listens.
pub fn address() -> Address {
    Address::Unix("/run/nbd".into())
}

/// A world whose tasks run in a random order and whose wires deliver in small pieces.
pub fn world(seed: u64) -> World {
    world_with(SimDiskSpec::new(SIZE), WorldSpec::new(seed))
}

/// As [`world`], with another disk, and the buffers of `spec`.
pub fn world_with(disk: SimDiskSpec, spec: WorldSpec) -> World {
    let world = World::new(WorldSpec { order: TaskOrder::Seeded, time_max: Nanos::from_secs(3600), ..spec });
    world.set_wires(WireSpec {
        delay: Latency::between(Nanos::from_micros(1), Nanos::from_micros(200)),
        chunk_bytes_max: 9_000,
        window_bytes: 64 << 10,
    });
    world.add_disk("/disk", disk);
    world
}

/// The disk under the volume.
pub fn disk(world: &World) -> DiskControl {
    world.disk("/disk").expect("the world was made with it")
}

/// An engine with the disk as volume `vm1`.
pub async fn core(seam: &SimSeam, spec: VolumeSpec) -> Core<SimSeam> {
    let what = DiskOpen { path: "/disk".into(), create_bytes: None, read_only: false, lock_wait_ms: 1000 };
    let disk = seam.open_disk(&what).await.expect("the disk is there");
    let core = Core::new(seam.clone(), CoreSpec::default());
    core.attach(spec, Backing::plain(disk)).expect("the name is free");
    core
}

/// A volume that passes everything through, so that its disk shows what clients did.
pub fn plain() -> VolumeSpec {
    VolumeSpec { policy: WritePolicy::None, ..VolumeSpec::new("vm1", 1) }
}

/// Starts a server of that volume, and listens.
pub async fn serve(seam: &SimSeam, spec: VolumeSpec, options: Options) -> Server<SimSeam> {
    let server = Server::new(seam.clone(), core(seam, spec).await, options);
    listen(seam, &server).await;
    server
}

/// Lets a server listen.
pub async fn listen(seam: &SimSeam, server: &Server<SimSeam>) {
    let (listener, server) = (seam.listen(&address()).await.expect("the address is free"), server.clone());
    seam.spawn(async move { server.accept(listener).await });
}

/// A fresh connection to it, greeted.
pub async fn connect(seam: &SimSeam) -> Client {
    Client::connect(seam, &address()).await
}

/// Runs `test` in a world with a server of a plain volume.
pub fn with_server<F: Future<Output = ()>>(
    seed: u64,
    options: Options,
    test: impl FnOnce(SimSeam, Server<SimSeam>) -> F,
) {
    let world = world(seed);
    let seam = world.seam();
    world.block_on(async {
        let server = serve(&seam, plain(), options).await;
        test(seam.clone(), server).await;
    });
    assert_eq!(world.violations(), Vec::<String>::new());
}
