//! Write-back in front of spindles: random writes and reads in a hot region that fits memory, on RAID 5 of five 15k disks.

use std::cell::Cell;
use std::rc::Rc;

use engine::{Backing, Core, CoreSpec, VolumeSpec, WritePolicy};
use seam::model::{ArraySpec, DiskType, ModelledDisk, RaidLevel, SharedArray};
use seam::sim::{Content, SimDiskSpec, Timing, World, WorldSpec};
use seam::{DiskOpen, Nanos, Seam};

use crate::setting::{Numbers, read, write};

const SIZE: u64 = 64 << 30;
const HOT: u64 = 64 << 20;

/// Requests a second over half a minute by 16 clients, 85 % writes of 12 KiB, 15 % reads of 14 KiB; then the time to drain.
fn requests_a_second(policy: WritePolicy) -> (u64, Nanos) {
    let mut spec = WorldSpec::new(5);
    (spec.blocks, spec.keep, spec.time_max) = (65_536, Content::None, Nanos::from_secs(3600));
    let world = World::new(spec);
    let mut disk = SimDiskSpec::new(SIZE);
    disk.timing = Timing::INSTANT;
    world.add_disk("disk", disk);
    let seam = world.seam();
    world.block_on(async move {
        let spec = ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas15k).fitted(SIZE);
        let array = SharedArray::new(seam.clone(), spec).expect("a sound array");
        let open = DiskOpen { path: "disk".into(), create_bytes: None, read_only: false, lock_wait_ms: 0 };
        let content = seam.open_disk(&open).await.expect("the disk was added");
        let disk = ModelledDisk::new(&array, content).expect("the array was fitted to it");
        let core = Core::new(seam.clone(), CoreSpec::default());
        let mut spec = VolumeSpec::new("v", 1);
        spec.policy = policy;
        let volume = core.attach(spec, Backing::modelled(disk)).expect("the only volume");
        let (done, stop) = (Rc::new(Cell::new(0u64)), Rc::new(Cell::new(false)));
        for client in 0..16u64 {
            let (volume, done, stop, seam) = (volume.clone(), Rc::clone(&done), Rc::clone(&stop), seam.clone());
            seam.clone().spawn(async move {
                let mut numbers = Numbers(client);
                while !stop.get() {
                    seam.sleep(Nanos::from_millis(1)).await;
                    let at = numbers.below((HOT - 16384) / 512) * 512;
                    match numbers.below(100) {
                        0..85 => write(&volume, at, 12 << 10, 1).await,
                        _ => drop(read(&volume, at, 14 << 10).await),
                    }
                    done.set(done.get() + 1);
                }
            });
        }
        // A minute to warm up, half a minute that counts.
        seam.sleep(Nanos::from_secs(60)).await;
        let before = done.get();
        seam.sleep(Nanos::from_secs(30)).await;
        let rate = (done.get() - before) / 30;
        stop.set(true);
        let begun = seam.now();
        while volume.stats().dirty_bytes + volume.stats().written_bytes > 0 {
            seam.sleep(Nanos::from_millis(100)).await;
        }
        (rate, seam.now().since(begun))
    })
}

#[test]
fn a_hot_region_that_fits_memory_is_ten_times_as_fast_and_drains_afterwards() {
    let (plain, _) = requests_a_second(WritePolicy::None);
    let (cached, drained) = requests_a_second(WritePolicy::WriteBack);
    println!("RAID 5 of five 15k disks: {plain} requests/s without, {cached} with the cache; drained in {drained}");
    assert!(plain > 0 && cached >= 10 * plain, "{cached} is not ten times {plain}");
    assert!(drained < Nanos::from_secs(300));
}
