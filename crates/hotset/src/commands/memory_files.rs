//! Files of persisted memory that daemons have left. They are named, not read: a daemon of another installation may be
//! using one of them.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use config::KeepIn;
use serde_json::json;
use state::MemoryImageRecord;
use units::show_bytes;

/// Start of the name of each file; 16 hexadecimal digits follow.
const NAME_START: &str = "hotset-";
const ID_DIGITS: usize = 16;
/// Maximum of entries of the directory that are looked at.
const ENTRIES_MAX: usize = 100_000;
/// Maximum of files that are listed.
const FILES_MAX: usize = 64;
/// Bytes per block in the block count of `stat`.
const STAT_BLOCK_BYTES: u64 = 512;

/// A file of persisted memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryFile {
    path: PathBuf,
    allocated_bytes: u64,
    /// The records name the file, so the next start recovers what it holds of their volumes.
    is_recorded: bool,
}

/// The existing files that the records name, and those in the directory of persisted memory.
pub fn find_memory_files(keep_in: &KeepIn, recorded: &[MemoryImageRecord]) -> Vec<MemoryFile> {
    let recorded: BTreeSet<PathBuf> = recorded.iter().map(|record| record.path.clone()).collect();
    let entries = keep_in.directory().and_then(|directory| std::fs::read_dir(directory).ok());
    let entries = entries.into_iter().flatten().take(ENTRIES_MAX).filter_map(Result::ok);
    let in_directory = entries.filter(|entry| is_memory_file_name(&entry.file_name())).map(|entry| entry.path());
    let paths: BTreeSet<PathBuf> = recorded.iter().cloned().chain(in_directory).collect();
    let describe = |path: PathBuf| {
        let metadata = std::fs::symlink_metadata(&path).ok().filter(std::fs::Metadata::is_file)?;
        let is_recorded = recorded.contains(&path);
        Some(MemoryFile { path, allocated_bytes: metadata.blocks() * STAT_BLOCK_BYTES, is_recorded })
    };
    paths.into_iter().filter_map(describe).take(FILES_MAX).collect()
}

fn is_memory_file_name(name: &OsStr) -> bool {
    let id = name.to_str().and_then(|name| name.strip_prefix(NAME_START));
    id.is_some_and(|id| id.len() == ID_DIGITS && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

impl MemoryFile {
    /// The file in the JSON output.
    pub fn json(&self) -> serde_json::Value {
        json!({ "path": self.path, "allocated_bytes": self.allocated_bytes, "recorded": self.is_recorded })
    }

    /// Possible content of the file, and whether it is used.
    pub fn describe(&self) -> String {
        let (path, size) = (self.path.display(), show_bytes(self.allocated_bytes));
        match self.is_recorded {
            true => format!(
                "persisted memory {path} ({size}): it may hold unflushed writes of a killed daemon, and the next start \
                 recovers those of the volumes above"
            ),
            false => format!(
                "persisted memory {path} ({size}) is not used, because no record names it: it may hold unflushed \
                 writes of a killed daemon, of this installation or of another one. It is lost when the machine \
                 restarts"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_files_and_those_of_lost_records_are_named() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let path = |name: &str| folder.path().join(name);
        let [recorded, lost] = [path("hotset-00000000000000a7"), path("hotset-00000000000000a8")];
        for file in [&recorded, &lost, &path("hotset-notes"), &path("other-00000000000000a7")] {
            std::fs::write(file, [7; 4096]).expect("the folder can be written");
        }
        let record = |path| MemoryImageRecord { path, id: 7, generation: 1 };
        let records = [record(recorded.clone()), record(path("hotset-00000000000000ff"))];
        let keep_in = KeepIn::Directory(folder.path().to_owned());
        let found = find_memory_files(&keep_in, &records);
        let names: Vec<_> = found.iter().map(|file| (file.path.clone(), file.is_recorded)).collect();
        assert_eq!(names, [(recorded.clone(), true), (lost.clone(), false)]);
        assert!(found[0].describe().contains("the next start recovers"), "{}", found[0].describe());
        let text = found[1].describe();
        assert!(text.contains(&lost.display().to_string()) && text.contains("unflushed writes"), "{text}");
        let recorded_alone = find_memory_files(&KeepIn::Nowhere, &records);
        assert_eq!(recorded_alone.iter().map(|file| &file.path).collect::<Vec<_>>(), [&recorded]);
    }
}
