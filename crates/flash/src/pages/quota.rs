//! Quotas of pages: a volume's guaranteed minimum, its maximum, and its pinned pages. They are kept by volume and
//! looked up during eviction, so that a page costs no extra memory.

use seam::Seam;

use super::slot_room;
use crate::number::{PageNo, VolumeId};
use crate::page_map::quota::{PageLimits, PageQuota};
use crate::page_map::table::{ADDING, SlotId, SlotPhase, page_of};
use crate::page_map::{DropRecord, PageState};
use crate::state::Inner;

/// Maximum number of slots searched for a page of one volume, or for a page to evict for a volume below its minimum.
const SEARCHED_SLOTS_MAX: usize = 4_096;
/// 1/32 of the slots is never reserved for a volume, so that eviction is always possible.
const UNRESERVED_DIVISOR: u64 = 32;

/// The reason why a volume cannot get a quota, in pages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// The minimum is above the maximum.
    #[error(
        "the minimum, {min_pages} pages of 64 KiB, is above the maximum of {max_pages}; lower one or raise the other"
    )]
    MinAboveMax {
        /// The minimum.
        min_pages: u64,
        /// The maximum.
        max_pages: u64,
    },
    /// More pages are pinned than the maximum allows.
    #[error(
        "{pinned_pages} pages of 64 KiB would be pinned, and the volume may have {max_pages}; pin less or \
         raise flash_max"
    )]
    PinnedAboveMax {
        /// Pages that would be pinned.
        pinned_pages: u64,
        /// The maximum.
        max_pages: u64,
    },
    /// The devices have too few pages.
    #[error(
        "{wanted_pages} pages of 64 KiB are requested, and {left_pages} can still be reserved: the devices \
         hold {slots}, less the minima and pins of other volumes; request less, lower theirs, or add a device"
    )]
    NoRoom {
        /// Pages that would be reserved for the volume.
        wanted_pages: u64,
        /// Pages that can still be reserved.
        left_pages: u64,
        /// Maximum number of pages.
        slots: u64,
    },
}

/// Checks whether the volume can get this quota in addition to the quotas of other volumes.
pub fn check_quota<S: Seam>(
    inner: &Inner<S>,
    state: &PageState<S>,
    volume_id: VolumeId,
    quota: &PageQuota,
) -> Result<(), QuotaError> {
    let slots = slot_room::slots_max(inner, state) as u64;
    let (min_pages, pinned_pages) = (quota.min.pages_of(slots), quota.pinned_pages());
    if let Some(max_pages) = quota.max.map(|max| max.pages_of(slots)) {
        if min_pages > max_pages {
            return Err(QuotaError::MinAboveMax { min_pages, max_pages });
        }
        if pinned_pages > max_pages {
            return Err(QuotaError::PinnedAboveMax { pinned_pages, max_pages });
        }
    }
    let others = state.quotas.iter().filter(|(other, _)| **other != volume_id);
    let reserved_by_others: u64 = others.map(|(_, quota)| quota.reserved_pages(slots)).sum();
    let (wanted_pages, left_pages) =
        (quota.reserved_pages(slots), (slots - slots / UNRESERVED_DIVISOR).saturating_sub(reserved_by_others));
    if wanted_pages > left_pages && wanted_pages > 0 {
        return Err(QuotaError::NoRoom { wanted_pages, left_pages, slots });
    }
    Ok(())
}

/// Recomputes the quotas in pages, if the number of slots or volumes has changed, or if that was requested. If the
/// minima exceed the room, all are reduced in proportion.
pub fn refresh_limits<S: Seam>(inner: &Inner<S>, state: &mut PageState<S>) {
    if state.quotas.is_empty() && state.limits.is_empty() {
        return;
    }
    let slots = slot_room::slots_max(inner, state) as u64;
    let inputs = Some((slots, state.volume_numbers.len()));
    if state.limits_valid_for == inputs {
        return;
    }
    state.limits_valid_for = inputs;
    let sum: u64 = state.quotas.values().map(|quota| quota.min.pages_of(slots)).sum();
    let room = slots - slots / UNRESERVED_DIVISOR;
    let before = std::mem::take(&mut state.limits);
    for (volume_id, quota) in &state.quotas {
        let Some(number) = state.volume_numbers.get(volume_id) else { continue };
        let min = quota.min.pages_of(slots);
        let min = if sum > room { (u128::from(min) * u128::from(room) / u128::from(sum)) as u64 } else { min };
        let max = quota.max.map_or(u64::MAX, |max| max.pages_of(slots));
        let hand = before.get(number).map_or(0, |limits| limits.clock_hand);
        state
            .limits
            .insert(*number, PageLimits { min_pages: min, max_pages: max, quota: quota.clone(), clock_hand: hand });
    }
}

/// Whether a page may be evicted when room is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evictability {
    /// It is not evicted: it is pinned, or its volume is at or below its minimum.
    Protected,
    /// It is evicted, used or not: its volume is above its maximum.
    Always,
    /// It is evicted if it was not used.
    IfUnused,
}

/// Whether the page in a slot may be evicted.
pub fn evictability<S: Seam>(state: &PageState<S>, slot: SlotId) -> Evictability {
    if state.limits.is_empty() {
        return Evictability::IfUnused;
    }
    let (number, page) = page_of(state.table.key(slot));
    let Some(limits) = state.limits.get(&number) else { return Evictability::IfUnused };
    let pages = state.table.pages_of(number);
    if limits.quota.is_pinned(page) {
        Evictability::Protected
    } else if pages > limits.max_pages {
        Evictability::Always
    } else if pages <= limits.min_pages {
        Evictability::Protected
    } else {
        Evictability::IfUnused
    }
}

/// True when the volume is entitled to room for this page: it is below its minimum, or the page is pinned.
pub fn is_entitled<S: Seam>(state: &PageState<S>, volume_id: VolumeId, page: PageNo) -> bool {
    let limits = state.volume_numbers.get(&volume_id).and_then(|number| Some((number, state.limits.get(number)?)));
    limits.is_some_and(|(number, limits)| {
        limits.quota.is_pinned(page) || state.table.pages_of(*number) < limits.min_pages
    })
}

/// Evicts one page that is not guaranteed, used or not, for a volume that is entitled to room.
pub fn evict_for_entitled<S: Seam>(state: &mut PageState<S>) {
    for _ in 0..SEARCHED_SLOTS_MAX.min(state.table.slot_count()) {
        state.clock_hand = state.table.next_slot(state.clock_hand);
        let slot = state.clock_hand;
        if holds_page(state, slot) && evictability(state, slot) != Evictability::Protected {
            state.drop_page(slot, DropRecord::Own);
            state.counters.evictions += 1;
            return;
        }
    }
}

/// Makes room for one more page within the volume's maximum: at the maximum it evicts the volume's first unused page in
/// CLOCK order. Returns false if it finds none.
pub fn make_room_within_quota<S: Seam>(state: &mut PageState<S>, volume_number: u16) -> bool {
    let Some(limits) = state.limits.get(&volume_number) else { return true };
    let (max, mut hand) = (limits.max_pages, limits.clock_hand);
    let is_being_written = |slot: &&SlotId| {
        state.table.phase(**slot) == SlotPhase::Writing && page_of(state.table.key(**slot)).0 == volume_number
    };
    let being_written = state.pending_puts.keys().filter(is_being_written).count() as u64;
    if max == 0 {
        return false;
    }
    let steps = SEARCHED_SLOTS_MAX.min(state.table.slot_count() * 4);
    for _ in 0..steps {
        if state.table.pages_of(volume_number) + being_written < max {
            break;
        }
        hand = state.table.next_slot(hand);
        let is_own = holds_page(state, hand) && page_of(state.table.key(hand)).0 == volume_number;
        let is_pinned = || state.limits[&volume_number].quota.is_pinned(page_of(state.table.key(hand)).1);
        if is_own && !is_pinned() && !state.table.decrement_uses(hand) {
            state.drop_page(hand, DropRecord::Own);
            state.counters.evictions += 1;
        }
    }
    state.limits.get_mut(&volume_number).expect("the volume has a quota").clock_hand = hand;
    state.table.pages_of(volume_number) + being_written < max
}

/// True when the slot holds a page without an addition in progress.
fn holds_page<S: Seam>(state: &PageState<S>, slot: SlotId) -> bool {
    state.table.exists(slot) && state.table.phase(slot) == SlotPhase::Live && !state.table.has_flag(slot, ADDING)
}
