//! Retired records. A record keeps its segment in use until the map journal durably lists the blocks destaged before
//! its retirement as recent writes. Otherwise neither the log nor the journal would prove, after a crash, that the
//! backing has the content of the record.

use std::rc::Rc;

use seam::Seam;

use crate::journal::{start_commit, wait_durable};
use crate::page_map::PageState;
use crate::record::Position;
use crate::state::Inner;
use crate::state::retirements::release;

/// The number of the commit that makes all recent writes durable; 0 for an unusable or unloaded map, which has none.
fn awaited_commit<S: Seam>(pages: &PageState<S>) -> u64 {
    match pages.is_ready() {
        true if pages.recent_writes.pending_count() > 0 => pages.journal.commits_begun + 1,
        true => pages.journal.commits_begun,
        false => 0,
    }
}

/// Retires these positions.
pub fn retire<S: Seam>(inner: &Rc<Inner<S>>, positions: &[Position]) {
    let live: Vec<Position> = positions.iter().copied().filter(|position| position.is_live).collect();
    let commit = awaited_commit(&inner.pages.borrow());
    inner.state.borrow_mut().retirements.push(commit, live);
    release(inner);
    let is_urgent = {
        let state = inner.state.borrow();
        // A log with plenty of space can wait for the next regular commit. Lent segments do not count.
        let log_segments = state.superblock.log_segment_count as usize - state.segments.lent_segments().len();
        !state.retirements.is_empty() && state.segments.writable_count() * 4 < log_segments
    };
    if is_urgent {
        start_commit(inner);
    }
}

/// Waits until all records that are retired now are released. Returns false if there are none, or if the wait could be
/// long: a commit of the map journal may wait for the state directory.
pub async fn release_all<S: Seam>(inner: &Rc<Inner<S>>) -> bool {
    {
        let state = inner.state.borrow();
        if state.retirements.is_empty() || state.unrecorded_reason.is_some() {
            return false;
        }
    }
    // If the commit fails, the map is unusable and has no recent writes, so the records can be released, too.
    wait_durable(inner).await;
    release(inner);
    true
}
