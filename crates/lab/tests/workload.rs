//! What the cache gains in front of a modelled array, in virtual time.

use std::cell::Cell;
use std::rc::Rc;

use engine::{CoreSpec, WritePolicy};
use lab::random::Random;
use lab::rig::{Rig, Target, read, write};
use lab::workload::{Figures, Load, Pattern, play};
use seam::model::{ArraySpec, DiskType, RaidLevel};
use seam::sim::{Content, WorldSpec};
use seam::{Nanos, Seam};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Random writes of 12 KiB (85 %) and reads of 14 KiB (15 %) in a hot region.
fn hot_region(region_bytes: u64) -> Load {
    let pattern = Pattern::reads_and_writes(region_bytes, 14 << 10, 12 << 10, 15);
    let pattern = Pattern { align_bytes: 2048, ..pattern };
    Load { pattern, depth: 16, time: Nanos::from_secs(60), seed: 7 }
}

fn world(memory_bytes: u64) -> Rig {
    let blocks = (memory_bytes / 4096) as usize;
    Rig::new(WorldSpec { blocks, keep: Content::None, ..WorldSpec::new(1) }, CoreSpec::default())
}

fn raid5() -> ArraySpec {
    ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas15k)
}

fn uncached(load: &Load) -> Figures {
    let rig = world(64 * MIB);
    let disk = rig.on_array(raid5(), &[100 * GIB]).remove(0);
    rig.world.block_on(play(&rig.seam, &Target::Disk(disk), load))
}

#[test]
fn a_hot_region_in_memory_runs_ten_times_faster_than_raid5_alone_and_drains_afterwards() {
    let load = hot_region(256 * MIB);
    let bare = uncached(&load);
    let rig = world(GIB);
    let disk = rig.on_array(raid5(), &[100 * GIB]).remove(0);
    let volume = rig.attach_disk("lun", disk, |spec| spec.policy = WritePolicy::WriteBack).unwrap();
    // Hits are so many that a few seconds of them are plenty; the cold start is inside.
    let short = Load { time: Nanos::from_secs(4), ..load };
    let cached = rig.world.block_on(play(&rig.seam, &Target::Volume(volume.clone()), &short));
    assert_eq!((bare.errors, cached.errors), (0, 0));
    println!("uncached {:.0} IOPS, cached {:.0} IOPS", bare.iops(), cached.iops());
    assert!(cached.iops() >= 10.0 * bare.iops(), "{:.0} IOPS cached, {:.0} uncached", cached.iops(), bare.iops());
    assert!(volume.stats().dirty_bytes > 0, "nothing was dirty: the array was in the way all the time");
    let begun = rig.world.now();
    while volume.stats().dirty_bytes + volume.stats().written_bytes > 0 {
        rig.world.run_for(Nanos::from_secs(1)).unwrap();
        let waited = rig.world.now().since(begun);
        assert!(waited < Nanos::from_secs(600), "{} bytes still dirty after {waited}", volume.stats().dirty_bytes);
    }
}

/// Requests a second by 16 clients that think for 4 ms, after half a minute of them: 85 % writes of 12 KiB, 15 % reads of 14 KiB.
fn lasting(policy: WritePolicy) -> u64 {
    let rig = world(256 * MIB);
    let slow = ArraySpec::new(RaidLevel::Raid5, 5, DiskType::NlSas);
    let disk = rig.on_array(slow, &[64 * GIB]).remove(0);
    let volume = rig.attach_disk("lun", disk, |spec| spec.policy = policy).unwrap();
    let done = Rc::new(Cell::new(0));
    for client in 0..16 {
        let (volume, done, seam) = (volume.clone(), Rc::clone(&done), rig.seam.clone());
        rig.seam.spawn(async move {
            let mut random = Random::new(5, client);
            loop {
                seam.sleep(Nanos::from_millis(4)).await;
                let first = random.below((64 * MIB - (16 << 10)) / 512);
                match random.percent(85) {
                    true => write(&volume, first, 24, 1).await.expect("an array without faults"),
                    false => drop(read(&volume, first, 28).await.expect("an array without faults")),
                }
                done.set(done.get() + 1);
            }
        });
    }
    rig.world.run_for(Nanos::from_secs(30)).unwrap();
    let before = done.get();
    rig.world.run_for(Nanos::from_secs(15)).unwrap();
    (done.get() - before) / 15
}

#[test]
fn a_hot_region_in_memory_stays_ten_times_faster_while_destage_is_at_work() {
    let (bare, cached) = (lasting(WritePolicy::None), lasting(WritePolicy::WriteBack));
    println!("uncached {bare} IOPS, cached {cached} IOPS");
    assert!(bare > 0 && cached >= 10 * bare, "{cached} IOPS cached, {bare} uncached");
}
