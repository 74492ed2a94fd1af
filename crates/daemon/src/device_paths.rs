//! Comparison of device paths by what they resolve to: a device may have several names, such as `/dev/sdb` and a link
//! under `/dev/disk/by-id`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::{join, join_all};
use seam::real::{PATH_TIMEOUT, PathTarget};

/// Time without an answer after which a report compares a path as it is written.
pub const REPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// The target of the path; the path as written if it does not answer within `limit`.
async fn target_of(path: &Path, limit: Duration) -> PathTarget {
    let look_up = PathTarget::look_up(path).answer(limit, tokio::time::sleep);
    look_up.await.unwrap_or_else(PathTarget::from)
}

async fn targets_of(paths: &[PathBuf], limit: Duration) -> Vec<PathTarget> {
    join_all(paths.iter().map(|path| target_of(path, limit))).await
}

/// True for each of `paths` that names the same device or file as `path`.
pub async fn are_same(paths: &[PathBuf], path: &Path) -> Vec<bool> {
    let (target, targets) = join(target_of(path, PATH_TIMEOUT), targets_of(paths, PATH_TIMEOUT)).await;
    paths.iter().zip(&targets).map(|(other, other_target)| other == path || *other_target == target).collect()
}

/// True if both lists name the same devices, in any order. Paths are looked up only if both lists have some, and the
/// lists differ as written.
pub async fn name_same_devices(first: &[PathBuf], second: &[PathBuf], limit: Duration) -> bool {
    let as_written = |paths: &[PathBuf]| paths.iter().cloned().collect::<BTreeSet<_>>();
    if as_written(first) == as_written(second) {
        return true;
    }
    if first.is_empty() || second.is_empty() {
        return false;
    }
    let (first, second) = join(targets_of(first, limit), targets_of(second, limit)).await;
    BTreeSet::from_iter(first) == BTreeSet::from_iter(second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn device_named_by_a_link_is_the_same_device() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let paths = |names: &[&str]| names.iter().map(|name| folder.path().join(name)).collect::<Vec<_>>();
        for path in paths(&["f0", "f1"]) {
            std::fs::write(path, "x").expect("the folder can be written");
        }
        std::os::unix::fs::symlink("f1", folder.path().join("by-id")).expect("the folder can be written");
        let (listed, used) = (paths(&["f0", "by-id"]), paths(&["f1", "f0"]));
        assert!(name_same_devices(&listed, &used, REPORT_TIMEOUT).await);
        assert!(!name_same_devices(&listed, &paths(&["f0"]), REPORT_TIMEOUT).await);
        assert!(!name_same_devices(&[], &used, REPORT_TIMEOUT).await);
        assert!(!name_same_devices(&listed, &paths(&["f0", "absent"]), REPORT_TIMEOUT).await);
        assert_eq!(are_same(&used, &folder.path().join("by-id")).await, [true, false]);
    }
}
