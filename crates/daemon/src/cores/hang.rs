//! Detection of a disk that does not answer.

use seam::real::RealSeam;
use seam::{Disk, Nanos, Seam};

/// Interval at which the oldest unanswered request of a disk is checked.
const CHECK_INTERVAL: Nanos = Nanos::from_millis(250);

/// Returns when a request of the disk has been unanswered for `limit`.
pub async fn wait_for_hang(seam: &RealSeam, disk: &impl Disk<RealSeam>, limit: Nanos) {
    while disk.oldest_unanswered().is_none_or(|oldest| seam.now().since(oldest) < limit) {
        seam.sleep(CHECK_INTERVAL).await;
    }
}
