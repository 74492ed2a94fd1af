//! A hard disk: seek, rotation, transfer, a read-ahead buffer, and a queue served by shortest positioning time.
//!
//! Tracks lie one after the other over the whole capacity. A seek over *d* of *D* tracks takes
//! `seek_min + (seek_max - seek_min) * sqrt(d / D)`: the arm accelerates over half of the way (Ruemmler, Wilkes: "An
//! introduction to disk drive modeling", 1994; the linear part of long seeks is left out). The platter's angle follows from
//! the time alone, so that a request that just missed its sector pays a whole revolution, and reordering gains what it
//! gains on a real disk: some of the seek and some of the rotation.

use std::collections::VecDeque;

use super::{Access, Device};
use crate::Nanos;

/// Steps of the seek curve's table; between them it is interpolated.
const CURVE_STEPS: usize = 1024;

/// A kind of hard disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpindleSpec {
    /// Bytes in all.
    pub capacity_bytes: u64,
    /// One revolution.
    pub revolution: Nanos,
    /// Bytes that pass under the head in one revolution.
    pub track_bytes: u64,
    /// Seek to the next track, settling included.
    pub seek_min: Nanos,
    /// Seek over all tracks.
    pub seek_max: Nanos,
    /// What the settling before a write takes longer.
    pub write_settle: Nanos,
    /// What a command costs an idle disk before it moves; a busy one does that meanwhile.
    pub overhead: Nanos,
    /// Requests among which it chooses, the oldest first: firmware plans less far than its queue is long.
    pub choices: usize,
    /// A request that has waited that long goes first.
    pub patience: Nanos,
    /// Bytes that it reads ahead of a sequential reader.
    pub ahead_bytes: u64,
    /// Stretches that were read ahead and are kept.
    pub segments: usize,
    /// Bytes a second between its buffer and the host.
    pub interface_bytes_per_second: u64,
}

#[derive(Clone, Copy)]
struct Waiting {
    token: u64,
    access: Access,
    at: u64,
    len: u64,
    since: Nanos,
    track: u64,
    angle: u64,
}

/// The stretch that the head reads on through while nobody wants it elsewhere.
#[derive(Clone, Copy)]
struct Ahead {
    /// Everything from here to `from` is in the buffer.
    start: u64,
    /// Where the head was at `time`.
    from: u64,
    time: Nanos,
    /// Where it stops.
    limit: u64,
}

/// A hard disk at work.
pub struct Spindle {
    spec: SpindleSpec,
    tracks: u64,
    curve: Vec<u64>,
    /// Angle at time 0, so that the disks of an array do not turn in step.
    phase: u64,
    head_track: u64,
    queue: VecDeque<Waiting>,
    current: Option<(Nanos, Waiting)>,
    ahead: Option<Ahead>,
    kept: VecDeque<(u64, u64)>,
    busy: Nanos,
}

impl Spindle {
    /// An idle disk with its head at the first track; `number` tells the disks of an array apart.
    pub fn new(spec: SpindleSpec, number: usize) -> Spindle {
        let tracks = spec.capacity_bytes.div_ceil(spec.track_bytes).max(2);
        let range = spec.seek_max.0 - spec.seek_min.0;
        let step = |number: usize| {
            // sqrt(number / steps) in 1/2^16.
            let root = (((number as u64) << 32) / CURVE_STEPS as u64).isqrt();
            spec.seek_min.0 + ((range * root) >> 16)
        };
        Spindle {
            spec,
            tracks,
            curve: (0..=CURVE_STEPS).map(step).collect(),
            // Steps of the golden section spread any number of disks evenly.
            phase: (number as u64).wrapping_mul(618_033_989) % 1_000_000_000 * spec.revolution.0 / 1_000_000_000,
            head_track: 0,
            queue: VecDeque::new(),
            current: None,
            ahead: None,
            kept: VecDeque::new(),
            busy: Nanos::ZERO,
        }
    }

    fn track(&self, at: u64) -> u64 {
        at / self.spec.track_bytes
    }

    /// Where on its track `at` lies, in nanoseconds of the revolution. Each track begins later by the time of a seek to it,
    /// so that a sequential reader finds it just coming by.
    fn angle(&self, at: u64) -> u64 {
        let revolution = self.spec.revolution.0;
        let inside = scale(at % self.spec.track_bytes, revolution, self.spec.track_bytes);
        let skew = self.track(at) % revolution * self.spec.seek_min.0 % revolution;
        (inside + skew) % revolution
    }

    /// Time from the first byte under the head to the last of `len`.
    fn transfer(&self, at: u64, len: u64) -> u64 {
        let switches = self.track(at + len - 1) - self.track(at);
        scale(len, self.spec.revolution.0, self.spec.track_bytes) + switches * self.spec.seek_min.0
    }

    fn seek(&self, from: u64, to: u64) -> u64 {
        let distance = from.abs_diff(to);
        if distance == 0 {
            return 0;
        }
        let position = (distance << 32) / self.tracks * CURVE_STEPS as u64;
        let (step, part) = ((position >> 32) as usize, position & 0xffff_ffff);
        let (low, high) = (self.curve[step], self.curve[(step + 1).min(CURVE_STEPS)]);
        low + (((high - low) * (part >> 16)) >> 16)
    }

    /// Seek and rotation from where the head is at `now`.
    fn positioning(&self, now: Nanos, request: &Waiting) -> u64 {
        let mut seek = self.seek(self.head_track, request.track);
        if request.access == Access::Write && seek > 0 {
            seek += self.spec.write_settle.0;
        }
        let revolution = self.spec.revolution.0;
        let angle = (now.0 + seek + self.phase) % revolution;
        seek + (request.angle + revolution - angle) % revolution
    }

    /// When the buffer has all of a read, if it lies in what was or is being read ahead.
    fn buffered(&self, now: Nanos, request: &Waiting) -> Option<Nanos> {
        if request.access == Access::Write {
            return None;
        }
        let end = request.at + request.len;
        let interface = scale(request.len, 1_000_000_000, self.spec.interface_bytes_per_second);
        let quick = now + Nanos(interface);
        if self.kept.iter().any(|(start, stop)| *start <= request.at && end <= *stop) {
            return Some(quick);
        }
        let ahead = self.ahead?;
        let limit = ahead.limit.max(end);
        let reached = self.reached(&ahead, now);
        // One that begins past what the head has reached is quicker had by waiting only while the head still moves on.
        if request.at < ahead.start || request.at > reached + self.spec.ahead_bytes / 4 || end > limit {
            return None;
        }
        let there = if end <= ahead.from {
            ahead.time
        } else {
            ahead.time + Nanos(self.transfer(ahead.from, end - ahead.from))
        };
        Some(quick.max(there))
    }

    /// How far the head has read on by `now`.
    fn reached(&self, ahead: &Ahead, now: Nanos) -> u64 {
        let passed = now.since(ahead.time).0;
        (ahead.from + scale(passed, self.spec.track_bytes, self.spec.revolution.0 + self.spec.seek_min.0))
            .min(ahead.limit)
    }

    /// Chooses what to do next and when it will be done.
    fn start_next(&mut self, now: Nanos) {
        assert!(self.current.is_none(), "a disk does one thing at a time");
        let choice = self.queue.iter().take(self.spec.choices);
        let cost = |request: &Waiting| match self.buffered(now, request) {
            Some(at) => at.since(now).0,
            None => self.positioning(now, request),
        };
        let Some(first) = self.queue.front() else { return };
        let index = if now.since(first.since) > self.spec.patience || self.queue.len() == 1 {
            0
        } else {
            choice.enumerate().min_by_key(|(_, request)| cost(request)).map_or(0, |(index, _)| index)
        };
        let request = self.queue.remove(index).expect("the index is one of the queue's");
        let done = match self.buffered(now, &request) {
            Some(at) => {
                self.read_on(now, &request);
                at
            }
            None => {
                self.leave(now);
                let arrived = now.0 + self.positioning(now, &request);
                let done = Nanos(arrived + self.transfer(request.at, request.len));
                self.head_track = self.track(request.at + request.len - 1);
                let end = request.at + request.len;
                if request.access == Access::Read {
                    let limit = (end + self.spec.ahead_bytes).min(self.spec.capacity_bytes);
                    self.ahead = Some(Ahead { start: request.at, from: end, time: done, limit });
                } else {
                    self.kept.retain(|(start, stop)| *stop <= request.at || *start >= end);
                }
                done
            }
        };
        self.busy += done.since(now);
        self.current = Some((done, request));
    }

    /// A read was served from what is read ahead: the head goes on that much further.
    fn read_on(&mut self, now: Nanos, request: &Waiting) {
        let Some(ahead) = self.ahead else { return };
        let end = request.at + request.len;
        if request.at < ahead.start || end < ahead.from.min(ahead.limit) {
            return;
        }
        let reached = self.reached(&ahead, now).max(ahead.from);
        let time = if reached == ahead.limit { now } else { ahead.time };
        let from = if reached == ahead.limit { reached } else { ahead.from };
        let limit = (end + self.spec.ahead_bytes).min(self.spec.capacity_bytes);
        self.ahead = Some(Ahead { from, time, limit: limit.max(ahead.limit), ..ahead });
        self.head_track = self.track(reached.min(self.spec.capacity_bytes - 1));
    }

    /// The head goes elsewhere: what was read ahead stays in the buffer.
    fn leave(&mut self, now: Nanos) {
        let Some(ahead) = self.ahead.take() else { return };
        let reached = self.reached(&ahead, now);
        self.head_track = self.track(reached.min(self.spec.capacity_bytes - 1));
        if self.kept.len() == self.spec.segments {
            self.kept.pop_front();
        }
        self.kept.push_back((ahead.start.max(reached.saturating_sub(2 * self.spec.ahead_bytes)), reached));
    }
}

impl Device for Spindle {
    fn submit(&mut self, now: Nanos, token: u64, access: Access, at: u64, len: u64) {
        assert!(len > 0 && at + len <= self.spec.capacity_bytes, "outside the disk: {at}+{len}");
        let (track, angle) = (self.track(at), self.angle(at));
        self.queue.push_back(Waiting { token, access, at, len, since: now, track, angle });
        if self.current.is_none() {
            self.busy += self.spec.overhead;
            self.start_next(now + self.spec.overhead);
        }
    }

    fn next_event(&self) -> Option<Nanos> {
        self.current.as_ref().map(|(done, _)| *done)
    }

    fn complete(&mut self) -> u64 {
        let (done, request) = self.current.take().expect("there is something to complete when there is an event");
        self.start_next(done);
        request.token
    }

    fn queued(&self) -> usize {
        self.queue.len() + usize::from(self.current.is_some())
    }

    fn busy(&self) -> Nanos {
        self.busy
    }
}

/// `value * numerator / denominator` without overflow on the way.
pub(super) fn scale(value: u64, numerator: u64, denominator: u64) -> u64 {
    match value.checked_mul(numerator) {
        Some(product) => product / denominator,
        None => (u128::from(value) * u128::from(numerator) / u128::from(denominator)) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::DiskType;

    fn disk() -> Spindle {
        Spindle::new(DiskType::Sas15k.spindle().expect("a 15k disk is a spindle"), 0)
    }

    /// Time to do the requests one after the other, each when the last one is done.
    fn one_by_one(disk: &mut Spindle, requests: impl IntoIterator<Item = (Access, u64, u64)>) -> Nanos {
        let mut now = Nanos::from_millis(5);
        let start = now;
        for (access, at, len) in requests {
            disk.submit(now, 7, access, at, len);
            now = disk.next_event().unwrap();
            assert_eq!(disk.complete(), 7);
        }
        now.since(start)
    }

    #[test]
    fn a_sequential_reader_gets_the_medium_rate() {
        let mut disk = disk();
        let (len, count) = (64 << 10, 2000);
        let time = one_by_one(&mut disk, (0..count).map(|number| (Access::Read, number * len, len)));
        let rate = count * len * 1000 / time.as_millis() / 1_000_000;
        let full = disk.spec.track_bytes * 1000 / (disk.spec.revolution + disk.spec.seek_min).0;
        assert!((full * 9 / 10..=full + 1).contains(&rate), "{rate} MB/s of {full}");
    }

    #[test]
    fn writing_the_same_place_again_costs_a_revolution() {
        let mut disk = disk();
        let time = one_by_one(&mut disk, (0..100).map(|_| (Access::Write, 1 << 30, 8 << 10)));
        let each = time.0 / 100;
        assert!(each.abs_diff(disk.spec.revolution.0) < 100_000, "{each} ns a write");
    }

    #[test]
    fn a_longer_seek_takes_longer_and_none_takes_no_time() {
        let disk = disk();
        assert_eq!(disk.seek(5, 5), 0);
        assert!(disk.seek(5, 6) >= disk.spec.seek_min.0);
        let all: Vec<_> = (1..disk.tracks).step_by(997).map(|track| disk.seek(0, track)).collect();
        assert!(all.is_sorted() && disk.seek(0, disk.tracks - 1) <= disk.spec.seek_max.0);
    }

    #[test]
    fn no_request_starves_while_nearer_ones_keep_coming() {
        let mut disk = disk();
        disk.submit(Nanos::ZERO, 0, Access::Write, 0, 4096);
        disk.submit(Nanos::ZERO, 1, Access::Write, disk.spec.capacity_bytes - 4096, 4096);
        let mut next = 2;
        let mut now = Nanos::ZERO;
        let waited = loop {
            while disk.queued() < 8 {
                disk.submit(now, next, Access::Write, next * 4096 % (1 << 20), 4096);
                next += 1;
            }
            now = disk.next_event().unwrap();
            if disk.complete() == 1 {
                break now;
            }
        };
        let bound = disk.spec.patience + Nanos::from_millis(20);
        assert!(waited <= bound, "waited {waited}");
        assert!(waited > disk.spec.patience, "the far one was not even passed over");
    }
}
