//! Moves the pages of a member that leaves to free slots of other members. A page stays readable at its old place until
//! its copy is complete. The copy enters the map like a new page, without the blocks that were invalidated meanwhile.

use std::ops::{ControlFlow, RangeInclusive};
use std::rc::Rc;

use seam::{BLOCK_BYTES, Nanos, Seam};

use super::closed_member::{ClosedMemberGuard, close_member};
use super::put::{Content, OldSlot, Put, write_and_insert};
use super::segment_lending::CHECK_INTERVAL;
use super::slot_room::{PlannedChange, slot_room};
use super::{evict, read};
use crate::error::StoreError;
use crate::format::journal::JournalRecord;
use crate::format::superblock::Role;
use crate::journal::wait_durable;
use crate::log_members::{log_copies, log_successor_number, needs_take_over};
use crate::number::{MemberNo, PAGE_BLOCKS, PageNo, VolumeId};
use crate::page_map::table::{ADDING, SUSPECT, SlotId, SlotPhase, page_of};
use crate::page_map::{PageState, PageTrust};
use crate::state::jobs::RunningJob;
use crate::state::{Inner, State};
use task_sync::{BoxFuture, Reply, join};

/// Maximum number of pages that are copied at the same time.
const CONCURRENT_COPIES_MAX: usize = 4;
/// Bytes of a page.
const PAGE_BYTES: u64 = PAGE_BLOCKS as u64 * BLOCK_BYTES as u64;
/// Pause while no buffers are free.
const BUFFER_PAUSE: Nanos = Nanos::from_millis(1);
/// Highest use count of a page.
const USES_MAX: u8 = 3;

/// True when the member is in service and holds pages that can be read.
pub fn has_pages<S: Seam>(inner: &Inner<S>, member: MemberNo) -> bool {
    let state = inner.pages.borrow();
    inner.state.borrow().superblock.serves(member) && state.is_ready() && state.table.pages_on(member) > 0
}

/// Pages on `member` that find no room on the others, and on a `joining` device of this role and number of segments.
pub fn pages_without_room<S: Seam>(inner: &Inner<S>, member: MemberNo, joining: Option<(Role, u32)>) -> u64 {
    let state = inner.pages.borrow();
    let change = PlannedChange { leaving: Some(member), joining };
    let room = slot_room(inner, &state, change).usable_slots();
    state.table.counts().pages.saturating_sub(room).min(state.table.pages_on(member))
}

/// Pages that the removal of `member` drops: those without room on the remaining members, or, if another member takes
/// over the log, the pages of both.
pub fn pages_lost_without<S: Seam>(inner: &Inner<S>, member: MemberNo) -> u64 {
    match log_successor_number(inner, member) {
        Some(successor) => {
            let table = &inner.pages.borrow().table;
            table.pages_on(member) + table.pages_on(successor)
        }
        None => pages_without_room(inner, member, None),
    }
}

/// Guard of a member whose pages have moved: while it exists, the member accepts no pages.
pub struct VacatedMemberGuard<S: Seam> {
    inner: Rc<Inner<S>>,
    member: MemberNo,
    /// Set once no page is being written to the member.
    closed: Option<ClosedMemberGuard<S>>,
}

impl<S: Seam> Drop for VacatedMemberGuard<S> {
    fn drop(&mut self) {
        let mut state = self.inner.pages.borrow_mut();
        state.vacated_member = None;
        state.return_free_slots(self.member);
    }
}

/// A page and its copy in progress.
struct Move {
    volume_id: VolumeId,
    page: PageNo,
    put: Put,
}

/// Moves the pages of `member` while other members have room. If the room does not suffice, the most used pages move,
/// and unused pages stay. Fails when `receiver`, the device that replaces the member, fails, when a member has to take
/// over the log, or when the store closes. With `may_stop` the job can be paused and cancelled.
pub async fn relocate<S: Seam>(
    running: &RunningJob<S>,
    member: MemberNo,
    receiver: Option<MemberNo>,
    may_stop: bool,
) -> Result<VacatedMemberGuard<S>, StoreError> {
    let inner = &running.inner;
    inner.pages.borrow_mut().vacated_member = Some(member);
    let mut vacated = VacatedMemberGuard { inner: Rc::clone(inner), member, closed: None };
    vacated.closed = Some(close_member(inner, member).await);
    {
        let mut state = inner.pages.borrow_mut();
        state.remove_free_slots(member);
        // Segments that the new device offers are used before anything is evicted.
        state.growth_skips = 0;
        running.add_total_bytes(state.table.pages_on(member) * PAGE_BYTES);
    }
    let copies = log_copies(&inner.state.borrow(), None);
    let relocation = Relocation { running, member, receiver, log_copies: copies, may_stop };
    let fits = pages_without_room(inner, member, None) == 0;
    // Copies that found no buffer are repeated.
    while relocation.run(if fits { 0..=0 } else { 1..=USES_MAX }).await? > 0 && has_pages(inner, member) {}
    Ok(vacated)
}

/// A relocation in progress.
struct Relocation<'a, S: Seam> {
    running: &'a RunningJob<S>,
    member: MemberNo,
    /// The device that replaces the member, if one does.
    receiver: Option<MemberNo>,
    /// Number of copies of the log at the start.
    log_copies: usize,
    /// The job can be paused and cancelled.
    may_stop: bool,
}

impl<S: Seam> Relocation<'_, S> {
    /// Moves the pages with the most uses first. Returns the number of pages moved, or 0 once the other members have no
    /// slot left.
    async fn run(&self, uses: RangeInclusive<u8>) -> Result<u64, StoreError> {
        let mut moved = 0;
        for uses_min in uses.rev() {
            let mut next = 0;
            loop {
                let frame = next_frame(&self.running.inner.pages.borrow(), self.member, next);
                let Some(frame) = frame else { break };
                next = frame + 1;
                if self.relocate_frame(frame, uses_min, &mut moved).await?.is_break() {
                    return Ok(0);
                }
            }
        }
        Ok(moved)
    }

    /// Waits while the job is paused; fails when the relocation must end.
    async fn wait_if_paused(&self) -> Result<(), StoreError> {
        let stop = |state: &State<S>| {
            if let Some(new) = self.receiver.filter(|new| !state.superblock.serves(*new)) {
                return Some(StoreError::Refused(format!("device number {new} failed as pages were copied to it")));
            }
            let takes_over = "a device that carries the log has failed, and another one takes over";
            let has_lost_one = log_copies(state, None) < self.log_copies && needs_take_over(state);
            has_lost_one.then(|| StoreError::Refused(takes_over.to_owned()))
        };
        if self.may_stop {
            return self.running.wait_if_paused_unless("", stop).await;
        }
        let state = self.running.inner.state.borrow();
        let is_closing = state.jobs.is_closing().then_some(StoreError::Cancelled);
        is_closing.or_else(|| stop(&state)).map_or(Ok(()), Err)
    }

    /// Moves the pages of a frame that have at least `uses_min` uses, and adds their number to `moved`. Breaks when the
    /// other members have no slot for a page.
    async fn relocate_frame(&self, frame: u32, uses_min: u8, moved: &mut u64) -> Result<ControlFlow<()>, StoreError> {
        let inner = &self.running.inner;
        let (slots, segment_generation) = {
            let state = inner.pages.borrow();
            (state.table.slots_of(frame), state.table.frame(frame).segment_generation)
        };
        let mut slots = slots.peekable();
        while slots.peek().is_some() {
            self.wait_if_paused().await?;
            let (mut moves, mut lacks_buffers): (Vec<BoxFuture<'_, bool>>, bool) = (Vec::new(), false);
            while moves.len() < CONCURRENT_COPIES_MAX
                && let Some(slot) = slots.peek().copied()
            {
                let state = inner.pages.borrow();
                let may_move = state.table.is_in(slot, segment_generation) && state.table.uses(slot) >= uses_min;
                if !may_move || !is_movable(&state, slot) {
                    slots.next();
                    continue;
                }
                if state.slot_lists.free.is_empty() {
                    break;
                }
                drop(state);
                // Allocate the buffers before the copy is registered. The log may wait for a registered copy, so a
                // registered copy must wait for its devices only.
                let Some(buffers) = page_buffers(inner) else {
                    lacks_buffers = true;
                    break;
                };
                let Some(begun) = begin_move(&mut inner.pages.borrow_mut(), slot) else { break };
                slots.next();
                moves.push(Box::pin(finish_move(inner, begun, buffers)));
            }
            if moves.is_empty() && lacks_buffers {
                inner.seam.sleep(BUFFER_PAUSE).await;
            } else if moves.is_empty() && slots.peek().is_some() && !make_room(inner).await {
                return Ok(ControlFlow::Break(()));
            }
            let done = join(moves).await.into_iter().filter(|is_moved| *is_moved).count() as u64;
            *moved += done;
            self.running.add_done_bytes(done * PAGE_BYTES);
        }
        drop_empty_frame(inner, frame, segment_generation);
        Ok(ControlFlow::Continue(()))
    }
}

/// Buffers for a page, or none.
fn page_buffers<S: Seam>(inner: &Inner<S>) -> Option<Vec<S::BlockMut>> {
    (0..PAGE_BLOCKS).map(|_| inner.alloc()).collect()
}

/// The member's first frame from `number` on.
fn next_frame<S: Seam>(state: &PageState<S>, member: MemberNo, mut number: u32) -> Option<u32> {
    loop {
        let frame = state.table.first_frame_from(number)?;
        if state.table.frame(frame).member == member {
            return Some(frame);
        }
        number = frame + 1;
    }
}

/// True for a page that can be read and that no task is writing.
fn is_movable<S: Seam>(state: &PageState<S>, slot: SlotId) -> bool {
    let table = &state.table;
    let is_live =
        table.phase(slot) == SlotPhase::Live && !table.has_flag(slot, ADDING) && !table.has_flag(slot, SUSPECT);
    is_live && !table.is_busy(table.key(slot)) && state.volumes.contains_key(&page_of(table.key(slot)).0)
}

/// Registers the copy of a movable page in a free slot; `None` if no slot is free.
fn begin_move<S: Seam>(state: &mut PageState<S>, slot: SlotId) -> Option<Move> {
    let copy = state.slot_lists.free.pop_front()?;
    let (number, page) = page_of(state.table.key(slot));
    let (valid, uses, old_place) = (state.table.valid_mask(slot), state.table.uses(slot), state.table.place(slot));
    state.table.claim(copy, state.table.key(slot));
    state.table.add_writes(copy, valid);
    (0..uses).for_each(|_| state.table.touch(copy));
    state.pending_puts.insert(copy, valid);
    let (place, write_counts) = (state.table.place(copy), state.table.write_counts(copy));
    // From now on the log waits for this write before it reclaims the segment.
    state.begin_writing((place.member, place.segment));
    let old_slot = Some(OldSlot { slot, place: old_place, copied_blocks: 0 });
    let put = Put { slot: copy, place, write_counts, blocks_to_write: valid, unchanged_blocks: 0, old_slot };
    Some(Move { volume_id: state.volumes[&number], page, put })
}

/// Copies a page in a task of its own, so that the copy ends even if the caller is dropped. Returns whether the page
/// has moved.
fn finish_move<S: Seam>(
    inner: &Rc<Inner<S>>,
    begun: Move,
    buffers: Vec<S::BlockMut>,
) -> impl Future<Output = bool> + use<S> {
    let (reply, task) = (Reply::default(), Rc::clone(inner));
    let task_reply = reply.clone();
    inner.seam.spawn(async move {
        let Move { volume_id, page, put } = begun;
        let read = read::read(&task, volume_id, page, 0..PAGE_BLOCKS, buffers, PageTrust::Trusted).await;
        let mut content: Content<S::Block> = Default::default();
        content.iter_mut().zip(read).for_each(|(block, outcome)| *block = outcome.ok());
        if lacks_blocks(&task, &put, &content) {
            // The page stays where it is.
            content = Default::default();
        }
        let written = write_and_insert(&task, volume_id, page, &put, content).await;
        task_reply.send(written.is_ok_and(|valid| valid != 0));
    });
    async move { reply.wait().await }
}

/// True if a valid block of the page was not read, for want of a buffer.
fn lacks_blocks<S: Seam>(inner: &Inner<S>, put: &Put, content: &Content<S::Block>) -> bool {
    let Some(OldSlot { slot, place, .. }) = put.old_slot else { return false };
    let table = &inner.pages.borrow().table;
    let is_same = table.exists(slot) && table.place(slot) == place && table.phase(slot) == SlotPhase::Live;
    let valid = if is_same { table.valid_mask(slot) } else { 0 };
    (0..PAGE_BLOCKS).any(|block| valid >> block & 1 == 1 && content[block as usize].is_none())
}

/// Waits for free slots; false if there will be none.
async fn make_room<S: Seam>(inner: &Rc<Inner<S>>) -> bool {
    inner.pages.borrow_mut().growth_skips = 0;
    evict::maintain_free_slots(inner);
    let (has_free, is_growing, may_have_free_slot) = {
        let state = inner.pages.borrow();
        (!state.slot_lists.free.is_empty(), state.is_growing, evict::may_have_free_slot(&state))
    };
    if is_growing && !has_free {
        inner.seam.sleep(CHECK_INTERVAL).await;
    }
    has_free || is_growing || may_have_free_slot && wait_durable(inner).await
}

/// Drops a frame without pages, so that the map has room for another one.
fn drop_empty_frame<S: Seam>(inner: &Inner<S>, frame: u32, segment_generation: u64) {
    let mut state = inner.pages.borrow_mut();
    let is_unused = |slot| matches!(state.table.phase(slot), SlotPhase::Free | SlotPhase::Dead);
    let mut slots = state.table.slots_of(frame);
    if !state.table.is_in(slots.start, segment_generation) || !slots.all(is_unused) {
        return;
    }
    let (member, segment) = (state.table.frame(frame).member, state.table.frame(frame).segment);
    state.drop_frame(frame);
    state.journal.pending_records.push(JournalRecord::FreeSegment { member, segment });
}
