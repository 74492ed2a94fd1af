//! Durable changes of the groups: writes of the superblocks.
//!
//! A change is written to both superblocks of every group that is present, so that no single damaged block can restore
//! the former state: first to the metadata copies of the durable state, so that no opening on these alone misses it.
//! It is durable when all metadata copies hold it, and the groups that lack it are at most half of the members: an
//! opening without one of the others lacks a metadata copy and a majority.

use std::collections::BTreeMap;
use std::rc::Rc;

use seam::{Disk, DiskError, Seam};

use crate::error::PoolError;
use crate::flush::write_to_group;
use crate::format::superblock::{MemberState, SUPERBLOCK_OFFSETS};
use crate::late;
use crate::number::{GroupNo, PoolGeneration};
use crate::state::{Group, Inner, State};
use task_sync::{BoxFuture, Reply, join};

/// Attempts to reach enough groups with a change.
const ATTEMPTS_MAX: u32 = 3;

/// Takes metadata copies out of service after an error, durably. Fails when no copy of the durable state is left.
pub(crate) async fn drop_copies<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    failures: Vec<(GroupNo, DiskError)>,
) -> Result<(), PoolError> {
    for (group, error) in failures {
        mark_copy_failed(inner, group, &error)?;
    }
    persist(inner).await
}

/// Marks a metadata copy as out of service, in memory. Nothing that relies on fewer copies may be acknowledged before
/// [`persist`] has returned.
fn mark_copy_failed<S: Seam, D: Disk<S>>(
    inner: &Inner<S, D>,
    group: GroupNo,
    error: &DiskError,
) -> Result<(), PoolError> {
    let mut state = inner.state.borrow_mut();
    state.groups[group.index()].failed_as_copy = true;
    if state.journal.joining == Some(group) {
        state.journal.joining = None;
    }
    if !state.superblock.members[group.index()].carries_metadata {
        return Ok(());
    }
    let name = state.group_name(group);
    if state.is_last_copy(group) {
        let failed = PoolError::Failed(format!("{name}: {error}"));
        state.failed = Some(failed.clone());
        return Err(failed);
    }
    state.superblock.members[group.index()].carries_metadata = false;
    state.superblock.generation = state.superblock.generation.next();
    state.notices.push(format!("the metadata copy on group {group} ({name}) failed: {error}"));
    Ok(())
}

/// Returns when no opening can miss the current membership: every metadata copy holds it, and the groups that lack it
/// are no majority. A group that fails keeps its older superblock and gets the newer one once it answers; if it carries
/// the metadata, it is taken out of service as a copy.
pub(crate) async fn persist<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>) -> Result<(), PoolError> {
    let _guard = inner.superblock_lock.lock().await;
    let mut attempts = 0;
    loop {
        let (generation, members, copies) = {
            let state = inner.state.borrow();
            if let Some(failed) = &state.failed {
                return Err(failed.clone());
            }
            if state.durable_generation >= state.superblock.generation {
                return Ok(());
            }
            let superblock = &state.superblock;
            (superblock.generation, superblock.member_count(), superblock.metadata_groups().into_iter().collect())
        };
        let failures = write_in_order(inner, generation).await;
        if !failures.is_empty() {
            for (group, error) in failures {
                mark_copy_failed(inner, group, &error)?;
            }
            continue;
        }
        let late_end = {
            let mut state = inner.state.borrow_mut();
            if 2 * lacking(&state, generation) <= state.durable_members {
                state.durable_generation = state.durable_generation.max(generation);
                state.durable_members = members;
                state.durable_copies = copies;
                continue;
            }
            late_end(&mut state, generation)
        };
        if let Some(ended) = late_end {
            ended.wait().await;
            continue;
        }
        attempts += 1;
        if attempts == ATTEMPTS_MAX {
            let failed = PoolError::Failed("too few groups hold the newest superblock".to_owned());
            inner.state.borrow_mut().failed = Some(failed.clone());
            return Err(failed);
        }
    }
}

/// The end of a late request, if a group with one lacks the generation.
fn late_end<S: Seam, D: Disk<S>>(state: &mut State<S, D>, generation: PoolGeneration) -> Option<Reply<()>> {
    let is_lacking = |group: &Group<D>| group.metadata_requests.are_late() && group.durable_generation < generation;
    state.groups.iter().any(is_lacking).then(|| state.late_ended.add())
}

/// Writes a generation to all present groups. Returns the metadata copies that failed, and writes no further ones then.
async fn write_in_order<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    generation: PoolGeneration,
) -> Vec<(GroupNo, DiskError)> {
    let is_removed =
        |state: &State<S, D>, group: GroupNo| state.superblock.members[group.index()].state == MemberState::Removed;
    let failures = write_superblocks(inner, generation, |state, group| state.is_durable_copy(group)).await;
    if !failures.is_empty() {
        return failures;
    }
    let is_other = |state: &State<S, D>, group| !state.is_durable_copy(group) && !is_removed(state, group);
    let mut failures = write_superblocks(inner, generation, is_other).await;
    failures.retain(|(group, _)| inner.state.borrow().superblock.members[group.index()].carries_metadata);
    if failures.is_empty() {
        // A group that leaves comes last: it must not be the only one that knows of its removal.
        write_superblocks(inner, generation, is_removed).await;
    }
    failures
}

/// Number of groups that an opening may count and that lack a generation.
fn lacking<S: Seam, D: Disk<S>>(state: &State<S, D>, generation: PoolGeneration) -> usize {
    let members = state.superblock.numbered_members().zip(&state.groups);
    let lacks = members.filter(|((number, member), group)| {
        // A group that is being removed counts until its disk is released, one that is given up until that is durable.
        let is_leaving = group.disk.is_some() || state.durable_generation < group.lost_since;
        let counts = member.state.is_member() || is_leaving && !member.state.is_import();
        counts && !state.given_up.contains(*number) && group.durable_generation < generation
    });
    lacks.count()
}

/// Writes the superblock again, in a task of its own, to groups that missed it and answer again.
pub(crate) fn catch_up_in_background<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>) {
    let is_due = {
        let state = inner.state.borrow();
        state.groups.iter().any(|group| is_behind(group, state.durable_generation))
    };
    if !is_due {
        return;
    }
    let task = Rc::clone(inner);
    inner.seam.spawn(async move { catch_up(&task, |group, durable| is_behind(group, durable)).await });
}

/// Writes the superblock again to a group that missed it. Returns whether the group has it. A group without it gets no
/// metadata: that would be of a timeline or generation that its superblock does not know.
pub(crate) async fn has_caught_up<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>, number: GroupNo) -> bool {
    let lacks = || {
        let state = inner.state.borrow();
        state.groups[number.index()].durable_generation < state.durable_generation
    };
    if lacks() {
        catch_up(inner, |group, durable| group.disk.is_some() && group.durable_generation < durable).await;
    }
    !lacks()
}

/// Writes the superblock again to a group when its late requests have ended.
fn catch_up_after_late<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>, number: GroupNo) {
    let requests = Rc::clone(&inner.state.borrow().groups[number.index()].metadata_requests);
    if !requests.begin_wait() {
        return;
    }
    let task = Rc::clone(inner);
    inner.seam.spawn(async move {
        late::wait_for_end(&task, number).await;
        requests.end_wait();
        catch_up(&task, |group, durable| is_behind(group, durable)).await;
    });
}

/// Writes the durable superblock to the groups that `selects` takes, given its generation.
async fn catch_up<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>, selects: impl Fn(&Group<D>, PoolGeneration) -> bool) {
    let _guard = inner.superblock_lock.lock().await;
    let (generation, durable) = {
        let state = inner.state.borrow();
        (state.superblock.generation, state.durable_generation)
    };
    // A newer generation is the business of the task that makes it durable.
    if generation == durable {
        write_superblocks(inner, generation, |state, group| selects(&state.groups[group.index()], durable)).await;
    }
}

/// True if a group lacks the generation and answers requests.
fn is_behind<D>(group: &Group<D>, generation: PoolGeneration) -> bool {
    group.disk.is_some() && group.has_answered && group.durable_generation < generation
}

/// Writes both superblocks of every present group that `selects` takes. Returns the groups that failed; the others hold
/// `generation` durably. Nothing is written to a disk that is being imported: it gets its superblocks when its volume
/// is complete (`import`).
async fn write_superblocks<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    generation: PoolGeneration,
    selects: impl Fn(&State<S, D>, GroupNo) -> bool,
) -> Vec<(GroupNo, DiskError)> {
    let selected: Vec<GroupNo> = {
        let state = inner.state.borrow();
        let members = state.superblock.numbered_members().filter(|(_, member)| !member.state.is_import());
        members.map(|(number, _)| number).filter(|number| selects(&state, *number)).collect()
    };
    let mut failures: BTreeMap<GroupNo, DiskError> = BTreeMap::new();
    for _ in 0..SUPERBLOCK_OFFSETS.len() {
        failures.extend(write_one_each(inner, &selected).await);
    }
    failures.keys().for_each(|group| catch_up_after_late(inner, *group));
    let mut state = inner.state.borrow_mut();
    for group in selected {
        let entry = &mut state.groups[group.index()];
        if failures.contains_key(&group) {
            entry.has_answered = false;
        } else if entry.disk.is_some() {
            entry.durable_generation = entry.durable_generation.max(generation);
        }
    }
    failures.into_iter().collect()
}

/// Writes one superblock of each of these groups that is present. Returns the groups that failed.
async fn write_one_each<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    selected: &[GroupNo],
) -> Vec<(GroupNo, DiskError)> {
    let (mut superblock, disks) = {
        let mut state = inner.state.borrow_mut();
        state.superblock.revision += 1;
        let disk = |group: &GroupNo| (*group, state.groups[group.index()].disk.clone());
        let disks: Vec<_> = selected.iter().map(disk).collect();
        (state.superblock.clone(), disks)
    };
    let mut writes = Vec::new();
    for (group, disk) in disks {
        let Some(disk) = disk else { continue };
        superblock.group = group;
        let place = inner.state.borrow().groups[group.index()].next_place;
        let block = inner.buffers.metadata(&superblock.encode()).await;
        let write: BoxFuture<'_, _> = Box::pin(async move {
            let runs = [(SUPERBLOCK_OFFSETS[place], vec![block])];
            let result = write_to_group(inner, group, &disk, &runs).await;
            if result.is_ok() {
                inner.state.borrow_mut().groups[group.index()].next_place = 1 - place;
            }
            Some((group, result.err()?))
        });
        writes.push(write);
    }
    join(writes).await.into_iter().flatten().collect()
}
