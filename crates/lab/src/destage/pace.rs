//! How fast destage writes, apart from its order.

use engine::backing::Dispatch;
use engine::{AGE_PRESSURE_PERCENT_MAX, CROWDED_FREE_SEGMENTS_DIVISOR};
use seam::Nanos;

use super::DestageState;
use super::alru::ALRU_BATCH_BLOCKS;
use super::oldest_log::{SEGMENT_AGE_MAX, TARGET_PERCENT};

/// Grants writes to destage.
pub trait Pace {
    /// Most blocks of the next write; 0: no write now.
    fn blocks_max(&mut self, state: &DestageState) -> u64;

    /// Records that a write of `blocks` was sent.
    fn record_start(&mut self, _blocks: u64) {}

    /// Records that the order has no run for now.
    fn record_exhausted(&mut self, _state: &DestageState) {}
}

/// Hotset's pace: the engine's limit of destage in the disks' queue, which grows with the fill of the log.
pub struct QueueLimit {
    /// Requests that the queue of the array holds.
    depth: u64,
}

/// Fill at which the whole queue is granted, in percent: the log is crowded.
const CROWDED_PERCENT: u64 = 100 - 100 / CROWDED_FREE_SEGMENTS_DIVISOR as u64;

impl QueueLimit {
    /// The pace on an array whose queue holds `depth` requests.
    pub fn new(depth: u64) -> QueueLimit {
        QueueLimit { depth }
    }

    /// Writes that may be in flight.
    fn writes_max(&self, state: &DestageState) -> u64 {
        let used = state.used_percent();
        let age_pressure = state.oldest_since.map_or(0, |since| {
            let late = state.now.since(since).0.saturating_sub(SEGMENT_AGE_MAX.0);
            late.saturating_mul(AGE_PRESSURE_PERCENT_MAX) / SEGMENT_AGE_MAX.0
        });
        let is_due = state.oldest_since.is_some_and(|since| state.now.since(since) >= SEGMENT_AGE_MAX);
        if used <= TARGET_PERCENT && !is_due && !state.is_idle {
            return 0;
        }
        let fill = (used.saturating_sub(TARGET_PERCENT) * 100 / (CROWDED_PERCENT - TARGET_PERCENT)).min(100);
        let pressure = fill.max(age_pressure.min(AGE_PRESSURE_PERCENT_MAX));
        let expects_read = state.last_read.is_some_and(|read| state.now.since(read) < Dispatch::READ_EXPECTED_FOR);
        let percent = if state.is_idle || !expects_read { 100 } else { Dispatch::destage_percent(pressure) };
        (self.depth * percent / 100).max(1)
    }
}

impl Pace for QueueLimit {
    fn blocks_max(&mut self, state: &DestageState) -> u64 {
        if state.writes_in_flight < self.writes_max(state) { u64::MAX } else { 0 }
    }
}

/// WOW's pace: none up to a fill of 80 %, from there on in proportion, and 20 writes in flight from 90 % on (section
/// IV-E of the paper, with the initial values of its thresholds).
pub struct LinearThreshold;

const LOW_PERCENT: u64 = 80;
const HIGH_PERCENT: u64 = 90;
/// `MAXQUEUE` of the paper.
const WRITES_MAX: u64 = 20;

impl Pace for LinearThreshold {
    fn blocks_max(&mut self, state: &DestageState) -> u64 {
        let above = state.used_percent().min(HIGH_PERCENT).saturating_sub(LOW_PERCENT);
        let writes_max = (WRITES_MAX * above).div_ceil(HIGH_PERCENT - LOW_PERCENT);
        if state.writes_in_flight < writes_max { u64::MAX } else { 0 }
    }
}

/// ACP's pace: batches of at most 128 blocks, 10 ms apart, at all times.
pub struct Batches {
    left: u64,
    is_closed: bool,
    next_at: Nanos,
}

/// `flush_max_buffers`.
const ACP_BATCH_BLOCKS: u64 = 128;
/// `thread_wakeup_time`.
const PAUSE: Nanos = Nanos::from_millis(10);
/// Pause when no block is dirty.
const IDLE_PAUSE: Nanos = Nanos::from_secs(1);

impl Default for Batches {
    fn default() -> Self {
        Batches { left: ACP_BATCH_BLOCKS, is_closed: false, next_at: Nanos::ZERO }
    }
}

impl Pace for Batches {
    fn blocks_max(&mut self, state: &DestageState) -> u64 {
        if self.is_closed || self.left == 0 {
            if state.writes_in_flight > 0 {
                return 0;
            }
            *self = Batches { next_at: state.now + PAUSE, ..Batches::default() };
        }
        if state.now < self.next_at { 0 } else { self.left }
    }

    fn record_start(&mut self, blocks: u64) {
        self.left -= blocks;
    }

    fn record_exhausted(&mut self, state: &DestageState) {
        if self.left < ACP_BATCH_BLOCKS {
            self.is_closed = true;
        } else {
            let pause = if state.used_blocks == 0 { IDLE_PAUSE } else { PAUSE };
            self.next_at = state.now + pause;
        }
    }
}

/// ALRU's pace: batches of 100 blocks, one after the other, once clients have been idle for 10 s; 20 s after the last
/// stale block.
#[derive(Default)]
pub struct IdleBatches {
    batch: Option<u64>,
    next_at: Nanos,
}

/// `activity_threshold`.
const ACTIVITY_THRESHOLD: Nanos = Nanos::from_secs(10);
/// `thread_wakeup_time`.
const WAKE_UP: Nanos = Nanos::from_secs(20);

impl Pace for IdleBatches {
    fn blocks_max(&mut self, state: &DestageState) -> u64 {
        if self.batch == Some(0) {
            if state.writes_in_flight > 0 {
                return 0;
            }
            self.batch = None;
        }
        let is_active = state.now.since(state.last_request) < ACTIVITY_THRESHOLD;
        if self.batch.is_none() && (is_active || state.now < self.next_at) {
            return 0;
        }
        *self.batch.get_or_insert(ALRU_BATCH_BLOCKS)
    }

    fn record_start(&mut self, blocks: u64) {
        let left = self.batch.as_mut().expect("a write belongs to a batch");
        *left -= blocks;
    }

    fn record_exhausted(&mut self, state: &DestageState) {
        (self.batch, self.next_at) = (None, state.now + WAKE_UP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_fill(percent: u64) -> DestageState {
        let read = Some(Nanos::from_secs(1));
        let now = Nanos::from_secs(2);
        DestageState { now, used_blocks: percent, capacity_blocks: 100, last_read: read, ..DestageState::default() }
    }

    #[test]
    fn queue_limit_grows_with_the_fill() {
        let pace = QueueLimit::new(160);
        let at = |percent| pace.writes_max(&at_fill(percent));
        assert_eq!([10, 20, 21, 34, 48, 75].map(at), [0, 0, 1, 9, 32, 160]);
        assert_eq!(pace.writes_max(&DestageState { is_idle: true, ..at_fill(1) }), 160);
        assert_eq!(pace.writes_max(&DestageState { last_read: None, ..at_fill(21) }), 160);
    }

    #[test]
    fn linear_threshold_rises_from_80_to_90_percent() {
        let grants = |percent: u64, writes_in_flight: u64| {
            LinearThreshold.blocks_max(&DestageState { writes_in_flight, ..at_fill(percent) }) > 0
        };
        assert!(!grants(80, 0) && grants(81, 1) && !grants(81, 2));
        assert!(grants(90, 19) && !grants(90, 20) && !grants(100, 20));
    }

    #[test]
    fn batches_are_10_ms_apart_and_end_before_the_next() {
        let mut pace = Batches::default();
        let state = at_fill(50);
        assert_eq!(pace.blocks_max(&state), ACP_BATCH_BLOCKS);
        pace.record_start(100);
        assert_eq!(pace.blocks_max(&state), 28);
        pace.record_exhausted(&state);
        assert_eq!(pace.blocks_max(&DestageState { writes_in_flight: 1, ..state }), 0);
        assert_eq!(pace.blocks_max(&state), 0);
        assert_eq!(pace.blocks_max(&DestageState { now: state.now + PAUSE, ..state }), ACP_BATCH_BLOCKS);
    }

    #[test]
    fn idle_batches_wait_for_ten_seconds_without_requests() {
        let mut pace = IdleBatches::default();
        let busy = at_fill(50);
        let idle = DestageState { now: Nanos::from_secs(30), last_request: Nanos::from_secs(20), ..busy };
        assert_eq!(pace.blocks_max(&DestageState { last_request: Nanos::from_secs(21), ..idle }), 0);
        assert_eq!(pace.blocks_max(&idle), ALRU_BATCH_BLOCKS);
        pace.record_exhausted(&idle);
        assert_eq!(pace.blocks_max(&DestageState { now: Nanos::from_secs(49), ..idle }), 0);
        assert_eq!(pace.blocks_max(&DestageState { now: Nanos::from_secs(50), ..idle }), ALRU_BATCH_BLOCKS);
    }
}
