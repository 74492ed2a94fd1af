//! Latency history and queue of each member, for the detection of slow devices (`slow_detection.rs`).

use seam::Nanos;

/// Minimum number of measured requests before any counts as slow.
const SAMPLES_MIN: u32 = 64;
/// A request is slow above this multiple of the usual latency.
const SLOW_FACTOR: u64 = 10;
/// Requests below this latency never count as slow: losing the mirror would cost more.
const SLOW_LATENCY_MIN: Nanos = Nanos::from_millis(1);
/// Each slow request adds this to the score of slowness, each other one subtracts one (a leaky bucket).
const SLOW_SCORE_PER_REQUEST: u32 = 2;
/// At this score of slowness the device is removed: eight slow requests in a row.
const REMOVAL_SCORE: u32 = 16;
/// A request's fixed cost, in blocks that are read in about the same time.
pub const REQUEST_COST_BLOCKS: u64 = 32;
/// Number of blocks that are read in the time of programming one.
const PROGRAM_WEIGHT: u64 = 4;
/// Minimum time in which a device programs half of the writes in its buffer.
const PENDING_PROGRAMS_HALF_LIFE: Nanos = Nanos::from_millis(25);
/// A member's recent reads are forgotten when no further one has ended within this time.
const COMPARISON_WINDOW: Nanos = Nanos::from_millis(100);

/// The latency history of one kind of request on a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct LatencyHistory {
    /// Mean latency of the first [`SAMPLES_MIN`] requests, then an exponential moving average. A slow request changes
    /// it only if the mirror was as slow.
    usual_latency_ns: u64,
    /// Number of measured requests, up to [`SAMPLES_MIN`].
    sample_count: u32,
    /// Score of slowness: a leaky bucket of slow requests.
    slow_score: u32,
    /// When the last slow request was counted.
    last_slow_at: Nanos,
}

impl LatencyHistory {
    /// Records a latency. Returns true if it is slow compared with the usual one, which it then leaves as it is.
    pub fn record_latency(&mut self, latency_ns: u64) -> bool {
        if self.sample_count < SAMPLES_MIN {
            self.usual_latency_ns =
                (self.usual_latency_ns * u64::from(self.sample_count) + latency_ns) / u64::from(self.sample_count + 1);
            self.sample_count += 1;
            return false;
        }
        let slow = latency_ns > SLOW_LATENCY_MIN.0.max(SLOW_FACTOR * self.usual_latency_ns);
        if !slow {
            self.usual_latency_ns = (self.usual_latency_ns * 255 + latency_ns) / 256;
        }
        slow
    }

    /// Raises the usual latency after a request that the mirror served as slowly: this is the latency under this load.
    pub fn raise_usual_latency(&mut self, latency_ns: u64) {
        self.usual_latency_ns = (self.usual_latency_ns * 15 + latency_ns) / 16;
    }

    /// Updates the score of slowness with a request that ends now. Returns true when the device has been slow often
    /// enough to be removed. A slow request that was already in flight when the last one was counted was delayed by the
    /// same stall, so it is not counted.
    pub fn update_slow_score(&mut self, is_slow: bool, started_at: Nanos, now: Nanos) -> bool {
        match is_slow {
            false => self.slow_score = self.slow_score.saturating_sub(1),
            true if started_at >= self.last_slow_at => {
                (self.slow_score, self.last_slow_at) = (self.slow_score + SLOW_SCORE_PER_REQUEST, now)
            }
            true => {}
        }
        self.slow_score >= REMOVAL_SCORE
    }
}

/// Latency history and queue of one member.
#[derive(Clone, Copy, Debug, Default)]
pub struct LatencyTracker {
    /// Batches that were written and flushed.
    pub writes: LatencyHistory,
    /// Reads of the log.
    pub reads: LatencyHistory,
    /// Weight of all requests in flight, of pages too: each counts a fixed number of blocks plus its own.
    queue_weight: u64,
    pending_programs: PendingPrograms,
    /// The end of the last read of the log, and a moving average of the latency, normalised to a single request.
    recent_reads: Option<(Nanos, u64)>,
    /// A comparison is in flight: the block of a slow read is read from the mirror.
    pub is_comparing: bool,
}

impl LatencyTracker {
    /// Adds a request that is being sent to the queue. Returns the weight of the queue: the request itself and, for a
    /// read, pending programs included.
    pub fn enqueue(&mut self, work: RequestWork, now: Nanos) -> u64 {
        self.queue_weight += work.weight();
        let programs_weight =
            if matches!(work, RequestWork::Read(_)) { self.pending_programs.weight_at(now) } else { 0 };
        self.queue_weight + programs_weight
    }

    /// Removes a request that has ended from the queue.
    pub fn dequeue(&mut self, work: RequestWork, now: Nanos) {
        // The tracker is a new one, without this request, if another device has taken the member's number.
        self.queue_weight = self.queue_weight.saturating_sub(work.weight());
        if matches!(work, RequestWork::Program(_)) {
            self.pending_programs.add(work.weight(), now);
        }
    }

    /// Records a read of the log that ends now, with its latency normalised to a single request.
    pub fn record_read(&mut self, now: Nanos, latency: Nanos) {
        let mean = self.mean_read_latency_ns(now).map_or(latency.0, |recent_mean| (3 * recent_mean + latency.0) / 4);
        self.recent_reads = Some((now, mean));
    }

    /// Moving average of the latency of its reads since a gap of [`COMPARISON_WINDOW`]; `None` if the last one ended
    /// that long ago, and without reads.
    pub fn mean_read_latency_ns(&self, now: Nanos) -> Option<u64> {
        self.recent_reads.filter(|(ended_at, _)| now.since(*ended_at) < COMPARISON_WINDOW).map(|(_, latency)| latency)
    }
}

/// Writes that a device has acknowledged from its buffer and may still have to program. Reads wait behind them.
#[derive(Clone, Copy, Debug, Default)]
struct PendingPrograms {
    /// Their weight, in blocks that are read.
    weight: u64,
    /// The time at which `weight` was valid.
    updated_at: Nanos,
}

impl PendingPrograms {
    /// Their weight now, which decays by half per [`PENDING_PROGRAMS_HALF_LIFE`].
    fn weight_at(&self, now: Nanos) -> u64 {
        let halvings = now.since(self.updated_at).0 / PENDING_PROGRAMS_HALF_LIFE.0;
        if halvings < 64 { self.weight >> halvings } else { 0 }
    }

    /// Adds writes of this weight.
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
    /// Its weight in the queue, in blocks that are read: a fixed cost plus the blocks.
    fn weight(self) -> u64 {
        REQUEST_COST_BLOCKS
            + match self {
                RequestWork::Read(blocks) => blocks as u64,
                RequestWork::Program(blocks) => PROGRAM_WEIGHT * blocks as u64,
            }
    }
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
        assert_eq!(tracker.mean_read_latency_ns(now), None);
        tracker.record_read(now, Nanos(400));
        tracker.record_read(now, Nanos(800));
        assert_eq!(tracker.mean_read_latency_ns(now), Some(500));
        assert_eq!(tracker.mean_read_latency_ns(now + COMPARISON_WINDOW), None);
    }
}
