//! Preallocation of all blocks of a file: a write into a hole fails once the file system is full.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use super::disk::allocation_of;
use super::disk_open::{disk_error, free_bytes};
use crate::{DiskError, DiskResult};

/// Unit of a file's block count.
const STAT_BLOCK_BYTES: u64 = 512;
/// Size of each write of zeroes on a file system without `fallocate`.
const ZERO_BYTES: usize = 1 << 20;

/// Allocates the missing blocks of the file at `path`. If the file system has too little free space, it fails and
/// leaves the file unchanged.
pub(super) fn preallocate(file: &File, path: &Path) -> DiskResult<()> {
    let meta = file.metadata().map_err(|error| disk_error(&error))?;
    let missing = meta.len().saturating_sub(meta.blocks() * STAT_BLOCK_BYTES);
    if missing == 0 {
        return Ok(());
    }
    if let Some(free) = free_bytes(file).filter(|free| *free < missing) {
        return Err(DiskError::Open(format!(
            "{} is sparse: {missing} of its {} bytes are not allocated, and its file system has {free} free. Flash \
             files are preallocated, so that a full file system cannot fail a later write; free space there, or use a \
             smaller file",
            path.display(),
            meta.len()
        )));
    }
    let allocated = match allocate(file, meta.len()) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => fill_holes(path, meta.len()),
        result => result,
    };
    allocated
        .and_then(|()| file.sync_all())
        .map_err(|error| DiskError::Open(format!("cannot preallocate {missing} bytes of {} ({error})", path.display())))
}

/// Allocates blocks for holes; existing content stays.
fn allocate(file: &File, len: u64) -> io::Result<()> {
    loop {
        // SAFETY: a system call on an open descriptor.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len as libc::off_t) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Writes zeroes to all holes through the page cache, which does not require alignment.
fn fill_holes(path: &Path, len: u64) -> io::Result<()> {
    let file = File::options().read(true).write(true).open(path)?;
    let zeroes = vec![0; ZERO_BYTES];
    let mut from = 0;
    while from < len {
        for run in allocation_of(&file, from, len - from)? {
            let (mut at, end) = (from, from + run.len_bytes);
            while run.hole && at < end {
                let bytes = (end - at).min(ZERO_BYTES as u64);
                file.write_all_at(&zeroes[..bytes as usize], at)?;
                at += bytes;
            }
            from = end;
        }
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 8 << 20;

    fn sparse() -> (tempfile::TempDir, File) {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let file = File::options().read(true).write(true).create(true).truncate(true).open(folder.path().join("f"));
        let file = file.expect("the folder can be written");
        file.set_len(LEN).expect("a sparse file can be made");
        file.write_all_at(&[7; 4096], 1 << 20).expect("the file system has free space");
        (folder, file)
    }

    fn read_all(file: &File) -> Vec<u8> {
        let mut bytes = vec![1; LEN as usize];
        file.read_exact_at(&mut bytes, 0).expect("the file is readable");
        bytes
    }

    #[test]
    fn sparse_file_is_fully_allocated_and_keeps_its_content() {
        for by_zeroes in [false, true] {
            let (folder, file) = sparse();
            let path = folder.path().join("f");
            let before = read_all(&file);
            match by_zeroes {
                true => fill_holes(&path, LEN).expect("the file system has free space"),
                false => preallocate(&file, &path).expect("the file system has free space"),
            }
            let meta = file.metadata().expect("the file is open");
            assert!(meta.blocks() * STAT_BLOCK_BYTES >= LEN, "{} blocks", meta.blocks());
            assert!(read_all(&file) == before && meta.len() == LEN);
        }
    }

    #[test]
    fn file_larger_than_the_free_space_is_refused_unchanged() {
        let (folder, file) = sparse();
        // A sparse file may be larger than the file system's free space.
        let len = 1 << 43;
        if file.set_len(len).is_err() || free_bytes(&file).is_none_or(|free| free > len) {
            return;
        }
        let before = file.metadata().expect("the file is open").blocks();
        let error = preallocate(&file, &folder.path().join("f")).expect_err("the file system is too small").to_string();
        assert!(error.contains("free space there"), "{error}");
        assert_eq!(file.metadata().expect("the file is open").blocks(), before);
    }
}
