//! A world with one disk, one volume and one server.

use engine::{Backing, Core, CoreSpec, VolumeId, VolumeSpec, WritePolicy};
use nbd::{Options, Server};
use seam::sim::{DiskControl, Latency, SimDiskSpec, SimSeam, TaskOrder, WireSpec, World, WorldSpec};
use seam::{Address, DiskOpen, Nanos, Seam};

use crate::client::Client;

/// Size of the volume in bytes.
pub const SIZE: u64 = 64 << 20;

/// Address that the server listens on.
pub fn address() -> Address {
    Address::Unix("/run/nbd".into())
}

/// A world with random task order and with streams that deliver in small pieces.
pub fn world(seed: u64) -> World {
    world_with(SimDiskSpec::new(SIZE), WorldSpec::new(seed))
}

/// Like [`world`], with another disk and the number of buffers in `spec`.
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
    world.disk("/disk").expect("the world has this disk")
}

/// An engine with the disk as volume `vm1`.
pub async fn core(seam: &SimSeam, spec: VolumeSpec) -> Core<SimSeam> {
    let open = DiskOpen { path: "/disk".into(), create_bytes: None, read_only: false, lock_wait_ms: 1000 };
    let disk = seam.open_disk(&open).await.expect("the disk exists");
    let core = Core::new(seam.clone(), CoreSpec::default());
    core.attach(spec, Backing::plain(disk)).expect("the name is free");
    core
}

/// A volume without caching of writes.
pub fn plain() -> VolumeSpec {
    VolumeSpec { policy: WritePolicy::None, ..VolumeSpec::new("vm1", VolumeId(1)) }
}

/// Starts a listening server of one volume.
pub async fn serve(seam: &SimSeam, spec: VolumeSpec, options: Options) -> Server<SimSeam> {
    let server = Server::new(seam.clone(), core(seam, spec).await, options);
    listen(seam, &server).await;
    server
}

/// Makes a server listen.
pub async fn listen(seam: &SimSeam, server: &Server<SimSeam>) {
    let (listener, server) = (seam.listen(&address()).await.expect("the address is free"), server.clone());
    seam.spawn(async move { server.accept(listener).await });
}

/// A new connection after the greeting.
pub async fn connect(seam: &SimSeam) -> Client {
    Client::connect(seam, &address()).await
}

/// Runs `test` in a world with a server of a volume without caching of writes.
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
