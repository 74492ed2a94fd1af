//! Reads: unallocated slices give zeroes, others are read from their slot. The slot stays the slice's own until the
//! read ends, even if the slice is freed or moved meanwhile.

use std::rc::Rc;

use seam::block::pieces_len;
use seam::{AllocationExtent, BlockMut, Disk, DiskResult, PieceMut, Seam};

use super::demand::{self, Access};
use super::parts::{ReadPart, join_read, only_slice, ranges, split_read};
use crate::change::locate;
use crate::journal;
use crate::number::{GroupNo, SliceAddress, VolumeId};
use crate::outcome::Place;
use crate::state::{CommitScope, Inner, State};
use task_sync::{BoxFuture, join};

type Pieces<S> = Vec<PieceMut<<S as Seam>::BlockMut>>;

pub(crate) async fn read<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    volume: VolumeId,
    at: u64,
    into: Pieces<S>,
) -> (DiskResult<()>, Pieces<S>) {
    let len = pieces_len(&into) as u64;
    let access = demand::detect(&mut inner.state.borrow_mut(), volume, false, at, len);
    // Nearly all requests: without the lists of several parts.
    let only_slice = only_slice(&inner.state.borrow(), at, len);
    if let Some((slice, offset)) = only_slice {
        let part = ReadPart { slice, offset, pieces: into, has_spare: false };
        return read_part(inner, volume, access, part).await;
    }
    let ranges: Vec<_> = ranges(&inner.state.borrow(), at, len).collect();
    let parts = split_read(&inner.buffers, ranges, into).await;
    let reads = parts.into_iter().map(|part| {
        let read: BoxFuture<'_, _> = Box::pin(async move {
            let has_spare = part.has_spare;
            let (result, pieces) = read_part(inner, volume, access, part).await;
            (result, (has_spare, pieces))
        });
        read
    });
    let (results, parts): (Vec<_>, Vec<_>) = join(reads.collect()).await.into_iter().unzip();
    (results.into_iter().collect(), join_read(&inner.buffers, parts))
}

/// A pin of a slot by a reader.
struct ReaderPin<'a, S: Seam, D: Disk<S>> {
    inner: &'a Inner<S, D>,
    slot: crate::number::SlotAddress,
}

impl<'a, S: Seam, D: Disk<S>> ReaderPin<'a, S, D> {
    fn new(inner: &'a Inner<S, D>, state: &mut State<S, D>, slot: crate::number::SlotAddress) -> Self {
        state.pin(slot, false);
        ReaderPin { inner, slot }
    }
}

impl<S: Seam, D: Disk<S>> Drop for ReaderPin<'_, S, D> {
    fn drop(&mut self) {
        self.inner.state.borrow_mut().unpin(self.slot, false);
    }
}

/// Reads a part of one slice. A slot that is not durable yet has lost its zeroes if its group has reconnected since: it
/// may show a former owner's content, so it is read only after a commit has taken it back.
async fn read_part<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    volume: VolumeId,
    access: Access,
    mut part: ReadPart<S::BlockMut>,
) -> (DiskResult<()>, Pieces<S>) {
    let slice = SliceAddress { volume, slice: part.slice };
    loop {
        let stamp_before = inner.state.borrow().changes.stamp_of(slice);
        let (result, group, pieces) = read_once(inner, slice, access, part.offset, part.pieces).await;
        let is_sound = {
            let state = inner.state.borrow();
            let is_current = |group| stamp_before.is_none_or(|stamp| state.write_stamp(group) == stamp);
            group.is_none_or(is_current)
        };
        if is_sound {
            return (result, pieces);
        }
        part.pieces = pieces;
        if let Err(error) = journal::commit(inner, CommitScope::VolumeMap(volume), Vec::new()).await {
            return (Err(error.into_disk_error()), part.pieces);
        }
    }
}

/// Reads once. Also returns the group that was read.
async fn read_once<S: Seam, D: Disk<S>>(
    inner: &Inner<S, D>,
    slice: SliceAddress,
    access: Access,
    offset: u64,
    mut pieces: Pieces<S>,
) -> (DiskResult<()>, Option<GroupNo>, Pieces<S>) {
    let len = pieces_len(&pieces) as u64;
    let (pin, located, slot, timed) = {
        let mut state = inner.state.borrow_mut();
        let Some(slot) = state.slot_of(slice) else {
            drop(state);
            for piece in &mut pieces {
                let (start, len) = (piece.start(), piece.len());
                piece.block.zero(start, len);
            }
            return (Ok(()), None, pieces);
        };
        let located = locate(&state, slot, offset);
        let now = inner.seam.now();
        demand::record(&mut state, now, slice, &located, (slot.group, access, len));
        (ReaderPin::new(inner, &mut state, slot), located, slot, state.time_request(now))
    };
    let (result, pieces) = match located {
        Ok((disk, at)) => disk.read(at, pieces).await,
        Err(error) => (Err(error), pieces),
    };
    drop(pin);
    let mut state = inner.state.borrow_mut();
    if let Some(timed) = timed {
        state.interference.end(slot.group, timed, inner.seam.now());
    }
    (state.note_result(slot.group, Place::Bytes(slice, offset, len), result), Some(slot.group), pieces)
}

/// Allocation status of a range: unallocated slices are holes that read as zeroes.
pub(crate) async fn allocation<S: Seam, D: Disk<S>>(
    inner: &Inner<S, D>,
    volume: VolumeId,
    at: u64,
    len: u64,
) -> DiskResult<Vec<AllocationExtent>> {
    let mut runs: Vec<AllocationExtent> = Vec::new();
    let mut push = |run: AllocationExtent| match runs.last_mut() {
        Some(last) if (last.hole, last.zero) == (run.hole, run.zero) => last.len_bytes += run.len_bytes,
        _ => runs.push(run),
    };
    let ranges: Vec<_> = ranges(&inner.state.borrow(), at, len).collect();
    for (slice, offset, len) in ranges {
        let (pin, located) = {
            let mut state = inner.state.borrow_mut();
            let Some(slot) = state.slot_of(SliceAddress { volume, slice }) else {
                push(AllocationExtent { len_bytes: len, hole: true, zero: true });
                continue;
            };
            let located = locate(&state, slot, offset);
            (ReaderPin::new(inner, &mut state, slot), located)
        };
        let (disk, at) = located?;
        let below = disk.allocation(at, len).await?;
        drop(pin);
        let covered: u64 = below.iter().map(|run| run.len_bytes).sum();
        // The space is allocated to the volume, whatever the group's storage does with it.
        below.into_iter().for_each(|run| push(AllocationExtent { hole: run.hole && run.zero, ..run }));
        if covered < len {
            break;
        }
    }
    Ok(runs)
}
