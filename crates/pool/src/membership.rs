//! Durable changes of the groups: writes of the superblocks.
//!
//! A change is written to both superblocks of every group that is present, so that no single damaged block can restore
//! the former state.

use seam::{Disk, DiskError, Seam};

use crate::error::PoolError;
use crate::flush::write_to_group;
use crate::format::superblock::{MemberState, SUPERBLOCK_OFFSETS};
use crate::number::GroupNo;
use crate::state::Inner;
use crate::wait::{BoxFuture, join};

/// Takes metadata copies out of service after an error, durably. Fails when no copy is left.
pub(crate) async fn drop_copies<S: Seam, D: Disk<S>>(
    inner: &Inner<S, D>,
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
    if state.copies().iter().all(|(copy, _)| *copy == group) {
        let failed = PoolError::Failed(format!("{name}: {error}"));
        state.failed = Some(failed.clone());
        return Err(failed);
    }
    state.superblock.members[group.index()].carries_metadata = false;
    state.superblock.generation = state.superblock.generation.next();
    state.notices.push(format!("the metadata copy on group {group} ({name}) failed: {error}"));
    Ok(())
}

/// Returns when every present group holds the current membership durably. A group that fails keeps its older
/// superblock; if it carries the metadata, it is taken out of service as a copy.
pub(crate) async fn persist<S: Seam, D: Disk<S>>(inner: &Inner<S, D>) -> Result<(), PoolError> {
    let _guard = inner.superblock_lock.lock().await;
    loop {
        let generation = {
            let state = inner.state.borrow();
            if let Some(failed) = &state.failed {
                return Err(failed.clone());
            }
            if state.durable_generation >= state.superblock.generation {
                return Ok(());
            }
            state.superblock.generation
        };
        let mut failures = Vec::new();
        for _ in 0..SUPERBLOCK_OFFSETS.len() {
            failures.extend(write_superblocks(inner, false).await);
        }
        let is_copy = |group: GroupNo| inner.state.borrow().superblock.members[group.index()].carries_metadata;
        failures.retain(|(group, _)| is_copy(*group));
        if failures.is_empty() {
            // A group that leaves comes last: it must not be the only one that knows of its removal.
            for _ in 0..SUPERBLOCK_OFFSETS.len() {
                write_superblocks(inner, true).await;
            }
        }
        if failures.is_empty() {
            let mut state = inner.state.borrow_mut();
            state.durable_generation = state.durable_generation.max(generation);
            continue;
        }
        for (group, error) in failures {
            mark_copy_failed(inner, group, &error)?;
        }
    }
}

/// Writes one superblock of every present group that is, or is not, removed. Returns the groups that failed.
async fn write_superblocks<S: Seam, D: Disk<S>>(inner: &Inner<S, D>, is_removed: bool) -> Vec<(GroupNo, DiskError)> {
    let (mut superblock, disks) = {
        let mut state = inner.state.borrow_mut();
        state.superblock.revision += 1;
        let disks = state.groups.iter().map(|group| (group.disk.clone(), group.next_place));
        let disks: Vec<_> = (0..).map(GroupNo).zip(disks).collect();
        (state.superblock.clone(), disks)
    };
    let mut writes = Vec::new();
    for (group, (disk, place)) in disks {
        let Some(disk) = disk else { continue };
        if (superblock.members[group.index()].state == MemberState::Removed) != is_removed {
            continue;
        }
        superblock.group = group;
        let block = inner.buffers.metadata(&superblock.encode()).await;
        let write: BoxFuture<'_, _> = Box::pin(async move {
            let result = write_to_group(inner, group, &disk, &[(SUPERBLOCK_OFFSETS[place], vec![block])]).await;
            if result.is_ok() {
                inner.state.borrow_mut().groups[group.index()].next_place = 1 - place;
            }
            Some((group, result.err()?))
        });
        writes.push(write);
    }
    join(writes).await.into_iter().flatten().collect()
}
