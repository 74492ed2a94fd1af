//! Spilling: dirty blocks leave memory when the flash log durably holds their content and no write to the backing is in
//! flight. Flash, not memory, then bounds the amount of dirty data. If memory holds much dirty data, or changes stay
//! unlogged for long, a background flush of the log makes blocks ready to be spilled.

use std::rc::Rc;

use seam::{Nanos, Seam};

use crate::shard::{Shard, ShardRef};

/// Pause after a background flush.
const PAUSE_AFTER_FLUSH: Nanos = Nanos::from_millis(5);
/// Pause after a background flush that failed.
const PAUSE_AFTER_FAILURE: Nanos = Nanos::from_millis(200);

impl<S: Seam> Shard<S> {
    /// Spills the oldest dirty blocks if there are many. Call it right after a successful flush of the log: each block
    /// that is unchanged since the flush began then equals its record.
    pub fn spill_if_full(&self) {
        // A full destage needs the blocks in memory.
        if !self.uses_log()
            || self.state.borrow().backing_flush.single_flight.is_running()
            || !self.is_above_spill_threshold()
        {
            return;
        }
        let spilled = self.with_state(|state, memory| {
            let keep = self.spill_threshold_blocks() / 2;
            state.spill_oldest(memory, self.volume_number, state.not_clean_units().saturating_sub(keep))
        });
        if spilled > 0 {
            self.throttle.record_progress(spilled);
            self.progress.notify();
        }
    }

    /// Starts a background flush of the log if memory holds much dirty data, the list of changes is long, changes have
    /// stayed unlogged for long, or destage waits for the record of a zero-range.
    pub fn start_log_flush_if_due(self: &ShardRef<S>) {
        if !self.uses_log() || self.background_flushes.is_log_flush_running.get() {
            return;
        }
        let has_many_changes = self.state.borrow().log_tracker.has_many_changes();
        if !(has_many_changes
            || self.is_above_spill_threshold()
                && (self.partial_blocks.left_out_blocks.get() == 0 || self.changed_blocks_to_log() > 0)
            || self.has_much_unlogged_data()
            || self.has_old_unlogged_data()
            || self.log_destage.is_zero_record_requested())
            || self.seam().now() < self.background_flushes.next_log_flush_at.get()
        {
            return;
        }
        self.background_flushes.is_log_flush_running.set(true);
        self.log_destage.end_zero_record_request();
        let shard = Rc::clone(self);
        self.seam().spawn(async move {
            let pause = match shard.join_log_flush().await {
                Ok(()) => PAUSE_AFTER_FLUSH,
                // The next flush that a client requests reports the error.
                Err(_) => PAUSE_AFTER_FAILURE,
            };
            shard.background_flushes.next_log_flush_at.set(shard.seam().now() + pause);
            shard.background_flushes.is_log_flush_running.set(false);
        });
    }

    /// Number of dirty blocks above which blocks are spilled.
    fn spill_threshold_blocks(&self) -> u64 {
        self.not_clean_limit_blocks() * u64::from(self.core.spec().spill_percent) / 100
    }

    /// True if much dirty data is unlogged: it has to be in the log before blocks can be spilled.
    fn has_much_unlogged_data(&self) -> bool {
        self.changed_blocks_to_log() > self.spill_threshold_blocks() / 4
            && self.state.borrow().not_clean_units() > self.spill_threshold_blocks() * 3 / 4
    }

    /// Number of changed blocks that a background flush of the log would append.
    fn changed_blocks_to_log(&self) -> u64 {
        let changes = self.state.borrow().log_tracker.changed_blocks_to_log();
        changes.saturating_sub(self.partial_blocks.left_out_blocks.get())
    }

    /// True if the oldest unlogged change may have reached the age limit of dirty data.
    fn has_old_unlogged_data(&self) -> bool {
        let state = self.state.borrow();
        state.log_tracker.has_changes()
            && self.seam().now().since(state.log_flush.last_flush_began_at) >= self.dirty_age_max()
    }

    fn is_above_spill_threshold(&self) -> bool {
        self.state.borrow().not_clean_units() > self.spill_threshold_blocks()
    }
}
