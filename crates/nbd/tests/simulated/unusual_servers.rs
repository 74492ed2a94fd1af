//! The NBD client as a disk, against slow servers and servers whose export changes.

use nbd::{Options, Server};
use nbd_client::{NbdDisk, NbdOptions};
use seam::sim::{Latency, SimDiskSpec, Timing, World, WorldSpec};
use seam::{BlockMut, Disk, DiskError, Nanos, Piece, Seam};

use crate::fixture::{SIZE, core, disk, listen, plain, serve, world};

fn ones(world: &World) -> Vec<Piece<<seam::sim::SimSeam as Seam>::Block>> {
    vec![Piece::whole(world.block([1; 8]).expect("the pool is large enough").freeze())]
}

async fn open(seam: &seam::sim::SimSeam) -> NbdDisk<seam::sim::SimSeam> {
    let target = "nbd+unix:///vm1?socket=/run/nbd".parse().expect("a valid URI");
    NbdDisk::open(seam, target, NbdOptions::default()).await.expect("the server listens")
}

#[test]
fn flush_of_minutes_does_not_count_as_a_lost_server() {
    let world = world(61);
    let seam = world.seam();
    let slow = Timing { flush: Latency::fixed(Nanos::from_secs(150)), ..Timing::default() };
    world.block_on(async {
        serve(&seam, plain(), Options::default()).await;
        disk(&world).set_timing(slow);
        let export = open(&seam).await;
        assert_eq!(export.write(0, ones(&world)).await, Ok(()));
        assert_eq!((export.flush().await, export.connection_epoch()), (Ok(()), 0));
        assert_eq!(disk(&world).durable_tag(0), 1);
    });
}

#[test]
fn export_that_returns_smaller_is_refused_with_its_size() {
    let world = world(62);
    let seam = world.seam();
    world.block_on(async {
        let core = core(&seam, plain()).await;
        let server = Server::new(seam.clone(), core.clone(), Options::default());
        listen(&seam, &server).await;
        let export = open(&seam).await;
        server.stop(Nanos::ZERO).await;
        core.find("vm1")
            .expect("the volume is attached")
            .resize(Some(SIZE / 2), false)
            .await
            .expect("the disk can shrink");
        listen(&seam, &Server::new(seam.clone(), core, Options::default())).await;
        let Err(DiskError::Open(text)) = export.write(0, ones(&world)).await else { panic!("the export is smaller") };
        assert!(text.contains("changed while disconnected (size 33554432 bytes"), "{text}");
        assert_eq!(disk(&world).tag(0), 0, "a changed export gets no writes");
    });
}

#[test]
fn server_without_fast_zero_is_asked_once_and_still_zeroes() {
    let world = World::new(WorldSpec::new(63));
    let seam = world.seam();
    let mut spec = SimDiskSpec::new(SIZE);
    spec.geometry.fast_zero = false;
    world.add_disk("/disk", spec);
    world.block_on(async {
        serve(&seam, plain(), Options::default()).await;
        let export = open(&seam).await;
        assert!(export.geometry().fast_zero, "assumed until the server refuses");
        assert_eq!(export.write(0, ones(&world)).await, Ok(()));
        assert_eq!((export.zero(0, 4096, false).await, disk(&world).tag(0)), (Ok(()), 0));
        assert!(!export.geometry().fast_zero, "the server has refused");
    });
}
