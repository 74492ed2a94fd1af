//! Linked-clone desktops: a shared image that all desktops read, and a private difference disk that each reads and
//! writes.
//!
//! The rates and sizes are those of a published test of 200 desktops: 1.34 reads of 14 KB and 7.58 writes of 12 KB per
//! second each. Assumptions: half of the reads go to the image, nine in ten accesses go to a tenth of either, and file
//! systems have clusters of 4 KiB. A difference disk holds only what its desktop wrote, and all other reads go to the
//! image. So reads of a difference disk go to its hot tenth, where most writes go.

use seam::Nanos;

use super::{Job, Pace, Pattern, Skew};

/// Reads per second of a desktop.
pub const READS_PER_S: f64 = 1.34;
/// Writes per second of a desktop.
pub const WRITES_PER_S: f64 = 7.58;
/// Size of a read in bytes.
pub const READ_BYTES: u32 = 14 << 10;
/// Size of a write in bytes.
pub const WRITE_BYTES: u32 = 12 << 10;
const DEPTH: u32 = 8;
const SKEW: Skew = Skew::HotCold { hot_percent: 10, accesses_percent: 90 };

/// Layout of desktops on a volume: the image first, then the difference disks.
#[derive(Clone, Copy, Debug)]
pub struct Desktops {
    /// Number of desktops.
    pub count: u64,
    /// Size of the shared image.
    pub image_bytes: u64,
    /// Size of each difference disk.
    pub own_bytes: u64,
    /// Distance between the starts of two difference disks.
    pub stride_bytes: u64,
}

impl Desktops {
    /// As many desktops as fit on a volume, with difference disks of 512 MiB each (less on a small volume) and an image
    /// of an eighth of the volume.
    pub fn fitted(size_bytes: u64) -> Desktops {
        let image_bytes = (size_bytes / 8).next_multiple_of(1 << 20);
        let own_bytes = ((size_bytes - image_bytes) / 10).clamp(1 << 20, 512 << 20) / (1 << 20) * (1 << 20);
        let count = ((size_bytes - image_bytes) / own_bytes).clamp(1, 200);
        Desktops { count, image_bytes, own_bytes, stride_bytes: own_bytes }
    }

    /// Total bytes.
    pub fn bytes(&self) -> u64 {
        self.image_bytes + self.count * self.stride_bytes
    }

    /// First byte of a desktop's difference disk.
    pub fn start(&self, desktop: u64) -> u64 {
        self.image_bytes + desktop * self.stride_bytes
    }

    /// Jobs of all desktops at work, at `times` the published rate. The first desktop starts at once and each next one
    /// after a further `gap`. Three jobs per desktop.
    pub fn steady(&self, times: f64, gap: Nanos) -> Vec<Job> {
        let hot_bytes = self.own_bytes / 10;
        let jobs = (0..self.count).flat_map(|desktop| {
            let start = self.start(desktop);
            let start_delay = Nanos(gap.0 * desktop);
            let job = |name, bytes, len, reads_percent, per_second: f64| {
                let pattern = Pattern { align_bytes: 4096, ..Pattern::random(bytes, len, reads_percent) };
                let job = Job::closed_loop(name, pattern, DEPTH).paced(Pace::Rate(per_second * times));
                Job { start_delay, ..job }
            };
            let skewed = |job: Job| Job { pattern: job.pattern.with_skew(SKEW), ..job };
            let at_disk = |job: Job| Job { pattern: job.pattern.at(start), ..job };
            [
                at_disk(skewed(job("writes", self.own_bytes, WRITE_BYTES, 0, WRITES_PER_S))),
                at_disk(job("own", hot_bytes, READ_BYTES, 100, READS_PER_S / 2.0)),
                skewed(job("image", self.image_bytes, READ_BYTES, 100, READS_PER_S / 2.0)),
            ]
        });
        jobs.collect()
    }

    /// Jobs of all desktops booting: reads of the image, mostly sequential, and accesses to the difference disks; nine
    /// in ten requests are reads.
    pub fn boot_storm(&self) -> Vec<Job> {
        let jobs = (0..self.count).flat_map(|desktop| {
            let mut image = Pattern::random(self.image_bytes, 32 << 10, 100);
            image.mix[0].random_percent = 40;
            let private = Pattern::random(self.own_bytes, 16 << 10, 60);
            [
                Job::closed_loop("image", image.with_skew(SKEW), 4).paced(Pace::Rate(60.0)),
                Job::closed_loop("own", private.with_skew(SKEW).at(self.start(desktop)), 4).paced(Pace::Rate(20.0)),
            ]
        });
        jobs.collect()
    }
}
