//! The write-intent log (R8): writes to a backing, for every cause. Before a write is issued, either its region is
//! durably dirty, or it is durable that the map has none of its blocks. A crash during the write then leaves no trusted
//! page that differs from the backing.

use std::ops::Range;
use std::rc::Rc;

use seam::{Nanos, Seam};

use super::api::{REGION_BLOCKS, WriteMark};
use super::state::MapPhase;
use crate::journal::marks::{MARKS_MANY, MARKS_MAX, Region};
use crate::journal::{wait_durable, write_now};
use crate::number::{BlockNo, CompletionNo, VolumeId};
use crate::store::{Inner, Sabotage};
use crate::wait::Answer;

/// A write to more regions marks none of them. It waits until the invalidation of its blocks is durable.
const REGIONS_MAX: u64 = 16;
/// Marks are removed after this time without a write.
const IDLE: Nanos = Nanos::from_secs(5);

/// Waits until the map is loaded, or void.
pub async fn loaded<S: Seam>(inner: &Rc<Inner<S>>) {
    loop {
        let answer = {
            let mut state = inner.pages.borrow_mut();
            if !matches!(state.phase, MapPhase::Unloaded | MapPhase::Loading) {
                return;
            }
            let answer = Answer::default();
            state.waiting.push(answer.clone());
            answer
        };
        answer.wait().await;
    }
}

/// Waits until the map is loaded, if loading has begun.
pub async fn loaded_if_begun<S: Seam>(inner: &Rc<Inner<S>>) {
    if inner.pages.borrow().phase == MapPhase::Loading {
        loaded(inner).await;
    }
}

/// Waits until the owner has noted that the map is void.
async fn abandoned<S: Seam>(inner: &Rc<Inner<S>>) {
    loop {
        let answer = {
            let mut state = inner.pages.borrow_mut();
            if state.abandoned {
                return;
            }
            let answer = Answer::default();
            state.waiting.push(answer.clone());
            answer
        };
        answer.wait().await;
    }
}

/// Begins a write: invalidates its blocks, and marks its regions durably.
pub async fn begin_write<S: Seam>(inner: &Rc<Inner<S>>, incarnation: VolumeId, blocks: Range<BlockNo>) -> WriteMark {
    inner.pages.borrow_mut().invalidate(incarnation, blocks.clone());
    loaded(inner).await;
    let (mark, durable) = mark(inner, incarnation, &blocks);
    if !durable && inner.sabotage.is(Sabotage::WriteBeforeMark) {
        write_now(inner);
    } else if !durable && !wait_durable(inner).await {
        abandoned(inner).await;
    }
    mark
}

/// Marks the regions that need a mark. Returns true when the mark is already durable, or not needed.
fn mark<S: Seam>(inner: &Inner<S>, incarnation: VolumeId, blocks: &Range<BlockNo>) -> (WriteMark, bool) {
    let none = WriteMark { marks: Vec::new() };
    let mut guard = inner.pages.borrow_mut();
    let state = &mut *guard;
    if !state.is_ready() {
        return (none, state.abandoned);
    }
    let Some(number) = state.numbers.get(&incarnation).copied() else { return (none, true) };
    if blocks.is_empty() || !state.may_be_durable(number, blocks) {
        return (none, true);
    }
    let undestaged = state.rings.remove(number, blocks.clone());
    state.journal.events.extend(undestaged);
    let regions = blocks.start.0 / REGION_BLOCKS..blocks.end.0.div_ceil(REGION_BLOCKS);
    let count = regions.end - regions.start;
    if count > REGIONS_MAX || state.marks.len() as u64 + count > MARKS_MAX as u64 {
        return (none, false);
    }
    let (mut marks, mut durable) = (Vec::new(), true);
    for region in regions.map(|region| (number, region)) {
        let (mark, record) = state.marks.begin(region);
        state.journal.events.extend(record);
        durable &= state.marks.is_durable(region);
        marks.push((region, mark));
    }
    (WriteMark { marks }, durable)
}

/// Ends a write.
pub fn end_write<S: Seam>(inner: &Rc<Inner<S>>, mark: WriteMark, sequence: CompletionNo) {
    let mut state = inner.pages.borrow_mut();
    let ended: Vec<(Region, u64)> = mark.marks;
    ended.into_iter().for_each(|(region, number)| state.marks.end(region, number, sequence));
}

/// Notes a successful flush of the backing.
pub fn flushed<S: Seam>(inner: &Rc<Inner<S>>, incarnation: VolumeId, covered: CompletionNo) {
    {
        let mut state = inner.pages.borrow_mut();
        let Some(number) = state.numbers.get(&incarnation).copied() else { return };
        state.marks.flushed(number, covered);
    }
    idle(inner);
}

/// True when marks are scarce and a flush would free some.
pub fn wants_flush<S: Seam>(inner: &Inner<S>, incarnation: VolumeId) -> bool {
    let state = inner.pages.borrow();
    let Some(number) = state.numbers.get(&incarnation) else { return false };
    state.marks.len() >= MARKS_MANY && state.marks.wait_for_flush(*number)
}

/// Removes marks that are no longer needed, once nothing has been written for a while.
pub fn idle<S: Seam>(inner: &Rc<Inner<S>>) {
    let writes = {
        let mut state = inner.pages.borrow_mut();
        if !state.is_ready() || !state.marks.any_settled() || std::mem::replace(&mut state.idling, true) {
            return;
        }
        state.marks.writes()
    };
    let (seam, weak) = (inner.seam.clone(), Rc::downgrade(inner));
    inner.seam.spawn(async move {
        seam.sleep(IDLE).await;
        let Some(inner) = weak.upgrade() else { return };
        let over = {
            let mut state = inner.pages.borrow_mut();
            state.idling = false;
            let over = state.is_ready() && state.marks.writes() == writes;
            state.unmark_all |= over;
            over
        };
        if over { write_now(&inner) } else { idle(&inner) }
    });
}
