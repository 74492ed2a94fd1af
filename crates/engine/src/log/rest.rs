//! Dirty blocks leave memory for the flash log: whatever is durable there, and on its way nowhere, may rest there, so that flash and not
//! memory bounds what is dirty. When memory holds much that is dirty the log is flushed without being asked.

use std::rc::Rc;

use seam::{Nanos, Seam};

use crate::shard::{Shard, ShardRef};

/// Pause after a flush that nobody asked for, and after a look that found too little.
const PAUSE: Nanos = Nanos::from_millis(5);
/// The same after one that failed.
const FAILED_PAUSE: Nanos = Nanos::from_millis(200);

impl<S: Seam> Shard<S> {
    /// Lets blocks rest if there are many dirty ones; to be called when a flush of the log has succeeded, so that what has not changed since
    /// it began is as its record says.
    pub fn rest_if_full(&self) {
        // Who brings everything to the backing needs it where it is.
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

    /// Flushes the log, in a task of its own, when memory holds much that is dirty or much has changed since the last flush.
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
                // What is wrong shows at the next flush that a client asks for.
                Err(_) => FAILED_PAUSE,
            };
            shard.spill_after.set(shard.seam().now() + pause);
            shard.spilling.set(false);
        });
    }

    /// So many dirty blocks are many.
    fn rest_mark(&self) -> u64 {
        self.unclean_limit_seen() * u64::from(self.core.spec().rest_percent) / 100
    }

    fn holds_much(&self) -> bool {
        self.state.borrow().unclean() > self.rest_mark()
    }
}
