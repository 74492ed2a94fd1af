//! The flash log under torture: its drawn options, its devices and their faults.

use std::fmt;
use std::path::PathBuf;

use engine::{Backing, Core, Volume, VolumeId, VolumeSpec};
use flash::{FormatOptions, MemberDisk, OpenOptions, Store};
use seam::sim::{Fault, Ops, Rule, SimDiskSpec, SimSeam, Timing, When, World, WriteCache};
use seam::{DiskOpen, Geometry, Nanos, Seam};

use crate::fixture::Fixture;
use crate::random::Random;

/// Offset of the first segment.
const FIRST_SEGMENT_BYTES: u64 = 1 << 20;

/// Drawn options of the log.
#[derive(Clone, Debug)]
pub struct FlashOptions {
    /// Number of devices, 1 to 3; the third holds pages alone.
    pub devices: usize,
    /// Segment size in bytes.
    pub segment_bytes: u64,
    /// Segments per device.
    pub segments: u64,
    /// [`engine::CoreSpec::spill_percent`].
    pub spill_percent: u32,
    /// Time in each session at which the first of two devices fails until the session ends.
    pub fails_at: Option<Nanos>,
    /// Time in each session at which the first of two devices hangs until the clients have ended.
    pub hangs_at: Option<Nanos>,
    /// Read fault of the first of several devices, and of the third, with its rate per million reads.
    pub bad_reads: Option<(Fault, u32)>,
    /// Time in each session at which the third device fails until the session ends.
    pub third_fails_at: Option<Nanos>,
    /// Blocks that are compared with the backing when a volume is attached. Only the engine writes to the backing, so
    /// no result may depend on this value.
    pub check_blocks: usize,
    /// A rule that the store violates, which lets a test prove that the harness can fail. Never drawn.
    pub sabotage: flash::Sabotage,
}

impl FlashOptions {
    /// Draws all options, or that there is no log. The draws are independent of all other draws from the seed.
    pub fn draw(seed: u64) -> Option<FlashOptions> {
        let mut random = Random::new(seed, 9_000);
        if random.percent(50) {
            return None;
        }
        let devices = random.pick(&[1, 2, 2, 3]);
        let mut hangs = Random::new(seed, 9_007);
        let moment = |random: &mut Random| Nanos::from_micros(random.between(1, 300_000));
        let mut log_random = Random::new(seed, 9_001);
        // Often the log holds much more than memory.
        let extra_segments = log_random.pick(&[0, 0, 100, 400]);
        let hangs_at = (devices >= 2 && hangs.percent(20)).then(|| moment(&mut hangs));
        Some(FlashOptions {
            devices,
            hangs_at,
            segment_bytes: random.pick(&[16, 64, 256, 256, 512, 1024]) << 10,
            segments: random.between(6, 40) + extra_segments,
            spill_percent: log_random.pick(&[0, 0, 5, 25, 50]),
            fails_at: (devices >= 2 && random.percent(30)).then(|| moment(&mut random)),
            bad_reads: (devices >= 2 && random.percent(40))
                .then(|| (random.pick(&[Fault::BitFlip, Fault::Error]), random.pick(&[1_000, 50_000, 500_000]))),
            third_fails_at: (devices == 3 && random.percent(40)).then(|| moment(&mut random)),
            check_blocks: random.pick(&[0, 0, 1_200]),
            sabotage: flash::Sabotage::None,
        })
    }

    /// Devices without faults.
    pub fn plain(devices: usize, segment_bytes: u64, segments: u64) -> FlashOptions {
        FlashOptions {
            devices,
            segment_bytes,
            segments,
            spill_percent: 50,
            fails_at: None,
            hangs_at: None,
            bad_reads: None,
            third_fails_at: None,
            check_blocks: 1_200,
            sabotage: flash::Sabotage::None,
        }
    }

    fn path(device: usize) -> PathBuf {
        PathBuf::from(format!("flash{}", device + 1))
    }

    /// Adds the devices to the first world.
    pub fn add_disks(&self, world: &World) {
        (0..self.devices).for_each(|device| self.add_device(world, FlashOptions::path(device)));
    }

    fn add_device(&self, world: &World, path: PathBuf) {
        let geometry = Geometry {
            size_bytes: FIRST_SEGMENT_BYTES + self.segments * self.segment_bytes,
            logical_block: 512,
            physical_block: 512,
            stripe_bytes: 0,
            queue_depth: 32,
            fast_zero: true,
        };
        let timing = Timing::between(Nanos::from_micros(10), Nanos::from_micros(200));
        world.add_disk(path, SimDiskSpec { geometry, timing, cache: WriteCache::Volatile });
    }

    /// Adds further devices of the same kind to the first world.
    pub fn add_named(&self, world: &World, names: &[&str]) {
        names.iter().for_each(|name| self.add_device(world, PathBuf::from(name)));
    }

    /// Opens the log for an engine; the first session formats it. With `empty` any record found is an error.
    pub async fn open(&self, seam: &SimSeam, core: &Core<SimSeam>, first: bool, empty: bool) -> Result<(), String> {
        let mut disks = Vec::new();
        for device in 0..self.devices {
            let path = FlashOptions::path(device);
            let open = DiskOpen { path, create_bytes: None, read_only: false, lock_wait_ms: 1_000 };
            disks.push(MemberDisk::Local(seam.open_disk(&open).await.map_err(|error| error.to_string())?));
        }
        if first {
            let options = FormatOptions { segment_bytes: Some(self.segment_bytes), ..FormatOptions::default() };
            Store::format(seam, &disks, options).await.map_err(|error| error.to_string())?;
        }
        let (store, recovered) =
            Store::open(seam, &disks, OpenOptions { sabotage: self.sabotage, ..OpenOptions::default() })
                .await
                .map_err(|error| error.to_string())?;
        if empty && let Some(record) = recovered.first() {
            return Err(format!("after a clean stop the log still holds {record:?} and {} more", recovered.len() - 1));
        }
        core.open_log(store, recovered);
        Ok(())
    }

    /// Opens the log, which the first session formats, and attaches the disk named `disk` with what the log holds of
    /// it.
    pub fn serve(&self, fixture: &Fixture, is_first: bool) -> Volume<SimSeam> {
        let backing = Backing::plain(fixture.open("disk"));
        fixture.world.block_on(async {
            self.open(&fixture.seam, &fixture.core, is_first, false).await.expect("the devices are intact");
            let volume = fixture.core.attach_recovered(VolumeSpec::new("disk", VolumeId(1)), backing).await;
            volume.expect("the log is intact")
        })
    }

    /// Adds the devices' faults at the start of a session.
    pub fn inject_faults(&self, world: &World) {
        let inject = |device: usize, rule: Rule| {
            world.disk(FlashOptions::path(device)).expect("added to the first world").add_fault(rule);
        };
        for (device, at) in [(0, self.fails_at), (2, self.third_fails_at)] {
            if let Some(at) = at {
                inject(device, Rule::new(Fault::Error, Ops::ALL, When::Between(world.now() + at, Nanos(u64::MAX))));
            }
        }
        if let Some(at) = self.hangs_at {
            inject(0, Rule::new(Fault::Hang, Ops::ALL, When::Between(world.now() + at, Nanos(u64::MAX))));
        }
        if let Some((fault, per_million)) = self.bad_reads {
            // The second device stays sound, so dirty data keeps at least one good copy.
            for device in (0..self.devices).step_by(2) {
                inject(device, Rule::new(fault, Ops::READ, When::PerMillion(per_million)));
            }
        }
    }

    /// Ends a hang: the device answers the outstanding requests and is healthy from then on.
    pub fn end_hang(&self, world: &World) {
        if self.hangs_at.is_some() {
            let device = world.disk(FlashOptions::path(0)).expect("added to the first world");
            device.clear_faults();
            device.complete_hung(Nanos::from_millis(1));
        }
    }
}

impl fmt::Display for FlashOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} flash devices of {} segments of {} KiB", self.devices, self.segments, self.segment_bytes >> 10)?;
        write!(f, ", blocks spill from {} % on", self.spill_percent)?;
        let faults = [("first", "fails", self.fails_at), ("third", "fails", self.third_fails_at)];
        for (device, failure, at) in faults.into_iter().chain([("first", "hangs", self.hangs_at)]) {
            if let Some(at) = at {
                write!(f, ", the {device} {failure} after {at}")?;
            }
        }
        if let Some((fault, per_million)) = self.bad_reads {
            write!(f, ", {fault:?} in {per_million} of a million reads")?;
        }
        Ok(())
    }
}
