//! Gain of a flash cache: one load on a simulated RAID 5, minute by minute, with flash or without.

use engine::{CoreSpec, Volume};
use seam::Nanos;
use seam::model::{ArraySpec, DiskType, RaidLevel};
use seam::sim::{SimSeam, StoredContent, WorldSpec};

use super::{Load, Pattern, run_load};
use crate::fixture::{Fixture, FlashPlan, Target};

/// Parameters of a measurement.
#[derive(Clone, Debug)]
pub struct GainSpec {
    /// Seed of all draws; runs of the same seed form pairs.
    pub seed: u64,
    /// Size of the uniformly used region in bytes.
    pub hot_bytes: u64,
    /// Size of the memory cache.
    pub memory_bytes: u64,
    /// Size of each of two flash devices; 0 means no flash.
    pub flash_bytes: u64,
    /// Duration in minutes.
    pub minutes: u64,
    /// Requests in flight.
    pub depth: u32,
}

/// Measurements of one minute.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Minute {
    /// Requests per second.
    pub iops: f64,
    /// Reads served by memory and flash, as a fraction of all reads.
    pub hit_ratio: f64,
    /// Pages on flash at the end of the minute.
    pub pages: u64,
}

/// Capacity of two devices of `flash_bytes` in pages.
pub fn capacity_pages(flash_bytes: u64) -> u64 {
    let spec = GainSpec { seed: 1, hot_bytes: 1 << 20, memory_bytes: 1 << 20, flash_bytes, minutes: 0, depth: 1 };
    let (fixture, _) = open_volume(&spec);
    fixture.core.pages().expect("flash devices were added").slots_max()
}

/// An engine with one volume on a RAID 5 of five disks, and a flash store if there are devices. The disks store
/// no data: only timing matters.
fn open_volume(spec: &GainSpec) -> (Fixture, Volume<SimSeam>) {
    let blocks = (spec.memory_bytes / seam::BLOCK_BYTES as u64) as usize;
    let time_max = Nanos::from_secs(1 << 20);
    let world_spec = WorldSpec { blocks, time_max, content: StoredContent::MetadataOnly, ..WorldSpec::new(spec.seed) };
    let core = CoreSpec { readahead_max_bytes: 0, flash_check_blocks: 0, ..CoreSpec::default() };
    let fixture = Fixture::new(world_spec, core);
    if spec.flash_bytes > 0 {
        // IOPS of an SSD in a disk array of the FAST Cache generation.
        fixture.open_flash(&FlashPlan { devices: 2, bytes: spec.flash_bytes, iops: 3_500 });
    }
    let disk =
        fixture.add_disks_on_array(ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas15k), &[spec.hot_bytes]).remove(0);
    let volume = fixture.attach_disk("disk", disk, |_| ()).expect("the first volume can be attached");
    (fixture, volume)
}

/// Runs random 8 KiB requests, 67 % of them reads, and calls `report_minute` after every minute.
pub fn run_minutes(spec: &GainSpec, mut report_minute: impl FnMut(Minute)) {
    let (fixture, volume) = open_volume(spec);
    fixture.wait_until_checked(std::slice::from_ref(&volume));
    let mut before = volume.stats();
    for minute in 0..spec.minutes {
        let load = Load {
            pattern: Pattern::random(spec.hot_bytes, 8192, 67),
            depth: spec.depth,
            time: Nanos::from_secs(60),
            seed: spec.seed * 1_000 + minute,
        };
        let figures = fixture.world.block_on(run_load(&fixture.seam, &Target::Volume(volume.clone()), &load));
        let after = volume.stats();
        let hits = |stats: &engine::VolumeStats| stats.memory_hits + stats.prefetched_hits + stats.flash_hits;
        let reads = (after.reads - before.reads).max(1);
        let hit_ratio = (hits(&after) - hits(&before)) as f64 / reads as f64;
        before = after;
        let pages = fixture.core.pages().map_or(0, |pages| pages.stats().pages);
        report_minute(Minute { iops: figures.iops(), hit_ratio, pages });
    }
    if std::env::var_os("GAIN_DEBUG").is_some() {
        eprintln!("{:#?}", before);
    }
}
