//! What a flash cache gains: one load, minute by minute, on a simulated RAID 5, with flash or without.

use engine::{CoreSpec, Volume};
use seam::Nanos;
use seam::model::{ArraySpec, DiskType, RaidLevel};
use seam::sim::{SimSeam, WorldSpec};

use super::{Load, Pattern, play};
use crate::rig::{Rig, Target};
use crate::torture::flash::FlashOptions;

/// What is played.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Where the draws come from: runs of the same seed are pairs.
    pub seed: u64,
    /// Bytes that are used, all alike.
    pub hot_bytes: u64,
    /// Memory cache.
    pub memory_bytes: u64,
    /// Flash devices; `None`: without flash.
    pub flash: Option<FlashOptions>,
    /// How long.
    pub minutes: u64,
    /// Requests in flight.
    pub depth: u32,
}

/// What one minute brought.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Minute {
    /// Requests a second.
    pub iops: f64,
    /// Part of the reads that memory and flash served.
    pub hit_ratio: f64,
}

/// An engine with a volume of `bytes` on a RAID 5 of five disks, with a flash store if there are devices.
pub fn on_raid5(memory_bytes: u64, flash: Option<&FlashOptions>, bytes: u64, seed: u64) -> (Rig, Volume<SimSeam>) {
    let blocks = (memory_bytes / seam::BLOCK_BYTES as u64) as usize;
    let world = WorldSpec { blocks, time_max: Nanos::from_secs(1 << 20), ..WorldSpec::new(seed) };
    let rig = Rig::new(world, CoreSpec { readahead_max_bytes: 0, ..CoreSpec::default() });
    if let Some(flash) = flash {
        flash.add_disks(&rig.world);
        rig.world.block_on(flash.open(&rig.seam, &rig.core, true, false)).expect("devices without faults");
    }
    let disk = rig.on_array(ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas15k), &[bytes]).remove(0);
    let volume = rig.attach_disk("disk", disk, |_| ()).expect("the first volume");
    (rig, volume)
}

/// Plays random 8 KiB requests, 67 % of them reads.
pub fn minutes(setting: &Setting) -> Vec<Minute> {
    let (rig, volume) = on_raid5(setting.memory_bytes, setting.flash.as_ref(), setting.hot_bytes, setting.seed);
    let mut before = volume.stats();
    let one = |minute| {
        let load = Load {
            pattern: Pattern::random(setting.hot_bytes, 8192, 67),
            depth: setting.depth,
            time: Nanos::from_secs(60),
            seed: setting.seed * 1_000 + minute,
        };
        let figures = rig.world.block_on(play(&rig.seam, &Target::Volume(volume.clone()), &load));
        let after = volume.stats();
        let hits = |stats: &engine::VolumeStats| stats.memory_hits + stats.flash_hits;
        let reads = (after.reads - before.reads).max(1);
        let hit_ratio = (hits(&after) - hits(&before)) as f64 / reads as f64;
        before = after;
        Minute { iops: figures.iops(), hit_ratio }
    };
    (0..setting.minutes).map(one).collect()
}
