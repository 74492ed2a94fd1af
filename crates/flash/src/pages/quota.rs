//! Quotas of pages: a volume's guaranteed minimum, its maximum, and its pinned pages. They are kept by volume and
//! looked up during eviction, so that a page costs no extra memory.

use std::ops::Range;

use seam::Seam;

use super::share;
use super::state::PageState;
use super::table::{ADDING, Phase, SlotId, page_of};
use crate::number::{PageNo, VolumeId};
use crate::store::Inner;

/// The most slots that are searched for one volume's page, or for a page to evict for a volume below its minimum.
const LOOK_MAX: usize = 4_096;
/// One of this many slots stays unpromised, so that eviction is always possible.
const UNPROMISED_PART: u64 = 32;

/// A number of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Amount {
    /// This many pages.
    Pages(u64),
    /// Thousandths of the most pages that are possible.
    PerMille(u32),
}

impl Amount {
    /// The number of pages, if `slots` are possible.
    pub fn of(self, slots: u64) -> u64 {
        match self {
            Amount::Pages(pages) => pages,
            Amount::PerMille(part) => (u128::from(slots) * u128::from(part) / 1000) as u64,
        }
    }
}

/// A volume's quota of pages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PageShare {
    /// While the volume has at most this many pages, none of them is evicted for others.
    pub min: Amount,
    /// At this many pages, a new one replaces one of the volume's own.
    pub max: Option<Amount>,
    /// Pages that are not evicted once they are present: sorted, disjoint ranges.
    pub pinned: Vec<Range<PageNo>>,
}

impl Default for PageShare {
    fn default() -> Self {
        PageShare { min: Amount::Pages(0), max: None, pinned: Vec::new() }
    }
}

impl PageShare {
    /// The number of pinned pages.
    pub fn pinned_pages(&self) -> u64 {
        self.pinned.iter().map(PageNo::count).sum()
    }

    /// True when this page is pinned.
    pub fn pins(&self, page: PageNo) -> bool {
        let at = self.pinned.partition_point(|range| range.end <= page);
        self.pinned.get(at).is_some_and(|range| range.contains(&page))
    }

    fn promised(&self, slots: u64) -> u64 {
        self.min.of(slots).max(self.pinned_pages())
    }
}

/// The reason why a volume cannot be promised a quota, in pages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
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
        "{wanted_pages} pages of 64 KiB are asked for, and {left_pages} can still be promised: the devices \
         hold {slots}, and other volumes' minima and pins count; ask for less, lower theirs, or add a device"
    )]
    NoRoom {
        /// Pages that the volume would be promised.
        wanted_pages: u64,
        /// Pages that can still be promised.
        left_pages: u64,
        /// The most pages that are possible.
        slots: u64,
    },
}

/// A quota in pages of the current devices, and the volume's own clock hand.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    min: u64,
    max: u64,
    share: PageShare,
    hand: SlotId,
}

/// Checks whether the volume can be promised this quota beside the others.
pub fn check<S: Seam>(
    inner: &Inner<S>,
    state: &PageState<S>,
    incarnation: VolumeId,
    share: &PageShare,
) -> Result<(), ShareError> {
    let slots = share::slots_max(inner, state) as u64;
    let (min_pages, pinned_pages) = (share.min.of(slots), share.pinned_pages());
    if let Some(max_pages) = share.max.map(|max| max.of(slots)) {
        if min_pages > max_pages {
            return Err(ShareError::MinAboveMax { min_pages, max_pages });
        }
        if pinned_pages > max_pages {
            return Err(ShareError::PinnedAboveMax { pinned_pages, max_pages });
        }
    }
    let others = state.shares.iter().filter(|(other, _)| **other != incarnation);
    let promised: u64 = others.map(|(_, share)| share.promised(slots)).sum();
    let (wanted_pages, left_pages) =
        (share.promised(slots), (slots - slots / UNPROMISED_PART).saturating_sub(promised));
    if wanted_pages > left_pages && wanted_pages > 0 {
        return Err(ShareError::NoRoom { wanted_pages, left_pages, slots });
    }
    Ok(())
}

/// Recomputes the quotas in pages, if the number of slots or volumes has changed. If the minima exceed the room, all
/// are reduced in proportion.
pub fn refresh<S: Seam>(inner: &Inner<S>, state: &mut PageState<S>) {
    if state.shares.is_empty() && state.limits.is_empty() {
        return;
    }
    let slots = share::slots_max(inner, state) as u64;
    let now = Some((slots, state.numbers.len()));
    if state.limits_of == now {
        return;
    }
    state.limits_of = now;
    let sum: u64 = state.shares.values().map(|share| share.min.of(slots)).sum();
    let room = slots - slots / UNPROMISED_PART;
    let before = std::mem::take(&mut state.limits);
    for (incarnation, share) in &state.shares {
        let Some(number) = state.numbers.get(incarnation) else { continue };
        let min = share.min.of(slots);
        let min = if sum > room { (u128::from(min) * u128::from(room) / u128::from(sum)) as u64 } else { min };
        let max = share.max.map_or(u64::MAX, |max| max.of(slots));
        let hand = before.get(number).map_or(0, |limits| limits.hand);
        state.limits.insert(*number, Limits { min, max, share: share.clone(), hand });
    }
}

/// The fate of a page when room is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It stays.
    Stays,
    /// It is evicted, used or not: its volume is above its maximum.
    GoesFirst,
    /// It is evicted if it was not used.
    MayGo,
}

/// The fate of the page in a slot.
pub fn fate<S: Seam>(state: &PageState<S>, slot: SlotId) -> Fate {
    if state.limits.is_empty() {
        return Fate::MayGo;
    }
    let (number, page) = page_of(state.table.key(slot));
    let Some(limits) = state.limits.get(&number) else { return Fate::MayGo };
    let pages = state.table.pages_of(number);
    match () {
        () if limits.share.pins(page) => Fate::Stays,
        () if pages > limits.max => Fate::GoesFirst,
        () if pages <= limits.min => Fate::Stays,
        () => Fate::MayGo,
    }
}

/// True when the volume is entitled to room for this page: it is below its minimum, or the page is pinned.
pub fn is_owed<S: Seam>(state: &PageState<S>, incarnation: VolumeId, page: PageNo) -> bool {
    let limits = state.numbers.get(&incarnation).and_then(|number| Some((number, state.limits.get(number)?)));
    limits.is_some_and(|(number, limits)| limits.share.pins(page) || state.table.pages_of(*number) < limits.min)
}

/// Evicts one page that is not guaranteed, used or not, for a volume that is entitled to room.
pub fn make_way<S: Seam>(state: &mut PageState<S>) {
    for _ in 0..LOOK_MAX.min(state.table.slots()) {
        state.hand = state.table.after(state.hand);
        let slot = state.hand;
        if is_page(state, slot) && fate(state, slot) != Fate::Stays {
            state.kill(slot, false);
            state.counts.evictions += 1;
            return;
        }
    }
}

/// Makes room for one more page within the volume's maximum: at the maximum it evicts the volume's first page that the
/// clock finds unused. Returns false if it finds none.
pub fn room_for_one<S: Seam>(state: &mut PageState<S>, number: u16) -> bool {
    let Some(limits) = state.limits.get(&number) else { return true };
    let (max, mut hand) = (limits.max, limits.hand);
    let coming =
        |slot: &&SlotId| state.table.phase(**slot) == Phase::Writing && page_of(state.table.key(**slot)).0 == number;
    let coming = state.putting.keys().filter(coming).count() as u64;
    if max == 0 {
        return false;
    }
    let steps = LOOK_MAX.min(state.table.slots() * 4);
    for _ in 0..steps {
        if state.table.pages_of(number) + coming < max {
            break;
        }
        hand = state.table.after(hand);
        let own = is_page(state, hand) && page_of(state.table.key(hand)).0 == number;
        let pinned = || state.limits[&number].share.pins(page_of(state.table.key(hand)).1);
        if own && !pinned() && !state.table.cool(hand) {
            state.kill(hand, false);
            state.counts.evictions += 1;
        }
    }
    state.limits.get_mut(&number).expect("just looked at").hand = hand;
    state.table.pages_of(number) + coming < max
}

fn is_page<S: Seam>(state: &PageState<S>, slot: SlotId) -> bool {
    state.table.exists(slot) && state.table.phase(slot) == Phase::Live && !state.table.has(slot, ADDING)
}
