//! The tick: while there is dirty data, each core works at a fixed interval on what depends on time.

use std::rc::Rc;

use seam::{Nanos, Seam};

use crate::shard::core_state::CoreState;

/// Period of the tick while there is dirty data.
const TICK_PERIOD: Nanos = Nanos::from_millis(50);

impl<S: Seam> CoreState<S> {
    /// Waits until buffers may have become free. Destage frees buffers, and needs the tick.
    pub async fn wait_for_buffers(self: &Rc<Self>) {
        self.keep_ticking();
        self.pause_for_buffers().await;
    }

    /// Runs the tick until no shard has dirty data: an idle engine has no timer.
    pub fn keep_ticking(self: &Rc<Self>) {
        if self.is_ticking.replace(true) {
            return;
        }
        let core_state = Rc::clone(self);
        self.seam().spawn(async move {
            let mut is_dirty = true;
            while is_dirty {
                core_state.seam().sleep(TICK_PERIOD).await;
                is_dirty = false;
                core_state.renew_allowance();
                core_state.measure_log_pressure();
                core_state.repartition_memory_if_due();
                core_state.sweep_kept_records();
                for shard in core_state.shards() {
                    shard.tick_throttle();
                    if core_state.log_pressure_percent() == 100 {
                        shard.retire_durable_zero_records();
                    }
                    if let Some(since) = core_state.oldest_segment_since() {
                        shard.state.borrow_mut().raise_spilled_since(since);
                    }
                    shard.start_log_flush_if_due();
                    shard.start_log_destage_if_due();
                    if shard.state.borrow().needs_tick() {
                        shard.destage_work.notify();
                        shard.progress.notify();
                        is_dirty = true;
                    }
                }
            }
            core_state.is_ticking.set(false);
        });
    }
}
