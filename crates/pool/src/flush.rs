//! Flushes of the groups of an open pool. A device reports a failed flush once, to whatever request flushes next, and
//! forgets the writes. So every flush of a group goes through here: a failure changes the group's write stamp, and with
//! it the connection epoch of all volumes.

use std::rc::Rc;

use seam::{Disk, DiskError, DiskResult, Nanos, Piece, Seam};

use crate::late::in_time;
use crate::number::GroupNo;
use crate::state::Inner;

/// Maximum number of attempts of a write whose group may lose it before the flush.
const ATTEMPTS_MAX: u32 = 3;
/// Maximum number of attempts on the last metadata copy; with their pauses they take about 6 s.
const LAST_COPY_ATTEMPTS: u32 = 8;
/// The pause after the first of them. Each further one is twice as long.
const FIRST_PAUSE: Nanos = Nanos::from_millis(50);

/// Flushes a group. A failure changes its write stamp. One flush of a group runs at a time: the device reports a loss
/// to one of two flushes in flight, and the other one could succeed before that is known.
pub(crate) async fn flush_group<S: Seam, D: Disk<S>>(inner: &Inner<S, D>, group: GroupNo, disk: &D) -> DiskResult<()> {
    let lock = Rc::clone(&inner.state.borrow().groups[group.index()].flush_lock);
    let _one_at_a_time = lock.lock().await;
    let result = disk.flush().await;
    let mut state = inner.state.borrow_mut();
    match &result {
        Ok(()) => state.groups[group.index()].has_answered = true,
        Err(error) => {
            state.groups[group.index()].flush_failures += 1;
            state.set_gone(group, *error == DiskError::Gone);
        }
    }
    result
}

/// Writes metadata blocks at byte offsets and flushes the group. Retries if the write stamp changes meanwhile: the
/// group has reconnected, or another task's flush has failed. On the last metadata copy it also retries after errors:
/// without that copy the pool can only fail.
pub(crate) async fn write_to_group<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    group: GroupNo,
    disk: &D,
    runs: &[(u64, Vec<S::Block>)],
) -> DiskResult<()> {
    write_in_time(inner, group, disk, runs, true).await
}

/// Writes metadata blocks at byte offsets, for a later flush. Retries as [`write_to_group`] does.
pub(crate) async fn write_unflushed<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    group: GroupNo,
    disk: &D,
    runs: &[(u64, Vec<S::Block>)],
) -> DiskResult<()> {
    write_in_time(inner, group, disk, runs, false).await
}

/// Flushes the metadata of a group.
pub(crate) async fn flush_metadata<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    group: GroupNo,
    disk: &D,
) -> DiskResult<()> {
    let (task, disk) = (Rc::clone(inner), disk.clone());
    in_time(inner, group, async move { flush_group(&task, group, &disk).await }).await
}

async fn write_in_time<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    group: GroupNo,
    disk: &D,
    runs: &[(u64, Vec<S::Block>)],
    is_durable: bool,
) -> DiskResult<()> {
    let (task, disk, runs) = (Rc::clone(inner), disk.clone(), runs.to_vec());
    let write = async move {
        let result = retry(&task, group, &disk, async || {
            let stamp = task.state.borrow().write_stamp(group);
            write_runs::<S, D>(&disk, &runs).await?;
            if !is_durable {
                return Ok(true);
            }
            flush_group(&task, group, &disk).await?;
            Ok(task.state.borrow().write_stamp(group) == stamp)
        });
        let result = result.await;
        // After a late request no other task returns them.
        task.buffers.put_unique(runs);
        result
    };
    in_time(inner, group, write).await
}

async fn write_runs<S: Seam, D: Disk<S>>(disk: &D, runs: &[(u64, Vec<S::Block>)]) -> DiskResult<()> {
    for (at, blocks) in runs {
        disk.write(*at, blocks.iter().cloned().map(Piece::whole).collect()).await?;
    }
    Ok(())
}

/// Retries an attempt that lost writes (`Ok(false)`) or met a reconnect. On the last metadata copy it also retries
/// transient errors, with growing pauses.
async fn retry<S: Seam, D: Disk<S>>(
    inner: &Inner<S, D>,
    group: GroupNo,
    disk: &D,
    attempt: impl AsyncFn() -> DiskResult<bool>,
) -> DiskResult<()> {
    let mut pause = FIRST_PAUSE;
    for attempts in 1_u32.. {
        let epoch = disk.connection_epoch();
        let (error, may_retry_now) = match attempt().await {
            Ok(true) => return Ok(()),
            Ok(false) => (DiskError::Io("the device keeps losing writes before they are flushed".to_owned()), true),
            Err(error) => (error, disk.connection_epoch() != epoch),
        };
        if inner.state.borrow().groups[group.index()].metadata_requests.are_late() {
            return Err(error);
        }
        let may_pass = matches!(error, DiskError::Io(_) | DiskError::NoSpace | DiskError::Hung(_));
        if may_pass && inner.state.borrow().is_last_copy(group) && attempts < LAST_COPY_ATTEMPTS {
            inner.seam.sleep(pause).await;
            pause = Nanos(pause.0 * 2);
        } else if !may_retry_now || attempts >= ATTEMPTS_MAX {
            return Err(error);
        }
    }
    unreachable!("the attempts are limited")
}
