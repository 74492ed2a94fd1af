//! Retirement of log records: the log may reuse the space of records that something newer replaces (R7, docs/rules.md).

use flash::Store;
use seam::Seam;

use super::Shard;

/// Records of zero-ranges that are examined whenever records are retired.
const EXAMINED_ZERO_RECORDS_MAX: usize = 64;

impl<S: Seam> Shard<S> {
    /// The log; `None` for an abandoned volume, whose flush in progress has a stale view of the backing.
    pub fn store(&self) -> Option<Store<S>> {
        self.core.log().filter(|_| !self.is_abandoned.get())
    }

    /// Retires the records of zero-ranges whose blocks are durable on the backing, also those that a flush has yet to
    /// replace, and all records that newer content has replaced.
    pub fn retire_durable_zero_records(&self) {
        self.with_state(|state, memory| state.retire_durable_zeroes(memory, self.volume_number));
        self.retire_records();
    }

    /// Keeps the records that are to be retired and whose content is still the newest.
    pub fn keep_records(&self) {
        let keepable = self.state.borrow_mut().log_tracker.take_keepable_records();
        if self.keeps_records() {
            let mut kept = self.kept_records.borrow_mut();
            let accepted = keepable.into_iter().take_while(|_| self.core.reserve_kept_record());
            accepted.for_each(|(block, position)| kept.insert(block, position));
        }
    }

    /// Retires the records that newer content has replaced.
    pub fn retire_records(&self) {
        self.keep_records();
        let retired = {
            let mut state = self.state.borrow_mut();
            state.retire_zeroes(EXAMINED_ZERO_RECORDS_MAX);
            state.log_tracker.take_retirable_positions()
        };
        if let Some(store) = self.store().filter(|_| !retired.is_empty()) {
            store.retire(&retired);
        }
    }
}
