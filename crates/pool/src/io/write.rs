//! Writes: to the slice's slot, or to a new slot whose rest is zeroed at the same time, or copied from a shared slot.

use std::rc::Rc;

use seam::block::pieces_len;
use seam::{Disk, DiskResult, Piece, Seam};

use super::allocate::{self, FailedFills, NewSlot};
use super::demand::{self, Access};
use super::parts::{only_slice, ranges, split_write};
use crate::change::{Step, check_change, finish_change, next_step};
use crate::journal;
use crate::number::{SliceAddress, VolumeId};
use crate::outcome::Place;
use crate::state::Inner;
use task_sync::{BoxFuture, join};

pub(crate) async fn write<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    volume: VolumeId,
    at: u64,
    from: Vec<Piece<S::Block>>,
) -> DiskResult<()> {
    let len = pieces_len(&from) as u64;
    let access = demand::detect(&mut inner.state.borrow_mut(), volume, true, at, len);
    // Nearly all requests: without the lists of several parts.
    let only_slice = only_slice(&inner.state.borrow(), at, len);
    if let Some((slice, offset)) = only_slice {
        let result = write_part(inner, SliceAddress { volume, slice }, access, offset, from).await;
        journal::commit_if_many(inner);
        return result;
    }
    let ranges: Vec<_> = ranges(&inner.state.borrow(), at, len).collect();
    let writes = split_write(ranges.into_iter(), from).into_iter().map(|(slice, offset, pieces)| {
        let slice = SliceAddress { volume, slice };
        let write: BoxFuture<'_, _> = Box::pin(write_part(inner, slice, access, offset, pieces));
        write
    });
    let result = join(writes.collect()).await.into_iter().collect();
    journal::commit_if_many(inner);
    result
}

/// Writes to one slice.
async fn write_part<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    slice: SliceAddress,
    access: Access,
    offset: u64,
    pieces: Vec<Piece<S::Block>>,
) -> DiskResult<()> {
    let len = pieces_len(&pieces) as u64;
    let mut failed = FailedFills::default();
    loop {
        check_change(&inner.state.borrow(), slice, offset, len)?;
        match next_step(inner, slice, offset) {
            Step::Wait(reply) => reply.wait().await,
            Step::Change(slot, located) => {
                let part = (slot.group, access, len);
                let timed = {
                    let (mut state, now) = (inner.state.borrow_mut(), inner.seam.now());
                    demand::record(&mut state, now, slice, &located, part);
                    state.time_request(now)
                };
                let result = match located {
                    Ok((disk, at)) => disk.write(at, pieces).await,
                    Err(error) => Err(error),
                };
                let mut state = inner.state.borrow_mut();
                if let Some(timed) = timed {
                    state.interference.end(slot.group, timed, inner.seam.now());
                }
                finish_change(&mut state, slice, slot, (offset, len));
                return state.note_result(slot.group, Place::Bytes(slice, offset, len), result);
            }
            step @ (Step::Unallocated | Step::Shared(_)) => {
                let shared = step.shared();
                match allocate::begin(inner, slice, &failed, shared).await? {
                    NewSlot::Taken(slot) => {
                        match allocate::fill(inner, slice, (slot, shared), access, (offset, pieces.clone())).await {
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
