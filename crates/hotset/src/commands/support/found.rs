//! What was found, and what was not: bounded, and written as one archive that nobody but its owner may read.

use std::io::{self, Write};
use std::path::Path;

use control::moment;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;
use tempfile::NamedTempFile;

use config::redact;

/// Bytes of one entry, before it is packed.
const ENTRY_BYTES_MAX: usize = 16 << 20;
/// Bytes of all together.
const ALL_BYTES_MAX: usize = 64 << 20;
/// The archive's one folder.
const FOLDER: &str = "hotset-support";
/// Permissions of what is unpacked.
const ENTRY_MODE: u32 = 0o600;

/// Something that could not be had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// What.
    pub what: String,
    /// Why.
    pub why: String,
}

/// All that there is so far.
#[derive(Default)]
pub struct Found {
    entries: Vec<(&'static str, Vec<u8>)>,
    missing: Vec<Missing>,
}

impl Found {
    /// Adds a text; secrets have to be out of it.
    pub fn add(&mut self, name: &'static str, text: String) {
        let (all, bytes) = (self.entries.iter().map(|(_, bytes)| bytes.len()).sum::<usize>(), text.into_bytes());
        let room = ENTRY_BYTES_MAX.min(ALL_BYTES_MAX - all);
        if bytes.len() > room {
            self.miss(name, format!("it has {} bytes, and there is room for {room}", bytes.len()));
        } else {
            self.entries.push((name, bytes));
        }
    }

    /// Adds what was told, without its secrets.
    pub fn add_json(&mut self, name: &'static str, told: &impl Serialize) {
        match serde_json::to_value(told) {
            Ok(told) => self.add(name, format!("{}\n", redact::json(told))),
            Err(error) => self.miss(name, error.to_string()),
        }
    }

    /// Notes what could not be had, and why.
    pub fn miss(&mut self, what: &str, why: impl Into<String>) {
        self.missing.push(Missing { what: what.to_owned(), why: redact::text(&why.into()) });
    }

    /// What is in it.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.entries.iter().map(|(name, _)| *name)
    }

    /// What is not.
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }

    /// Writes the archive; bytes that it has. A file that is there is written over where that is wanted, and the old one is whole until then.
    pub fn write(&self, path: &Path, force: bool) -> io::Result<u64> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Its owner's alone from the first byte on.
        let mut file = NamedTempFile::new_in(folder)?;
        let mut archive = tar::Builder::new(GzEncoder::new(file.as_file_mut(), Compression::default()));
        for (name, bytes) in [("contents.txt", self.contents().into_bytes())].iter().chain(&self.entries) {
            let mut header = tar::Header::new_ustar();
            header.set_size(bytes.len() as u64);
            header.set_mode(ENTRY_MODE);
            header.set_mtime(moment::since_1970().as_secs());
            archive.append_data(&mut header, format!("{FOLDER}/{name}"), bytes.as_slice())?;
        }
        archive.into_inner()?.finish()?.flush()?;
        let bytes = file.as_file().metadata()?.len();
        let kept = if force { file.persist(path) } else { file.persist_noclobber(path) };
        kept.map_err(|error| error.error)?;
        Ok(bytes)
    }

    fn contents(&self) -> String {
        let mut text = format!(
            "hotset {} support, {}\n\nTaken out: comments and unknown keys of the configuration, users and passwords in URLs, what stands behind the\n\
             host of a web address, and everything that may be a token. Look through it before you hand it on.\n\n",
            env!("CARGO_PKG_VERSION"),
            moment::show(moment::since_1970())
        );
        self.names().for_each(|name| text += &format!("{name}\n"));
        if !self.missing.is_empty() {
            text += "\nCould not be had:\n";
        }
        self.missing.iter().for_each(|missing| text += &format!("{}: {}\n", missing.what, missing.why));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_is_left_out_and_said_to_be() {
        let mut found = Found::default();
        found.add("small", "text".to_owned());
        found.add("large", "x".repeat(ENTRY_BYTES_MAX + 1));
        (0..4).for_each(|_| found.add("full", "x".repeat(ENTRY_BYTES_MAX)));
        assert_eq!(found.names().collect::<Vec<_>>(), ["small", "full", "full", "full"]);
        let missing: Vec<_> = found.missing().iter().map(|missing| missing.what.as_str()).collect();
        assert_eq!(missing, ["large", "full"]);
        assert!(found.contents().contains("large: it has 16777217 bytes"), "{}", found.contents());
    }
}
