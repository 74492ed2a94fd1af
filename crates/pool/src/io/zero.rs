//! Zero-ranges: a whole slice of a thin volume is freed if the request may release space, a part of an allocated one is
//! zeroed, an unallocated one stays.

use std::rc::Rc;

use seam::{Disk, DiskResult, Seam};

use super::demand::{self, Access};
use super::parts::ranges;
use super::slice_range;
use crate::change::{Step, check_range, finish_change, next_step, range_text};
use crate::device::zero_range;
use crate::give_up;
use crate::journal;
use crate::number::{SliceAddress, SliceNo, VolumeId};
use crate::policy::Provisioning;
use crate::state::Inner;

/// Slices that are looked up at once.
const BATCH: usize = 1024;

pub(super) async fn zero<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    volume: VolumeId,
    (at, len): (u64, u64),
    may_unmap: bool,
) -> DiskResult<()> {
    if len == 0 {
        return Ok(());
    }
    let access = demand::detect(&mut inner.state.borrow_mut(), volume, true, at, len);
    let (first, end) = slice_range(&inner.state.borrow(), at, len);
    let mut next = Some(first);
    while let Some(from) = next {
        let (slices, after) = used_slices(inner, volume, from, end);
        for slice in slices {
            let slice_at = u64::from(slice.slice.0) * inner.state.borrow().slice_bytes();
            let (offset, part_len) = {
                let state = inner.state.borrow();
                let start = at.max(slice_at);
                let stop = (at + len).min(slice_at + state.slice_bytes());
                let mut parts = ranges(&state, start, stop - start);
                let (_, offset, part_len) = parts.next().expect("the slice lies in the range");
                (offset, part_len)
            };
            zero_part(inner, slice, access, (offset, part_len), may_unmap).await?;
            journal::commit_if_many(inner);
        }
        next = after;
    }
    Ok(())
}

/// The next slices of the range that are allocated or being allocated, and the slice to continue with.
fn used_slices<S: Seam, D: Disk<S>>(
    inner: &Inner<S, D>,
    volume: VolumeId,
    from: SliceNo,
    end: SliceNo,
) -> (Vec<SliceAddress>, Option<SliceNo>) {
    let state = inner.state.borrow();
    let address = |slice| SliceAddress { volume, slice };
    let Some(entry) = state.volumes.get(&volume) else { return (Vec::new(), None) };
    let allocated = entry.map.allocated_from(from).map(|(slice, _)| slice).take_while(|slice| *slice < end);
    let mut slices: Vec<_> = allocated.take(BATCH).map(address).collect();
    let after = (slices.len() == BATCH).then(|| slices[BATCH - 1].slice.next());
    let working = state.work.range(address(from)..address(after.unwrap_or(end)));
    slices.extend(working.map(|(slice, _)| *slice));
    slices.sort_unstable();
    slices.dedup();
    (slices, after)
}

/// Zeroes a part of one slice, or all of it.
async fn zero_part<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    slice: SliceAddress,
    access: Access,
    (offset, len): (u64, u64),
    may_unmap: bool,
) -> DiskResult<()> {
    loop {
        check_range(&inner.state.borrow(), slice, offset, len)?;
        match next_step(inner, slice, offset) {
            Step::Wait(reply) => reply.wait().await,
            Step::Unallocated => return Ok(()),
            Step::Change(slot, located) => {
                if may_unmap && is_freed(inner, slice, offset, len) {
                    let mut state = inner.state.borrow_mut();
                    state.unpin(slot, true);
                    state.set_slot(slice, None, 0);
                    return Ok(());
                }
                // A fast zero-range writes nothing that takes the device's time.
                if located.as_ref().is_ok_and(|(disk, _)| !disk.geometry().fast_zero) {
                    let part = (slot.group, access, len);
                    demand::record(&mut inner.state.borrow_mut(), inner.seam.now(), slice, &located, part);
                }
                let result = match located {
                    Ok((disk, at)) => {
                        let may_unmap = may_unmap && is_thin(inner, slice);
                        zero_range(&inner.seam, &disk, (at, len), may_unmap).await
                    }
                    Err(error) => Err(error),
                };
                let mut state = inner.state.borrow_mut();
                finish_change(&mut state, slice, slot, (offset, len));
                let range = range_text(&state, slice, offset, len);
                return state.note_result(slot.group, &range, result);
            }
        }
    }
}

/// True if the slice's volume exists and is thin: zeroes may release its space.
fn is_thin<S: Seam, D: Disk<S>>(inner: &Inner<S, D>, slice: SliceAddress) -> bool {
    let state = inner.state.borrow();
    state.volumes.get(&slice.volume).is_some_and(|volume| volume.spec.provisioning == Provisioning::Thin)
}

/// True if the range covers all that the volume has of the slice, and the volume is thin or the slice's group was given
/// up.
fn is_freed<S: Seam, D: Disk<S>>(inner: &Inner<S, D>, slice: SliceAddress, offset: u64, len: u64) -> bool {
    let state = inner.state.borrow();
    let volume = &state.volumes[&slice.volume];
    let slice_at = u64::from(slice.slice.0) * state.slice_bytes();
    let covers = offset == 0 && len >= state.slice_bytes().min(volume.limit_bytes - slice_at);
    covers && (volume.spec.provisioning == Provisioning::Thin || give_up::is_given_up(&state, slice))
}
