//! Eviction of pages: a CLOCK over the slots finds pages that no request has used recently. A slot is reused only when
//! its release is durable, so a few slots are kept free in advance.

use std::rc::Rc;

use seam::Seam;

use super::quota::{self, Evictability};
use super::segment_lending;
use crate::journal::{schedule_commit, start_commit};
use crate::page_map::table::{ADDING, SlotPhase};
use crate::page_map::{DropRecord, PageState};
use crate::state::Inner;

/// Maximum number of evictable pages that one eviction examines for uses.
const EXAMINED_PAGES_MAX: usize = 32;
/// Maximum number of slots that one eviction passes over.
const SCANNED_SLOTS_MAX: usize = 4 * EXAMINED_PAGES_MAX;
/// The same limit while volumes have quotas: protected pages may be contiguous.
const SCANNED_SLOTS_MAX_WITH_QUOTAS: usize = 128 * EXAMINED_PAGES_MAX;
/// Maximum number of slots that are kept free.
const FREE_SLOTS_MAX: usize = 2_048;
/// Number of attempts that evict pages without a search for a segment, after a search found none.
const GROWTH_SKIPS_MAX: u32 = 64;

/// The number of slots to keep free.
fn free_slots_target<S: Seam>(state: &PageState<S>) -> usize {
    (state.table.slot_count() / 128).clamp(1, FREE_SLOTS_MAX)
}

/// The number of slots that are free, or will be with the next commit.
fn free_soon_count<S: Seam>(state: &PageState<S>) -> usize {
    state.slot_lists.free.len() + state.slot_lists.dead.len() + state.slot_lists.implied_dead.len()
}

/// True unless the map is loaded and no slot is free or about to be.
pub fn may_have_free_slot<S: Seam>(state: &PageState<S>) -> bool {
    !state.is_ready()
        || state.is_growing
        || free_soon_count(state) > 0
        || state.journal.commits_begun > state.journal.commits_done
}

/// Evicts one page: the first one that is unused, or whose volume is above its maximum. Returns false if none is found.
fn evict_one<S: Seam>(state: &mut PageState<S>) -> bool {
    let (mut examined, mut scanned) = (0, 0);
    let scanned_max = if state.limits.is_empty() { SCANNED_SLOTS_MAX } else { SCANNED_SLOTS_MAX_WITH_QUOTAS };
    while examined < EXAMINED_PAGES_MAX && scanned < scanned_max && state.table.slot_count() > 0 {
        scanned += 1;
        state.clock_hand = state.table.next_slot(state.clock_hand);
        let slot = state.clock_hand;
        if !state.table.exists(slot) || state.table.phase(slot) != SlotPhase::Live || state.table.has_flag(slot, ADDING)
        {
            continue;
        }
        let evictability = quota::evictability(state, slot);
        if evictability == Evictability::Protected {
            continue;
        }
        examined += 1;
        if evictability == Evictability::Always || !state.table.decrement_uses(slot) {
            state.drop_page(slot, DropRecord::Own);
            state.counters.evictions += 1;
            return true;
        }
    }
    false
}

/// Keeps some slots free: adds a segment if one is available, otherwise evicts pages.
pub fn maintain_free_slots<S: Seam>(inner: &Rc<Inner<S>>) {
    let (must_grow, is_urgent) = {
        let mut guard = inner.pages.borrow_mut();
        let state = &mut *guard;
        if !state.is_ready() || state.table.slots_per_frame() == 0 {
            return;
        }
        quota::refresh_limits(inner, state);
        let target = free_slots_target(state);
        if free_soon_count(state) >= target {
            (false, state.slot_lists.free.len() < target.div_ceil(2))
        } else if state.growth_skips == 0 && segment_lending::can_grow(inner, state) {
            (!std::mem::replace(&mut state.is_growing, true), false)
        } else {
            // A search for a segment costs more than an eviction, so it is skipped most of the time.
            state.growth_skips = state.growth_skips.checked_sub(1).unwrap_or(GROWTH_SKIPS_MAX);
            while free_soon_count(state) < target && evict_one(state) {}
            (false, state.slot_lists.free.len() < target.div_ceil(2))
        }
    };
    if must_grow {
        let task = Rc::clone(inner);
        inner.seam.spawn(async move {
            segment_lending::grow(&task).await;
            task.pages.borrow_mut().is_growing = false;
        });
    }
    let releases_pending =
        !inner.pages.borrow().slot_lists.dead.is_empty() || !inner.pages.borrow().slot_lists.implied_dead.is_empty();
    if is_urgent && releases_pending { start_commit(inner) } else { schedule_commit(inner) }
}
