//! Allocation of slices. A new slot is zeroed outside the first write before the map refers to it: no content of a
//! former owner is ever visible, not after a crash either.

use std::rc::Rc;

use seam::block::pieces_len;
use seam::{Disk, DiskError, DiskResult, Piece, Seam};

use super::demand::{self, Access};
use super::slice_range;
use crate::change::{Step, check_range, finish_change, locate, next_step, range_text};
use crate::device::zero_range;
use crate::journal;
use crate::number::{GroupNo, SliceAddress, SliceNo, SlotAddress, VolumeId};
use crate::sabotage::Sabotage;
use crate::state::{GroupSet, Inner, SliceWork, State};
use task_sync::{BoxFuture, Waiters, join};

/// Attempts of a reservation whose group reconnects.
const ATTEMPTS_MAX: u32 = 3;

/// Slots that one request tries to fill.
const FILLS_MAX: u32 = 4;

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

/// Takes a slot for an unallocated slice. Slots that are released but not durably free are waited for.
pub(super) async fn begin<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    slice: SliceAddress,
    failed: &FailedFills,
) -> DiskResult<NewSlot> {
    {
        let mut state = inner.state.borrow_mut();
        if let Some(error) = &state.failed {
            return Err(DiskError::Io(error.to_string()));
        }
        let policy = state.volumes.get(&slice.volume).ok_or(DiskError::Gone)?.spec.policy;
        if let Some(slot) = state.take_slot(policy, failed.groups) {
            let former = state.work.insert(slice, SliceWork::Allocating(Waiters::default()));
            // A move of a slice that was freed meanwhile ends by itself.
            assert!(!matches!(former, Some(SliceWork::Allocating(_))), "one allocation of a slice at a time");
            if let Some(SliceWork::Moving(mut copy)) = former {
                copy.waiters.wake();
                copy.drained.wake();
            }
            return Ok(NewSlot::Taken(slot));
        }
        if state.changes.is_empty() {
            return Err(DiskError::NoSpace);
        }
    }
    journal::commit(inner, None, Vec::new()).await.map_err(crate::PoolError::into_disk_error)?;
    let state = inner.state.borrow();
    let has_room = state.rooms().iter().any(|room| room.free > 0);
    if has_room || !state.changes.is_empty() { Ok(NewSlot::Retry) } else { Err(DiskError::NoSpace) }
}

/// Fills a new slot with a write and zeroes around it, and maps the slice to it.
pub(super) async fn fill<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    slice: SliceAddress,
    slot: SlotAddress,
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
    let result: DiskResult<()> = match located {
        Ok((disk, at)) => {
            let mut steps: Vec<BoxFuture<'_, DiskResult<()>>> = Vec::new();
            if len > 0 {
                let disk = disk.clone();
                steps.push(Box::pin(async move { disk.write(at + offset, pieces).await }));
            }
            for (from, to) in [(0, offset), (offset + len, slice_bytes)] {
                if from < to && !skips_zeroing {
                    let disk = disk.clone();
                    let range = (at + from, to - from);
                    // A reservation keeps its space on the storage below, too.
                    steps.push(Box::pin(async move { zero_range(&inner.seam, &disk, range, false).await }));
                }
            }
            join(steps).await.into_iter().collect()
        }
        Err(error) => Err(error),
    };
    let mut state = inner.state.borrow_mut();
    state.end_group_request(slot.group);
    // A medium error, or a write that may still land. After a reconnect the slot is not suspect.
    let is_suspect =
        matches!(result, Err(DiskError::Io(_) | DiskError::Hung(_))) && state.write_stamp(slot.group) == stamp;
    let range = range_text(&state, slice, offset, len);
    let result = state.note_result(slot.group, &range, result);
    let Some(SliceWork::Allocating(mut waiters)) = state.work.remove(&slice) else {
        unreachable!("only the allocation itself ends it")
    };
    let is_inside = state.volumes.get(&slice.volume).is_some_and(|volume| slice.slice.0 < state.slice_count(volume));
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
pub(super) async fn reserve<S: Seam, D: Disk<S>>(
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
        journal::commit(inner, None, Vec::new()).await.map_err(crate::PoolError::into_disk_error)?;
        if are_durable(&inner.state.borrow(), volume, first, end) {
            return Ok(());
        }
    }
    Err(DiskError::Io("a group keeps losing unflushed content".to_owned()))
}

/// True if every slice of the range has a durable map entry.
pub(super) fn are_durable<S: Seam, D: Disk<S>>(
    state: &State<S, D>,
    volume: VolumeId,
    first: SliceNo,
    end: SliceNo,
) -> bool {
    (first.0..end.0).all(|slice| {
        let slice = SliceAddress { volume, slice: SliceNo(slice) };
        let slot = state.slot_of(slice);
        // A former slot does not count: its removal may be part of the running commit.
        slot.is_some() && state.changes.durable_slot(slice, slot) == slot
    })
}

/// Allocates a slice unless it is.
async fn allocate<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>, slice: SliceAddress) -> DiskResult<()> {
    let mut failed = FailedFills::default();
    loop {
        check_range(&inner.state.borrow(), slice, 0, 0)?;
        match next_step(inner, slice, 0) {
            Step::Wait(reply) => reply.wait().await,
            Step::Change(slot, _) => {
                finish_change(&mut inner.state.borrow_mut(), slice, slot, (0, 0));
                return Ok(());
            }
            Step::Unallocated => match begin(inner, slice, &failed).await? {
                NewSlot::Taken(slot) => match fill(inner, slice, slot, Access::RESERVATION, (0, Vec::new())).await {
                    Err(error) if failed.retries(slot.group, &error) => {}
                    other => return other,
                },
                NewSlot::Retry => {}
            },
        }
    }
}
