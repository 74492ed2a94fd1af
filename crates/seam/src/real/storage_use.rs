//! Present use of storage that is to be opened: paths to the same storage, and mounted devices.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::footprint::StorageFootprint;

/// The storage of a file or block device; `None` if it cannot be opened for reading.
fn storage_at(path: &Path) -> Option<StorageFootprint> {
    let meta = path.metadata().ok()?;
    let is_disk = meta.is_file() || meta.file_type().is_block_device();
    let open = || OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    is_disk.then(open)?.ok().map(|file: File| StorageFootprint::of(&file))
}

/// Pairs of these paths that lie on the same storage, as indexes. Paths that cannot be opened are left out.
pub fn find_shared_storage(paths: &[PathBuf]) -> Vec<(usize, usize)> {
    let storage: Vec<_> = paths.iter().map(|path| storage_at(path)).collect();
    let mut shared = Vec::new();
    for (second, storage_of_second) in storage.iter().enumerate() {
        let Some(storage_of_second) = storage_of_second else { continue };
        let is_shared = |first: &Option<StorageFootprint>| {
            first.as_ref().is_some_and(|first| first.overlap(storage_of_second).is_some())
        };
        shared.extend(storage[..second].iter().position(is_shared).map(|first| (first, second)));
    }
    shared
}

/// The mount point of a file system on a block device, on a part of it or on a device above it.
pub fn mount_point_on(device: &Path) -> Option<PathBuf> {
    let meta = device.metadata().ok().filter(|meta| meta.file_type().is_block_device())?;
    StorageFootprint::of_device(&meta).mount_point()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_one_file_share_storage_and_other_files_do_not() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| folder.path().join(name);
        for name in ["a", "b"] {
            std::fs::write(path(name), [1; 4096]).expect("the folder can be written");
        }
        std::os::unix::fs::symlink(path("a"), path("c")).expect("the folder can be written");
        std::fs::hard_link(path("b"), path("d")).expect("the folder can be written");
        let paths = ["a", "missing", "b", "c", "d"].map(path);
        assert_eq!(find_shared_storage(&paths), [(0, 3), (2, 4)]);
        assert_eq!(mount_point_on(&path("a")), None, "a file is no device");
    }
}
