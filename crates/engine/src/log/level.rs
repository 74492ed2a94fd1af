//! How full the flash log is, and what follows from that: how hastily its oldest goes to the backings, whose turn it is, and how far writers
//! are slowed.

use std::cell::Cell;

use flash::Store;
use seam::{Nanos, Seam};

use crate::CoreSpec;
use crate::shard::common::Common;

/// The log is crowded when more than so many thousandths of its segments are in use.
const CROWDED: u64 = 500;
/// It is filling when more than so many are: what is written again and again is written there and not to the backing, and yet most of
/// flash stays with clean pages.
const FILLING: u64 = 120;
/// When so many more are, destage has all of a backing's queue.
const PRESSING: u64 = 240;
/// So many thousandths beyond filling its oldest is brought to backings in all haste.
const HASTE: u64 = 120;
/// The least haste, in percent of the time.
const HASTE_MIN: u64 = 5;
/// One in so many of its segments is brought, half of them at a time: enough for runs in address order, and soon done.
const OLDEST_PART: usize = 8;
/// What lies on flash may be dirty so many times as long as what does not.
const LOGGED_AGE: u64 = 60;
/// Volumes of which something is brought at the same time.
const VOLUMES_MAX: u32 = 8;

/// The log as it was when it was looked at last, and who is at work on it.
#[derive(Default)]
pub struct LogLevel {
    /// Thousandths of its segments that are in use.
    used: Cell<u64>,
    /// Records of a volume that has any there, on average.
    mean: Cell<u64>,
    /// How old its oldest segment is.
    age: Cell<Nanos>,
    /// Volumes of which something is sent.
    bringing: Cell<u32>,
    /// Where among the volumes the next turn begins.
    turn: Cell<usize>,
}

/// Age at which what lies on flash is destaged.
pub fn logged_age(spec: &CoreSpec) -> Nanos {
    Nanos(spec.dirty_age_max.0.saturating_mul(LOGGED_AGE))
}

impl LogLevel {
    /// One volume begins; false where enough are at it.
    pub fn begin(&self) -> bool {
        let may = self.bringing.get() < VOLUMES_MAX;
        self.bringing.set(self.bringing.get() + u32::from(may));
        may
    }

    /// It has sent all that it had.
    pub fn end(&self) {
        self.bringing.set(self.bringing.get() - 1);
    }
}

impl<S: Seam> Common<S> {
    /// Looks how full the log is, since when, and with how much of each volume; lets volumes bring its oldest in turn.
    pub fn look_after_log(&self) {
        let Some(store) = self.log() else { return };
        let (level, shards) = (&self.level, self.shards());
        level.age.set(store.oldest_since().map_or(Nanos::ZERO, |since| Nanos(self.seam().now().since(since).0)));
        let records = shards.iter().map(|shard| shard.state.borrow().ledger.len() as u64);
        let (count, all) =
            records.filter(|records| *records > 0).fold((0, 0), |(count, all), len| (count + 1, all + len));
        level.mean.set(all / u64::max(count, 1));
        let (free, segments) = store.room();
        level.used.set((1_000 * segments.saturating_sub(free)).div_ceil(segments.max(1)) as u64);
        if self.log_haste_percent() == 0 || count == 0 {
            return;
        }
        let is_old = level.age.get() >= logged_age(self.spec());
        let oldest = store.oldest_segments(OLDEST_PART, is_old);
        for place in (0..shards.len()).map(|offset| (level.turn.get() + offset) % shards.len()).collect::<Vec<_>>() {
            if shards[place].bring_ahead(&oldest) {
                level.turn.set(place + 1);
            }
        }
    }

    /// True when the log needs records to be let go soon.
    pub fn log_is_crowded(&self) -> bool {
        self.level.used.get() > CROWDED
    }

    /// How far the log is between filling and the level that destage is to keep it below, in thousandths; beyond that, more.
    pub fn log_pressure(&self) -> u64 {
        self.level.used.get().saturating_sub(FILLING) * 1_000 / PRESSING
    }

    /// The same for a volume of so many records: less for one that has less than others.
    pub fn log_pressure_of(&self, records: usize) -> u64 {
        let mean = self.level.mean.get();
        self.log_pressure() * mean.min(records as u64) / mean.max(1)
    }

    /// The part of its time that may be spent on bringing the oldest, in percent: the fuller the log and the older its oldest the more, so that it
    /// comes to be as long as what is written again makes worth while. 0 for nothing at all.
    pub fn log_haste_percent(&self) -> u64 {
        let more = self.level.used.get().saturating_sub(FILLING);
        let half = logged_age(self.spec()).0 / 2;
        let older = self.level.age.get().0.saturating_sub(half);
        let haste = (more * 100 / HASTE).max(older.saturating_mul(100) / half.max(1));
        if more == 0 && older == 0 { 0 } else { haste.clamp(HASTE_MIN, 100) }
    }

    /// Nothing lies in the log since before that.
    pub fn logged_since(&self) -> Nanos {
        self.log().as_ref().and_then(Store::oldest_since).unwrap_or_default()
    }
}
