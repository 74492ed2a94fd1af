//! Speed of the simulated world: disk requests per second of CPU time, without the engine.
//!
//! `cargo run --release -p seam --example simspeed`

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use seam::model::{ArraySpec, DiskType, ModelledDisk, RaidLevel, SharedArray};
use seam::sim::{SimDisk, SimDiskSpec, SimSeam, StoredContent, Timing, World, WorldSpec};
use seam::{Disk, DiskOpen, Nanos, Piece, Seam};

const CLIENTS: u64 = 32;
const REQUESTS: u64 = 1_000_000;
const SIZE: u64 = 8 << 30;

/// Runs 32 clients that alternate random reads and writes of 4 KiB, and prints the CPU time.
fn run<D: Disk<SimSeam>>(
    name: &str,
    content: StoredContent,
    timing: Timing,
    disk: impl AsyncFnOnce(&World, SimDisk) -> D,
) {
    let world = World::new(WorldSpec { content, ..WorldSpec::new(1) });
    world.add_disk("d", SimDiskSpec { timing, ..SimDiskSpec::new(SIZE) });
    let seam = world.seam();
    let started = stopwatch();
    world.block_on(async {
        let options = DiskOpen { path: "d".into(), create_bytes: None, read_only: false, lock_wait_ms: 0 };
        let disk = disk(&world, seam.open_disk(&options).await.expect("the disk was just added")).await;
        let remaining = Rc::new(Cell::new(CLIENTS));
        for _ in 0..CLIENTS {
            let (seam, disk, remaining) = (seam.clone(), disk.clone(), Rc::clone(&remaining));
            seam.clone().spawn(async move {
                for number in 0..REQUESTS / CLIENTS {
                    let at = seam.random() % (SIZE / 4096) * 4096;
                    let block = seam.alloc().expect("the pool has room");
                    if number % 2 == 0 {
                        disk.read(at, vec![Piece::whole(block)]).await.0.expect("no fault is injected");
                    } else {
                        let block = seam::BlockMut::freeze(block);
                        disk.write(at, vec![Piece::whole(block)]).await.expect("no fault is injected");
                    }
                    if number % 64 == 63 {
                        disk.flush().await.expect("no fault is injected");
                    }
                }
                remaining.set(remaining.get() - 1);
            });
        }
        while remaining.get() > 0 {
            seam.sleep(Nanos::from_millis(100)).await;
        }
    });
    let elapsed = started();
    let rate = REQUESTS as f64 / elapsed.as_secs_f64();
    println!("{name:<30} {rate:>9.0} requests per second of CPU, {} of virtual time in {elapsed:.2?}", world.now());
}

/// This thread's CPU time, which excludes other load of the machine. Code inside the world must not read it.
fn stopwatch() -> impl Fn() -> Duration {
    let now = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call writes one timespec, and the pointer refers to one.
        let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        assert_eq!(failed, 0, "every Linux has this clock");
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let start = now();
    move || now() - start
}

fn main() {
    let quick = Timing::between(Nanos::from_micros(50), Nanos::from_micros(150));
    run("simulated disk, content kept", StoredContent::Tags, quick, async |_, disk| disk);
    run("simulated disk, no content", StoredContent::MetadataOnly, quick, async |_, disk| disk);
    let spindle = ArraySpec::new(RaidLevel::Raid0, 1, DiskType::Sas15k);
    let arrays = [
        ("one sas15k", spindle),
        ("RAID 5 of five sas15k", ArraySpec { level: RaidLevel::Raid5, disks: 5, ..spindle }),
        ("RAID 10 of eight nlsas", ArraySpec { level: RaidLevel::Raid10, disks: 8, disk: DiskType::NlSas, ..spindle }),
        ("one ssd", ArraySpec { disk: DiskType::Ssd, ..spindle }),
    ];
    for (name, spec) in arrays {
        run(name, StoredContent::MetadataOnly, Timing::INSTANT, async |world: &World, content| {
            let array = SharedArray::new(world.seam(), spec).expect("the specification is valid");
            ModelledDisk::new(&array, content).expect("it has room for 8 GiB")
        });
    }
}
