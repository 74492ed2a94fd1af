//! What the cache gains in front of a modelled array, in virtual time.

use engine::{CoreSpec, WritePolicy};
use lab::rig::{Rig, Target};
use lab::workload::{Figures, Load, Pattern, Skew, play};
use seam::Nanos;
use seam::model::{ArraySpec, DiskType, RaidLevel};
use seam::sim::{Content, WorldSpec};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Random writes of 12 KiB (85 %) and reads of 14 KiB (15 %) in a hot region.
fn hot_region(region_bytes: u64) -> Load {
    let pattern = Pattern {
        start_bytes: 0,
        region_bytes,
        read_percent: 15,
        read_bytes: 14 << 10,
        write_bytes: 12 << 10,
        align_bytes: 2048,
        skew: Skew::Uniform,
    };
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
