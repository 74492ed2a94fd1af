//! Zero-ranges: a whole slice of a thin volume is freed if the request may release space, a part of an allocated one is
//! zeroed, an unallocated one stays. A shared slice only loses this reference if the range covers it; otherwise it is
//! copied first.

use std::ops::Range;
use std::rc::Rc;

use seam::{Disk, DiskResult, Seam};

use super::allocate;
use super::demand::{self, Access};
use super::parts::ranges;
use super::slice_range;
use crate::change::{Step, check_change, finish_change, next_step};
use crate::device::zero_range;
use crate::journal;
use crate::number::{SliceAddress, SliceNo, VolumeId};
use crate::outcome::Place;
use crate::policy::Provisioning;
use crate::state::{Inner, State};

/// Slices that are looked up at once.
const BATCH: usize = 1024;

pub(crate) async fn zero<S: Seam, D: Disk<S>>(
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
    let working = state.allocating.range(address(from)..address(after.unwrap_or(end)));
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
        check_change(&inner.state.borrow(), slice, offset, len)?;
        match next_step(inner, slice, offset) {
            Step::Wait(reply) => reply.wait().await,
            Step::Unallocated => return Ok(()),
            Step::Shared(_) => {
                // The reference reserves no space, so that it ends whether or not the request may release space.
                if is_covered(&inner.state.borrow(), slice, offset, len) {
                    inner.state.borrow_mut().set_slot(slice, None, 0);
                    return Ok(());
                }
                allocate::allocate(inner, slice).await?;
            }
            Step::Change(slot, located) => {
                if may_unmap && is_freed(inner, slice, offset, len) {
                    let mut state = inner.state.borrow_mut();
                    state.unpin(slot, true);
                    state.end_change(slice);
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
                return state.note_result(slot.group, Place::Bytes(slice, offset, len), result);
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
    let is_given_up = inner.state.borrow().is_given_up(slice);
    is_covered(&inner.state.borrow(), slice, offset, len) && (is_thin(inner, slice) || is_given_up)
}

/// True if the range covers all that the volume has of the slice.
fn is_covered<S: Seam, D: Disk<S>>(state: &State<S, D>, slice: SliceAddress, offset: u64, len: u64) -> bool {
    let slice_at = u64::from(slice.slice.0) * state.slice_bytes();
    offset == 0 && len >= state.slice_bytes().min(state.volumes[&slice.volume].limit_bytes - slice_at)
}

/// The bytes in a shared slice at one end of a range that does not cover the slice: zeroes there need a copy of it.
pub(crate) fn shared_edge<S: Seam, D: Disk<S>>(
    state: &State<S, D>,
    volume: VolumeId,
    at: u64,
    len: u64,
) -> Option<Range<u64>> {
    let (first, end) = slice_range(state, at, len);
    let edges = [first, SliceNo(end.0.saturating_sub(1))].into_iter().filter(|slice| *slice >= first && len > 0);
    let mut parts = edges.map(|slice| {
        let slice_at = u64::from(slice.0) * state.slice_bytes();
        (SliceAddress { volume, slice }, slice_at, at.max(slice_at)..(at + len).min(slice_at + state.slice_bytes()))
    });
    let needs_copy = |(slice, slice_at, part): &(SliceAddress, u64, Range<u64>)| {
        let is_shared = state.slot_of(*slice).is_some_and(|slot| !state.is_private(*slice, slot));
        is_shared && !is_covered(state, *slice, part.start - slice_at, part.end - part.start)
    };
    parts.find(needs_copy).map(|(_, _, part)| part)
}
