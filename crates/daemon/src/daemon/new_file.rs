//! The file that `volume add` creates for a backing, removed again if the command fails.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

/// Time limit for each access to the file's directory, which may hang.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A file that did not exist before the command; none if it existed, or if its directory does not answer.
pub struct NewFile(Option<PathBuf>);

impl NewFile {
    /// Checks whether there is a file at `path`.
    pub async fn check(path: Option<PathBuf>) -> NewFile {
        let check = tokio::task::spawn_blocking(move || {
            path.filter(|path| {
                let found = path.symlink_metadata();
                found.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
            })
        });
        NewFile(tokio::time::timeout(TIMEOUT, check).await.ok().and_then(Result::ok).flatten())
    }

    /// Removes the file if it exists now and has no data: no block is allocated.
    pub async fn remove_if_empty(self) {
        let Some(path) = self.0 else { return };
        let remove = tokio::task::spawn_blocking(move || {
            if path.symlink_metadata().is_ok_and(|meta| meta.is_file() && meta.blocks() == 0) {
                // A file that stays has no data and is used by the next attempt.
                let _ = std::fs::remove_file(&path);
            }
        });
        // An error is ignored for the same reason.
        let _ = tokio::time::timeout(TIMEOUT, remove).await;
    }
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
}
