//! The map journal (R9, docs/rules.md): the slots of clean pages, and the dirty regions, as records of the full state
//! of a slot or region, not of changes.
//!
//! The journal has two halves that alternate. Each begins with a checkpoint of the whole map, followed by later
//! changes. When a half is nearly full, the other one gets a checkpoint while commits go into both. A half becomes
//! valid for loading with the commit that completes its checkpoint; until then a load uses the older half. One commit
//! takes all pending records: page data is flushed, then the records are written to every log member and flushed there.
//!
//! `format/journal.rs` has the record formats, `page_map/` the state; `commit.rs` writes, `load.rs` reads back.

pub mod checkpoint;
pub mod commit;
pub mod load;
mod map_replay;

use std::rc::Rc;

use seam::{Nanos, Seam};

use crate::state::Inner;

/// Maximum delay of records that no caller waits for.
const LAZY_COMMIT_DELAY: Nanos = Nanos::from_secs(1);
/// Number of slots with pending records from which on a commit starts without a delay.
pub const PENDING_SLOTS_HIGH_WATERMARK: usize = 1_024;
/// Spare buffers of the journal, so that an exhausted pool blocks no commit: destage waits for commits.
pub const SPARE_BUFFERS: usize = 4;

/// Starts a commit of all pending records.
pub fn start_commit<S: Seam>(inner: &Rc<Inner<S>>) {
    let starts_task = {
        let mut state = inner.pages.borrow_mut();
        state.journal.is_urgent = true;
        state.is_ready() && !std::mem::replace(&mut state.journal.is_running, true)
    };
    if starts_task {
        inner.seam.spawn(commit::run(Rc::clone(inner)));
    }
}

/// Schedules a commit of the pending records within a second, or at once if there are many.
pub fn schedule_commit<S: Seam>(inner: &Rc<Inner<S>>) {
    let (is_many, set_timer) = {
        let mut state = inner.pages.borrow_mut();
        let idle = !state.is_ready() || (!state.has_pending() && !state.dirty_regions.has_settled());
        if idle {
            return;
        }
        let is_many = state.slot_lists.unrecorded.len() + state.slot_lists.dead.len() >= PENDING_SLOTS_HIGH_WATERMARK;
        (is_many, !is_many && !std::mem::replace(&mut state.journal.is_timer_set, true))
    };
    if is_many {
        return start_commit(inner);
    }
    if set_timer {
        let (seam, weak) = (inner.seam.clone(), Rc::downgrade(inner));
        inner.seam.spawn(async move {
            seam.sleep(LAZY_COMMIT_DELAY).await;
            let Some(inner) = weak.upgrade() else { return };
            inner.pages.borrow_mut().journal.is_timer_set = false;
            if inner.pages.borrow().has_pending() {
                start_commit(&inner);
            }
        });
    }
}

/// Waits until all records that are pending now are durable. Returns false if the map is unusable, so they never become
/// durable.
pub async fn wait_durable<S: Seam>(inner: &Rc<Inner<S>>) -> bool {
    let reply = {
        let mut state = inner.pages.borrow_mut();
        if !state.is_ready() {
            return false;
        }
        state.journal.register_commit_wait()
    };
    start_commit(inner);
    reply.wait().await
}
