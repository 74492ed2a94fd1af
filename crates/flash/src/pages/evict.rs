//! Eviction of pages: a clock over the slots finds pages that no request has used recently. A slot is reused only when
//! its release is durable, so a few slots are kept free in advance.

use std::rc::Rc;

use seam::Seam;

use super::quota::{self, Fate};
use super::share;
use super::state::PageState;
use super::table::{ADDING, Phase};
use crate::journal::{write_now, write_soon};
use crate::store::Inner;

/// The most pages that one eviction examines.
const LOOK: usize = 32;
/// The most slots that one eviction passes over.
const PASS: usize = 4 * LOOK;
/// The same limit while volumes have promised pages, which may lie together.
const PASS_PROMISED: usize = 128 * LOOK;
/// The most slots that are kept free.
const FREE_MAX: usize = 2_048;
/// After segments were unavailable, this many attempts evict pages without asking for a segment.
const FULL_LOOKS: u32 = 64;

/// The number of slots to keep free.
fn target<S: Seam>(state: &PageState<S>) -> usize {
    (state.table.slots() / 128).clamp(1, FREE_MAX)
}

/// The number of slots that are free, or will be with the next commit.
fn coming<S: Seam>(state: &PageState<S>) -> usize {
    state.free.len() + state.dead.len() + state.gone.len()
}

/// True when slots are free or will be soon, or the map is not loaded.
pub fn is_coming<S: Seam>(state: &PageState<S>) -> bool {
    !state.is_ready() || state.keeping || coming(state) > 0 || state.journal.begun > state.journal.done
}

/// Evicts one page: the first that the clock finds unused, or that its volume has above its maximum.
fn evict<S: Seam>(state: &mut PageState<S>) -> bool {
    let (mut looked, mut steps) = (0, 0);
    let most = if state.limits.is_empty() { PASS } else { PASS_PROMISED };
    while looked < LOOK && steps < most && state.table.slots() > 0 {
        steps += 1;
        state.hand = state.table.after(state.hand);
        let slot = state.hand;
        if !state.table.exists(slot) || state.table.phase(slot) != Phase::Live || state.table.has(slot, ADDING) {
            continue;
        }
        let fate = quota::fate(state, slot);
        if fate == Fate::Stays {
            continue;
        }
        looked += 1;
        if fate == Fate::GoesFirst || !state.table.cool(slot) {
            state.kill(slot, false);
            state.counts.evictions += 1;
            return true;
        }
    }
    false
}

/// Keeps some slots free: by another segment if one is available, otherwise by evicting pages.
pub fn keep<S: Seam>(inner: &Rc<Inner<S>>) {
    let (grow, urgent) = {
        let mut guard = inner.pages.borrow_mut();
        let state = &mut *guard;
        if !state.is_ready() || state.table.per_frame() == 0 {
            return;
        }
        quota::refresh(inner, state);
        let target = target(state);
        if coming(state) >= target {
            (false, state.free.len() < target.div_ceil(2))
        } else if state.full == 0 && share::can_grow(inner, state) {
            (!std::mem::replace(&mut state.keeping, true), false)
        } else {
            // Looking for segments costs more than looking for pages, so it is not repeated each time.
            state.full = state.full.checked_sub(1).unwrap_or(FULL_LOOKS);
            while coming(state) < target && evict(state) {}
            (false, state.free.len() < target.div_ceil(2))
        }
    };
    if grow {
        let task = Rc::clone(inner);
        inner.seam.spawn(async move {
            share::grow(&task).await;
            task.pages.borrow_mut().keeping = false;
        });
    }
    let waits = !inner.pages.borrow().dead.is_empty() || !inner.pages.borrow().gone.is_empty();
    if urgent && waits { write_now(inner) } else { write_soon(inner) }
}
