//! Spilling: dirty blocks leave memory when the flash log durably holds their content and no write to the backing is in
//! flight. Flash, not memory, then bounds the amount of dirty data. When memory holds much dirty data, the log is
//! flushed without a client's request.

use std::rc::Rc;

use seam::{Nanos, Seam};

use crate::shard::{Shard, ShardRef};

/// Pause after a flush without a client's request.
const PAUSE: Nanos = Nanos::from_millis(5);
/// Pause after such a flush failed.
const FAILED_PAUSE: Nanos = Nanos::from_millis(200);

impl<S: Seam> Shard<S> {
    /// Spills the oldest dirty blocks if there are many. Call it right after a successful flush of the log: each block
    /// that is unchanged since the flush began then equals its record.
    pub fn rest_if_full(&self) {
        // A full destage needs the blocks in memory.
        if !self.logs() || self.state.borrow().flushing.turns.is_running() || !self.holds_much() {
            return;
        }
        let now = self.seam().now();
        let rested = self.with(|state, memory| {
            let keep = self.rest_mark() / 2;
            state.rest_oldest(memory, self.number, state.unclean().saturating_sub(keep), now)
        });
        if rested > 0 {
            self.throttle.note_done(rested);
            self.core.keep_ticking();
            self.progress.notify();
        }
    }

    /// Flushes the log in a separate task if memory holds much dirty data or the list of changes is long.
    pub fn spill_if_full(self: &ShardRef<S>) {
        if !self.logs() || self.spilling.get() {
            return;
        }
        let much_has_changed = self.state.borrow().ledger.has_changed_much();
        if !(much_has_changed || self.holds_much()) || self.seam().now() < self.spill_after.get() {
            return;
        }
        self.spilling.set(true);
        let shard = Rc::clone(self);
        self.seam().spawn(async move {
            let pause = match shard.flush_log().await {
                Ok(()) => PAUSE,
                // The next flush that a client requests reports the error.
                Err(_) => FAILED_PAUSE,
            };
            shard.spill_after.set(shard.seam().now() + pause);
            shard.spilling.set(false);
        });
    }

    /// Number of dirty blocks above which blocks are spilled.
    fn rest_mark(&self) -> u64 {
        self.unclean_limit_seen() * u64::from(self.core.spec().rest_percent) / 100
    }

    fn holds_much(&self) -> bool {
        self.state.borrow().unclean() > self.rest_mark()
    }
}
