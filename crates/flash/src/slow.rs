//! Detection of slow devices. A device that repeatedly takes ten times as long as usual is treated as failed: otherwise
//! every flush waits for it.
//!
//! Each device is compared with its own history and with its mirror. A write is compared with the mirror's write of the
//! same batch, a read with the mirror's reads of the same window. A cause that slows both down therefore counts
//! against neither: it is the usual latency under their load, and the history adopts it.
//!
//! A request waits behind others, so only its part of the queueing time counts. A read also waits behind writes that
//! the device has acknowledged from its buffer and still has to program.
//!
//! One slow request is not enough, requests that were in the queue at the same time count once, and the last log member
//! always stays.

use std::rc::Rc;

use seam::{DiskError, Nanos, Piece, Seam};

use crate::device::Device;
use crate::membership::{Failure, remove_members};
use crate::number::MemberNo;
use crate::store::Inner;

/// Minimum number of measured requests before any counts as slow.
const SAMPLES_MIN: u32 = 64;
/// A request is slow above this multiple of the usual latency.
const SLOW_FACTOR: u64 = 10;
/// A request is slow only above this multiple of its mirror's latency, too.
const SLOW_FACTOR_TO_MIRROR: u64 = 4;
/// Requests below this latency never count as slow: losing the mirror would cost more.
const SLOW_MIN: Nanos = Nanos::from_millis(1);
/// Each slow request adds this to the strikes, each other one subtracts one.
const STRIKES_PER_SLOW: u32 = 2;
/// At this number of strikes the device is removed: eight slow requests in a row.
const STRIKES_MAX: u32 = 16;
/// The time that a batch may take on a member after its mirror has completed it.
pub const GRACE: Nanos = Nanos::from_secs(2);
/// The number of blocks whose transfer takes about as long as a request's fixed cost.
const BLOCKS_PER_REQUEST: u64 = 32;
/// Number of blocks that are read in the time of programming one.
const PROGRAM_WEIGHT: u64 = 4;
/// Minimum time in which a device programs half of its buffer.
const PROGRAMS_HALVE_IN: Nanos = Nanos::from_millis(25);
/// Reads of two members are compared if they ended within this time.
const COMPARISON_WINDOW: Nanos = Nanos::from_millis(100);

/// The latency history of one kind of request on a device.
#[derive(Clone, Copy, Debug, Default)]
struct LatencyHistory {
    /// Moving average in nanoseconds.
    usual_nanos: u64,
    samples: u32,
    strikes: u32,
    /// When the last slow request was counted.
    last_strike: Nanos,
}

impl LatencyHistory {
    /// True when the request was slow compared with the usual latency. Slow requests do not change the usual latency.
    fn is_slow(&mut self, latency: u64) -> bool {
        if self.samples < SAMPLES_MIN {
            self.usual_nanos = (self.usual_nanos * u64::from(self.samples) + latency) / u64::from(self.samples + 1);
            self.samples += 1;
            return false;
        }
        let slow = latency > SLOW_MIN.0.max(SLOW_FACTOR * self.usual_nanos);
        if !slow {
            self.usual_nanos = (self.usual_nanos * 255 + latency) / 256;
        }
        slow
    }

    /// Raises the usual latency after a request that the mirror served as slowly: this is the latency under this load.
    fn raise_usual(&mut self, latency: u64) {
        self.usual_nanos = (self.usual_nanos * 15 + latency) / 16;
    }

    /// Counts a request that ends now. Returns true when the device has been slow often enough. A request that was
    /// already in flight when the last slow one was counted was delayed by the same stall, so it is not counted.
    fn count_strike(&mut self, slow: bool, started_at: Nanos, now: Nanos) -> bool {
        match slow {
            false => self.strikes = self.strikes.saturating_sub(1),
            true if started_at >= self.last_strike => {
                (self.strikes, self.last_strike) = (self.strikes + STRIKES_PER_SLOW, now)
            }
            true => {}
        }
        self.strikes >= STRIKES_MAX
    }
}

/// Latency history and queue of one member.
#[derive(Clone, Copy, Debug, Default)]
pub struct LatencyTracker {
    writes: LatencyHistory,
    reads: LatencyHistory,
    /// Weight of all requests in flight, of pages too: each counts a fixed number of blocks plus its own.
    queue_weight: u64,
    programs: PendingPrograms,
    /// The end of the last read of the log, and the mean latency of recent ones, normalised to a single request.
    recent_reads: Option<(Nanos, u64)>,
    /// A comparison is in flight: the block of a slow read is read from the mirror.
    is_comparing: bool,
}

impl LatencyTracker {
    fn record_read(&mut self, now: Nanos, latency: Nanos) {
        let mean = self.mean_read_latency(now).map_or(latency.0, |recent_mean| (3 * recent_mean + latency.0) / 4);
        self.recent_reads = Some((now, mean));
    }

    /// Mean latency of its reads in the window that ends now; `None` without reads.
    fn mean_read_latency(&self, now: Nanos) -> Option<u64> {
        self.recent_reads.filter(|(ended_at, _)| now.since(*ended_at) < COMPARISON_WINDOW).map(|(_, latency)| latency)
    }
}

/// Writes that a device has acknowledged from its buffer and may still have to program. Reads wait behind them.
#[derive(Clone, Copy, Debug, Default)]
struct PendingPrograms {
    weight: u64,
    /// The time at which `weight` was valid.
    updated_at: Nanos,
}

impl PendingPrograms {
    /// Their weight now, which decays by half per [`PROGRAMS_HALVE_IN`].
    fn weight_at(&self, now: Nanos) -> u64 {
        let halvings = now.since(self.updated_at).0 / PROGRAMS_HALVE_IN.0;
        if halvings < 64 { self.weight >> halvings } else { 0 }
    }

    fn add(&mut self, weight: u64, now: Nanos) {
        *self = PendingPrograms { weight: self.weight_at(now) + weight, updated_at: now };
    }
}

/// A request's kind and size, which determine its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestWork {
    /// Reads this many blocks.
    Read(usize),
    /// Programs this many blocks.
    Program(usize),
}

impl RequestWork {
    fn weight(self) -> u64 {
        BLOCKS_PER_REQUEST
            + match self {
                RequestWork::Read(blocks) => blocks as u64,
                RequestWork::Program(blocks) => PROGRAM_WEIGHT * blocks as u64,
            }
    }
}

/// A request in a device's queue, until it ends. It waits for the requests before it, so its latency is scaled by its
/// part of the queue.
pub struct QueuedRequest<'a, S: Seam> {
    inner: &'a Inner<S>,
    member: MemberNo,
    work: RequestWork,
    /// Weight of the queue when the request was sent: the request itself and, for a read, pending programs included.
    queue_weight: u64,
    started_at: Nanos,
}

impl<'a, S: Seam> QueuedRequest<'a, S> {
    /// Adds a request that is being sent to the queue.
    pub fn new(inner: &'a Inner<S>, member: MemberNo, work: RequestWork) -> Self {
        let now = inner.seam.now();
        let mut state = inner.state.borrow_mut();
        let tracker = state.latency_tracker(member);
        tracker.queue_weight += work.weight();
        let programs_weight = if matches!(work, RequestWork::Read(_)) { tracker.programs.weight_at(now) } else { 0 };
        QueuedRequest { inner, member, work, queue_weight: tracker.queue_weight + programs_weight, started_at: now }
    }

    /// The latency that the request would have had alone: its part of the elapsed time.
    pub fn exclusive_time(&self) -> Nanos {
        Nanos(self.inner.seam.now().since(self.started_at).0 * BLOCKS_PER_REQUEST / self.queue_weight)
    }
}

impl<S: Seam> Drop for QueuedRequest<'_, S> {
    fn drop(&mut self) {
        let mut state = self.inner.state.borrow_mut();
        let tracker = state.latency_tracker(self.member);
        // The entry is a new one, without this request, if another device has taken the member's number.
        tracker.queue_weight = tracker.queue_weight.saturating_sub(self.work.weight());
        if matches!(self.work, RequestWork::Program(_)) {
            tracker.programs.add(self.work.weight(), self.inner.seam.now());
        }
    }
}

/// The error of a member that is removed because it is too slow.
fn too_slow(operation: &str) -> DiskError {
    DiskError::Io(format!("ten times slower than it used to be at {operation}"))
}

/// Counts the latencies of a batch that was written and flushed. Returns the members that have become too slow.
pub fn detect_slow_members<S: Seam>(inner: &Inner<S>, latencies: &[(MemberNo, Nanos)]) -> Vec<Failure> {
    let Some(fastest) = latencies.iter().map(|(_, latency)| latency.0).min().filter(|_| latencies.len() > 1) else {
        return Vec::new();
    };
    let now = inner.seam.now();
    let mut state = inner.state.borrow_mut();
    let mut failures = Vec::new();
    for (member, latency) in latencies {
        let history = &mut state.latency_tracker(*member).writes;
        let is_unusual = history.is_slow(latency.0);
        let slow = is_unusual && latency.0 > SLOW_FACTOR_TO_MIRROR * fastest;
        if is_unusual && !slow {
            history.raise_usual(latency.0);
        }
        // Batches never overlap, so each one counts.
        if history.count_strike(slow, now, now) {
            failures.push((*member, too_slow("writes and flushes")));
        }
    }
    failures
}

/// Reads the block at byte `at` from a log member. Removes the member when it has become too slow, compared with its
/// own history and with its mirrors' reads of the same window.
pub async fn read_measured<S: Seam, T>(
    inner: &Rc<Inner<S>>,
    member: MemberNo,
    at: u64,
    read: impl Future<Output = T>,
) -> T {
    let queued = QueuedRequest::new(inner, member, RequestWork::Read(1));
    let result = read.await;
    let (latency, started_at) = (queued.exclusive_time(), queued.started_at);
    drop(queued);
    let now = inner.seam.now();
    let mirrors: Vec<_> = inner.log_devices().into_iter().filter(|device| device.member != member).collect();
    let (is_too_slow, compare_with_mirror) = {
        let mut state = inner.state.borrow_mut();
        let fastest =
            mirrors.iter().filter_map(|mirror| state.latency_tracker(mirror.member).mean_read_latency(now)).min();
        let tracker = state.latency_tracker(member);
        tracker.record_read(now, latency);
        match (tracker.reads.is_slow(latency.0), fastest) {
            (true, None) => (false, !std::mem::replace(&mut tracker.is_comparing, true)),
            (suspect, fastest) => {
                // Compare means: a single read may be delayed by chance.
                let recent_mean =
                    tracker.mean_read_latency(now).map_or(latency.0, |recent_mean| recent_mean.min(latency.0));
                let slow = suspect && fastest.is_some_and(|fastest| recent_mean > SLOW_FACTOR_TO_MIRROR * fastest);
                if suspect && !slow {
                    tracker.reads.raise_usual(latency.0);
                }
                (tracker.reads.count_strike(slow, started_at, now), false)
            }
        }
    };
    match mirrors.into_iter().next() {
        // The last log member always stays.
        None => {}
        Some(mirror) if compare_with_mirror => {
            let inner = Rc::clone(inner);
            inner.seam.clone().spawn(async move { compare(&inner, member, &mirror, at).await });
        }
        Some(_) if is_too_slow => {
            // The store's state shows the outcome.
            let _ = remove_members(inner, vec![(member, too_slow("reads"))]).await;
        }
        Some(_) => {}
    }
    result
}

/// Reads the block of a slow read of `member` from the mirror, too, so that the next slow read has a comparison.
async fn compare<S: Seam>(inner: &Rc<Inner<S>>, member: MemberNo, mirror: &Device<S>, at: u64) {
    if let Some(buffer) = inner.alloc() {
        let queued = QueuedRequest::new(inner, mirror.member, RequestWork::Read(1));
        let (result, _) = inner.read_from(mirror, at, vec![Piece::whole(buffer)]).await;
        let latency = queued.exclusive_time();
        drop(queued);
        if result.is_ok() {
            inner.state.borrow_mut().latency_tracker(mirror.member).record_read(inner.seam.now(), latency);
        }
    }
    inner.state.borrow_mut().latency_tracker(member).is_comparing = false;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledged_programs_add_to_the_wait_of_reads_and_decay() {
        assert!(RequestWork::Program(16).weight() > 2 * RequestWork::Read(1).weight(), "64 KiB programmed, 4 KiB read");
        let mut programs = PendingPrograms::default();
        let started_at = Nanos::from_secs(1);
        programs.add(4_000, started_at);
        programs.add(4_000, started_at);
        let weights = [0, 25, 50, 75].map(|ms| programs.weight_at(started_at + Nanos::from_millis(ms)));
        assert_eq!(weights, [8_000, 4_000, 2_000, 1_000]);
        assert_eq!(programs.weight_at(started_at + Nanos::from_secs(100)), 0);
    }

    #[test]
    fn reads_outside_the_window_are_not_compared() {
        let (mut tracker, now) = (LatencyTracker::default(), Nanos::from_secs(1));
        assert_eq!(tracker.mean_read_latency(now), None);
        tracker.record_read(now, Nanos(400));
        tracker.record_read(now, Nanos(800));
        assert_eq!(tracker.mean_read_latency(now), Some(500));
        assert_eq!(tracker.mean_read_latency(now + COMPARISON_WINDOW), None);
    }
}
