//! Golden files: each format as each release wrote it, read by the tests of every later release.
//!
//! Release RELEASE wrote `files/RELEASE/NAME`; a file whose name ends in `.zst` is compressed. A line per file in
//! `files/RELEASE/CHECKSUMS` has CRC32C in eight hexadecimal digits, two spaces and the name. With `UPDATE_GOLDEN=1`
//! the test that reads a file creates it once, for the version in `Cargo.toml`. It is never overwritten.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Environment variable with which tests create the files of a new release.
const UPDATE_VARIABLE: &str = "UPDATE_GOLDEN";
/// Name of the file with the checksums of a release's files.
const CHECKSUMS: &str = "CHECKSUMS";
/// Maximum size of a golden file in the repository.
pub const BYTES_MAX: usize = 100 << 10;
/// Maximum size of a decompressed file.
const UNPACKED_BYTES_MAX: usize = 64 << 20;
const COMPRESSION_LEVEL: i32 = 19;

/// A file as a release wrote it.
pub struct Golden {
    /// The release.
    pub release: String,
    /// Decompressed content.
    pub bytes: Vec<u8>,
}

/// The file `name` of every release, the oldest release first. With `UPDATE_GOLDEN=1`, `make` first creates this
/// release's file.
///
/// # Panics
/// If the file of this release is missing or would be overwritten, or if a file has a wrong checksum.
pub fn files(name: &str, make: impl FnOnce() -> Vec<u8>) -> Vec<Golden> {
    let root = files_folder();
    if std::env::var_os(UPDATE_VARIABLE).is_some_and(|value| value == "1") {
        create_file(&root.join(env!("CARGO_PKG_VERSION")), name, &make()).unwrap_or_else(|error| panic!("{error}"));
    }
    read_files(&root, name, env!("CARGO_PKG_VERSION")).unwrap_or_else(|error| panic!("{error}"))
}

fn files_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("files")
}

/// Creates a new file and records its checksum.
fn create_file(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), String> {
    let path = folder.join(name);
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            format!(
                "{} already exists: a golden file is created once; raise the version in Cargo.toml first",
                path.display()
            )
        }
        _ => format!("{}: {error}", path.display()),
    };
    fs::create_dir_all(folder).map_err(failed)?;
    let packed = match name.ends_with(".zst") {
        true => zstd::bulk::compress(bytes, COMPRESSION_LEVEL).map_err(failed)?,
        false => bytes.to_vec(),
    };
    assert!(packed.len() <= BYTES_MAX, "{name} has {} bytes; the limit of a golden file is {BYTES_MAX}", packed.len());
    let mut file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(failed)?;
    file.write_all(&packed).map_err(failed)?;
    let mut checksums = OpenOptions::new().append(true).create(true).open(folder.join(CHECKSUMS)).map_err(failed)?;
    checksums.write_all(format!("{:08x}  {name}\n", crc32c::crc32c(&packed)).as_bytes()).map_err(failed)
}

/// The file `name` of every release under `root`. An error if the release `current` has none.
fn read_files(root: &Path, name: &str, current: &str) -> Result<Vec<Golden>, String> {
    let mut files = Vec::new();
    for release in releases(root) {
        let folder = root.join(&release);
        let Some((_, checksum)) = checksums(&folder).into_iter().find(|(recorded, _)| recorded == name) else {
            continue;
        };
        let bytes = read_file(&folder.join(name), checksum)?;
        files.push(Golden { release, bytes });
    }
    if files.iter().all(|golden| golden.release != current) {
        return Err(format!(
            "release {current} has no golden file {name}: {UPDATE_VARIABLE}=1 cargo test golden creates it"
        ));
    }
    Ok(files)
}

/// The decompressed content of a file with this checksum.
fn read_file(path: &Path, checksum: u32) -> Result<Vec<u8>, String> {
    let displayed = path.display();
    let bytes = fs::read(path).map_err(|error| format!("{displayed}: {error}"))?;
    if crc32c::crc32c(&bytes) != checksum {
        return Err(format!("{displayed}: checksum mismatch; a golden file must never change"));
    }
    match path.extension().is_some_and(|extension| extension == "zst") {
        true => zstd::bulk::decompress(&bytes, UNPACKED_BYTES_MAX).map_err(|error| format!("{displayed}: {error}")),
        false => Ok(bytes),
    }
}

/// Releases with files, the oldest first.
fn releases(root: &Path) -> Vec<String> {
    let names = fs::read_dir(root).into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut releases: Vec<String> = names.collect();
    releases.sort_by_key(|name| name.split('.').map(|number| number.parse::<u32>().ok()).collect::<Vec<_>>());
    releases
}

/// The files of a release, with their checksums.
fn checksums(folder: &Path) -> Vec<(String, u32)> {
    let text = fs::read_to_string(folder.join(CHECKSUMS)).unwrap_or_default();
    let line = |line: &str| {
        let (checksum, name) = line.split_once("  ")?;
        Some((name.to_owned(), u32::from_str_radix(checksum, 16).ok()?))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_golden_file_matches_its_checksum() {
        let root = files_folder();
        for release in releases(&root) {
            let folder = root.join(release);
            let recorded = checksums(&folder);
            for (name, checksum) in &recorded {
                read_file(&folder.join(name), *checksum).unwrap_or_else(|error| panic!("{error}"));
            }
            let files = fs::read_dir(&folder).expect("the folder was just listed").count();
            assert_eq!(files, recorded.len() + 1, "{}: a file without a checksum, or the reverse", folder.display());
        }
    }

    #[test]
    fn golden_file_is_created_once_and_changes_are_detected() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("0.9.0");
        create_file(&folder, "a.zst", &[7; 1000]).expect("a new file");
        create_file(&root.path().join("0.10.0"), "a.zst", &[8; 1000]).expect("a new file");
        let again = create_file(&folder, "a.zst", &[9; 1000]).expect_err("the file exists");
        assert!(again.contains("created once"), "{again}");
        let read = || read_files(root.path(), "a.zst", "0.10.0");
        let files = read().expect("all releases have the file");
        let displayed: Vec<_> = files.iter().map(|golden| (golden.release.as_str(), golden.bytes[0])).collect();
        assert_eq!(displayed, [("0.9.0", 7), ("0.10.0", 8)]);
        let missing = read_files(root.path(), "a.zst", "0.11.0").err().expect("the release has no file");
        assert!(missing.contains("0.11.0 has no golden file a.zst"), "{missing}");
        let path = folder.join("a.zst");
        let mut bytes = fs::read(&path).expect("the file was created");
        *bytes.last_mut().expect("the file has bytes") ^= 1;
        fs::write(&path, bytes).expect("the file can be written");
        assert!(read().err().expect("the file was changed").contains("never change"));
        fs::remove_file(&path).expect("the file exists");
        assert!(read().is_err(), "a missing file is an error");
    }
}
