//! A flash device: pages on parallel channels, a write buffer, a link, and a ceiling in requests per second.
//!
//! Operations are served in order of arrival, so that the completion time is known at submission.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::spindle::scale;
use super::{Access, Device};
use crate::Nanos;

/// A kind of flash device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SsdSpec {
    /// Capacity in bytes.
    pub capacity_bytes: u64,
    /// Parallel channels, each reading or programming one page at a time.
    pub channels: u32,
    /// Unit of a read and of a program operation.
    pub page_bytes: u64,
    /// Time to read one page.
    pub read: Nanos,
    /// Time to program one page.
    pub program: Nanos,
    /// Time to take a write into the buffer.
    pub buffered_write: Nanos,
    /// Pages by which a channel may lag behind the acknowledged writes.
    pub buffer_pages: u32,
    /// Ceiling of reads per second.
    pub read_iops_max: u64,
    /// Ceiling of writes per second.
    pub write_iops_max: u64,
    /// Bytes per second between device and host.
    pub link_bytes_per_second: u64,
}

/// A flash device in operation.
pub struct Ssd {
    spec: SsdSpec,
    /// Time at which each channel becomes free.
    channels_free_at: Vec<Nanos>,
    /// Time at which the link becomes free.
    link_free_at: Nanos,
    /// Earliest start of the next request under the ceiling of requests per second.
    next_start: Nanos,
    /// Operations in flight: (completion time, sequence, token).
    pending: BinaryHeap<Reverse<(Nanos, u64, u64)>>,
    sequence: u64,
    busy: Nanos,
    busy_until: Nanos,
}

impl Ssd {
    /// An idle device.
    pub fn new(spec: SsdSpec) -> Ssd {
        let channels_free_at = vec![Nanos::ZERO; spec.channels as usize];
        Ssd {
            spec,
            channels_free_at,
            link_free_at: Nanos::ZERO,
            next_start: Nanos::ZERO,
            pending: BinaryHeap::new(),
            sequence: 0,
            busy: Nanos::ZERO,
            busy_until: Nanos::ZERO,
        }
    }

    /// Starts an operation and returns its completion time.
    pub fn serve(&mut self, now: Nanos, access: Access, at: u64, len: u64) -> Nanos {
        assert!(len > 0 && at + len <= self.spec.capacity_bytes, "outside the device: {at}+{len}");
        let iops_max = match access {
            Access::Read => self.spec.read_iops_max,
            Access::Write => self.spec.write_iops_max,
        };
        let start = now.max(self.next_start);
        self.next_start = start + Nanos(1_000_000_000 / iops_max);
        self.link_free_at =
            self.link_free_at.max(start) + Nanos(scale(len, 1_000_000_000, self.spec.link_bytes_per_second));
        let mut completion_time = self.link_free_at;
        for page in at / self.spec.page_bytes..=(at + len - 1) / self.spec.page_bytes {
            // Consecutive pages go round the channels; a hash spreads only the start of each run of 64.
            let channel = (self.channel(at / self.spec.page_bytes / 64) as u64 + page) % u64::from(self.spec.channels);
            let free_at = &mut self.channels_free_at[channel as usize];
            match access {
                Access::Read => {
                    *free_at = (*free_at).max(start) + self.spec.read;
                    completion_time = completion_time.max(*free_at);
                }
                Access::Write => {
                    *free_at = (*free_at).max(start) + self.spec.program;
                    let lag = Nanos(self.spec.program.0 * u64::from(self.spec.buffer_pages));
                    completion_time =
                        completion_time.max(Nanos(free_at.since(lag).0)).max(start + self.spec.buffered_write);
                }
            }
        }
        self.busy += completion_time.since(self.busy_until.max(now));
        self.busy_until = self.busy_until.max(completion_time);
        completion_time
    }

    /// The channel of a page, by hash, so that no client's stride uses one channel alone.
    fn channel(&self, page: u64) -> usize {
        (crate::rng::mix(page) % u64::from(self.spec.channels)) as usize
    }
}

impl Device for Ssd {
    fn submit(&mut self, now: Nanos, token: u64, access: Access, at: u64, len: u64) {
        let completion_time = self.serve(now, access, at, len);
        self.sequence += 1;
        self.pending.push(Reverse((completion_time, self.sequence, token)));
    }

    fn next_event(&self) -> Option<Nanos> {
        self.pending.peek().map(|Reverse((completion_time, _, _))| *completion_time)
    }

    fn complete(&mut self) -> u64 {
        let Reverse((_, _, token)) = self.pending.pop().expect("an event belongs to a request");
        token
    }

    fn outstanding(&self) -> usize {
        self.pending.len()
    }

    fn busy(&self) -> Nanos {
        self.busy
    }
}
