//! Checkpoints: the whole map as records, in the area that the newest complete checkpoint does not use. A checkpoint is
//! the exact durable state at its beginning: requests go on while it is written, and later changes are in the journal,
//! from the block on where the checkpoint began.
//!
//! A new metadata copy is made by a checkpoint that is also written to the new group.

use std::rc::Rc;

use seam::{BLOCK_BYTES, Disk, DiskError, Seam};

use super::image::{Image, Part};
use super::{WRITE_BLOCKS, drop_failed, targets};
use crate::error::PoolError;
use crate::flush::{flush_metadata, write_to_group, write_unflushed};
use crate::format::block::{BlockKind, CheckpointFacts, MetadataBlock};
use crate::format::layout::COPIES;
use crate::format::record::{MAP_RECORD_BYTES, Record, pack_after};
use crate::format::superblock::MemberState;
use crate::late;
use crate::membership;
use crate::number::{CheckpointNo, GroupNo, Sequence, SliceNo};
use crate::state::Inner;

/// Slices that one piece takes from the maps.
const PIECE_SLICES: usize = WRITE_BLOCKS * (crate::format::block::PAYLOAD_BYTES / MAP_RECORD_BYTES);
/// Attempts of a checkpoint whose groups reconnect.
const ATTEMPTS_MAX: u32 = 3;

/// Starts a checkpoint unless one is running.
pub(super) fn start<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>) {
    if std::mem::replace(&mut inner.state.borrow_mut().journal.is_checkpointing, true) {
        return;
    }
    let task = Rc::clone(inner);
    inner.seam.spawn(async move {
        let result = write_checkpoint(&task).await;
        let mut state = task.state.borrow_mut();
        if let Err(error) = result {
            state.failed.get_or_insert(error);
        }
        state.journal.is_checkpointing = false;
        state.journal.checkpoint_waiters.wake();
    });
}

/// Writes a checkpoint that begins now or later.
pub(crate) async fn checkpoint<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>) -> Result<(), PoolError> {
    let before = inner.state.borrow().counts.checkpoints;
    // A checkpoint that is running began earlier.
    let wanted = before + 1 + u64::from(inner.state.borrow().journal.is_checkpointing);
    loop {
        let waiting = {
            let mut state = inner.state.borrow_mut();
            if let Some(failed) = &state.failed {
                return Err(failed.clone());
            }
            if state.counts.checkpoints >= wanted {
                return Ok(());
            }
            state.journal.checkpoint_waiters.add()
        };
        start(inner);
        waiting.wait().await;
    }
}

/// Groups that could become a metadata copy, the fastest first. Ones that failed as a copy come last.
fn candidates<S: Seam, D: Disk<S>>(inner: &Inner<S, D>, retries_failed: bool) -> Vec<GroupNo> {
    let state = inner.state.borrow();
    let members = state.superblock.numbered_members().zip(&state.groups);
    let suitable = members.filter(|((_, member), group)| {
        member.has_area
            && !member.carries_metadata
            && member.state == MemberState::InService
            && group.disk.is_some()
            && !group.is_gone
            && (retries_failed || !group.failed_as_copy)
    });
    let mut found: Vec<_> =
        suitable.map(|((number, member), group)| (group.failed_as_copy, member.tier, number)).collect();
    found.sort_unstable();
    found.into_iter().map(|(_, _, number)| number).collect()
}

/// Makes another metadata copy if fewer than `wanted` are in service. Returns whether a copy was made.
pub(crate) async fn add_copy<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    wanted: usize,
    retries_failed: bool,
) -> Result<bool, PoolError> {
    let _one_at_a_time = inner.copies_lock.lock().await;
    for group in candidates(inner, retries_failed) {
        if !membership::has_caught_up(inner, group).await {
            continue;
        }
        {
            // Between two passes, so that the group gets every block from the checkpoint's first one on.
            let _guard = inner.commit_lock.lock().await;
            let mut state = inner.state.borrow_mut();
            if state.copies().len() >= wanted {
                return Ok(false);
            }
            assert!(state.journal.joining.is_none(), "one copy is made at a time");
            state.journal.joining = Some(group);
        }
        if let Err(error) = checkpoint(inner).await {
            inner.state.borrow_mut().journal.joining = None;
            return Err(error);
        }
        {
            let mut state = inner.state.borrow_mut();
            if state.journal.joining != Some(group) {
                // It failed meanwhile.
                continue;
            }
            state.journal.joining = None;
            if state.superblock.members[group.index()].state != MemberState::InService {
                // It is leaving the pool.
                continue;
            }
            state.groups[group.index()].failed_as_copy = false;
            state.superblock.members[group.index()].carries_metadata = true;
            state.superblock.generation = state.superblock.generation.next();
            let name = state.group_name(group);
            state.notices.push(format!("group {group} ({name}) carries a metadata copy now"));
        }
        membership::persist(inner).await?;
        return Ok(true);
    }
    Ok(false)
}

/// Repairs the metadata after the opening, in a task of its own: another copy if one is missing, and a new checkpoint
/// if a copy has only an older one.
pub(crate) fn repair_in_background<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>, needs_checkpoint: bool) {
    let task = Rc::clone(inner);
    inner.seam.spawn(async move {
        // A failure of the metadata stays in the state.
        let has_added = add_copy(&task, COPIES, true).await;
        if needs_checkpoint && has_added == Ok(false) {
            let _ = checkpoint(&task).await;
        }
    });
}

/// Makes another metadata copy in a task of its own.
pub(super) fn restore_in_background<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>) {
    let task = Rc::clone(inner);
    inner.seam.spawn(async move {
        // A failure of the metadata stays in the state.
        let _ = add_copy(&task, COPIES, false).await;
    });
}

/// Makes another metadata copy, if one is missing, when a group's late requests have ended.
pub(super) fn restore_after_late<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>, group: GroupNo) {
    if !inner.state.borrow().groups[group.index()].metadata_requests.are_late() {
        return;
    }
    let task = Rc::clone(inner);
    inner.seam.spawn(async move {
        late::wait_for_end(&task, group).await;
        // A failure of the metadata stays in the state.
        let _ = add_copy(&task, COPIES, false).await;
    });
}

/// A checkpoint in progress.
struct Progress<D> {
    number: CheckpointNo,
    replay_from: Sequence,
    replay_after: u32,
    /// The groups that get it, with their write stamps at its start.
    groups: Vec<(GroupNo, D, u64)>,
    /// Index of the next block in the area.
    index: u32,
    previous: u32,
    /// Records of the block after that. Volumes share blocks, so that the area has room for every map.
    partial: Vec<u8>,
    /// The area was too small.
    is_full: bool,
    /// Records of maps.
    map_records: u64,
    /// [`JournalState::journal_records`](crate::state::JournalState) at its beginning.
    journal_records: u64,
}

async fn write_checkpoint<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>) -> Result<(), PoolError> {
    for _ in 0..ATTEMPTS_MAX {
        if try_checkpoint(inner).await? {
            return Ok(());
        }
    }
    Err(PoolError::Failed("the groups keep losing parts of a checkpoint, or it has no room".to_owned()))
}

/// Writes a checkpoint. Returns false if a group may have lost a part of it, or the area was too small.
async fn try_checkpoint<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>) -> Result<bool, PoolError> {
    let (mut progress, image) = {
        let state = inner.state.borrow();
        let groups = targets(&state);
        let groups = groups.into_iter().map(|(group, disk)| {
            let stamp = state.write_stamp(group);
            (group, disk, stamp)
        });
        let progress = Progress {
            number: state.journal.checkpoint.next(),
            replay_from: state.journal.settled,
            replay_after: state.journal.settled_previous,
            groups: groups.collect(),
            index: 1,
            previous: 0,
            partial: Vec::new(),
            is_full: false,
            map_records: 0,
            journal_records: state.journal.journal_records,
        };
        (progress, Image::new(&state))
    };
    for part in image.parts() {
        write_volume(inner, &mut progress, &image, part).await?;
    }
    let partial = std::mem::take(&mut progress.partial);
    if !partial.is_empty() {
        write_payloads(inner, &mut progress, &[partial]).await?;
    }
    if progress.is_full {
        return Ok(false);
    }
    for (group, disk, _) in progress.groups.clone() {
        if let Err(error) = flush_metadata(inner, group, &disk).await {
            fail(inner, &mut progress, group, error).await?;
        }
    }
    let is_lost = {
        let state = inner.state.borrow();
        progress.groups.iter().any(|(group, _, stamp)| state.write_stamp(*group) != *stamp)
    };
    if is_lost {
        return Ok(false);
    }
    write_header(inner, &mut progress).await?;
    // Blocks of the ring that a copy out of service still needs are overwritten from now on.
    membership::persist(inner).await?;
    let mut state = inner.state.borrow_mut();
    state.journal.checkpoint_records = progress.map_records;
    state.journal.journal_records_before = progress.journal_records;
    state.journal.checkpoint = progress.number;
    state.journal.replay_from = progress.replay_from;
    state.counts.checkpoints += 1;
    Ok(true)
}

impl<D: Clone> Progress<D> {
    fn is_target(&self, group: GroupNo) -> bool {
        self.groups.iter().any(|(target, _, _)| *target == group)
    }
}

/// Writes a volume and its map, piece by piece.
async fn write_volume<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    progress: &mut Progress<D>,
    image: &Image,
    part: Part,
) -> Result<(), PoolError> {
    write_records(inner, progress, &[image.record(part)]).await?;
    let mut from = Some(SliceNo(0));
    while let Some(first) = from {
        let (records, next) = image.records(part, first, PIECE_SLICES);
        from = next;
        progress.map_records += records.iter().map(Record::map_records).sum::<u64>();
        write_records(inner, progress, &records).await?;
        inner.seam.yield_now().await;
    }
    Ok(())
}

/// Appends records; the blocks that are full are written.
async fn write_records<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    progress: &mut Progress<D>,
    records: &[Record],
) -> Result<(), PoolError> {
    let mut payloads = pack_after(std::mem::take(&mut progress.partial), records);
    progress.partial = payloads.pop().unwrap_or_default();
    write_payloads(inner, progress, &payloads).await
}

/// Writes blocks to the area of every group that is still in service.
async fn write_payloads<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    progress: &mut Progress<D>,
    payloads: &[Vec<u8>],
) -> Result<(), PoolError> {
    for payloads in payloads.chunks(WRITE_BLOCKS) {
        let area_blocks = inner.state.borrow().superblock.area_blocks;
        progress.is_full |= progress.index + payloads.len() as u32 > area_blocks;
        if progress.is_full {
            return Ok(());
        }
        let first = progress.index;
        let mut blocks = Vec::with_capacity(payloads.len());
        for payload in payloads {
            let (pool, boot) = {
                let state = inner.state.borrow();
                (state.superblock.pool, state.journal.boot)
            };
            let block = MetadataBlock {
                kind: BlockKind::Checkpoint,
                pool,
                sequence: Sequence(u64::from(progress.index)),
                checkpoint: progress.number,
                boot,
                previous: progress.previous,
                is_last: true,
                payload: payload.into(),
            };
            let (raw, checksum) = block.encode();
            blocks.push(inner.buffers.metadata(&raw).await);
            (progress.index, progress.previous) = (progress.index + 1, checksum);
        }
        let area_at = inner.state.borrow().superblock.checkpoint_offset(progress.number);
        let runs = vec![(area_at + u64::from(first) * BLOCK_BYTES as u64, blocks)];
        write_all(inner, progress, &runs, false).await?;
        inner.buffers.put_unique(runs);
    }
    Ok(())
}

/// Writes the header, which makes the checkpoint valid.
async fn write_header<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    progress: &mut Progress<D>,
) -> Result<(), PoolError> {
    let (raw, at) = {
        let state = inner.state.borrow();
        let facts = CheckpointFacts {
            replay_from: progress.replay_from,
            replay_after: progress.replay_after,
            journal_end: state.journal.next,
            blocks: progress.index - 1,
            checksum: progress.previous,
            next_volume: state.next_volume,
        };
        let block = MetadataBlock {
            kind: BlockKind::CheckpointHeader,
            pool: state.superblock.pool,
            sequence: Sequence(0),
            checkpoint: progress.number,
            boot: state.journal.boot,
            previous: 0,
            is_last: true,
            payload: facts.encode().into(),
        };
        (block.encode().0, state.superblock.checkpoint_offset(progress.number))
    };
    let runs = vec![(at, vec![inner.buffers.metadata(&raw).await])];
    write_all(inner, progress, &runs, true).await?;
    inner.buffers.put_unique(runs);
    Ok(())
}

/// Writes blocks to every group of the checkpoint. A group that fails is taken out of service as a copy.
async fn write_all<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    progress: &mut Progress<D>,
    runs: &[(u64, Vec<S::Block>)],
    is_durable: bool,
) -> Result<(), PoolError> {
    let in_service: Vec<_> = targets(&inner.state.borrow()).into_iter().map(|(group, _)| group).collect();
    progress.groups.retain(|(group, _, _)| in_service.contains(group));
    for (group, disk, _) in progress.groups.clone() {
        let result = if is_durable {
            write_to_group(inner, group, &disk, runs).await
        } else {
            write_unflushed(inner, group, &disk, runs).await
        };
        if let Err(error) = result {
            fail(inner, progress, group, error).await?;
        }
    }
    // A copy that is not part of the checkpoint would be valid without it.
    let is_complete = inner.state.borrow().superblock.metadata_groups().iter().all(|group| progress.is_target(*group));
    assert!(is_complete, "a metadata copy joins only by a checkpoint");
    Ok(())
}

/// Takes a group out of the checkpoint and out of service as a copy.
async fn fail<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    progress: &mut Progress<D>,
    group: GroupNo,
    error: DiskError,
) -> Result<(), PoolError> {
    progress.groups.retain(|(target, _, _)| *target != group);
    drop_failed(inner, vec![(group, error)]).await
}
