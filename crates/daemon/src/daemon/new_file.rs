//! The file that `volume add` creates for a backing, removed again if the command fails.

use std::fs::OpenOptions;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use seam::real::{CallState, PathCall};

/// Time limit for each access to the file's directory, which may hang.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A file that did not exist before the command; none if it existed, or if its directory does not answer.
pub struct NewFile(Option<PathBuf>);

impl NewFile {
    /// Checks whether there is a file at `path`.
    pub async fn check(path: Option<PathBuf>) -> NewFile {
        let Some(path) = path else { return NewFile(None) };
        let looked_up = path.clone();
        let call = PathCall::start(&path, move |_| {
            looked_up.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        });
        let is_new = call.answer(TIMEOUT, tokio::time::sleep).await.unwrap_or(false);
        NewFile(is_new.then_some(path))
    }

    /// Removes the file if it exists now and has no data: no block is allocated, and no volume has it locked.
    pub async fn remove_if_empty(self) {
        let Some(path) = self.0 else { return };
        let removed = path.clone();
        let call = PathCall::start(&path, move |call| remove_if_unused(&removed, call));
        // A file that stays has no data and is used by the next attempt, so an error is ignored.
        let _ = call.answer(TIMEOUT, tokio::time::sleep).await;
    }
}

/// Removes the file under its lock, which a served volume holds.
fn remove_if_unused(path: &Path, call: &CallState) -> std::io::Result<()> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags as i32).open(path)?;
    file.try_lock()?;
    let (open, named) = (file.metadata()?, path.symlink_metadata()?);
    let is_same = (open.dev(), open.ino()) == (named.dev(), named.ino());
    if is_same && open.is_file() && open.blocks() == 0 && !call.is_abandoned() {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_new_file_without_data_is_removed() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let [old, empty, written] = ["old", "empty", "written"].map(|name| folder.path().join(name));
        std::fs::File::create(&old).and_then(|file| file.set_len(1 << 20)).expect("the folder can be written");
        let mut checked = Vec::new();
        for path in [&old, &empty, &written] {
            checked.push(NewFile::check(Some(path.clone())).await);
        }
        std::fs::File::create(&empty).and_then(|file| file.set_len(1 << 20)).expect("the folder can be written");
        std::fs::write(&written, vec![1; 1 << 20]).expect("the folder can be written");
        // Allocates the blocks.
        std::fs::File::open(&written).and_then(|file| file.sync_all()).expect("the file can be synced");
        for file in checked {
            file.remove_if_empty().await;
        }
        assert_eq!([old, empty, written].map(|path| path.exists()), [true, false, true]);
    }

    #[tokio::test]
    async fn file_that_another_volume_has_locked_is_not_removed() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("served");
        let checked = NewFile::check(Some(path.clone())).await;
        let served = std::fs::File::create(&path).expect("the folder can be written");
        served.lock().expect("no other process has the file");
        checked.remove_if_empty().await;
        assert!(path.exists());
    }
}
