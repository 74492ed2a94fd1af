//! Atomic replacement of a file: a crash or an error at any step leaves the old file or the new one.
//!
//! Two files alternate: the new content is written over the spare file, which then exchanges names with the old one.
//! The spare keeps its blocks and has as many again reserved, so a replacement needs no free space. A full file system
//! therefore prevents neither a start nor a stop. (A copy-on-write file system such as btrfs gives no such guarantee.)

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{CWD, FallocateFlags, RenameFlags, fallocate, renameat_with};
use rustix::io::Errno;

/// Reserved size of the spare, as a multiple of the last content.
const RESERVE_FACTOR: u64 = 2;
/// Granularity of the reservation.
const RESERVE_STEP_BYTES: u64 = 64 << 10;
/// Maximum number of bytes of padding; a spare with a larger surplus is truncated.
const PADDING_BYTES_MAX: u64 = 1 << 20;
/// Padding written over the rest of longer content: JSON permits trailing white space.
const PADDING: u8 = b'\n';

/// Steps of a replacement, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The spare is created or opened.
    Create,
    /// The content is written.
    Write,
    /// The content is made durable.
    SyncFile,
    /// The spare takes the old file's name.
    Rename,
    /// The names are made durable.
    SyncDirectory,
}

impl Step {
    /// All steps in order.
    pub const ALL: [Step; 5] = [Step::Create, Step::Write, Step::SyncFile, Step::Rename, Step::SyncDirectory];
}

/// Makes `bytes` the content of `path`, padded with white space if the spare was longer. `before` is called before each
/// step and may make it fail.
pub fn replace(path: &Path, bytes: &[u8], before: &mut dyn FnMut(Step) -> io::Result<()>) -> io::Result<()> {
    let spare = path.with_extension("new");
    before(Step::Create)?;
    let file = open(&spare)?;
    before(Step::Write)?;
    write_over(&file, bytes)?;
    before(Step::SyncFile)?;
    file.sync_all()?;
    before(Step::Rename)?;
    exchange(&spare, path)?;
    before(Step::SyncDirectory)?;
    File::open(path.parent().expect("a file of the state directory has a parent"))?.sync_all()?;
    // Without the reservation the next replacement may fail, and reports it then.
    let _ = open(&spare).and_then(|file| reserve(&file, bytes.len() as u64));
    Ok(())
}

/// Writes `bytes` to the spare and makes them durable, without renaming: tests whether a replacement would succeed.
pub fn probe(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = open(&path.with_extension("new"))?;
    write_over(&file, bytes)?;
    file.sync_all()
}

/// Opens the spare without truncation: a full file system could not allocate its blocks again.
fn open(spare: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(spare)
}

/// Writes `bytes` over the old content, and padding over its rest.
fn write_over(file: &File, bytes: &[u8]) -> io::Result<()> {
    file.write_all_at(bytes, 0)?;
    let (len, old_len) = (bytes.len() as u64, file.metadata()?.len());
    match old_len.saturating_sub(len) {
        0 => Ok(()),
        surplus if surplus > PADDING_BYTES_MAX => file.set_len(len),
        surplus => file.write_all_at(&vec![PADDING; surplus as usize], len),
    }
}

/// Exchanges the names of spare and file. If there is no file yet, or the file system cannot exchange names, the spare
/// is renamed.
fn exchange(spare: &Path, path: &Path) -> io::Result<()> {
    match renameat_with(CWD, spare, CWD, path, RenameFlags::EXCHANGE) {
        Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => std::fs::rename(spare, path),
        result => Ok(result?),
    }
}

/// Reserves blocks for the spare, also past its end, for growing content.
fn reserve(file: &File, len: u64) -> io::Result<()> {
    let reserved_bytes = (len * RESERVE_FACTOR).next_multiple_of(RESERVE_STEP_BYTES);
    if file.metadata()?.blocks() * 512 < reserved_bytes {
        fallocate(file, FallocateFlags::KEEP_SIZE, 0, reserved_bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(path: &Path, bytes: &[u8]) {
        replace(path, bytes, &mut |_| Ok(())).expect("the folder can be written");
    }

    fn text(path: &Path) -> String {
        std::fs::read_to_string(path).expect("it was written").trim_end().to_owned()
    }

    #[test]
    fn spare_file_has_room_for_the_next_content() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let (path, spare) = (folder.path().join("state.json"), folder.path().join("state.new"));
        let long = "x".repeat(10_000);
        for content in ["{}", long.as_str(), "[]", "{}"] {
            put(&path, content.as_bytes());
            assert_eq!(text(&path), content);
            let reserved = spare.metadata().expect("there is a spare").blocks() * 512;
            assert!(reserved >= RESERVE_STEP_BYTES, "{reserved} bytes are reserved");
        }
        assert_eq!(path.metadata().expect("written").len(), 10_000, "no block is released");
    }

    #[test]
    fn overlong_spare_file_is_truncated() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let path = folder.path().join("state.json");
        File::create(folder.path().join("state.new")).and_then(|file| file.set_len(1 << 30)).expect("a sparse file");
        put(&path, b"{}");
        assert_eq!(path.metadata().expect("written").len(), 2);
    }
}
