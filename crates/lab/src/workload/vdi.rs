//! Linked-clone desktops: a shared image that all read, and a difference of its own that each reads and writes.
//!
//! The rates and sizes are those of a published test of 200 desktops: 1.34 reads of 14 KB and 7.58 writes of 12 KB a second each. It is assumed
//! that half of the reads go to the image, that nine in ten accesses go to a tenth of either, and that file systems have clusters of 4 KiB. A difference holds nothing but what
//! its desktop wrote (the rest is read from the image), so that it is read where it is written most: in its hot tenth.

use seam::Nanos;

use super::{Job, Pace, Pattern, Skew};

/// Reads of a desktop, a second.
pub const READS_PER_S: f64 = 1.34;
/// Writes of a desktop, a second.
pub const WRITES_PER_S: f64 = 7.58;
/// Bytes of a read.
pub const READ_BYTES: u32 = 14 << 10;
/// Bytes of a write.
pub const WRITE_BYTES: u32 = 12 << 10;
const DEPTH: u32 = 8;
const SKEW: Skew = Skew::HotCold { hot_percent: 10, accesses_percent: 90 };

/// Where desktops lie: the image first, then their differences.
#[derive(Clone, Copy, Debug)]
pub struct Desktops {
    /// How many.
    pub count: u64,
    /// The shared image.
    pub image_bytes: u64,
    /// Each one's difference.
    pub own_bytes: u64,
    /// From the beginning of one difference to the next.
    pub apart_bytes: u64,
}

impl Desktops {
    /// As many as a volume has room for, with a difference of 512 MiB each (less on a small volume) and an image of an eighth of the volume.
    pub fn fitted(size_bytes: u64) -> Desktops {
        let image_bytes = (size_bytes / 8).next_multiple_of(1 << 20);
        let own_bytes = ((size_bytes - image_bytes) / 10).clamp(1 << 20, 512 << 20) / (1 << 20) * (1 << 20);
        let count = ((size_bytes - image_bytes) / own_bytes).clamp(1, 200);
        Desktops { count, image_bytes, own_bytes, apart_bytes: own_bytes }
    }

    /// Bytes of all together.
    pub fn bytes(&self) -> u64 {
        self.image_bytes + self.count * self.apart_bytes
    }

    /// First byte of a desktop's difference.
    pub fn start(&self, desktop: u64) -> u64 {
        self.image_bytes + desktop * self.apart_bytes
    }

    /// All of them at `times` the published rate, the first at once and each after `gap` more. Three jobs a desktop.
    pub fn steady(&self, times: f64, gap: Nanos) -> Vec<Job> {
        let hot_bytes = self.own_bytes / 10;
        let jobs = (0..self.count).flat_map(|desktop| {
            let start = self.start(desktop);
            let begin = Nanos(gap.0 * desktop);
            let job = |name, bytes, len, reads_percent, per_second: f64| {
                let pattern = Pattern { align_bytes: 4096, ..Pattern::random(bytes, len, reads_percent) };
                let job = Job::eager(name, pattern, DEPTH).paced(Pace::Rate(per_second * times));
                Job { begin, ..job }
            };
            let skewed = |job: Job| Job { pattern: job.pattern.with_skew(SKEW), ..job };
            let at_own = |job: Job| Job { pattern: job.pattern.at(start), ..job };
            [
                at_own(skewed(job("writes", self.own_bytes, WRITE_BYTES, 0, WRITES_PER_S))),
                at_own(job("own", hot_bytes, READ_BYTES, 100, READS_PER_S / 2.0)),
                skewed(job("image", self.image_bytes, READ_BYTES, 100, READS_PER_S / 2.0)),
            ]
        });
        jobs.collect()
    }

    /// All of them start: reads of the image, mostly in order, and of their own differences, nine in ten requests a read.
    pub fn boot_storm(&self) -> Vec<Job> {
        let jobs = (0..self.count).flat_map(|desktop| {
            let mut image = Pattern::random(self.image_bytes, 32 << 10, 100);
            image.mix[0].random_percent = 40;
            let own = Pattern::random(self.own_bytes, 16 << 10, 60);
            [
                Job::eager("image", image.with_skew(SKEW), 4).paced(Pace::Rate(60.0)),
                Job::eager("own", own.with_skew(SKEW).at(self.start(desktop)), 4).paced(Pace::Rate(20.0)),
            ]
        });
        jobs.collect()
    }
}
