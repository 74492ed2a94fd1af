//! The target of a path, by which two names of one device or file are recognised.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::path_call::{PathCall, PathHung};

/// Maximum of symbolic links that are followed to a file that does not exist.
const LINKS_MAX: usize = 16;

/// The target of a path. Two paths name the same device or file if their targets are equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathTarget {
    /// A block device, by its device number.
    Device(u64),
    /// A file, by the device number of its file system and its inode.
    File {
        /// Device number of the file system.
        device: u64,
        /// Inode of the file.
        inode: u64,
    },
    /// Nothing exists there, or it does not answer: the path that a new file would have.
    Unresolved(PathBuf),
}

impl PathTarget {
    /// The target of `path`. It touches the path, so the caller bounds its time.
    pub fn of(path: &Path) -> PathTarget {
        match fs::metadata(path) {
            Ok(meta) if meta.file_type().is_block_device() => PathTarget::Device(meta.rdev()),
            Ok(meta) => PathTarget::File { device: meta.dev(), inode: meta.ino() },
            Err(_) => PathTarget::Unresolved(resolve_links(&absolute(path))),
        }
    }

    /// Looks up the target of `path` on a helper thread. The error of a path that does not answer converts to a target.
    pub fn look_up(path: &Path) -> PathCall<PathTarget> {
        let looked_up = path.to_owned();
        PathCall::start(path, move |_| PathTarget::of(&looked_up))
    }
}

impl From<PathHung> for PathTarget {
    fn from(hung: PathHung) -> PathTarget {
        PathTarget::Unresolved(absolute(&hung.path))
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// `path` with symbolic links resolved; its last component need not exist.
pub fn resolve_links(path: &Path) -> PathBuf {
    if let Ok(path) = path.canonicalize() {
        return path;
    }
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(target) = path.read_link() else { break };
        path = path.parent().map_or(target.clone(), |folder| folder.join(&target));
    }
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    folder.zip(path.file_name()).map_or_else(|| path.clone(), |(folder, name)| folder.join(name))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn names_of_one_file_have_one_target() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("real")).expect("the folder can be written");
        symlink("real", path("folder")).expect("the folder can be written");
        for name in ["real/a", "real/b"] {
            fs::write(path(name), "x").expect("the folder can be written");
        }
        symlink("real/a", path("link")).expect("the folder can be written");
        fs::hard_link(path("real/a"), path("second")).expect("the folder can be written");
        let target = PathTarget::of(&path("real/a"));
        for name in ["folder/a", "link", "second", "real/../real/./a"] {
            assert_eq!(PathTarget::of(&path(name)), target, "{name}");
        }
        assert_ne!(PathTarget::of(&path("real/b")), target);
        assert_eq!(PathTarget::of(&path("folder/new")), PathTarget::of(&path("real/new")), "a file to be created");
        assert_ne!(PathTarget::of(&path("real/new")), PathTarget::of(&path("new")));
        let relative = Path::new("no-such-file");
        let hung = PathHung { path: relative.to_owned() };
        assert_eq!(PathTarget::of(relative), PathTarget::from(hung), "both are absolute paths");
    }

    #[test]
    fn nodes_of_one_block_device_have_one_target() {
        // Block devices need not exist where the test runs; a symbolic link to each stands for another node.
        let folder = tempfile::tempdir().expect("a temporary directory");
        let devices = fs::read_dir("/dev").into_iter().flatten().flatten().map(|entry| entry.path());
        let is_device = |path: &PathBuf| fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device());
        for (index, device) in devices.filter(is_device).take(4).enumerate() {
            let link = folder.path().join(index.to_string());
            symlink(&device, &link).expect("the folder can be written");
            let target = PathTarget::of(&link);
            assert!(matches!(target, PathTarget::Device(_)), "{target:?}");
            assert_eq!(target, PathTarget::of(&device));
        }
    }
}
