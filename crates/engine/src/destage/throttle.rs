//! Back-pressure: writers are slowed in proportion to how far their volume's destage lags, one after the other, never all
//! stopped at once.
//!
//! Below the soft mark nobody waits. Between it and the limit each write is given a time to go on, spaced by what destage has
//! lately achieved, the wider the nearer to the limit. At the limit writers wait in line for room. A flash log that fills slows them in the
//! same way: else it would fill in no time what destage takes hours to empty.

use std::cell::Cell;
use std::ops::Range;

use seam::{Nanos, Seam};

use crate::shard::{Shard, ShardRef, blocks_of};

/// Part of the limit, in percent, from which on writers are slowed.
const SOFT_PERCENT: u64 = 70;
/// Part of the limit, in percent, from which on destage works without being asked.
const PRESSURE_PERCENT: u64 = 25;
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

/// How fast something lately went while it was at work.
#[derive(Default)]
struct Pace {
    /// Units done, and the time and count of the last measurement.
    done: Cell<u64>,
    measured: Cell<(Nanos, u64)>,
    /// It was at work then.
    works: Cell<bool>,
    /// Nanoseconds that a unit lately took; 0 = not known.
    unit_ns: Cell<u64>,
}

impl Pace {
    fn note_done(&self, units: u64) {
        self.done.set(self.done.get() + units);
    }

    /// Measures at most ten times a second, and only what was done between two looks at both of which it `works`: a pause in which there was nothing
    /// to do says nothing. One between two bursts is part of the pace.
    fn measure(&self, now: Nanos, works: bool) {
        let (then, done) = self.measured.get();
        let (elapsed, units) = (now.since(then).0, self.done.get() - done);
        let worked = self.works.replace(works);
        if worked && works && (elapsed < 100_000_000 || units == 0) {
            return;
        }
        self.measured.set((now, self.done.get()));
        if worked && works {
            let latest = elapsed / units;
            let old = self.unit_ns.get();
            self.unit_ns.set(if old == 0 { latest } else { (3 * old + latest) / 4 });
        }
    }

    /// How far apart writes of a unit may come: from nothing where there is no `strain` to one and a half times this pace at 1,000.
    fn spacing(&self, strain: u64) -> u64 {
        self.unit_ns.get().saturating_mul(3 * strain) / 2_000
    }
}

/// What slows a shard's writers down.
#[derive(Default)]
pub struct Throttle {
    limit: Cell<u64>,
    /// When the next write of the soft zone may go on.
    next_turn: Cell<Nanos>,
    /// Numbers given to writers that wait for room, and the one whose turn it is.
    given: Cell<u64>,
    serving: Cell<u64>,
    /// Blocks that reached the backing or went to rest on flash: what makes room in memory.
    room_made: Pace,
    /// What destage may still spend before the next tick; it may be overdrawn by one run.
    allowance: Cell<u64>,
    /// Requests of clients at the last tick, and whether there were any since the one before.
    requests: Cell<u64>,
    clients_busy: Cell<bool>,
}

impl Throttle {
    /// `units` more need no room in memory: they have reached the backing, or rest on flash.
    pub fn note_room(&self, units: u64) {
        self.room_made.note_done(units);
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
        if self.pressure_percent(unclean) >= SOFT_PERCENT {
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
        let now = self.seam().now();
        let throttle = &self.throttle;
        throttle.room_made.measure(now, self.pressure_percent(self.state.borrow().unclean()) >= PRESSURE_PERCENT);
        throttle.limit.set(self.unclean_limit());
    }

    /// The limit as it was measured last.
    pub fn unclean_limit_seen(&self) -> u64 {
        self.throttle.limit.get()
    }

    /// True when destage should work without being asked: what the log has may rest there first.
    pub fn is_pressed(&self, unclean: u64) -> bool {
        let percent = if self.logs() { SOFT_PERCENT } else { PRESSURE_PERCENT };
        unclean * 100 >= self.throttle.limit.get() * percent
    }

    /// How much of the limit is in use, in percent.
    pub fn pressure_percent(&self, unclean: u64) -> u64 {
        (unclean * 100).checked_div(self.throttle.limit.get()).unwrap_or(0).min(100)
    }

    /// How far a log that answers for the volume is on its way to being too full, in thousandths and beyond; nothing where it is not this volume that
    /// holds its oldest segments: it is not their destage that the log waits for.
    pub fn log_pressure(&self, records: usize) -> u64 {
        if self.logs() && self.ahead.holds_oldest() { self.core.log_pressure_of(records) } else { 0 }
    }

    /// True when a write may be absorbed without any waiting.
    pub fn has_room_now(&self, at: u64, len: usize) -> bool {
        let blocks = blocks_of(at, len as u64);
        let state = self.state.borrow();
        let unclean = state.unclean() + (blocks.end - blocks.start);
        unclean * 100 <= self.throttle.limit.get() * SOFT_PERCENT
            && self.log_pressure(state.ledger.len()) <= SOFT_PERCENT * 10
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
        let (limit, unclean, log) = {
            let state = self.state.borrow();
            (throttle.limit.get(), state.unclean(), self.log_pressure(state.ledger.len()))
        };
        let soft = limit * SOFT_PERCENT / 100;
        let memory = (unclean.saturating_sub(soft) * 1_000).checked_div(limit - soft).unwrap_or(0);
        let log = log.saturating_sub(SOFT_PERCENT * 10) * 100 / (100 - SOFT_PERCENT);
        // From nothing at the soft mark to one and a half times the pace at the limit; a log may be beyond that.
        let spacing = throttle.room_made.spacing(memory).max(self.ahead.spacing(log)).saturating_mul(units);
        if spacing == 0 {
            return;
        }
        let now = self.seam().now();
        let turn = throttle.next_turn.get().max(now).min(now + DELAY_MAX);
        throttle.next_turn.set(turn + Nanos(spacing));
        if turn > now {
            self.seam().sleep_until(turn).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_counts_the_pauses_between_bursts_and_not_those_without_work() {
        let (pace, mut now) = (Pace::default(), Nanos::from_secs(10));
        let mut look = |pace: &Pace, times: u64, works| {
            for _ in 0..times {
                now += Nanos::from_millis(50);
                pace.measure(now, works);
            }
        };
        look(&pace, 1, true);
        for _ in 0..50 {
            pace.note_done(100);
            // A burst every second: 10 ms a unit.
            look(&pace, 20, true);
        }
        let in_us = |strain| Nanos(pace.spacing(strain) + 500).as_micros();
        assert_eq!([1_000, 500, 0].map(in_us), [15_000, 7_500, 0]);
        // One unit in a minute that was not for work, and none of what is done at its ends.
        look(&pace, 600, false);
        pace.note_done(1);
        look(&pace, 600, false);
        look(&pace, 1, true);
        pace.note_done(1_000);
        look(&pace, 1, false);
        assert_eq!(in_us(1_000), 15_000);
    }
}
