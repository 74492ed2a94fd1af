//! Group commit: one commit at a time; requests that arrive meanwhile share the next one.
//!
//! A group whose flush does not end in time is *hung* until it ends: commits leave out the changes of maps with new
//! slots there, and requests that need it are parked. All other requests go on.
//!
//! Order of a commit: the groups with new slots and the waiting volumes' writes are flushed, then the journal is
//! written and flushed on every copy, then the replies are sent and released slots become free. A map entry whose group
//! may have lost the slot's content since it was filled is taken back instead.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::rc::Rc;

use seam::{BLOCK_BYTES, Disk, DiskError, DiskResult, Nanos, Seam};

use super::{WRITE_BLOCKS, checkpoint, drop_failed, targets, write_to};
use crate::error::PoolError;
use crate::flush::flush_group;
use crate::format::block::{BlockKind, MetadataBlock, PAYLOAD_BYTES};
use crate::format::record::{MAP_RECORD_BYTES, Record, RunBuilder, pack};
use crate::format::superblock::MemberState;
use crate::group_set::GroupSet;
use crate::membership;
use crate::number::{GroupNo, SliceAddress, SlotAddress, VolumeId};
use crate::sabotage::Sabotage;
use crate::state::{CommitRequest, CommitScope, Inner, State};
use task_sync::{Waiters, within};

/// Errors of flushes by group.
type FlushFailures = BTreeMap<GroupNo, DiskError>;
/// Time for which a commit waits for the flushes of groups.
const FLUSH_TIMEOUT: Nanos = Nanos::from_secs(1);

/// Flushes of groups, each a task of its own that may outlive the commit.
struct Flushes {
    running: GroupSet,
    failures: FlushFailures,
    ended: Waiters,
}

/// Commits until no request is waiting.
pub(super) async fn run<S: Seam, D: Disk<S>>(inner: Rc<Inner<S, D>>) {
    loop {
        // Clients that were just acknowledged may submit their next requests, which then join this commit.
        inner.seam.yield_now().await;
        let requests = {
            let journal = &mut inner.state.borrow_mut().journal;
            if journal.requests.is_empty() {
                journal.is_committing = false;
                return;
            }
            journal.late_flushes = Some(Vec::new());
            std::mem::take(&mut journal.requests)
        };
        run_pass(&inner, requests).await;
        let late_flushes = inner.state.borrow_mut().journal.late_flushes.take();
        for (group, result) in late_flushes.into_iter().flatten() {
            finish_late_flush(&inner, group, &result);
        }
        membership::catch_up_in_background(&inner);
    }
}

/// Makes everything durable that the requests wait for, in as many commits as the ring's length asks for.
async fn run_pass<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>, mut requests: Vec<CommitRequest>) {
    let _guard = inner.commit_lock.lock().await;
    let (unflushed, max) = {
        let mut guard = inner.state.borrow_mut();
        let state = &mut *guard;
        state.changes.begin_pass();
        let volumes = requests.iter().filter_map(|request| request.scope.flushed_volume());
        let mut unflushed = BTreeMap::<VolumeId, GroupSet>::new();
        for id in volumes {
            if let Some(volume) = state.volumes.get_mut(&id) {
                let groups = unflushed.entry(id).or_default();
                *groups = groups.union(std::mem::take(&mut volume.unflushed));
            }
        }
        let blocks = (state.superblock.journal_blocks as usize / 4).min(WRITE_BLOCKS);
        (unflushed, blocks * (PAYLOAD_BYTES / MAP_RECORD_BYTES))
    };
    let flushes_early = inner.state.borrow().sabotage.is(Sabotage::FlushWithoutJournal);
    let mut records: Vec<Record> =
        requests.iter_mut().flat_map(|request| std::mem::take(&mut request.records)).collect();
    let mut to_flush = unflushed.values().fold(GroupSet::default(), |groups, set| groups.union(*set));
    // A change that was left out may be replaced before the end of the pass, by one that needs no hung group.
    let mut deferred = BTreeSet::new();
    let failed = inner.state.borrow().failed.clone();
    if let Some(failed) = failed {
        let failures = flush_groups(inner, to_flush).await;
        park_requests(&mut inner.state.borrow_mut(), &mut requests, &unflushed, deferred);
        let needs_journal = !records.is_empty() || !inner.state.borrow().changes.is_empty();
        let result = if needs_journal { Err(failed) } else { Ok(()) };
        answer(inner, &mut requests, &unflushed, &failures, &result);
        return;
    }
    let mut failures = FlushFailures::new();
    let mut result = Ok(());
    let mut after = Bound::Unbounded;
    loop {
        let (more, new_groups) = {
            let mut guard = inner.state.borrow_mut();
            let State { changes, volumes, .. } = &mut *guard;
            let slot_of = |slice: SliceAddress| volumes.get(&slice.volume)?.map.get(slice.slice);
            let more = changes.take(after, max, slot_of);
            let slots = changes.committing().filter_map(|(_, change)| change.slot);
            (
                more,
                slots.fold(GroupSet::default(), |mut groups, slot| {
                    groups.insert(slot.group);
                    groups
                }),
            )
        };
        let skips_flush = inner.state.borrow().sabotage.is(Sabotage::MapBeforeData);
        if !skips_flush {
            failures.append(&mut flush_groups(inner, to_flush.union(new_groups)).await);
            to_flush = GroupSet::default();
            defer_hung(&mut inner.state.borrow_mut(), &mut deferred);
        }
        if flushes_early {
            let (mut flushes, others): (Vec<_>, Vec<_>) =
                requests.drain(..).partition(|request| request.scope.flushed_volume().is_some());
            requests = others;
            answer(inner, &mut flushes, &unflushed, &failures, &Ok(()));
        }
        let last_records = if more.is_none() { std::mem::take(&mut records) } else { Vec::new() };
        result = result.and(write_changes(inner, &failures, last_records).await);
        if skips_flush {
            failures.append(&mut flush_groups(inner, to_flush.union(new_groups)).await);
            to_flush = GroupSet::default();
        }
        match more {
            Some(last) if result.is_ok() => after = Bound::Excluded(last),
            _ => break,
        }
    }
    if result.is_ok() {
        let mut state = inner.state.borrow_mut();
        state.changes.finish_pass().into_iter().for_each(|slot| state.free_slot(slot));
    }
    park_requests(&mut inner.state.borrow_mut(), &mut requests, &unflushed, deferred);
    answer(inner, &mut requests, &unflushed, &failures, &result);
}

/// Leaves changes whose new slot is on a hung group out of the running commit. Adds their volumes to
/// `deferred_volumes`.
fn defer_hung<S: Seam, D: Disk<S>>(state: &mut State<S, D>, deferred_volumes: &mut BTreeSet<VolumeId>) {
    let hung = state.journal.hung;
    let is_hung = |slot: Option<SlotAddress>| slot.is_some_and(|slot| hung.contains(slot.group));
    let deferred: Vec<_> = state.changes.committing().filter(|(_, change)| is_hung(change.slot)).collect();
    for (slice, _) in deferred {
        state.changes.defer(slice);
        deferred_volumes.insert(slice.volume);
    }
}

/// Moves the requests that need a hung group from `requests` to the parked ones. A request with records is served: they
/// are durable.
fn park_requests<S: Seam, D: Disk<S>>(
    state: &mut State<S, D>,
    requests: &mut Vec<CommitRequest>,
    unflushed: &BTreeMap<VolumeId, GroupSet>,
    mut deferred: BTreeSet<VolumeId>,
) {
    let hung = state.journal.hung;
    if hung.is_empty() || state.sabotage.is(Sabotage::AnswerForHungGroups) {
        return;
    }
    deferred.extend(state.changes.pending_on(hung, |slice| state.slot_of(slice)));
    let (parked, others): (Vec<_>, Vec<_>) = requests.drain(..).partition(|request| match request.scope {
        CommitScope::AllMaps => request.records.is_empty() && !deferred.is_empty(),
        CommitScope::VolumeMap(volume) => deferred.contains(&volume),
        CommitScope::VolumeWrites(volume) => {
            deferred.contains(&volume) || unflushed.get(&volume).is_some_and(|groups| groups.intersects(hung))
        }
    });
    *requests = others;
    for volume in parked.iter().filter_map(|request| request.scope.flushed_volume()) {
        if let (Some(groups), Some(volume)) = (unflushed.get(&volume), state.volumes.get_mut(&volume)) {
            volume.unflushed = volume.unflushed.union(*groups);
        }
    }
    state.journal.parked.extend(parked);
}

/// Replies to all requests, and remembers failed flushes for the volumes concerned.
fn answer<S: Seam, D: Disk<S>>(
    inner: &Inner<S, D>,
    requests: &mut Vec<CommitRequest>,
    unflushed: &BTreeMap<VolumeId, GroupSet>,
    failures: &FlushFailures,
    result: &Result<(), PoolError>,
) {
    let mut state = inner.state.borrow_mut();
    for (id, groups) in unflushed {
        let failed = |group: &GroupNo| failures.get(group).is_some_and(|error| *error != DiskError::Gone);
        for group in groups.iter().filter(failed) {
            // The next flush tries again. A group that is gone has changed the connection epoch: its writes count as
            // lost, and do not keep the volume's other groups from being flushed.
            if let Some(volume) = state.volumes.get_mut(id) {
                volume.unflushed.insert(group);
            }
        }
    }
    let replies: Vec<_> = requests
        .drain(..)
        .map(|request| {
            let volume = request.scope.flushed_volume();
            let groups = volume.and_then(|volume| unflushed.get(&volume)).copied().unwrap_or_default();
            let failure = groups.iter().find_map(|group| Some((group, failures.get(&group)?.clone())));
            let failure = failure.map(|(group, error)| PoolError::Disk { device: state.group_name(group), error });
            (request.reply, result.clone().and(failure.map_or(Ok(()), Err)))
        })
        .collect();
    drop(state);
    replies.into_iter().for_each(|(reply, result)| reply.send(result));
}

/// Flushes groups. Returns the ones that failed; their write stamp has changed. A flush that does not end in time makes
/// its group hung until its end; a hung group is not flushed again.
async fn flush_groups<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>, groups: GroupSet) -> FlushFailures {
    let hung = inner.state.borrow().journal.hung;
    let running = groups.difference(hung);
    if running.is_empty() {
        return FlushFailures::new();
    }
    let mut ended = Waiters::default();
    let all_ended = ended.add();
    let flushes = Rc::new(RefCell::new(Flushes { running, failures: FlushFailures::new(), ended }));
    for group in running.iter() {
        let (inner, flushes) = (Rc::clone(inner), Rc::clone(&flushes));
        inner.seam.clone().spawn(async move {
            let result = flush_member(&inner, group).await;
            {
                let mut flushes = flushes.borrow_mut();
                flushes.running.remove(group);
                flushes.failures.extend(result.clone().err().map(|error| (group, error)));
                if flushes.running.is_empty() {
                    flushes.ended.wake();
                }
            }
            finish_late_flush(&inner, group, &result);
        });
    }
    if within(inner.seam.sleep(FLUSH_TIMEOUT), all_ended.wait()).await.is_none() {
        let hung = flushes.borrow().running;
        let mut state = inner.state.borrow_mut();
        state.journal.hung = state.journal.hung.union(hung);
    }
    std::mem::take(&mut flushes.borrow_mut().failures)
}

/// Flushes a group.
async fn flush_member<S: Seam, D: Disk<S>>(inner: &Inner<S, D>, group: GroupNo) -> DiskResult<()> {
    let (disk, is_removed) = {
        let state = inner.state.borrow();
        (state.disk(group), state.superblock.members[group.index()].state == MemberState::Removed)
    };
    match disk {
        Ok(disk) => flush_group(inner, group, &disk).await,
        // The group was drained: moves have made everything durable elsewhere.
        Err(_) if is_removed => Ok(()),
        Err(_) => {
            inner.state.borrow_mut().groups[group.index()].flush_failures += 1;
            Err(DiskError::Gone)
        }
    }
}

/// Ends the hang of a group whose flush has ended, after the present pass, which has left the group out. The parked
/// requests begin again, because a flush does not cover writes issued after it began. If it failed, requests with
/// unflushed writes on the group get its error.
fn finish_late_flush<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>, group: GroupNo, result: &DiskResult<()>) {
    let failed: Vec<_> = {
        let mut state = inner.state.borrow_mut();
        if !state.journal.hung.contains(group) {
            return;
        }
        if let Some(late_flushes) = &mut state.journal.late_flushes {
            late_flushes.push((group, result.clone()));
            return;
        }
        state.journal.hung.remove(group);
        let parked = std::mem::take(&mut state.journal.parked);
        let has_writes_on_group = |request: &CommitRequest| {
            let volume = request.scope.flushed_volume().and_then(|volume| state.volumes.get(&volume));
            volume.is_some_and(|volume| volume.unflushed.contains(group))
        };
        let (failed, others): (Vec<_>, Vec<_>) =
            parked.into_iter().partition(|request| result.is_err() && has_writes_on_group(request));
        if *result == Err(DiskError::Gone) {
            for volume in failed.iter().filter_map(|request| request.scope.flushed_volume()) {
                state.volumes.get_mut(&volume).expect("it has writes").unflushed.remove(group);
            }
        }
        state.journal.requests.extend(others);
        let device = state.group_name(group);
        let failure = |error: &DiskError| PoolError::Disk { device: device.clone(), error: error.clone() };
        let answers = failed.into_iter().map(|request| (request.reply, result.as_ref().copied().map_err(failure)));
        answers.collect()
    };
    failed.into_iter().for_each(|(reply, result)| reply.send(result));
    super::start(inner);
}

/// Writes the changes of the running commit and `records` to the journal, and applies their consequences.
async fn write_changes<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    failures: &FlushFailures,
    records: Vec<Record>,
) -> Result<(), PoolError> {
    let (payloads, changes) = {
        let mut state = inner.state.borrow_mut();
        if let Some(failed) = &state.failed {
            return Err(failed.clone());
        }
        let is_lost = |state: &State<S, D>, group: GroupNo, stamp: u64| {
            failures.contains_key(&group) || state.write_stamp(group) != stamp
        };
        let filled: Vec<_> = state
            .changes
            .committing()
            .filter_map(|(slice, change)| Some((slice, change.slot?.group, change.stamp)))
            .collect();
        for (slice, group, stamp) in filled {
            if is_lost(&state, group, stamp) {
                state.revert(slice);
            }
        }
        let mut runs = RunBuilder::default();
        for (slice, change) in state.changes.committing() {
            runs.add(slice.volume, slice.slice, change.slot);
        }
        // Records follow the changes of maps: a volume's removal or shrinking is final.
        let changes = runs.finish();
        (pack(changes.iter().chain(&records)), changes.len())
    };
    if !payloads.is_empty() {
        write_blocks(inner, payloads).await?;
    }
    let mut state = inner.state.borrow_mut();
    state.changes.finish();
    // A copied map may differ from its predecessor in a checkpoint in each slice; three records count as one change.
    let copied = |record: &Record| match record {
        Record::Volume { from: Some(from), .. } => state.volumes.get(from).map_or(0, |from| from.map.allocated()),
        _ => 0,
    };
    let copied: u64 = records.iter().map(copied).map(|slices| u64::from(slices).div_ceil(3)).sum();
    records.iter().for_each(|record| state.apply_volume_record(record));
    state.journal.journal_records += changes as u64 + copied;
    (state.journal.settled, state.journal.settled_previous) = (state.journal.next, state.journal.previous);
    Ok(())
}

/// Appends blocks to the journal, durably on every copy.
async fn write_blocks<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>, payloads: Vec<Vec<u8>>) -> Result<(), PoolError> {
    for chunk in payloads.chunks(WRITE_BLOCKS) {
        wait_for_space(inner, chunk.len() as u64).await?;
        let (encoded, next, previous) = encode_chunk(&inner.state.borrow(), chunk);
        let mut runs: Vec<(u64, Vec<S::Block>)> = Vec::new();
        for (at, raw) in encoded {
            let block = inner.buffers.metadata(&raw).await;
            match runs.last_mut().filter(|(start, blocks)| start + (blocks.len() * BLOCK_BYTES) as u64 == at) {
                Some((_, blocks)) => blocks.push(block),
                None => runs.push((at, vec![block])),
            }
        }
        let groups = targets(&inner.state.borrow());
        let failures = write_to(inner, &groups, &runs).await;
        inner.buffers.put_unique(runs);
        drop_failed(inner, failures).await?;
        let mut state = inner.state.borrow_mut();
        state.counts.commits += 1;
        state.counts.journal_blocks += chunk.len() as u64;
        (state.journal.next, state.journal.previous) = (next, previous);
    }
    // Another task may have taken a copy out of service that these blocks lack.
    membership::persist(inner).await?;
    if used(&inner.state.borrow()) > u64::from(inner.state.borrow().superblock.journal_blocks) / 2 {
        checkpoint::start(inner);
    }
    Ok(())
}

/// The blocks of a chunk with their offsets, and the journal's position and checksum after them.
#[allow(clippy::type_complexity, reason = "one caller takes the tuple apart at once")]
fn encode_chunk<S: Seam, D: Disk<S>>(
    state: &State<S, D>,
    chunk: &[Vec<u8>],
) -> (Vec<(u64, Box<crate::format::Raw>)>, crate::number::Sequence, u32) {
    let (mut next, mut previous) = (state.journal.next, state.journal.previous);
    let mut encoded = Vec::new();
    for payload in chunk {
        let block = MetadataBlock {
            kind: BlockKind::Journal,
            pool: state.superblock.pool,
            sequence: next,
            checkpoint: state.journal.checkpoint,
            boot: state.journal.boot,
            previous,
            is_last: true,
            payload: payload.into(),
        };
        let (raw, checksum) = block.encode();
        encoded.push((state.superblock.journal_offset(next), raw));
        (next, previous) = (next.next(), checksum);
    }
    (encoded, next, previous)
}

/// Blocks of the ring that the newest complete checkpoint needs.
fn used<S: Seam, D: Disk<S>>(state: &State<S, D>) -> u64 {
    state.journal.next.0 - state.journal.replay_from.0
}

/// Waits until the ring has room for `count` blocks: a checkpoint makes it.
async fn wait_for_space<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>, count: u64) -> Result<(), PoolError> {
    loop {
        let waiting = {
            let mut state = inner.state.borrow_mut();
            if let Some(failed) = &state.failed {
                return Err(failed.clone());
            }
            if used(&state) + count <= u64::from(state.superblock.journal_blocks) {
                return Ok(());
            }
            state.journal.checkpoint_waiters.add()
        };
        checkpoint::start(inner);
        waiting.wait().await;
    }
}
