//! Flushes of the groups of an open pool. A device reports a failed flush once, to whatever request flushes next, and
//! forgets the writes. So every flush of a group goes through here: a failure changes the group's write stamp, and with
//! it the connection epoch of all volumes.

use seam::{Disk, DiskError, DiskResult, Piece, Seam};

use crate::number::GroupNo;
use crate::state::Inner;

/// Maximum number of attempts of a write whose group may lose it before the flush.
const ATTEMPTS_MAX: u32 = 3;

/// Flushes a group. A failure changes its write stamp.
pub(crate) async fn flush_group<S: Seam, D: Disk<S>>(inner: &Inner<S, D>, group: GroupNo, disk: &D) -> DiskResult<()> {
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

/// Writes blocks at byte offsets and flushes the group. All writes are repeated if the write stamp changes meanwhile:
/// the group has reconnected, or another task's flush has failed.
pub(crate) async fn write_to_group<S: Seam, D: Disk<S>>(
    inner: &Inner<S, D>,
    group: GroupNo,
    disk: &D,
    runs: &[(u64, Vec<S::Block>)],
) -> DiskResult<()> {
    for _ in 0..ATTEMPTS_MAX {
        let stamp = inner.state.borrow().write_stamp(group);
        for (at, blocks) in runs {
            disk.write(*at, blocks.iter().cloned().map(Piece::whole).collect()).await?;
        }
        flush_group(inner, group, disk).await?;
        if inner.state.borrow().write_stamp(group) == stamp {
            return Ok(());
        }
    }
    Err(DiskError::Io("the device keeps losing writes before they are flushed".to_owned()))
}
