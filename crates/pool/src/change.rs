//! Changes of a slice's slot by a request: its start, unless other work on the slice makes it wait, and its end.

use seam::{Disk, DiskError, DiskResult, Seam};

use crate::number::{SliceAddress, SlotAddress};
use crate::sabotage::Sabotage;
use crate::state::{Inner, State};
use task_sync::Reply;

/// The next step of a change of a slice.
pub(crate) enum Step<D> {
    /// Change the slot, which is pinned; disk and byte offset are found.
    Change(SlotAddress, DiskResult<(D, u64)>),
    /// The slice has no slot.
    Unallocated,
    /// Other volumes refer to the slot: the change needs a copy of it.
    Shared(SlotAddress),
    /// Wait for the end of other work on the slice.
    Wait(Reply<()>),
}

impl<D> Step<D> {
    /// The shared slot to copy.
    pub fn shared(&self) -> Option<SlotAddress> {
        match self {
            Step::Shared(slot) => Some(*slot),
            _ => None,
        }
    }
}

/// Decides how to change a slice from byte `offset` on.
pub(crate) fn next_step<S: Seam, D: Disk<S>>(inner: &Inner<S, D>, slice: SliceAddress, offset: u64) -> Step<D> {
    let mut state = inner.state.borrow_mut();
    if let Some(waiters) = state.allocating.get_mut(&slice) {
        return Step::Wait(waiters.add());
    }
    if let Some(waiters) = state.volumes.get_mut(&slice.volume).and_then(|volume| volume.hold.as_mut()) {
        return Step::Wait(waiters.add());
    }
    let Some(slot) = state.slot_of(slice) else { return Step::Unallocated };
    if !state.check_private(slice, slot) && !state.sabotage.is(Sabotage::WriteShared) {
        return Step::Shared(slot);
    }
    if let Some(copy) = state.moving.get_mut(&slot).filter(|copy| copy.holds_writes) {
        return Step::Wait(copy.waiters.add());
    }
    state.pin(slot, true);
    state.begin_change(slice);
    Step::Change(slot, locate(&state, slot, offset))
}

/// Ends a change of a slot: other tasks may wait for it, and a running move must copy its blocks again.
pub(crate) fn finish_change<S: Seam, D: Disk<S>>(
    state: &mut State<S, D>,
    slice: SliceAddress,
    slot: SlotAddress,
    (offset, len): (u64, u64),
) {
    state.unpin(slot, true);
    state.end_change(slice);
    if let Some(volume) = state.volumes.get_mut(&slice.volume) {
        volume.unflushed.insert(slot.group);
    }
    let writers = state.pins(slot).writers;
    if let Some(copy) = state.moving.get_mut(&slot) {
        copy.mark(offset, len);
        if writers == 0 {
            copy.drained.wake();
        }
    }
}

/// Refuses a change past the volume's end, which may have come nearer since the request began, and any change while it
/// is unknown which content the volume has after the next opening.
pub(crate) fn check_change<S: Seam, D: Disk<S>>(
    state: &State<S, D>,
    slice: SliceAddress,
    offset: u64,
    len: u64,
) -> DiskResult<()> {
    let volume = state.volumes.get(&slice.volume).ok_or(DiskError::Gone)?;
    if volume.is_in_doubt {
        let text =
            "a snapshot or roll back of the volume failed halfway: it takes no writes until the daemon is restarted";
        return Err(DiskError::Io(text.to_owned()));
    }
    let end = u64::from(slice.slice.0) * state.slice_bytes() + offset + len;
    if end > volume.limit_bytes {
        return Err(DiskError::Io(format!("{slice} lies past the volume's end")));
    }
    Ok(())
}

/// The disk and byte offset of a place in a slot.
pub(crate) fn locate<S: Seam, D: Disk<S>>(state: &State<S, D>, slot: SlotAddress, offset: u64) -> DiskResult<(D, u64)> {
    Ok((state.disk(slot.group)?, state.slot_offset(slot) + offset))
}
