//! Allocation of slices. A new slot is zeroed outside the first write before the map refers to it: no content of a
//! former owner is ever visible, not after a crash either. The private copy of a shared slice is made the same way: the
//! rest of the new slot is copied from the shared one, which nothing writes meanwhile.

use std::rc::Rc;

use seam::block::pieces_len;
use seam::{BLOCK_BYTES, BlockMut, Disk, DiskError, DiskResult, Piece, Seam};

use super::demand::{self, Access};
use super::slice_range;
use crate::apply::release_retired;
use crate::change::{Step, check_change, finish_change, locate, next_step};
use crate::device::zero_range;
use crate::group_set::GroupSet;
use crate::journal;
use crate::number::{GroupNo, SliceAddress, SliceNo, SlotAddress, VolumeId};
use crate::outcome::Place;
use crate::sabotage::Sabotage;
use crate::snapshots;
use crate::state::{CommitScope, Inner, State};
use task_sync::{BoxFuture, Waiters, join};

/// Attempts of a reservation whose group reconnects.
const ATTEMPTS_MAX: u32 = 3;

/// Blocks of one read of a copy.
const COPY_BLOCKS: u64 = 64;

/// Slots that one request tries to fill.
const FILLS_MAX: u32 = 4;

/// An error while a new slot is filled.
enum FillError {
    /// Of the new slot: it may be damaged, or a write may still land there.
    Target(DiskError),
    /// Of the shared slot that is copied.
    Source(DiskError),
}

/// Failed fills of one request, which tries other groups first and then other slots.
#[derive(Default)]
pub(super) struct FailedFills {
    groups: GroupSet,
    count: u32,
}

impl FailedFills {
    /// Notes a failure. Returns whether another slot may be tried.
    pub fn retries(&mut self, group: GroupNo, error: &DiskError) -> bool {
        self.groups.insert(group);
        self.count += 1;
        self.count < FILLS_MAX && matches!(error, DiskError::Io(_))
    }
}

/// Result of [`begin`].
pub(super) enum NewSlot {
    /// A slot to fill; other changes of the slice wait.
    Taken(SlotAddress),
    /// The slice may have changed meanwhile.
    Retry,
}

/// Takes a slot for an unallocated slice, or for the private copy of a shared one. Slots that are released but not
/// durably free are waited for.
pub(super) async fn begin<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    slice: SliceAddress,
    failed: &FailedFills,
    shared: Option<SlotAddress>,
) -> DiskResult<NewSlot> {
    if shared.is_some() {
        snapshots::make_room_for_copies(inner).await?;
    }
    let needs_commit = {
        let mut state = inner.state.borrow_mut();
        if let Some(error) = &state.failed {
            return Err(DiskError::Io(error.to_string()));
        }
        // Before its entry is durable, the shared slot may lose what a move has copied to it.
        let is_unsettled = shared.is_some() && state.changes.stamp_of(slice).is_some();
        let policy = state.volumes.get(&slice.volume).ok_or(DiskError::Gone)?.spec.policy;
        let avoided = failed.groups.union(state.journal.hung);
        if !is_unsettled && let Some(slot) = state.take_slot(policy, avoided) {
            let former = state.allocating.insert(slice, Waiters::default());
            assert!(former.is_none(), "one allocation of a slice at a time");
            state.begin_change(slice);
            if let Some(shared) = shared {
                state.hold(shared, false);
            }
            return Ok(NewSlot::Taken(slot));
        }
        if state.changes.is_empty() && state.retired.is_empty() {
            return Err(DiskError::NoSpace);
        }
        is_unsettled || state.retired.is_empty()
    };
    if !needs_commit {
        release_retired(inner).await;
        return Ok(NewSlot::Retry);
    }
    journal::commit(inner, CommitScope::AllMaps, Vec::new()).await.map_err(crate::PoolError::into_disk_error)?;
    let state = inner.state.borrow();
    let has_room = state.rooms().iter().any(|room| room.free > 0);
    if has_room || !state.changes.is_empty() || !state.retired.is_empty() {
        Ok(NewSlot::Retry)
    } else {
        Err(DiskError::NoSpace)
    }
}

/// Fills a new slot with a write and, around it, with zeroes or with the content of the shared slot; maps the slice to
/// it.
pub(super) async fn fill<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    slice: SliceAddress,
    (slot, shared): (SlotAddress, Option<SlotAddress>),
    access: Access,
    (offset, pieces): (u64, Vec<Piece<S::Block>>),
) -> DiskResult<()> {
    let len = pieces_len(&pieces) as u64;
    let (located, stamp, slice_bytes, skips_zeroing) = {
        let mut state = inner.state.borrow_mut();
        let skips = state.sabotage.is(Sabotage::SkipZeroing);
        if len > 0 {
            let located = locate(&state, slot, offset);
            demand::record(&mut state, inner.seam.now(), slice, &located, (slot.group, access, len));
        }
        state.groups[slot.group.index()].requests += 1;
        (locate(&state, slot, 0), state.write_stamp(slot.group), state.slice_bytes(), skips)
    };
    let result: Result<(), FillError> = match located {
        Ok((disk, at)) => {
            let mut steps: Vec<BoxFuture<'_, Result<(), FillError>>> = Vec::new();
            if len > 0 {
                let disk = disk.clone();
                steps.push(Box::pin(async move { disk.write(at + offset, pieces).await.map_err(FillError::Target) }));
            }
            for (from, to) in [(0, offset), (offset + len, slice_bytes)] {
                if from >= to {
                    continue;
                }
                if let Some(shared) = shared {
                    steps.push(Box::pin(copy_range(inner, shared, slot, from..to)));
                } else if !skips_zeroing {
                    let disk = disk.clone();
                    let range = (at + from, to - from);
                    // A reservation keeps its space on the storage below, too.
                    steps.push(Box::pin(async move {
                        zero_range(&inner.seam, &disk, range, false).await.map_err(FillError::Target)
                    }));
                }
            }
            // An error of the target goes first: it decides whether the slot may be used again.
            let (mut results, source): (Vec<_>, Vec<_>) =
                join(steps).await.into_iter().partition(|result| !matches!(result, Err(FillError::Source(_))));
            results.extend(source);
            results.into_iter().collect()
        }
        Err(error) => Err(FillError::Target(error)),
    };
    let (result, is_target_error) = match result {
        Ok(()) => (Ok(()), false),
        Err(FillError::Target(error)) => (Err(error), true),
        Err(FillError::Source(error)) => (Err(error), false),
    };
    let mut state = inner.state.borrow_mut();
    state.end_group_request(slot.group);
    state.end_change(slice);
    if let Some(shared) = shared {
        state.release(shared, false);
    }
    // A medium error, or a write that may still land. After a reconnect the slot is not suspect.
    let is_suspect = is_target_error
        && matches!(result, Err(DiskError::Io(_) | DiskError::Hung(_)))
        && state.write_stamp(slot.group) == stamp;
    let result =
        if is_target_error { state.note_result(slot.group, Place::Bytes(slice, offset, len), result) } else { result };
    let mut waiters = state.allocating.remove(&slice).expect("only the allocation itself ends it");
    let is_inside = state.volumes.get(&slice.volume).is_some_and(|volume| slice.slice.0 < state.slice_count(volume));
    // A volume that was removed meanwhile refers to neither slot.
    if result.is_ok() && is_inside {
        state.set_slot(slice, Some(slot), stamp);
        state.counts.allocations += 1;
        let volume = state.volumes.get_mut(&slice.volume).expect("the volume was found");
        volume.unflushed.insert(slot.group);
    } else if is_suspect {
        state.groups[slot.group.index()].slots.quarantine(slot.slot);
    } else {
        state.free_slot(slot);
    }
    drop(state);
    waiters.wake();
    result.and(if is_inside { Ok(()) } else { Err(DiskError::Gone) })
}

/// Allocates the slices of a range, durably.
pub(crate) async fn reserve<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    volume: VolumeId,
    at: u64,
    len: u64,
) -> DiskResult<()> {
    let (first, end) = slice_range(&inner.state.borrow(), at, len);
    loop {
        let reply = {
            let mut state = inner.state.borrow_mut();
            if !state.releases.overlaps(volume, &(first..end)) {
                break;
            }
            state.releases.wait_for_end()
        };
        reply.wait().await;
    }
    for _ in 0..ATTEMPTS_MAX {
        for slice in (first.0..end.0).map(SliceNo) {
            allocate(inner, SliceAddress { volume, slice }).await?;
            journal::commit_if_many(inner);
        }
        if inner.state.borrow().sabotage.is(Sabotage::ReserveBeforeJournal)
            || are_durable(&inner.state.borrow(), volume, first, end)
        {
            return Ok(());
        }
        journal::commit(inner, CommitScope::VolumeMap(volume), Vec::new())
            .await
            .map_err(crate::PoolError::into_disk_error)?;
        if are_durable(&inner.state.borrow(), volume, first, end) {
            return Ok(());
        }
    }
    Err(DiskError::Io("a group keeps losing unflushed content".to_owned()))
}

/// Allocates the slices of a volume that have no slot, durably.
pub(crate) async fn fill_holes<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>, volume: VolumeId) -> DiskResult<()> {
    let end = {
        let state = inner.state.borrow();
        state.slice_count(state.volumes.get(&volume).ok_or(DiskError::Gone)?)
    };
    for slice in (0..end).map(|slice| SliceAddress { volume, slice: SliceNo(slice) }) {
        if inner.state.borrow().slot_of(slice).is_none() {
            allocate(inner, slice).await?;
            journal::commit_if_many(inner);
        }
    }
    journal::commit(inner, CommitScope::VolumeMap(volume), Vec::new()).await.map_err(crate::PoolError::into_disk_error)
}

/// True if every slice of the range has a durable map entry.
pub(crate) fn are_durable<S: Seam, D: Disk<S>>(
    state: &State<S, D>,
    volume: VolumeId,
    first: SliceNo,
    end: SliceNo,
) -> bool {
    (first.0..end.0).all(|slice| {
        let slice = SliceAddress { volume, slice: SliceNo(slice) };
        let Some(slot) = state.slot_of(slice) else { return false };
        // A former slot does not count: its removal may be part of the running commit.
        let durable = state.changes.durable_slot(slice, Some(slot));
        let is_durable = durable == Some(slot) || durable.is_some() && state.sabotage.is(Sabotage::CopyBeforeJournal);
        is_durable && state.is_private(slice, slot)
    })
}

/// Copies a range of a shared slot to a new slot.
async fn copy_range<S: Seam, D: Disk<S>>(
    inner: &Inner<S, D>,
    from: SlotAddress,
    to: SlotAddress,
    range: std::ops::Range<u64>,
) -> Result<(), FillError> {
    let (source, source_at, target, target_at) = {
        let state = inner.state.borrow();
        let source = state.disk(from.group).map_err(FillError::Source)?;
        let target = state.disk(to.group).map_err(FillError::Target)?;
        (source, state.slot_offset(from), target, state.slot_offset(to))
    };
    let block = BLOCK_BYTES as u64;
    let mut next = range.start;
    while next < range.end {
        let buffers = inner.buffers.get_up_to((range.end - next).div_ceil(block).min(COPY_BLOCKS) as usize).await;
        let mut at = next;
        let pieces = buffers.into_iter().map(|buffer| {
            let len = block.min(range.end - at);
            at += len;
            Piece::new(buffer, 0, len as usize)
        });
        let (result, pieces) = source.read(source_at + next, pieces.collect()).await;
        inner
            .state
            .borrow_mut()
            .note_result(from.group, Place::Part("the copy of a shared slice"), result)
            .map_err(FillError::Source)?;
        let frozen: Vec<_> =
            pieces.into_iter().map(|piece| Piece::new(piece.block.freeze(), 0, usize::from(piece.len))).collect();
        target.write(target_at + next, frozen.clone()).await.map_err(FillError::Target)?;
        frozen.into_iter().for_each(|piece| inner.buffers.put_frozen(piece.block));
        next = at;
    }
    Ok(())
}

/// Gives a slice a slot of its own unless it has one.
pub(crate) async fn allocate<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>, slice: SliceAddress) -> DiskResult<()> {
    let mut failed = FailedFills::default();
    loop {
        check_change(&inner.state.borrow(), slice, 0, 0)?;
        match next_step(inner, slice, 0) {
            Step::Wait(reply) => reply.wait().await,
            Step::Change(slot, _) => {
                finish_change(&mut inner.state.borrow_mut(), slice, slot, (0, 0));
                return Ok(());
            }
            step @ (Step::Unallocated | Step::Shared(_)) => {
                let shared = step.shared();
                match begin(inner, slice, &failed, shared).await? {
                    NewSlot::Taken(slot) => {
                        match fill(inner, slice, (slot, shared), Access::RESERVATION, (0, Vec::new())).await {
                            Err(error) if failed.retries(slot.group, &error) => {}
                            other => return other,
                        }
                    }
                    NewSlot::Retry => {}
                }
            }
        }
    }
}
