//! A target with files as units: `target PORT FILE…`, for trials of initiators against the front end alone.

use std::rc::Rc;

use engine::{Backing, Core, CoreSpec, VolumeId, VolumeSpec};
use iscsi::{Options, Server};
use scsi::{AccessList, Identity, Lun, ReservationStore, StoreFuture, Target, UnitSpec};
use seam::real::{RealCoreSpec, run_core};
use seam::{Address, DiskOpen, Seam};

struct NullReservationStore;

impl ReservationStore for NullReservationStore {
    fn store(&self, _: VolumeId, _: Vec<u8>) -> StoreFuture {
        Box::pin(async { Ok(()) })
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let port: u16 = arguments[0].parse().expect("the first argument is a port");
    let files = arguments[1..].to_vec();
    run_core(RealCoreSpec::new(256 << 20), move |seam| async move {
        let core = Core::new(seam.clone(), CoreSpec::default());
        let target = Target::new(seam.clone(), "iqn.2026-11.io.hotset:lab", 1, Rc::new(NullReservationStore));
        for (number, path) in files.iter().enumerate() {
            let open = DiskOpen { path: path.into(), create_bytes: None, read_only: false, lock_wait_ms: 1000 };
            let disk = seam.open_disk(&open).await.expect("the file can be opened");
            let name = format!("v{number}");
            core.attach(VolumeSpec::new(&name, VolumeId(number as u64 + 1)), Backing::plain(disk))
                .expect("the name is free");
            let lun = Lun::new(number as u16).expect("the number is valid");
            target
                .add(UnitSpec {
                    lun,
                    volume: core.find(&name).expect("the volume is attached"),
                    identity: Identity::of(1, number as u64 + 1),
                    access: AccessList::default(),
                    read_only: false,
                    physical_4k: true,
                    reservation_record: Vec::new(),
                    thin_pool: None,
                })
                .expect("the number is free");
        }
        let server = Server::new(seam.clone(), target, Options::default());
        let listener = seam.listen(&Address::Tcp("127.0.0.1".into(), port)).await.expect("the port is free");
        server.accept(listener).await;
    })
    .expect("the core starts");
}
