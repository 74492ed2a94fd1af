//! Detection of a disk that does not answer.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select, select_all};
use seam::real::RealSeam;
use seam::{Disk, Nanos, Seam};

use super::data_core::CoreLocal;

/// Interval at which the oldest unanswered request of a disk is checked.
const CHECK_INTERVAL: Nanos = Nanos::from_millis(250);

/// Returns when a request of the disk has been unanswered for `limit`.
pub async fn wait_for_hang(seam: &RealSeam, disk: &impl Disk<RealSeam>, limit: Nanos) {
    while disk.oldest_unanswered().is_none_or(|oldest| seam.now().since(oldest) < limit) {
        seam.sleep(CHECK_INTERVAL).await;
    }
}

/// Runs `work` on open devices to its end, or drops it when a device has left a request unanswered for `limit`, and
/// returns the device's index. The dropped work issues no further requests. The device may still complete the
/// unanswered ones, as after a kill.
pub async fn unless_hung<T>(
    local: &CoreLocal,
    disks: &[impl Disk<RealSeam>],
    limit: Duration,
    work: impl Future<Output = T>,
) -> Result<T, usize> {
    if disks.is_empty() {
        return Ok(work.await);
    }
    let limit = Nanos(limit.as_nanos() as u64);
    let hangs = select_all(disks.iter().map(|disk| Box::pin(wait_for_hang(&local.seam, disk, limit))));
    match select(pin!(work), hangs).await {
        Either::Left((done, _)) => Ok(done),
        Either::Right((((), index, _), _)) => Err(index),
    }
}
