//! Gain of the cache in front of a modelled array, in virtual time.

use std::cell::Cell;
use std::rc::Rc;

use engine::{CoreSpec, WritePolicy};
use lab::fixture::{Fixture, Target, read, write};
use lab::random::Random;
use lab::workload::{Figures, Load, Pattern, run_load};
use seam::model::{ArraySpec, DiskType, RaidLevel};
use seam::sim::{StoredContent, WorldSpec};
use seam::{Nanos, Seam};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Random writes of 12 KiB (85 %) and reads of 14 KiB (15 %) in a hot region.
fn hot_region(region_bytes: u64) -> Load {
    let pattern = Pattern::reads_and_writes(region_bytes, 14 << 10, 12 << 10, 15);
    let pattern = Pattern { align_bytes: 2048, ..pattern };
    Load { pattern, depth: 16, time: Nanos::from_secs(60), seed: 7 }
}

fn world(memory_bytes: u64) -> Fixture {
    let blocks = (memory_bytes / 4096) as usize;
    Fixture::new(WorldSpec { blocks, content: StoredContent::MetadataOnly, ..WorldSpec::new(1) }, CoreSpec::default())
}

fn raid5() -> ArraySpec {
    ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas15k)
}

fn uncached(load: &Load) -> Figures {
    let fixture = world(64 * MIB);
    let disk = fixture.add_disks_on_array(raid5(), &[100 * GIB]).remove(0);
    fixture.world.block_on(run_load(&fixture.seam, &Target::Disk(disk), load))
}

#[test]
fn hot_region_runs_ten_times_faster_than_raid5_and_drains() {
    let load = hot_region(256 * MIB);
    let bare = uncached(&load);
    let fixture = world(GIB);
    let disk = fixture.add_disks_on_array(raid5(), &[100 * GIB]).remove(0);
    let volume = fixture.attach_disk("lun", disk, |spec| spec.policy = WritePolicy::WriteBack).unwrap();
    // Hits are so frequent that a few seconds suffice, including the cold start.
    let short = Load { time: Nanos::from_secs(4), ..load };
    let cached = fixture.world.block_on(run_load(&fixture.seam, &Target::Volume(volume.clone()), &short));
    assert_eq!((bare.errors, cached.errors), (0, 0));
    println!("uncached {:.0} IOPS, cached {:.0} IOPS", bare.iops(), cached.iops());
    assert!(cached.iops() >= 10.0 * bare.iops(), "{:.0} IOPS cached, {:.0} uncached", cached.iops(), bare.iops());
    assert!(volume.stats().dirty_bytes > 0, "nothing was dirty: every write waited for the array");
    let start = fixture.world.now();
    while volume.stats().dirty_bytes + volume.stats().written_bytes > 0 {
        fixture.world.run_for(Nanos::from_secs(1)).unwrap();
        let waited = fixture.world.now().since(start);
        assert!(waited < Nanos::from_secs(600), "{} bytes still dirty after {waited}", volume.stats().dirty_bytes);
    }
}

/// Requests per second of 16 clients that think for 3 ms, after half a minute of load: 85 % writes of 12 KiB, 15 %
/// reads of 14 KiB.
fn sustained_iops(policy: WritePolicy) -> u64 {
    let fixture = world(256 * MIB);
    let slow = ArraySpec::new(RaidLevel::Raid5, 5, DiskType::NlSas);
    let disk = fixture.add_disks_on_array(slow, &[64 * GIB]).remove(0);
    let volume = fixture.attach_disk("lun", disk, |spec| spec.policy = policy).unwrap();
    let completed = Rc::new(Cell::new(0));
    for client in 0..16 {
        let (volume, completed, seam) = (volume.clone(), Rc::clone(&completed), fixture.seam.clone());
        fixture.seam.spawn(async move {
            let mut random = Random::new(5, client);
            loop {
                seam.sleep(Nanos::from_millis(3)).await;
                let first = random.below((64 * MIB - (16 << 10)) / 512);
                match random.percent(85) {
                    true => write(&volume, first, 24, 1).await.expect("an array without faults does not fail"),
                    false => drop(read(&volume, first, 28).await.expect("an array without faults does not fail")),
                }
                completed.set(completed.get() + 1);
            }
        });
    }
    fixture.world.run_for(Nanos::from_secs(30)).unwrap();
    let before = completed.get();
    fixture.world.run_for(Nanos::from_secs(15)).unwrap();
    (completed.get() - before) / 15
}

#[test]
fn hot_region_stays_ten_times_faster_during_destage() {
    let (bare, cached) = (sustained_iops(WritePolicy::None), sustained_iops(WritePolicy::WriteBack));
    println!("uncached {bare} IOPS, cached {cached} IOPS");
    assert!(bare > 0 && cached >= 10 * bare, "{cached} IOPS cached, {bare} uncached");
}
