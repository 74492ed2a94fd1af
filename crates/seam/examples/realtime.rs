//! Compares the models' rates in real time and in virtual time, with the same clients and offsets.
//!
//! `cargo run --release -p seam --example realtime` exits with 1 if the rates differ by more than 5 %.

use std::cell::Cell;
use std::process::ExitCode;
use std::rc::Rc;

use seam::model::{ArraySpec, DiskType, ModelledDisk, RaidLevel, SharedArray};
use seam::real::{RealCoreSpec, run_core};
use seam::sim::{Rng, SimDiskSpec, Timing, World, WorldSpec};
use seam::{BlockMut, Disk, DiskOpen, Nanos, Piece, Seam};

const SIZE: u64 = 256 << 20;
const REQUESTS_EACH: u64 = 150;

/// Total requests per second of `clients` clients: random 12 KiB writes (85 %) and reads.
async fn rate<S: Seam>(seam: S, content: S::Disk, spec: ArraySpec, clients: u64) -> f64 {
    let array = SharedArray::new(seam.clone(), spec.fitted(SIZE)).expect("the specification is valid");
    let disk = ModelledDisk::new(&array, content).expect("it fits exactly");
    let (remaining, start) = (Rc::new(Cell::new(clients)), seam.now());
    for client in 0..clients {
        let (seam, disk, remaining) = (seam.clone(), disk.clone(), Rc::clone(&remaining));
        seam.clone().spawn(async move {
            let rng = Rng::new(1, client);
            for _ in 0..REQUESTS_EACH {
                let at = rng.below(SIZE / 4096 - 3) * 4096;
                let block = || Piece::whole(seam.alloc().expect("the pool has room"));
                if rng.chance(850_000) {
                    let zeroed = |mut piece: Piece<S::BlockMut>| {
                        piece.block.zero(0, seam::BLOCK_BYTES);
                        Piece::whole(piece.block.freeze())
                    };
                    disk.write(at, (0..3).map(|_| zeroed(block())).collect()).await.expect("a healthy disk");
                } else {
                    disk.read(at, (0..3).map(|_| block()).collect()).await.0.expect("a healthy disk");
                }
            }
            remaining.set(remaining.get() - 1);
        });
    }
    while remaining.get() > 0 {
        seam.sleep(Nanos::from_millis(1)).await;
    }
    (clients * REQUESTS_EACH) as f64 / seam.now().since(start).as_secs_f64()
}

fn open(path: std::path::PathBuf, create_bytes: Option<u64>) -> DiskOpen {
    DiskOpen { path, create_bytes, read_only: false, lock_wait_ms: 0 }
}

fn virtual_rate(spec: ArraySpec, clients: u64) -> f64 {
    let world = World::new(WorldSpec::new(1));
    world.add_disk("content", SimDiskSpec { timing: Timing::INSTANT, ..SimDiskSpec::new(SIZE) });
    let seam = world.seam();
    world.block_on(async {
        let content = seam.open_disk(&open("content".into(), None)).await.expect("the disk was just added");
        rate(seam.clone(), content, spec, clients).await
    })
}

fn real_rate(spec: ArraySpec, clients: u64) -> f64 {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let options = open(folder.path().join("content"), Some(SIZE));
    let run = run_core(RealCoreSpec::new(16 << 20), |seam| async move {
        let content = seam.open_disk(&options).await.expect("a new file");
        rate(seam, content, spec, clients).await
    });
    run.expect("io_uring is allowed here")
}

fn main() -> ExitCode {
    println!("{:<24} {:>7} {:>9} {:>9} {:>7}", "array", "clients", "virtual/s", "real/s", "apart");
    let mut deviation_max = 0.0_f64;
    let raid5 = ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas15k);
    let single = ArraySpec::new(RaidLevel::Raid0, 1, DiskType::NlSas);
    for (name, spec, clients) in
        [("RAID 5 of five sas15k", raid5, 1), ("RAID 5 of five sas15k", raid5, 16), ("one nlsas", single, 4)]
    {
        let (virtual_iops, real_iops) = (virtual_rate(spec, clients), real_rate(spec, clients));
        let deviation = (real_iops / virtual_iops - 1.0) * 100.0;
        deviation_max = deviation_max.max(deviation.abs());
        println!("{name:<24} {clients:>7} {virtual_iops:>9.1} {real_iops:>9.1} {deviation:>6.1}%");
    }
    if deviation_max <= 5.0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
