//! Changes of a volume's size.

use std::rc::Rc;

use seam::{Disk, DiskError, DiskResult, Seam};

use crate::change::{Step, finish_change, next_step};
use crate::device::zero_range;
use crate::error::PoolError;
use crate::flush::flush_group;
use crate::io::allocate::allocate;
use crate::journal;
use crate::number::{SliceAddress, SlotAddress, VolumeId};
use crate::outcome::Place;
use crate::policy::{Provisioning, VolumeSpec};
use crate::state::{CommitScope, Inner};

/// Attempts to zero the end of a volume whose group loses writes.
const ATTEMPTS_MAX: u32 = 4;

/// The range by which a volume has grown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grown {
    pub from_bytes: u64,
    pub len_bytes: u64,
    pub provisioning: Provisioning,
}

/// Changes a volume's size, durably. Slices past a smaller size are freed.
pub(crate) async fn resize<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    volume: VolumeId,
    size_bytes: u64,
) -> Result<Grown, PoolError> {
    check_size(inner, size_bytes)?;
    let lock = {
        let state = inner.state.borrow();
        state.require_imported(volume)?;
        Rc::clone(&state.volumes.get(&volume).ok_or(PoolError::NoVolume(volume))?.resize_lock)
    };
    let _guard = lock.lock().await;
    let (old_bytes, spec) = {
        let mut state = inner.state.borrow_mut();
        let entry = state.volumes.get_mut(&volume).ok_or(PoolError::NoVolume(volume))?;
        let old_bytes = entry.limit_bytes;
        // From now on no request reaches what is cut off.
        entry.limit_bytes = old_bytes.min(size_bytes);
        (old_bytes, VolumeSpec { size_bytes, ..entry.spec.clone() })
    };
    if size_bytes > old_bytes {
        zero_tail(inner, volume, old_bytes).await.map_err(|error| match error {
            // The last slice is shared, and its private copy has no place.
            DiskError::NoSpace => PoolError::Full,
            error => PoolError::Refused(format!("the end of volume {volume} cannot be zeroed: {error}")),
        })?;
    }
    let provisioning = spec.provisioning;
    let record = {
        let state = inner.state.borrow();
        state.volumes.get(&volume).ok_or(PoolError::NoVolume(volume))?;
        state.volume_record(volume, spec)
    };
    journal::commit(inner, CommitScope::AllMaps, vec![record]).await?;
    Ok(Grown { from_bytes: old_bytes, len_bytes: size_bytes.saturating_sub(old_bytes), provisioning })
}

/// Refuses a size that a volume cannot have.
pub(crate) fn check_size<S: Seam, D: Disk<S>>(inner: &Inner<S, D>, size_bytes: u64) -> Result<(), PoolError> {
    let state = inner.state.borrow();
    let block = u64::from(state.superblock.logical_block);
    if !size_bytes.is_multiple_of(block) {
        return Err(PoolError::Refused(format!("the size {size_bytes} is no multiple of {block} bytes")));
    }
    if size_bytes.div_ceil(state.slice_bytes()) >= u64::from(u32::MAX) {
        return Err(PoolError::Refused(format!("the size {size_bytes} is more than 2^32 slices")));
    }
    Ok(())
}

/// Zeroes the part of the last slice that lies past the volume's end, durably: an earlier shrinking left content there.
/// The zeroes count only if the slice's map entry is durable, and its group has kept all writes until the flush.
async fn zero_tail<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>, volume: VolumeId, end_bytes: u64) -> DiskResult<()> {
    let (slice, offset) = {
        let state = inner.state.borrow();
        let (slice, offset) = state.slice_at(end_bytes);
        (SliceAddress { volume, slice }, offset)
    };
    if offset == 0 {
        return Ok(());
    }
    for _ in 0..ATTEMPTS_MAX {
        // A commit that takes a change back would restore the former slot and its content.
        journal::commit(inner, CommitScope::VolumeMap(volume), Vec::new()).await.map_err(PoolError::into_disk_error)?;
        let before = {
            let state = inner.state.borrow();
            state.slot_of(slice).map(|slot| (slot, state.write_stamp(slot.group)))
        };
        let Some(slot) = zero_rest(inner, slice, offset).await? else { return Ok(()) };
        let disk = inner.state.borrow().disk(slot.group)?;
        let result = flush_group(inner, slot.group, &disk).await;
        let mut state = inner.state.borrow_mut();
        let is_kept = before == Some((slot, state.write_stamp(slot.group)));
        let is_durable = state.slot_of(slice) == Some(slot) && state.changes.stamp_of(slice).is_none();
        if result.is_ok() && is_kept && is_durable {
            return Ok(());
        }
        if result == Err(DiskError::Gone) {
            return state.note_result(slot.group, Place::Part("the end of a volume"), result);
        }
    }
    Err(DiskError::Io("its group keeps losing unflushed content".to_owned()))
}

/// Zeroes a slice from `offset` on. Returns its slot; `None` if it is unallocated.
async fn zero_rest<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    slice: SliceAddress,
    offset: u64,
) -> DiskResult<Option<SlotAddress>> {
    let len = inner.state.borrow().slice_bytes() - offset;
    loop {
        match next_step(inner, slice, offset) {
            Step::Wait(reply) => reply.wait().await,
            Step::Unallocated => return Ok(None),
            // The next attempt zeroes the private copy when it is durable.
            Step::Shared(_) => allocate(inner, slice).await?,
            Step::Change(slot, located) => {
                let result = match located {
                    Ok((disk, at)) => zero_range(&inner.seam, &disk, (at, len), false).await,
                    Err(error) => Err(error),
                };
                let mut state = inner.state.borrow_mut();
                finish_change(&mut state, slice, slot, (offset, len));
                return state.note_result(slot.group, Place::Part("the end of a volume"), result).map(|()| Some(slot));
            }
        }
    }
}
