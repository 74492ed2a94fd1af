//! Golden files: each format as each release wrote it, read by the tests of every later release.
//!
//! That release wrote `files/RELEASE/NAME`; a name that ends in `.zst` is packed. `files/RELEASE/CHECKSUMS` has a line
//! for each: CRC32C in eight hexadecimal digits, two spaces, the name. A file is made once, for the version that
//! `Cargo.toml` names, by the test that reads it (`UPDATE_GOLDEN=1`), and never again.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Has tests make the files of a new release.
const UPDATE: &str = "UPDATE_GOLDEN";
const CHECKSUMS: &str = "CHECKSUMS";
/// Bytes of a file in the repository.
pub const BYTES_MAX: usize = 100 << 10;
/// Bytes of a file when it is unpacked.
const UNPACKED_BYTES_MAX: usize = 64 << 20;
const LEVEL: i32 = 19;

/// A file as a release wrote it.
pub struct Golden {
    /// The release.
    pub release: String,
    /// The content, unpacked.
    pub bytes: Vec<u8>,
}

/// The file `name` of every release, the oldest release first. With `UPDATE_GOLDEN=1` the one of this release is made
/// by `make` first.
///
/// # Panics
/// When this release has no such file, when one is to be made again, and when one is not as it was made.
pub fn files(name: &str, make: impl FnOnce() -> Vec<u8>) -> Vec<Golden> {
    let root = root();
    if std::env::var_os(UPDATE).is_some_and(|value| value == "1") {
        make_file(&root.join(env!("CARGO_PKG_VERSION")), name, &make()).unwrap_or_else(|error| panic!("{error}"));
    }
    read_files(&root, name, env!("CARGO_PKG_VERSION")).unwrap_or_else(|error| panic!("{error}"))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("files")
}

/// Makes a file that is not there, and notes its checksum.
fn make_file(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), String> {
    let path = folder.join(name);
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => {
            format!("{} is there: a golden file is made once; raise the version in Cargo.toml first", path.display())
        }
        _ => format!("{}: {error}", path.display()),
    };
    fs::create_dir_all(folder).map_err(failed)?;
    let packed = match name.ends_with(".zst") {
        true => zstd::bulk::compress(bytes, LEVEL).map_err(failed)?,
        false => bytes.to_vec(),
    };
    assert!(packed.len() <= BYTES_MAX, "{name} has {} bytes, and a golden file {BYTES_MAX} at most", packed.len());
    let mut file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(failed)?;
    file.write_all(&packed).map_err(failed)?;
    let mut checksums = OpenOptions::new().append(true).create(true).open(folder.join(CHECKSUMS)).map_err(failed)?;
    checksums.write_all(format!("{:08x}  {name}\n", crc32c::crc32c(&packed)).as_bytes()).map_err(failed)
}

fn read_files(root: &Path, name: &str, current: &str) -> Result<Vec<Golden>, String> {
    let mut found = Vec::new();
    for release in releases(root) {
        let folder = root.join(&release);
        let Some((_, checksum)) = checksums(&folder).into_iter().find(|(noted, _)| noted == name) else { continue };
        let bytes = read_file(&folder.join(name), checksum)?;
        found.push(Golden { release, bytes });
    }
    if found.iter().all(|golden| golden.release != current) {
        return Err(format!("release {current} has no golden file {name}: {UPDATE}=1 cargo test golden makes it"));
    }
    Ok(found)
}

fn read_file(path: &Path, checksum: u32) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let bytes = fs::read(path).map_err(|error| format!("{shown}: {error}"))?;
    if crc32c::crc32c(&bytes) != checksum {
        return Err(format!("{shown} is not as it was made: a golden file never changes"));
    }
    match path.extension().is_some_and(|extension| extension == "zst") {
        true => zstd::bulk::decompress(&bytes, UNPACKED_BYTES_MAX).map_err(|error| format!("{shown}: {error}")),
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
    fn every_golden_file_is_as_it_was_made() {
        let root = root();
        for release in releases(&root) {
            let folder = root.join(release);
            let noted = checksums(&folder);
            for (name, checksum) in &noted {
                read_file(&folder.join(name), *checksum).unwrap_or_else(|error| panic!("{error}"));
            }
            let files = fs::read_dir(&folder).expect("it was just listed").count();
            assert_eq!(files, noted.len() + 1, "{}: each file and {CHECKSUMS}", folder.display());
        }
    }

    #[test]
    fn a_golden_file_is_made_once_and_no_change_of_it_passes() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("0.9.0");
        make_file(&folder, "a.zst", &[7; 1000]).expect("a new file");
        make_file(&root.path().join("0.10.0"), "a.zst", &[8; 1000]).expect("a new file");
        let again = make_file(&folder, "a.zst", &[9; 1000]).expect_err("it is there");
        assert!(again.contains("made once"), "{again}");
        let read = || read_files(root.path(), "a.zst", "0.10.0");
        let found = read().expect("all is there");
        let shown: Vec<_> = found.iter().map(|golden| (golden.release.as_str(), golden.bytes[0])).collect();
        assert_eq!(shown, [("0.9.0", 7), ("0.10.0", 8)]);
        let missing = read_files(root.path(), "a.zst", "0.11.0").err().expect("it has none");
        assert!(missing.contains("0.11.0 has no golden file a.zst"), "{missing}");
        let path = folder.join("a.zst");
        let mut bytes = fs::read(&path).expect("it was made");
        *bytes.last_mut().expect("it has bytes") ^= 1;
        fs::write(&path, bytes).expect("it can be written");
        assert!(read().err().expect("it was changed").contains("never changes"));
        fs::remove_file(&path).expect("it is there");
        assert!(read().is_err(), "a file that is gone is missed");
    }
}
