//! The metadata's write path and its recovery: commits to the journal, checkpoints, and the load at the opening.
//!
//! The journal is a ring of blocks, mirrored on the groups that carry the metadata. Concurrent requests share a commit:
//! one flush of the groups with new data, then one write and one flush on every copy. A checkpoint is the whole map as
//! records, written while requests go on.

mod checkpoint;
mod commit;
mod image;
pub(crate) mod load;
pub(crate) mod replay;

use std::rc::Rc;

use seam::{Disk, DiskError, Seam};

use crate::error::PoolError;
use crate::flush::write_to_group;
use crate::format::record::Record;
use crate::membership;
use crate::number::GroupNo;
use crate::state::{CommitRequest, CommitScope, Inner, State};
use task_sync::{BoxFuture, Reply, join};

pub(crate) use checkpoint::{add_copy, checkpoint, repair_in_background};

/// Changes that may wait for a commit before one begins by itself.
const PENDING_MAX: usize = 4096;
/// Blocks of one write.
const WRITE_BLOCKS: usize = 16;

/// Makes durable what `scope` names, and `records`.
pub(crate) async fn commit<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    scope: CommitScope,
    records: Vec<Record>,
) -> Result<(), PoolError> {
    let reply = Reply::default();
    inner.state.borrow_mut().journal.requests.push(CommitRequest { scope, records, reply: reply.clone() });
    start(inner);
    reply.wait().await
}

/// Starts the task of commits unless it runs.
fn start<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>) {
    let is_running = std::mem::replace(&mut inner.state.borrow_mut().journal.is_committing, true);
    if !is_running {
        inner.seam.spawn(commit::run(Rc::clone(inner)));
    }
}

/// Starts a commit if many changes wait for one.
pub(crate) fn commit_if_many<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>) {
    let is_due = {
        let state = inner.state.borrow();
        state.changes.pending_count() >= PENDING_MAX && !state.journal.is_committing && state.failed.is_none()
    };
    if is_due {
        let inner = Rc::clone(inner);
        inner.seam.clone().spawn(async move {
            // A failure of the metadata stays in the state, and fails the next flush.
            let _ = commit(&inner, CommitScope::AllMaps, Vec::new()).await;
        });
    }
}

/// Writes the same blocks to groups, durably. Returns the groups that failed.
async fn write_to<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    groups: &[(GroupNo, D)],
    runs: &[(u64, Vec<S::Block>)],
) -> Vec<(GroupNo, DiskError)> {
    let writes = groups.iter().map(|(group, disk)| {
        let write: BoxFuture<'_, _> =
            Box::pin(async move { Some((*group, write_to_group(inner, *group, disk, runs).await.err()?)) });
        write
    });
    join(writes.collect()).await.into_iter().flatten().collect()
}

/// The groups to which metadata is written: the copies, and the one that is joining.
fn targets<S: Seam, D: Disk<S>>(state: &State<S, D>) -> Vec<(GroupNo, D)> {
    let mut targets = state.copies();
    if let Some(joining) = state.journal.joining
        && let Some(disk) = state.groups[joining.index()].disk.clone()
    {
        targets.push((joining, disk));
    }
    targets
}

/// Takes failed copies out of service; another group takes over in the background.
async fn drop_failed<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    failures: Vec<(GroupNo, DiskError)>,
) -> Result<(), PoolError> {
    if failures.is_empty() {
        return Ok(());
    }
    let groups: Vec<_> = failures.iter().map(|(group, _)| *group).collect();
    membership::drop_copies(inner, failures).await?;
    checkpoint::restore_in_background(inner);
    groups.into_iter().for_each(|group| checkpoint::restore_after_late(inner, group));
    Ok(())
}
