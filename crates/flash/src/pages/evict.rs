//! Room for pages: a clock over the slots finds what nobody has used for a while. A slot is given away when it is durable that nothing
//! speaks of it, so a few are kept free ahead.

use std::rc::Rc;

use seam::Seam;

use super::quota::{self, Fate};
use super::share;
use super::state::PageState;
use super::table::{ADDING, Phase};
use crate::journal::{write_now, write_soon};
use crate::store::Inner;

/// Pages that are looked at for one that may go.
const LOOK: usize = 32;
/// Slots that are passed over for that.
const PASS: usize = 4 * LOOK;
/// The same where volumes are promised pages, which may lie together.
const PASS_PROMISED: usize = 128 * LOOK;
/// Free slots that are kept, at most.
const FREE_MAX: usize = 2_048;
/// So many times after no segment was to be had none is asked for.
const FULL_LOOKS: u32 = 64;

/// Free slots that are kept.
fn target<S: Seam>(state: &PageState<S>) -> usize {
    (state.table.slots() / 128).clamp(1, FREE_MAX)
}

/// Slots that are free, or will be with the next commit.
fn coming<S: Seam>(state: &PageState<S>) -> usize {
    state.free.len() + state.dead.len() + state.gone.len()
}

/// True when slots are free or will be soon, or the map is not there yet.
pub fn is_coming<S: Seam>(state: &PageState<S>) -> bool {
    !state.is_ready() || state.keeping || coming(state) > 0 || state.journal.begun > state.journal.done
}

/// Lets one page go, the first that the clock finds unused.
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

/// Sees to it that some slots are free: from segments that nobody needs, else from pages that nobody uses.
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
            // Looking for segments costs more than looking for pages.
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
