//! The collected data and the missing items: bounded, and written as one archive that only its owner may read.

use std::io::{self, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use messages::unix_time;
use serde::Serialize;
use tempfile::NamedTempFile;

use config::redact;

/// Maximum size of an entry, uncompressed.
const ENTRY_BYTES_MAX: usize = 16 << 20;
/// Maximum size of all entries together, uncompressed.
const ALL_BYTES_MAX: usize = 64 << 20;
/// The directory in the archive.
const ARCHIVE_DIRECTORY: &str = "hotset-support";
/// Permissions of unpacked files.
const ENTRY_MODE: u32 = 0o600;

/// An item that could not be collected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// The item.
    #[serde(rename = "what")]
    pub item: String,
    /// The reason.
    #[serde(rename = "why")]
    pub reason: String,
}

/// The data collected so far.
#[derive(Default)]
pub struct Archive {
    entries: Vec<(&'static str, Vec<u8>)>,
    missing: Vec<Missing>,
}

impl Archive {
    /// Adds a text, which must not contain secrets.
    pub fn add(&mut self, name: &'static str, text: String) {
        let (archived_bytes, bytes) =
            (self.entries.iter().map(|(_, bytes)| bytes.len()).sum::<usize>(), text.into_bytes());
        let remaining_bytes = ENTRY_BYTES_MAX.min(ALL_BYTES_MAX - archived_bytes);
        if bytes.len() > remaining_bytes {
            self.add_missing(name, format!("{} bytes exceed the remaining limit of {remaining_bytes}", bytes.len()));
        } else {
            self.entries.push((name, bytes));
        }
    }

    /// Adds a value as JSON, without its secrets.
    pub fn add_json(&mut self, name: &'static str, value: &impl Serialize) {
        match serde_json::to_value(value) {
            Ok(value) => self.add(name, format!("{}\n", redact::json(value))),
            Err(error) => self.add_missing(name, error.to_string()),
        }
    }

    /// Records an item that could not be collected, and the reason.
    pub fn add_missing(&mut self, item: &str, reason: impl Into<String>) {
        self.missing.push(Missing { item: item.to_owned(), reason: redact::text(&reason.into()) });
    }

    /// Names of the entries.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.entries.iter().map(|(name, _)| *name)
    }

    /// The missing items.
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }

    /// Writes the archive and returns its size in bytes. With `force` it replaces an existing file, in one step at the
    /// end.
    pub fn write(&self, path: &Path, force: bool) -> io::Result<u64> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Temporary files are readable only by their owner, from the first byte on.
        let mut file = NamedTempFile::new_in(folder)?;
        let mut archive = tar::Builder::new(GzEncoder::new(file.as_file_mut(), Compression::default()));
        for (name, bytes) in [("contents.txt", self.contents().into_bytes())].iter().chain(&self.entries) {
            let mut header = tar::Header::new_ustar();
            header.set_size(bytes.len() as u64);
            header.set_mode(ENTRY_MODE);
            header.set_mtime(unix_time::now().as_secs());
            archive.append_data(&mut header, format!("{ARCHIVE_DIRECTORY}/{name}"), bytes.as_slice())?;
        }
        archive.into_inner()?.finish()?.flush()?;
        let bytes = file.as_file().metadata()?.len();
        let persisted = if force { file.persist(path) } else { file.persist_noclobber(path) };
        persisted.map_err(|error| error.error)?;
        Ok(bytes)
    }

    fn contents(&self) -> String {
        let mut text = format!(
            "hotset {} support, {}\n\nRemoved: comments and unknown keys of the configuration, users and passwords in \
             URLs, everything after the\n\
             host of a web address, and everything that may be a token. Review the files before you pass them on.\n\n",
            env!("CARGO_PKG_VERSION"),
            unix_time::format(unix_time::now())
        );
        self.names().for_each(|name| text += &format!("{name}\n"));
        if !self.missing.is_empty() {
            text += "\nMissing:\n";
        }
        self.missing.iter().for_each(|missing| text += &format!("{}: {}\n", missing.item, missing.reason));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oversized_entries_are_left_out_and_listed() {
        let mut archive = Archive::default();
        archive.add("small", "text".to_owned());
        archive.add("large", "x".repeat(ENTRY_BYTES_MAX + 1));
        (0..4).for_each(|_| archive.add("full", "x".repeat(ENTRY_BYTES_MAX)));
        assert_eq!(archive.names().collect::<Vec<_>>(), ["small", "full", "full", "full"]);
        let missing: Vec<_> = archive.missing().iter().map(|missing| missing.item.as_str()).collect();
        assert_eq!(missing, ["large", "full"]);
        assert!(archive.contents().contains("large: 16777217 bytes exceed"), "{}", archive.contents());
    }
}
