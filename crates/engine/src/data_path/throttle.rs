//! Admission of writes: a write waits for room for its blocks, and then for its start time.

use std::ops::Range;

use flash::BlockNo;
use seam::{Nanos, Seam};

use crate::ByteOffset;
use crate::shard::throttle::SOFT_LIMIT_PERCENT;
use crate::shard::{Shard, ShardRef, blocks_of};

/// Longest delay of one write by pacing alone.
const DELAY_MAX: Nanos = Nanos::from_millis(500);

impl<S: Seam> Shard<S> {
    /// True if a write may enter the cache at once: dirty data stays below the soft limit, and no write queues.
    pub fn may_write_undelayed(&self, at: ByteOffset, len_bytes: usize) -> bool {
        let blocks = blocks_of(at, len_bytes as u64);
        let not_clean_units = self.state.borrow().not_clean_units() + BlockNo::count(&blocks);
        not_clean_units * 100 <= self.throttle.limit_blocks.get() * SOFT_LIMIT_PERCENT
            && self.throttle.next_ticket.get() == self.throttle.served_ticket.get()
    }

    /// Waits until `blocks` may become dirty.
    pub async fn wait_for_room(self: &ShardRef<S>, blocks: Range<BlockNo>) {
        let throttle = &self.throttle;
        let started_at = self.seam().now();
        self.refresh_throttle();
        let ticket = throttle.next_ticket.get();
        throttle.next_ticket.set(ticket + 1);
        // A write counts as at most half the limit, so that a larger one can enter without waiting until memory is
        // clean.
        let is_below_limit = |limit: u64| {
            let wanted = (BlockNo::count(&blocks)).min(limit.div_ceil(2));
            self.state.borrow().not_clean_units() + wanted <= limit
        };
        let ready =
            || (throttle.served_ticket.get() == ticket && is_below_limit(throttle.limit_blocks.get())).then_some(());
        if ready().is_none() {
            self.core.keep_ticking();
            self.destage_work.notify();
            self.progress.wait_for(ready).await;
        }
        throttle.served_ticket.set(ticket + 1);
        if throttle.next_ticket.get() > ticket + 1 {
            self.progress.notify();
        }
        self.delay_write(BlockNo::count(&blocks)).await;
        let waited = self.seam().now().since(started_at);
        if waited > Nanos::ZERO {
            self.counters.add(&self.counters.throttled_us, waited.as_micros());
        }
    }

    /// Delays a write of `block_count` blocks if dirty data is above the soft limit.
    async fn delay_write(&self, block_count: u64) {
        let throttle = &self.throttle;
        let (limit, not_clean_units) = (throttle.limit_blocks.get(), self.state.borrow().not_clean_units());
        let soft = limit * SOFT_LIMIT_PERCENT / 100;
        if not_clean_units <= soft || limit == soft || throttle.destage_unit_ns.get() == 0 {
            return;
        }
        // The spacing grows from zero at the soft limit to 1.5 times the time that destage takes at the limit.
        let spacing = throttle.destage_unit_ns.get().saturating_mul(block_count) * 3 * (not_clean_units - soft)
            / (2 * (limit - soft));
        let now = self.seam().now();
        let start = throttle.next_write_at.get().max(now).min(now + DELAY_MAX);
        throttle.next_write_at.set(start + Nanos(spacing));
        if start > now {
            self.seam().sleep_until(start).await;
        }
    }

    /// Waits until a buffer is free.
    pub async fn wait_for_buffer(&self) {
        while self.core.memory().borrow_mut().alloc().is_none() {
            self.core.wait_for_buffers().await;
        }
    }
}
