//! The write-intent log (R8, docs/rules.md). A write to a backing, whatever its cause, is issued only when its region
//! is durably dirty, or the durable map lists none of its blocks. After a crash during the write, every page that may
//! differ from the backing is therefore suspect.

use std::ops::Range;
use std::rc::Rc;

use seam::{Nanos, Seam};

use super::api::WriteIntent;
use crate::journal::{start_commit, wait_durable};
use crate::number::{BlockNo, CompletionNo, VolumeId};
use crate::page_map::MapPhase;
use crate::page_map::dirty_regions::{DIRTY_REGIONS_HIGH_WATERMARK, DIRTY_REGIONS_MAX, REGION_BLOCKS, Region};
use crate::sabotage::Sabotage;
use crate::state::Inner;
use task_sync::Reply;

/// Maximum number of regions that one write marks. A write to more regions marks none of them, and waits until the
/// invalidation of its blocks is durable.
const MARKED_REGIONS_MAX: u64 = 16;
/// Settled regions are cleared after this time without a write.
const IDLE_DELAY: Nanos = Nanos::from_secs(5);

/// Waits until the map is loaded, or unusable.
pub async fn wait_loaded<S: Seam>(inner: &Rc<Inner<S>>) {
    loop {
        let reply = {
            let mut state = inner.pages.borrow_mut();
            if !matches!(state.phase, MapPhase::Unloaded | MapPhase::Loading) {
                return;
            }
            let reply = Reply::default();
            state.waiters.push(reply.clone());
            reply
        };
        reply.wait().await;
    }
}

/// Waits until the map is loaded, if loading has begun.
pub async fn wait_loaded_if_begun<S: Seam>(inner: &Rc<Inner<S>>) {
    if inner.pages.borrow().phase == MapPhase::Loading {
        wait_loaded(inner).await;
    }
}

/// Waits until the owner has recorded that the map is abandoned.
async fn wait_abandoned<S: Seam>(inner: &Rc<Inner<S>>) {
    loop {
        let reply = {
            let mut state = inner.pages.borrow_mut();
            if state.is_abandonment_recorded {
                return;
            }
            let reply = Reply::default();
            state.waiters.push(reply.clone());
            reply
        };
        reply.wait().await;
    }
}

/// Begins a write: invalidates its blocks, and marks its regions durably.
pub async fn begin_write<S: Seam>(inner: &Rc<Inner<S>>, volume_id: VolumeId, blocks: Range<BlockNo>) -> WriteIntent {
    inner.pages.borrow_mut().invalidate(volume_id, blocks.clone());
    wait_loaded(inner).await;
    let (intent, durable) = mark_regions(inner, volume_id, &blocks);
    if !durable && inner.sabotage.is(Sabotage::WriteBeforeMark) {
        start_commit(inner);
    } else if !durable && !wait_durable(inner).await {
        wait_abandoned(inner).await;
    }
    intent
}

/// Marks the write's regions dirty where that is needed. Returns true when they are already durably dirty, or need not
/// be.
fn mark_regions<S: Seam>(inner: &Inner<S>, volume_id: VolumeId, blocks: &Range<BlockNo>) -> (WriteIntent, bool) {
    let unmarked = WriteIntent { regions: Vec::new() };
    let mut guard = inner.pages.borrow_mut();
    let state = &mut *guard;
    if !state.is_ready() {
        return (unmarked, state.is_abandonment_recorded);
    }
    // The durable map may still list slots that were removed in memory, and they may have held these blocks. Then the
    // write waits for the next commit.
    let may_be_listed = state.has_removed_slots();
    let Some(number) = state.volume_numbers.get(&volume_id).copied() else { return (unmarked, !may_be_listed) };
    if blocks.is_empty() || !state.may_be_durable(number, blocks) {
        return (unmarked, blocks.is_empty() || !may_be_listed);
    }
    let removed = state.recent_writes.remove(number, blocks.clone());
    state.journal.pending_records.extend(removed);
    let regions = blocks.start.0 / REGION_BLOCKS..blocks.end.0.div_ceil(REGION_BLOCKS);
    let count = regions.end - regions.start;
    if count > MARKED_REGIONS_MAX || state.dirty_regions.len() as u64 + count > DIRTY_REGIONS_MAX as u64 {
        return (unmarked, false);
    }
    let (mut marked, mut durable) = (Vec::new(), true);
    for region in regions.map(|index| Region { volume_number: number, index }) {
        let (period, record) = state.dirty_regions.begin_write(region);
        state.journal.pending_records.extend(record);
        durable &= state.dirty_regions.is_durable(region);
        marked.push((region, period));
    }
    (WriteIntent { regions: marked }, durable)
}

/// Ends a write; `completion` is its number in the volume's order of completed writes.
pub fn end_write<S: Seam>(inner: &Rc<Inner<S>>, intent: WriteIntent, completion: CompletionNo) {
    let mut state = inner.pages.borrow_mut();
    intent.regions.into_iter().for_each(|(region, period)| state.dirty_regions.end_write(region, period, completion));
}

/// Records a successful flush of the backing.
pub fn record_flush<S: Seam>(inner: &Rc<Inner<S>>, volume_id: VolumeId, covered: CompletionNo) {
    {
        let mut state = inner.pages.borrow_mut();
        let Some(number) = state.volume_numbers.get(&volume_id).copied() else { return };
        state.dirty_regions.record_flush(number, covered);
    }
    schedule_clearing(inner);
}

/// True when the write-intent log is nearly full and a flush of the backing would let regions be cleared.
pub fn wants_flush<S: Seam>(inner: &Inner<S>, volume_id: VolumeId) -> bool {
    let state = inner.pages.borrow();
    let Some(number) = state.volume_numbers.get(&volume_id) else { return false };
    state.dirty_regions.len() >= DIRTY_REGIONS_HIGH_WATERMARK && state.dirty_regions.awaits_flush(*number)
}

/// Clears settled regions once no write has begun for [`IDLE_DELAY`].
pub fn schedule_clearing<S: Seam>(inner: &Rc<Inner<S>>) {
    let writes = {
        let mut state = inner.pages.borrow_mut();
        if !state.is_ready()
            || !state.dirty_regions.has_settled()
            || std::mem::replace(&mut state.is_idle_timer_set, true)
        {
            return;
        }
        state.dirty_regions.write_count()
    };
    let (seam, weak) = (inner.seam.clone(), Rc::downgrade(inner));
    inner.seam.spawn(async move {
        seam.sleep(IDLE_DELAY).await;
        let Some(inner) = weak.upgrade() else { return };
        let is_idle = {
            let mut state = inner.pages.borrow_mut();
            state.is_idle_timer_set = false;
            let is_idle = state.is_ready() && state.dirty_regions.write_count() == writes;
            state.should_clear_all_settled |= is_idle;
            is_idle
        };
        if is_idle { start_commit(&inner) } else { schedule_clearing(&inner) }
    });
}
