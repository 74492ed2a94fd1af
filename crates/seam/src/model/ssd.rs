//! A flash device: pages on parallel channels, a write buffer, a link, and a ceiling in requests a second.
//!
//! Everything is served in the order it came, so that an operation's end is known when it is submitted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::spindle::scale;
use super::{Access, Device};
use crate::Nanos;

/// A kind of flash device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SsdSpec {
    /// Bytes in all.
    pub capacity_bytes: u64,
    /// Pages that are read or programmed at once.
    pub channels: u32,
    /// Unit of a read and of a program.
    pub page_bytes: u64,
    /// Reading one page.
    pub read: Nanos,
    /// Programming one page.
    pub program: Nanos,
    /// Taking a write into the buffer.
    pub buffered_write: Nanos,
    /// Pages a channel may lag behind what was acknowledged.
    pub buffer_pages: u32,
    /// Reads a second at most.
    pub read_iops_max: u64,
    /// Writes a second at most.
    pub write_iops_max: u64,
    /// Bytes a second between the device and the host.
    pub link_bytes_per_second: u64,
}

/// A flash device at work.
pub struct Ssd {
    spec: SsdSpec,
    channels: Vec<Nanos>,
    link: Nanos,
    /// When the next request may be taken: what the ceiling leaves.
    gate: Nanos,
    pending: BinaryHeap<Reverse<(Nanos, u64, u64)>>,
    sequence: u64,
    busy: Nanos,
    busy_until: Nanos,
}

impl Ssd {
    /// An idle device.
    pub fn new(spec: SsdSpec) -> Ssd {
        let channels = vec![Nanos::ZERO; spec.channels as usize];
        let (link, gate, busy, busy_until) = (Nanos::ZERO, Nanos::ZERO, Nanos::ZERO, Nanos::ZERO);
        Ssd { spec, channels, link, gate, pending: BinaryHeap::new(), sequence: 0, busy, busy_until }
    }

    /// Takes an operation in: when it will have ended.
    pub fn serve(&mut self, now: Nanos, access: Access, at: u64, len: u64) -> Nanos {
        assert!(len > 0 && at + len <= self.spec.capacity_bytes, "outside the device: {at}+{len}");
        let ceiling = match access {
            Access::Read => self.spec.read_iops_max,
            Access::Write => self.spec.write_iops_max,
        };
        let taken = now.max(self.gate);
        self.gate = taken + Nanos(1_000_000_000 / ceiling);
        self.link = self.link.max(taken) + Nanos(scale(len, 1_000_000_000, self.spec.link_bytes_per_second));
        let mut done = self.link;
        for page in at / self.spec.page_bytes..=(at + len - 1) / self.spec.page_bytes {
            // A stretch of pages goes round the channels; only where it starts is spread.
            let channel = (self.channel(at / self.spec.page_bytes / 64) as u64 + page) % u64::from(self.spec.channels);
            let free = &mut self.channels[channel as usize];
            match access {
                Access::Read => {
                    *free = (*free).max(taken) + self.spec.read;
                    done = done.max(*free);
                }
                Access::Write => {
                    *free = (*free).max(taken) + self.spec.program;
                    let lag = Nanos(self.spec.program.0 * u64::from(self.spec.buffer_pages));
                    done = done.max(Nanos(free.since(lag).0)).max(taken + self.spec.buffered_write);
                }
            }
        }
        self.busy += done.since(self.busy_until.max(now));
        self.busy_until = self.busy_until.max(done);
        done
    }

    /// The channel of a page: spread, so that no stride of a client hits one channel alone.
    fn channel(&self, page: u64) -> usize {
        (crate::rng::mix(page) % u64::from(self.spec.channels)) as usize
    }
}

impl Device for Ssd {
    fn submit(&mut self, now: Nanos, token: u64, access: Access, at: u64, len: u64) {
        let done = self.serve(now, access, at, len);
        self.sequence += 1;
        self.pending.push(Reverse((done, self.sequence, token)));
    }

    fn next_event(&self) -> Option<Nanos> {
        self.pending.peek().map(|Reverse((done, _, _))| *done)
    }

    fn complete(&mut self) -> u64 {
        let Reverse((_, _, token)) = self.pending.pop().expect("there is something to complete when there is an event");
        token
    }

    fn queued(&self) -> usize {
        self.pending.len()
    }

    fn busy(&self) -> Nanos {
        self.busy
    }
}
