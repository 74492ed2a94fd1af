//! A hard disk: seek, rotation, transfer, a read-ahead buffer, and a queue ordered by shortest positioning time.
//!
//! Tracks lie one after the other over the whole capacity. A seek over *d* of *D* tracks takes `seek_min + (seek_max -
//! seek_min) * sqrt(d / D)`: the arm accelerates over half of the distance (Ruemmler, Wilkes: "An introduction to disk
//! drive modeling", 1994; the linear part of long seeks is omitted). The platter's angle follows from the time alone. A
//! request that just missed its sector therefore pays a whole revolution, and reordering saves as much as on a real
//! disk: part of the seek and part of the rotation.

use std::collections::VecDeque;

use super::{Access, Device};
use crate::Nanos;

/// Steps of the seek curve's table; values between them are interpolated.
const CURVE_STEPS: usize = 1024;

/// A kind of hard disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpindleSpec {
    /// Capacity in bytes.
    pub capacity_bytes: u64,
    /// Time of one revolution.
    pub revolution: Nanos,
    /// Bytes that pass under the head in one revolution.
    pub track_bytes: u64,
    /// Seek to the next track, including settling.
    pub seek_min: Nanos,
    /// Seek over all tracks.
    pub seek_max: Nanos,
    /// Additional settling time before a write.
    pub write_settle: Nanos,
    /// Command overhead of an idle disk; a busy disk overlaps it with the operation before.
    pub overhead: Nanos,
    /// Number of the oldest requests that the disk reorders: firmware considers only a part of a long queue.
    pub reorder_depth: usize,
    /// Age at which a request takes precedence.
    pub starvation_limit: Nanos,
    /// Bytes read ahead of a sequential reader.
    pub read_ahead_bytes: u64,
    /// Ranges of read-ahead data that the buffer keeps.
    pub segments: usize,
    /// Bytes per second between buffer and host.
    pub interface_bytes_per_second: u64,
}

#[derive(Clone, Copy)]
struct Request {
    token: u64,
    access: Access,
    at: u64,
    len: u64,
    submitted_at: Nanos,
    track: u64,
    angle: u64,
}

/// The range that the head reads ahead while no other request moves it.
#[derive(Clone, Copy)]
struct ReadAhead {
    /// Start of the buffered bytes, which end at `head_at`.
    start: u64,
    /// Position of the head at `time`.
    head_at: u64,
    time: Nanos,
    /// End of the read-ahead.
    limit: u64,
}

/// A hard disk in operation.
pub struct Spindle {
    spec: SpindleSpec,
    tracks: u64,
    /// Seek times in nanoseconds by distance, in [`CURVE_STEPS`] steps.
    seek_curve: Vec<u64>,
    /// Angle at time 0, so that the disks of an array do not rotate in step.
    phase: u64,
    head_track: u64,
    queue: VecDeque<Request>,
    current: Option<(Nanos, Request)>,
    read_ahead: Option<ReadAhead>,
    /// Ranges of earlier read-aheads that the buffer still holds, oldest first.
    buffered_ranges: VecDeque<(u64, u64)>,
    busy: Nanos,
}

impl Spindle {
    /// An idle disk with its head at the first track; `number` is its index in the array.
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
            seek_curve: (0..=CURVE_STEPS).map(step).collect(),
            // Multiples of the golden ratio spread any number of disks evenly.
            phase: (number as u64).wrapping_mul(618_033_989) % 1_000_000_000 * spec.revolution.0 / 1_000_000_000,
            head_track: 0,
            queue: VecDeque::new(),
            current: None,
            read_ahead: None,
            buffered_ranges: VecDeque::new(),
            busy: Nanos::ZERO,
        }
    }

    fn track(&self, at: u64) -> u64 {
        at / self.spec.track_bytes
    }

    /// Angle of `at` on its track, in nanoseconds of the revolution. Each track is skewed by the time of a seek to it,
    /// so that a sequential reader arrives just as the track's first sector passes under the head.
    fn angle(&self, at: u64) -> u64 {
        let revolution = self.spec.revolution.0;
        let within_track = scale(at % self.spec.track_bytes, revolution, self.spec.track_bytes);
        let skew = self.track(at) % revolution * self.spec.seek_min.0 % revolution;
        (within_track + skew) % revolution
    }

    /// Time from the first byte under the head to the last byte of `len`.
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
        let (step, fraction) = ((position >> 32) as usize, position & 0xffff_ffff);
        let (low, high) = (self.seek_curve[step], self.seek_curve[(step + 1).min(CURVE_STEPS)]);
        low + (((high - low) * (fraction >> 16)) >> 16)
    }

    /// Time of seek and rotation from the head's position at `now`.
    fn positioning(&self, now: Nanos, request: &Request) -> u64 {
        let mut seek = self.seek(self.head_track, request.track);
        if request.access == Access::Write && seek > 0 {
            seek += self.spec.write_settle.0;
        }
        let revolution = self.spec.revolution.0;
        let angle = (now.0 + seek + self.phase) % revolution;
        seek + (request.angle + revolution - angle) % revolution
    }

    /// Time at which the host has all of a read from the buffer; `None` if the read does not start in the buffered data
    /// or the read-ahead. The head reads on past the read-ahead's limit for a longer read.
    fn buffered_at(&self, now: Nanos, request: &Request) -> Option<Nanos> {
        if request.access == Access::Write {
            return None;
        }
        let end = request.at + request.len;
        let interface = scale(request.len, 1_000_000_000, self.spec.interface_bytes_per_second);
        let transferred_at = now + Nanos(interface);
        if self.buffered_ranges.iter().any(|(start, stop)| *start <= request.at && end <= *stop) {
            return Some(transferred_at);
        }
        let ahead = self.read_ahead?;
        let reached = self.read_ahead_position(&ahead, now);
        // Waiting for the head to reach a later start is quicker than a seek only within a quarter of the read-ahead.
        if request.at < ahead.start || request.at > reached + self.spec.read_ahead_bytes / 4 {
            return None;
        }
        let available_at = if end <= ahead.head_at {
            ahead.time
        } else {
            ahead.time + Nanos(self.transfer(ahead.head_at, end - ahead.head_at))
        };
        Some(transferred_at.max(available_at))
    }

    /// Position of the head's read-ahead at `now`.
    fn read_ahead_position(&self, ahead: &ReadAhead, now: Nanos) -> u64 {
        let passed = now.since(ahead.time).0;
        (ahead.head_at + scale(passed, self.spec.track_bytes, self.spec.revolution.0 + self.spec.seek_min.0))
            .min(ahead.limit)
    }

    /// Chooses the next operation and its completion time.
    fn start_next(&mut self, now: Nanos) {
        assert!(self.current.is_none(), "a disk performs one operation at a time");
        let candidates = self.queue.iter().take(self.spec.reorder_depth);
        let cost = |request: &Request| match self.buffered_at(now, request) {
            Some(completion_time) => completion_time.since(now).0,
            None => self.positioning(now, request),
        };
        let Some(first) = self.queue.front() else { return };
        let index = if now.since(first.submitted_at) > self.spec.starvation_limit || self.queue.len() == 1 {
            0
        } else {
            candidates.enumerate().min_by_key(|(_, request)| cost(request)).map_or(0, |(index, _)| index)
        };
        let request = self.queue.remove(index).expect("the index is within the queue");
        let completion_time = match self.buffered_at(now, &request) {
            Some(completion_time) => {
                self.extend_read_ahead(now, &request);
                completion_time
            }
            None => {
                self.end_read_ahead(now);
                let positioned_at = now.0 + self.positioning(now, &request);
                let completion_time = Nanos(positioned_at + self.transfer(request.at, request.len));
                self.head_track = self.track(request.at + request.len - 1);
                let end = request.at + request.len;
                if request.access == Access::Read {
                    let limit = (end + self.spec.read_ahead_bytes).min(self.spec.capacity_bytes);
                    self.read_ahead = Some(ReadAhead { start: request.at, head_at: end, time: completion_time, limit });
                } else {
                    self.buffered_ranges.retain(|(start, stop)| *stop <= request.at || *start >= end);
                }
                completion_time
            }
        };
        self.busy += completion_time.since(now);
        self.current = Some((completion_time, request));
    }

    /// Extends the read-ahead after a read from it.
    fn extend_read_ahead(&mut self, now: Nanos, request: &Request) {
        let Some(ahead) = self.read_ahead else { return };
        let end = request.at + request.len;
        if request.at < ahead.start || end < ahead.head_at.min(ahead.limit) {
            return;
        }
        let reached = self.read_ahead_position(&ahead, now).max(ahead.head_at);
        let time = if reached == ahead.limit { now } else { ahead.time };
        let head_at = if reached == ahead.limit { reached } else { ahead.head_at };
        let limit = (end + self.spec.read_ahead_bytes).min(self.spec.capacity_bytes);
        self.read_ahead = Some(ReadAhead { head_at, time, limit: limit.max(ahead.limit), ..ahead });
        self.head_track = self.track(reached.min(self.spec.capacity_bytes - 1));
    }

    /// Ends the read-ahead because the head moves elsewhere; the data stays in the buffer.
    fn end_read_ahead(&mut self, now: Nanos) {
        let Some(ahead) = self.read_ahead.take() else { return };
        let reached = self.read_ahead_position(&ahead, now);
        self.head_track = self.track(reached.min(self.spec.capacity_bytes - 1));
        if self.buffered_ranges.len() == self.spec.segments {
            self.buffered_ranges.pop_front();
        }
        self.buffered_ranges
            .push_back((ahead.start.max(reached.saturating_sub(2 * self.spec.read_ahead_bytes)), reached));
    }
}

impl Device for Spindle {
    fn submit(&mut self, now: Nanos, token: u64, access: Access, at: u64, len: u64) {
        assert!(len > 0 && at + len <= self.spec.capacity_bytes, "outside the disk: {at}+{len}");
        let (track, angle) = (self.track(at), self.angle(at));
        self.queue.push_back(Request { token, access, at, len, submitted_at: now, track, angle });
        if self.current.is_none() {
            self.busy += self.spec.overhead;
            self.start_next(now + self.spec.overhead);
        }
    }

    fn next_event(&self) -> Option<Nanos> {
        self.current.as_ref().map(|(completion_time, _)| *completion_time)
    }

    fn complete(&mut self) -> u64 {
        let (completion_time, request) = self.current.take().expect("an event belongs to a request");
        self.start_next(completion_time);
        request.token
    }

    fn outstanding(&self) -> usize {
        self.queue.len() + usize::from(self.current.is_some())
    }

    fn busy(&self) -> Nanos {
        self.busy
    }
}

/// `value * numerator / denominator` without intermediate overflow.
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

    /// Time of the requests one after the other, each submitted on completion of its predecessor.
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
        let rate_mb = count * len * 1000 / time.as_millis() / 1_000_000;
        let rate_max_mb = disk.spec.track_bytes * 1000 / (disk.spec.revolution + disk.spec.seek_min).0;
        assert!((rate_max_mb * 9 / 10..=rate_max_mb + 1).contains(&rate_mb), "{rate_mb} MB/s of {rate_max_mb}");
    }

    #[test]
    fn rewriting_the_same_place_costs_a_revolution() {
        let mut disk = disk();
        let time = one_by_one(&mut disk, (0..100).map(|_| (Access::Write, 1 << 30, 8 << 10)));
        let mean_ns = time.0 / 100;
        assert!(mean_ns.abs_diff(disk.spec.revolution.0) < 100_000, "{mean_ns} ns a write");
    }

    #[test]
    fn seek_time_grows_with_distance_from_zero() {
        let disk = disk();
        assert_eq!(disk.seek(5, 5), 0);
        assert!(disk.seek(5, 6) >= disk.spec.seek_min.0);
        let seek_times: Vec<_> = (1..disk.tracks).step_by(997).map(|track| disk.seek(0, track)).collect();
        assert!(seek_times.is_sorted() && disk.seek(0, disk.tracks - 1) <= disk.spec.seek_max.0);
    }

    #[test]
    fn far_request_is_served_despite_a_stream_of_nearer_ones() {
        let mut disk = disk();
        disk.submit(Nanos::ZERO, 0, Access::Write, 0, 4096);
        disk.submit(Nanos::ZERO, 1, Access::Write, disk.spec.capacity_bytes - 4096, 4096);
        let mut next = 2;
        let mut now = Nanos::ZERO;
        let waited = loop {
            while disk.outstanding() < 8 {
                disk.submit(now, next, Access::Write, next * 4096 % (1 << 20), 4096);
                next += 1;
            }
            now = disk.next_event().unwrap();
            if disk.complete() == 1 {
                break now;
            }
        };
        let bound = disk.spec.starvation_limit + Nanos::from_millis(20);
        assert!(waited <= bound, "waited {waited}");
        assert!(waited > disk.spec.starvation_limit, "no request overtook the far one");
    }
}
