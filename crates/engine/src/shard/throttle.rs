//! Back-pressure: delays writers in proportion to the lag of their volume's destage. Writers are delayed one after the
//! other, never all at once.
//!
//! Below the soft limit no write waits. Between the soft limit and the limit, each write gets a start time. The spacing
//! follows the recent pace of destage and widens towards the limit. At the limit, writers queue until destage frees
//! room.

use std::cell::Cell;

use seam::{Nanos, Seam};

use super::Shard;
use super::state::State;

/// Percentage of the limit above which writers are slowed.
pub const SOFT_LIMIT_PERCENT: u64 = 70;
/// Percentage of the limit from which on destage works without a flush or a waiting request, unless the log has room.
const PRESSURE_PERCENT: u64 = 25;
/// Percentage of the limit from which on dirty data in memory counts as pressure although there is a flash log. Below
/// it, memory spills into the log, and the log's free space determines the pressure.
const LOGGED_PRESSURE_PERCENT: u64 = 60;
/// Cost units that destage may spend between two ticks at the soft limit, while clients are busy and there is room: one
/// for each run, and one for each [`BLOCKS_PER_COST_UNIT`] blocks. No disk takes as many runs, and on a fast backing
/// they cost clients a few percent of their core. Below the soft limit the allowance shrinks, so that often overwritten
/// blocks are not written to the backing each time.
const ALLOWANCE_UNITS_MAX: u64 = 256;
/// Lower bound of the allowance.
const ALLOWANCE_UNITS_MIN: u64 = 32;
/// Number of blocks that cost the processor as much as the request of their run.
const BLOCKS_PER_COST_UNIT: u64 = 16;
/// Shortest time between two measurements of the pace.
const MEASURE_INTERVAL_MIN_NS: u64 = 100_000_000;
/// Longest interval that gives a measurement of the pace.
const MEASURE_INTERVAL_MAX_NS: u64 = 2_000_000_000;
/// Maximum number of blocks of a volume that bypass the log. Each background flush visits them.
const STREAM_BYPASS_BLOCKS_MAX: u64 = 16_384;
/// These blocks take at most this part of the memory for dirty data.
const STREAM_BYPASS_DIVISOR: u64 = 8;

/// State of a shard's back-pressure.
#[derive(Default)]
pub struct Throttle {
    /// Limit of zero-ranges and of blocks that are not clean, as last updated.
    pub limit_blocks: Cell<u64>,
    /// Start time of the next write above the soft limit.
    pub next_write_at: Cell<Nanos>,
    /// Ticket of the next writer that queues for room.
    pub next_ticket: Cell<u64>,
    /// Ticket of the writer at the head of the queue.
    pub served_ticket: Cell<u64>,
    /// Number of blocks and zero-ranges destaged or spilled.
    completed_units: Cell<u64>,
    /// Time of the last measurement, and `completed_units` then.
    last_measurement: Cell<(Nanos, u64)>,
    /// Recent time to destage a block or zero-range, in nanoseconds; 0: unknown.
    pub destage_unit_ns: Cell<u64>,
    /// Cost units that destage may still spend before the next tick; one run may overdraw them.
    allowance_units: Cell<u64>,
    /// Client requests counted at the last tick.
    last_tick_requests: Cell<u64>,
    /// Client requests arrived between the last two ticks.
    are_clients_busy: Cell<bool>,
}

impl Throttle {
    /// Records that `units` more blocks and zero-ranges were destaged or spilled.
    pub fn record_progress(&self, units: u64) {
        self.completed_units.set(self.completed_units.get() + units);
    }

    /// Measures the pace of destage, at most ten times a second.
    pub fn measure(&self, now: Nanos) {
        let (measured_at, measured_units) = self.last_measurement.get();
        let (elapsed, units) = (now.since(measured_at).0, self.completed_units.get() - measured_units);
        if elapsed < MEASURE_INTERVAL_MIN_NS {
            return;
        }
        self.last_measurement.set((now, self.completed_units.get()));
        // An interval without destage gives no measurement of the pace.
        if units > 0 && elapsed < MEASURE_INTERVAL_MAX_NS {
            let latest_ns = elapsed / units;
            let old_ns = self.destage_unit_ns.get();
            self.destage_unit_ns.set(if old_ns == 0 { latest_ns } else { (3 * old_ns + latest_ns) / 4 });
        }
    }
}

impl<S: Seam> Shard<S> {
    /// Handles a tick of the core's clock: renews the allowance of destage.
    pub fn tick_throttle(&self) {
        let throttle = &self.throttle;
        let requests = self.counters.requests();
        throttle.are_clients_busy.set(throttle.last_tick_requests.replace(requests) != requests);
        if throttle.are_clients_busy.get() {
            // Hits do not read the clock; the tick records their time instead.
            self.last_request_at.set(self.seam().now());
        }
        self.refresh_throttle();
        let not_clean_units = self.state.borrow().not_clean_units();
        let pressure =
            self.pressure_percent(not_clean_units).max(self.destage_pressure(not_clean_units)).min(SOFT_LIMIT_PERCENT);
        throttle.allowance_units.set((ALLOWANCE_UNITS_MAX * pressure / SOFT_LIMIT_PERCENT).max(ALLOWANCE_UNITS_MIN));
    }

    /// True if destage may send another run now. `is_background`: no request waits for it.
    pub fn may_destage(&self, is_background: bool, not_clean_units: u64) -> bool {
        let throttle = &self.throttle;
        if self.slows_writers(not_clean_units) {
            return true;
        }
        let is_exhausted = is_background && throttle.are_clients_busy.get() && throttle.allowance_units.get() == 0;
        !is_exhausted && self.core.may_destage()
    }

    /// Records that a run of `blocks` is sent. `is_background`: no request waits for it.
    pub fn record_run(&self, is_background: bool, blocks: u64) {
        let cost = 1 + blocks / BLOCKS_PER_COST_UNIT;
        self.core.record_destage(cost);
        if is_background {
            let allowance = &self.throttle.allowance_units;
            allowance.set(allowance.get().saturating_sub(cost));
        }
    }

    /// Measures the pace and updates the limit, which depends on the other volumes.
    pub fn refresh_throttle(&self) {
        self.throttle.measure(self.seam().now());
        self.throttle.limit_blocks.set(self.compute_not_clean_limit_blocks());
    }

    /// Limit of this shard's zero-ranges and blocks that are not clean, as last computed.
    pub fn not_clean_limit_blocks(&self) -> u64 {
        self.throttle.limit_blocks.get()
    }

    /// True if destage should work without a flush or a waiting request.
    pub fn is_under_pressure(&self, not_clean_units: u64) -> bool {
        not_clean_units * 100 >= self.throttle.limit_blocks.get() * PRESSURE_PERCENT
    }

    /// True if writers are slowed because dirty data is close to its limit.
    pub fn slows_writers(&self, not_clean_units: u64) -> bool {
        self.pressure_percent(not_clean_units) >= SOFT_LIMIT_PERCENT
    }

    /// Pressure of dirty data: the fill level of memory, or with a log the higher one of memory and the log, each from
    /// where destage begins (0) to where nothing else may delay it (100). Destage's limit in the backing's queue grows
    /// with it.
    pub fn destage_pressure(&self, not_clean_units: u64) -> u64 {
        let memory = self.pressure_percent(not_clean_units);
        if !self.uses_log() {
            return memory;
        }
        let memory_pressure = memory.saturating_sub(LOGGED_PRESSURE_PERCENT) * 100 / (100 - LOGGED_PRESSURE_PERCENT);
        memory_pressure.max(self.core.log_pressure_percent()).max(self.core.log_age_pressure_percent())
    }

    /// True if dirty data in memory counts as pressure although there is a flash log.
    pub fn has_memory_pressure(&self, not_clean_units: u64) -> bool {
        self.pressure_percent(not_clean_units) >= LOGGED_PRESSURE_PERCENT
    }

    /// Dirty data in percent of the limit.
    pub fn pressure_percent(&self, not_clean_units: u64) -> u64 {
        (not_clean_units * 100).checked_div(self.throttle.limit_blocks.get()).unwrap_or(0).min(100)
    }

    /// True if a client waits for destage as such, and not for a particular block: for a flush, or for space in memory
    /// or in the log.
    pub fn client_waits_for_progress(&self, state: &State) -> bool {
        let was_log_crowded_at_tick = self.core.log_pressure_percent() == 100;
        state.backing_flush.single_flight.is_running()
            || self.slows_writers(state.not_clean_units())
            || was_log_crowded_at_tick
    }

    /// Maximum number of blocks that bypass the log.
    pub fn stream_bypass_blocks_max(&self) -> usize {
        STREAM_BYPASS_BLOCKS_MAX.min(self.not_clean_limit_blocks() / STREAM_BYPASS_DIVISOR) as usize
    }
}
