//! Moves a slice to another group while clients read and write it.
//!
//! Writes during the copy go to the source and mark their blocks. Passes copy the marked blocks again until few are
//! left; the last pass holds the slice's writes. Then the map refers to the target, in memory; the next commit flushes
//! the target, makes the map entry durable, and only then frees the source. A move that fails or is cancelled leaves
//! the slice at its source.
//!
//! A slot that several volumes share moves once, for all of them: the last step changes their maps together. A crash
//! between the records of two maps leaves one slice in two places with the same content.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use seam::{BLOCK_BYTES, BlockMut, Disk, DiskError, DiskResult, Nanos, Piece, Seam};

use crate::detached::detached;
use crate::error::PoolError;
use crate::journal;
use crate::number::{GroupNo, SliceAddress, SlotAddress};
use crate::outcome::Place;
use crate::sabotage::Sabotage;
use crate::slots::SlotUse;
use crate::state::{CommitScope, Inner, Move, PoolCounts, State};
use task_sync::{BoxFuture, Waiters};

/// Moves in flight at once.
pub const MOVES_MAX: usize = 8;
/// Blocks that the last pass may copy while writes wait.
pub const LAST_PASS_BLOCKS: u32 = 64;
/// Blocks of a copy request on slow devices.
const COPY_BLOCKS: u64 = 64;
/// Blocks of the first copy request, and of all on fast devices. A large request occupies the core, and clients wait.
const FAST_COPY_BLOCKS: u64 = 16;
/// Longest time of a copy of [`FAST_COPY_BLOCKS`] on a fast device. A disk with moving heads takes longer to reach
/// them.
const FAST_COPY_TIME: Nanos = Nanos::from_millis(3);
/// Passes before a slice counts as too busy.
const PASSES_MAX: u32 = 16;

/// Decision of a pace about the next copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Copy now.
    Continue,
    /// Give the move up.
    Cancel,
}

/// A copy of a move that is about to begin.
#[derive(Clone, Copy, Debug)]
pub struct CopyRequest {
    /// The slice.
    pub slice: SliceAddress,
    /// The group that is read.
    pub source: GroupNo,
    /// The group that is written.
    pub target: GroupNo,
    /// Bytes to copy.
    pub bytes: u64,
}

/// Decides when each copy of a move begins. It is not called for the last pass, which holds writes.
pub type Pace = Rc<dyn Fn(CopyRequest) -> BoxFuture<'static, Flow>>;

/// A pace without pauses.
pub fn unpaced() -> Pace {
    Rc::new(|_| Box::pin(async { Flow::Continue }))
}

/// Result of a move that moved the slice, or found nothing to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveOutcome {
    /// The slice lies on the target, durably.
    Moved,
    /// It lay there already.
    AlreadyThere,
    /// The slice is not allocated, or was freed meanwhile.
    Unallocated,
}

/// Reasons why a slice stays at its source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoveError {
    /// The pace or the caller gave it up.
    #[error("cancelled")]
    Cancelled,
    /// The slice is being allocated or moved, or the limit of moves is reached.
    #[error("other work on the slice, or on too many slices, is in progress")]
    Busy,
    /// Clients write the slice faster than it is copied.
    #[error("clients write the slice faster than it is copied")]
    TooManyWrites,
    /// No slot is free on the target, or it takes none.
    #[error("group {0} has no free slot")]
    NoSlot(GroupNo),
    /// A request failed.
    #[error("{0}")]
    Disk(DiskError),
    /// The target lost unflushed content before the move was durable.
    #[error("the target lost unflushed content")]
    Reverted,
    /// The pool refuses.
    #[error("{0}")]
    Pool(PoolError),
}

/// Moves a slice to a group. When this returns [`MoveOutcome::Moved`], the move is durable. It runs to its end even if
/// the future is dropped.
pub(crate) async fn move_slice<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    slice: SliceAddress,
    target: GroupNo,
    pace: Pace,
) -> Result<MoveOutcome, MoveError> {
    let is_durable = {
        let state = inner.state.borrow();
        let slot = state.slot_of(slice);
        state.changes.durable_slot(slice, slot) == slot
    };
    if !is_durable {
        // Before that the source may lose its zeroes and show a former owner's content.
        journal::commit(inner, CommitScope::AllMaps, Vec::new()).await.map_err(MoveError::Pool)?;
    }
    let copy = match begin(inner, slice, target)? {
        Ok(copy) => copy,
        Err(outcome) => return Ok(outcome),
    };
    let task = Rc::clone(inner);
    detached(&inner.seam, async move {
        let result = run(&task, slice, copy, pace).await;
        task.state.borrow_mut().moves -= 1;
        result
    })
    .await
}

/// Counts a move whose slice stays.
pub(crate) fn count_failed(counts: &mut PoolCounts, error: &MoveError) {
    *(if *error == MoveError::Cancelled { &mut counts.skipped_moves } else { &mut counts.failed_moves }) += 1;
}

/// Asks the running move of a slice to end; the slice stays at its source unless the last pass has begun.
pub(crate) fn cancel<S: Seam, D: Disk<S>>(inner: &Inner<S, D>, slice: SliceAddress) {
    let mut state = inner.state.borrow_mut();
    if let Some(slot) = state.slot_of(slice)
        && let Some(copy) = state.moving.get_mut(&slot)
    {
        copy.is_cancelled = true;
    }
}

/// The two slots of a move, and the write stamp of the target before the copy.
#[derive(Clone, Copy)]
struct Copy {
    source: SlotAddress,
    target: SlotAddress,
    stamp: u64,
}

/// Takes a target slot and registers the move. The inner error is an outcome without a copy.
fn begin<S: Seam, D: Disk<S>>(
    inner: &Inner<S, D>,
    slice: SliceAddress,
    target: GroupNo,
) -> Result<Result<Copy, MoveOutcome>, MoveError> {
    let mut state = inner.state.borrow_mut();
    if let Some(failed) = &state.failed {
        return Err(MoveError::Pool(failed.clone()));
    }
    if state.moves >= MOVES_MAX || state.allocating.contains_key(&slice) {
        return Err(MoveError::Busy);
    }
    let Some(source) = state.slot_of(slice) else { return Ok(Err(MoveOutcome::Unallocated)) };
    if state.moving.contains_key(&source) {
        return Err(MoveError::Busy);
    }
    if source.group == target {
        return Ok(Err(MoveOutcome::AlreadyThere));
    }
    if state.changes.stamp_of(slice).is_some() {
        return Err(MoveError::Busy);
    }
    let takes_slices = state.rooms().iter().any(|room| room.group == target);
    let target = takes_slices.then(|| state.take_slot_on(target)).flatten().ok_or(MoveError::NoSlot(target))?;
    let words = (state.slice_bytes() / BLOCK_BYTES as u64).div_ceil(64) as usize;
    let registered = Move {
        marks: vec![0; words],
        holds_writes: false,
        is_cancelled: false,
        waiters: Waiters::default(),
        drained: Waiters::default(),
    };
    state.moving.insert(source, registered);
    state.moves += 1;
    // The source stays what it is during the copy, even if a client frees the slice.
    state.hold(source, false);
    Ok(Ok(Copy { source, target, stamp: state.write_stamp(target.group) }))
}

/// The registered move, if a slice still lies at its source.
fn registered<'a, S: Seam, D: Disk<S>>(state: &'a mut State<S, D>, copy: &Copy) -> Option<&'a mut Move> {
    if state.references(copy.source).is_empty() {
        return None;
    }
    state.moving.get_mut(&copy.source)
}

async fn run<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    slice: SliceAddress,
    copy: Copy,
    pace: Pace,
) -> Result<MoveOutcome, MoveError> {
    let copied = copy_slice(inner, slice, copy, pace).await;
    {
        let mut state = inner.state.borrow_mut();
        state.release(copy.source, false);
        let is_mapped = matches!(copied, Ok(MoveOutcome::Moved));
        state.moving.remove(&copy.source).expect("only the move itself ends it").waiters.wake();
        if !is_mapped {
            state.free_slot(copy.target);
            return copied;
        }
    }
    // Clients wait for its flushes as they do for a copy.
    inner.state.borrow_mut().interference.begin_copy();
    let committed = journal::commit(inner, CommitScope::AllMaps, Vec::new()).await;
    let mut state = inner.state.borrow_mut();
    state.interference.end_copy();
    committed.map_err(MoveError::Pool)?;
    let is_at = |slot| state.references(slot).iter().any(|reference| reference.slice == slice.slice);
    if is_at(copy.source) && !is_at(copy.target) {
        return Err(MoveError::Reverted);
    }
    state.counts.moves += 1;
    Ok(MoveOutcome::Moved)
}

/// Copies until the target holds the slice, and lets the map refer to it.
async fn copy_slice<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    slice: SliceAddress,
    copy: Copy,
    pace: Pace,
) -> Result<MoveOutcome, MoveError> {
    let blocks = inner.state.borrow().slice_bytes() / BLOCK_BYTES as u64;
    let whole_slice: Range<u64> = 0..blocks;
    let mut runs = VecDeque::from([whole_slice]);
    let mut blocks_max = FAST_COPY_BLOCKS;
    for _ in 0..PASSES_MAX {
        while let Some(mut run) = runs.pop_front() {
            if run.end - run.start > blocks_max {
                runs.push_front(run.start + blocks_max..run.end);
                run.end = run.start + blocks_max;
            }
            let bytes = (run.end - run.start) * BLOCK_BYTES as u64;
            let request = CopyRequest { slice, source: copy.source.group, target: copy.target.group, bytes };
            if pace(request).await == Flow::Cancel {
                return Err(MoveError::Cancelled);
            }
            let start = inner.seam.now();
            copy_blocks(inner, &copy, run).await.map_err(MoveError::Disk)?;
            let is_fast = inner.seam.now().since(start) <= FAST_COPY_TIME;
            blocks_max = if is_fast { FAST_COPY_BLOCKS } else { COPY_BLOCKS };
            let mut state = inner.state.borrow_mut();
            match registered(&mut state, &copy) {
                None => return Ok(MoveOutcome::Unallocated),
                Some(found) if found.is_cancelled => return Err(MoveError::Cancelled),
                Some(_) => {}
            }
        }
        if let Some(outcome) = try_last_pass(inner, &copy).await? {
            return Ok(outcome);
        }
        let mut state = inner.state.borrow_mut();
        let Some(found) = registered(&mut state, &copy) else { return Ok(MoveOutcome::Unallocated) };
        runs = take_marks(found).into();
        state.counts.blocks_copied_again += runs.iter().map(|run| run.end - run.start).sum::<u64>();
    }
    Err(MoveError::TooManyWrites)
}

/// Copies the last marked blocks while the slice's writes wait, and lets the map refer to the target. Returns `None` if
/// too many blocks are marked.
async fn try_last_pass<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    copy: &Copy,
) -> Result<Option<MoveOutcome>, MoveError> {
    {
        let mut state = inner.state.borrow_mut();
        let skips = state.sabotage.is(Sabotage::SkipSecondPass);
        let Some(found) = registered(&mut state, copy) else { return Ok(Some(MoveOutcome::Unallocated)) };
        if skips {
            found.marks.fill(0);
        }
        if found.marked() > LAST_PASS_BLOCKS {
            return Ok(None);
        }
        found.holds_writes = true;
    }
    // Writes that began before the hold end first: their blocks are marked at their end.
    loop {
        let waiting = {
            let mut state = inner.state.borrow_mut();
            let writers = state.pins(copy.source).writers;
            let Some(found) = registered(&mut state, copy) else { return Ok(Some(MoveOutcome::Unallocated)) };
            if writers == 0 {
                break;
            }
            found.drained.add()
        };
        waiting.wait().await;
    }
    let runs = {
        let mut state = inner.state.borrow_mut();
        let skips = state.sabotage.is(Sabotage::SkipSecondPass);
        let Some(found) = registered(&mut state, copy) else { return Ok(Some(MoveOutcome::Unallocated)) };
        if skips {
            found.marks.fill(0);
        }
        if found.marked() > LAST_PASS_BLOCKS {
            found.holds_writes = false;
            found.waiters.wake();
            return Ok(None);
        }
        let runs = take_marks(found);
        state.counts.blocks_copied_again += runs.iter().map(|run| run.end - run.start).sum::<u64>();
        runs
    };
    for run in runs {
        copy_blocks(inner, copy, run).await.map_err(MoveError::Disk)?;
    }
    loop {
        let waiting = {
            let mut state = inner.state.borrow_mut();
            let references = state.references(copy.source);
            if references.is_empty() {
                return Ok(Some(MoveOutcome::Unallocated));
            }
            let mut holds = references
                .iter()
                .filter_map(|reference| state.volumes.get_mut(&reference.volume)?.hold.as_mut().map(Waiters::add));
            match holds.next() {
                // A snapshot is being made: its map and the one of its volume must not change.
                Some(waiting) => waiting,
                None => {
                    drop(holds);
                    return map_target(&mut state, copy, &references).map(|()| Some(MoveOutcome::Moved));
                }
            }
        };
        waiting.wait().await;
    }
}

/// Lets all maps that refer to the source refer to the target.
fn map_target<S: Seam, D: Disk<S>>(
    state: &mut State<S, D>,
    copy: &Copy,
    references: &[SliceAddress],
) -> Result<(), MoveError> {
    if state.write_stamp(copy.target.group) != copy.stamp {
        return Err(MoveError::Reverted);
    }
    assert_eq!(state.groups[copy.target.group.index()].slots.slot_use(copy.target.slot), SlotUse::Filling);
    for slice in references {
        state.set_slot(*slice, Some(copy.target), copy.stamp);
        // A flush of the volume has to reach the target from now on: it holds what was flushed at the source.
        let volume = state.volumes.get_mut(&slice.volume).expect("the slice is mapped");
        volume.unflushed.insert(copy.target.group);
    }
    Ok(())
}

/// The marked blocks as runs of at most [`COPY_BLOCKS`]; the marks are cleared.
fn take_marks(copy: &mut Move) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for (word, bits) in copy.marks.iter_mut().enumerate() {
        let taken = std::mem::take(bits);
        for block in (0..64).filter(|bit| taken >> bit & 1 == 1).map(|bit| word as u64 * 64 + bit) {
            match runs.last_mut() {
                Some(run) if run.end == block && run.end - run.start < COPY_BLOCKS => run.end += 1,
                _ => runs.push(block..block + 1),
            }
        }
    }
    runs
}

/// Copies blocks of the slice from its source to the target.
async fn copy_blocks<S: Seam, D: Disk<S>>(inner: &Inner<S, D>, copy: &Copy, blocks: Range<u64>) -> DiskResult<()> {
    inner.state.borrow_mut().interference.begin_copy();
    let result = read_and_write(inner, copy, blocks).await;
    inner.state.borrow_mut().interference.end_copy();
    result
}

async fn read_and_write<S: Seam, D: Disk<S>>(inner: &Inner<S, D>, copy: &Copy, blocks: Range<u64>) -> DiskResult<()> {
    let (source, source_at, target, target_at) = {
        let state = inner.state.borrow();
        let (source, target) = (state.disk(copy.source.group)?, state.disk(copy.target.group)?);
        (source, state.slot_offset(copy.source), target, state.slot_offset(copy.target))
    };
    let mut next = blocks.start;
    while next < blocks.end {
        let buffers = inner.buffers.get_up_to((blocks.end - next) as usize).await;
        let (offset, count) = (next * BLOCK_BYTES as u64, buffers.len() as u64);
        let (result, pieces) = source.read(source_at + offset, buffers.into_iter().map(Piece::whole).collect()).await;
        inner.state.borrow_mut().note_result(copy.source.group, Place::Part("a copy of a slice"), result)?;
        let frozen: Vec<_> = pieces.into_iter().map(|piece| piece.block.freeze()).collect();
        let result = target.write(target_at + offset, frozen.iter().cloned().map(Piece::whole).collect()).await;
        frozen.into_iter().for_each(|block| inner.buffers.put_frozen(block));
        inner.state.borrow_mut().note_result(copy.target.group, Place::Part("a copy of a slice"), result)?;
        next += count;
    }
    Ok(())
}
