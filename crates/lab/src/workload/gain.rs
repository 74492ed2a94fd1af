//! What a flash cache gains: one load, minute by minute, on a simulated RAID 5, with flash or without.

use engine::{CoreSpec, Volume};
use seam::Nanos;
use seam::model::{ArraySpec, DiskType, RaidLevel};
use seam::sim::{Content, SimSeam, WorldSpec};

use super::{Load, Pattern, play};
use crate::rig::{FlashPlan, Rig, Target};

/// What is played.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Where the draws come from: runs of the same seed are pairs.
    pub seed: u64,
    /// Bytes that are used, all alike.
    pub hot_bytes: u64,
    /// Memory cache.
    pub memory_bytes: u64,
    /// Size of each of two flash devices; 0: without flash.
    pub flash_bytes: u64,
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
    /// Pages on flash at its end.
    pub pages: u64,
}

/// Pages that two devices of `flash_bytes` have room for.
pub fn room(flash_bytes: u64) -> u64 {
    let setting = Setting { seed: 1, hot_bytes: 1 << 20, memory_bytes: 1 << 20, flash_bytes, minutes: 0, depth: 1 };
    let (rig, _) = world(&setting);
    rig.core.pages().expect("there is a store").slots_max()
}

/// An engine with one volume on a RAID 5 of five disks, with a flash store if there are devices. Nothing keeps content.
fn world(setting: &Setting) -> (Rig, Volume<SimSeam>) {
    let blocks = (setting.memory_bytes / seam::BLOCK_BYTES as u64) as usize;
    let time_max = Nanos::from_secs(1 << 20);
    let spec = WorldSpec { blocks, time_max, keep: Content::None, ..WorldSpec::new(setting.seed) };
    let core = CoreSpec { readahead_max_bytes: 0, flash_check_blocks: 0, ..CoreSpec::default() };
    let rig = Rig::new(spec, core);
    if setting.flash_bytes > 0 {
        // As arrays had them.
        rig.open_flash(&FlashPlan { devices: 2, bytes: setting.flash_bytes, iops: 3_500 });
    }
    let disk = rig.on_array(ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas15k), &[setting.hot_bytes]).remove(0);
    let volume = rig.attach_disk("disk", disk, |_| ()).expect("the first volume");
    (rig, volume)
}

/// Plays random 8 KiB requests, 67 % of them reads.
pub fn minutes(setting: &Setting, mut each: impl FnMut(Minute)) {
    let (rig, volume) = world(setting);
    rig.until_checked(std::slice::from_ref(&volume));
    let mut before = volume.stats();
    for minute in 0..setting.minutes {
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
        let pages = rig.core.pages().map_or(0, |pages| pages.stats().pages);
        each(Minute { iops: figures.iops(), hit_ratio, pages });
    }
    if std::env::var_os("GAIN_DEBUG").is_some() {
        eprintln!("{:#?}", before);
    }
}
