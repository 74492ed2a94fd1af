//! Back-pressure: writers are slowed in proportion to how far their volume's destage lags, one after the other, never all
//! stopped at once.
//!
//! Below the soft mark nobody waits. Between it and the limit each write is given a time to go on, spaced by what destage has
//! lately achieved, the wider the nearer to the limit. At the limit writers wait in line for room.

use std::cell::Cell;
use std::ops::Range;

use seam::{Nanos, Seam};

use crate::shard::{Shard, ShardRef, blocks_of};

/// Part of the limit, in percent, from which on writers are slowed.
const SOFT_PERCENT: u64 = 70;
/// Part of the limit, in percent, from which on destage works without being asked.
const PRESSURE_PERCENT: u64 = 25;
/// Part of the limit, in percent, from which on memory presses destage where a flash log takes dirty data. Below that, memory is emptied into
/// the log, and the room of the log counts.
const LOGGED_PRESSURE_PERCENT: u64 = 60;
/// What destage may spend between two ticks while clients are busy and there is room, at the soft mark: no spindle takes as many
/// runs, and on a fast backing they cost clients a few percent of their core. Farther below the mark it is less, so that what is written
/// again and again is not sent again and again.
const ALLOWANCE_MAX: u64 = 256;
/// The least of it.
const ALLOWANCE_MIN: u64 = 32;
/// Blocks of a run that cost as much as sending it.
const BLOCKS_A_UNIT: u64 = 16;
/// Longest time that pacing alone makes one write wait.
const DELAY_MAX: Nanos = Nanos::from_millis(500);

/// What slows a shard's writers down.
#[derive(Default)]
pub struct Throttle {
    limit: Cell<u64>,
    /// When the next write of the soft zone may go on.
    next_turn: Cell<Nanos>,
    /// Numbers given to writers that wait for room, and the one whose turn it is.
    given: Cell<u64>,
    serving: Cell<u64>,
    /// Units that reached the backing, and the time and count of the last measurement.
    done: Cell<u64>,
    measured: Cell<(Nanos, u64)>,
    /// Nanoseconds that destage lately took for a unit; 0 = not known.
    unit_ns: Cell<u64>,
    /// What destage may still spend before the next tick; it may be overdrawn by one run.
    allowance: Cell<u64>,
    /// Requests of clients at the last tick, and whether there were any since the one before.
    requests: Cell<u64>,
    clients_busy: Cell<bool>,
}

impl Throttle {
    /// `units` more have reached the backing.
    pub fn note_done(&self, units: u64) {
        self.done.set(self.done.get() + units);
    }

    /// Measures destage's pace, at most ten times a second.
    pub fn measure(&self, now: Nanos) {
        let (then, done) = self.measured.get();
        let (elapsed, units) = (now.since(then).0, self.done.get() - done);
        if elapsed < 100_000_000 {
            return;
        }
        self.measured.set((now, self.done.get()));
        // A pause in which there was nothing to do says nothing about the pace.
        if units > 0 && elapsed < 2_000_000_000 {
            let latest = elapsed / units;
            let old = self.unit_ns.get();
            self.unit_ns.set(if old == 0 { latest } else { (3 * old + latest) / 4 });
        }
    }
}

impl<S: Seam> Shard<S> {
    /// A tick of the core's clock: a new allowance for destage.
    pub fn tick_throttle(&self) {
        let throttle = &self.throttle;
        let requests = self.counters.requests();
        throttle.clients_busy.set(throttle.requests.replace(requests) != requests);
        if throttle.clients_busy.get() {
            // A hit does not look at the clock; that there were some is seen here.
            self.last_request.set(self.seam().now());
        }
        self.refresh_throttle();
        let pressure = self.pressure_percent(self.state.borrow().unclean()).min(SOFT_PERCENT);
        throttle.allowance.set((ALLOWANCE_MAX * pressure / SOFT_PERCENT).max(ALLOWANCE_MIN));
    }

    /// True when destage may send another run now; `quietly`: nobody waits for it.
    pub fn may_destage(&self, quietly: bool, unclean: u64) -> bool {
        let throttle = &self.throttle;
        if self.slows_writers(unclean) {
            return true;
        }
        let held = quietly && throttle.clients_busy.get() && throttle.allowance.get() == 0;
        !held && self.core.may_destage()
    }

    /// A run of `blocks` is sent; `quietly`: nobody waits for it.
    pub fn note_run(&self, quietly: bool, blocks: u64) {
        let units = 1 + blocks / BLOCKS_A_UNIT;
        self.core.note_destage(units);
        if quietly {
            let allowance = &self.throttle.allowance;
            allowance.set(allowance.get().saturating_sub(units));
        }
    }

    /// Measures the pace and takes over the limit that the other volumes leave.
    pub fn refresh_throttle(&self) {
        self.throttle.measure(self.seam().now());
        self.throttle.limit.set(self.unclean_limit());
    }

    /// The limit as it was measured last.
    pub fn unclean_limit_seen(&self) -> u64 {
        self.throttle.limit.get()
    }

    /// True when destage should work without being asked.
    pub fn is_pressed(&self, unclean: u64) -> bool {
        unclean * 100 >= self.throttle.limit.get() * PRESSURE_PERCENT
    }

    /// True when writers are slowed for want of room.
    pub fn slows_writers(&self, unclean: u64) -> bool {
        self.pressure_percent(unclean) >= SOFT_PERCENT
    }

    /// How near dirty data is to its bound, in memory and in the log, in percent: the more, the larger destage's part of the backing's queue.
    pub fn destage_pressure(&self, unclean: u64) -> u64 {
        let memory = self.pressure_percent(unclean);
        if !self.logs() {
            return memory;
        }
        let above = memory.saturating_sub(LOGGED_PRESSURE_PERCENT) * 100 / (100 - LOGGED_PRESSURE_PERCENT);
        above.max(self.core.log_pressure_percent())
    }

    /// How much of the limit is in use, in percent.
    pub fn pressure_percent(&self, unclean: u64) -> u64 {
        (unclean * 100).checked_div(self.throttle.limit.get()).unwrap_or(0).min(100)
    }

    /// True when a write may be absorbed without any waiting.
    pub fn has_room_now(&self, at: u64, len: usize) -> bool {
        let blocks = blocks_of(at, len as u64);
        let unclean = self.state.borrow().unclean() + (blocks.end - blocks.start);
        unclean * 100 <= self.throttle.limit.get() * SOFT_PERCENT
            && self.throttle.given.get() == self.throttle.serving.get()
    }

    /// Waits until `blocks` may become dirty.
    pub async fn make_room(self: &ShardRef<S>, blocks: Range<u64>) {
        let throttle = &self.throttle;
        let begun = self.seam().now();
        self.refresh_throttle();
        let turn = throttle.given.get();
        throttle.given.set(turn + 1);
        // A write larger than the bound itself goes when it is alone.
        let room = |limit: u64| {
            let want = (blocks.end - blocks.start).min(limit.div_ceil(2));
            self.state.borrow().unclean() + want <= limit
        };
        let ready = || (throttle.serving.get() == turn && room(throttle.limit.get())).then_some(());
        if ready().is_none() {
            self.core.keep_ticking();
            self.work.notify();
            self.progress.wait_for(ready).await;
        }
        throttle.serving.set(turn + 1);
        if throttle.given.get() > turn + 1 {
            self.progress.notify();
        }
        self.pace(blocks.end - blocks.start).await;
        let waited = self.seam().now().since(begun);
        if waited > Nanos::ZERO {
            self.counters.add(&self.counters.throttled_us, waited.as_micros());
        }
    }

    async fn pace(&self, units: u64) {
        let throttle = &self.throttle;
        let (limit, unclean) = (throttle.limit.get(), self.state.borrow().unclean());
        let soft = limit * SOFT_PERCENT / 100;
        if unclean <= soft || limit == soft || throttle.unit_ns.get() == 0 {
            return;
        }
        // From nothing at the soft mark to one and a half times destage's own pace at the limit.
        let spacing = throttle.unit_ns.get().saturating_mul(units) * 3 * (unclean - soft) / (2 * (limit - soft));
        let now = self.seam().now();
        let turn = throttle.next_turn.get().max(now).min(now + DELAY_MAX);
        throttle.next_turn.set(turn + Nanos(spacing));
        if turn > now {
            self.seam().sleep_until(turn).await;
        }
    }
}
