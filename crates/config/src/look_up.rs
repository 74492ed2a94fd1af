//! Look-ups of the paths in a configuration: whether each exists, and what it resolves to.
//!
//! All look-ups run concurrently before the file is checked, with a time limit: a path on a hung file system delays the
//! check once, and is reported.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use seam::real::{PathCall, PathTarget};
use toml::de::{DeTable, DeValue};

use super::backing::BackingSpec;
use super::path_checks::{is_missing_device, path_fault};

/// Time without an answer after which a daemon continues without a look-up, whose result only improves messages.
pub const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(2);

/// Result of one look-up.
#[derive(Clone, Debug)]
struct LookUp {
    exists: bool,
    target: PathTarget,
    is_missing_device: bool,
    /// Fault of a path that must exist.
    fault_of_existing: Option<Fault>,
    /// Fault of a path where the daemon creates a missing file.
    fault_of_new: Option<Fault>,
}

/// A fault and its remedy.
type Fault = (String, String);

/// The paths of backings and flash devices, each with its look-up; `None` if it does not answer.
#[derive(Debug, Default)]
pub struct LookUps(BTreeMap<PathBuf, Option<LookUp>>);

impl LookUps {
    /// Looks up all backings and flash devices of a file; none with a limit of zero.
    pub fn of(table: &DeTable<'_>, folder: &Path, limit: Duration) -> LookUps {
        if limit.is_zero() {
            return LookUps::default();
        }
        let start = |path: PathBuf| {
            let call = PathCall::start(&path, {
                let path = path.clone();
                move |_| LookUp {
                    exists: path.exists(),
                    target: PathTarget::of(&path),
                    is_missing_device: is_missing_device(&path),
                    fault_of_existing: path_fault(&path, false),
                    fault_of_new: path_fault(&path, true),
                }
            });
            (path, call)
        };
        let calls: Vec<_> = configured_paths(table, folder).into_iter().map(start).collect();
        LookUps(calls.into_iter().map(|(path, call)| (path, call.wait(limit).ok())).collect())
    }

    /// True if the path does not answer.
    pub fn is_hung(&self, path: &Path) -> bool {
        matches!(self.0.get(path), Some(None))
    }

    /// True if the path exists, does not answer, or was not looked up.
    pub fn exists(&self, path: &Path) -> bool {
        self.0.get(path).is_none_or(|look_up| look_up.as_ref().is_none_or(|look_up| look_up.exists))
    }

    /// The target of the path; the path as written if it does not answer or was not looked up.
    pub fn target(&self, path: &Path) -> PathTarget {
        self.look_up_of(path).map_or_else(|| PathTarget::Unresolved(path.to_owned()), |look_up| look_up.target.clone())
    }

    /// True for a missing path that lies under `/dev`, or that is a symbolic link to such a path.
    pub fn is_missing_device(&self, path: &Path) -> bool {
        self.look_up_of(path).is_some_and(|look_up| look_up.is_missing_device)
    }

    /// Fault and remedy of a path that answers and cannot be a disk. `may_create`: the daemon creates a missing file.
    pub fn path_fault(&self, path: &Path, may_create: bool) -> Option<Fault> {
        let look_up = self.look_up_of(path)?;
        if may_create { look_up.fault_of_new.clone() } else { look_up.fault_of_existing.clone() }
    }

    fn look_up_of(&self, path: &Path) -> Option<&LookUp> {
        self.0.get(path)?.as_ref()
    }
}

/// The paths of backings and flash devices in a file, as far as they can be read.
fn configured_paths(table: &DeTable<'_>, folder: &Path) -> BTreeSet<PathBuf> {
    let mut paths = BTreeSet::new();
    let volumes = table.get("volume").and_then(|volumes| volumes.get_ref().as_array());
    for volume in volumes.into_iter().flat_map(|volumes| volumes.iter()) {
        let backing = volume.get_ref().as_table().and_then(|volume| volume.get("backing")?.get_ref().as_str());
        if let Some(Ok(BackingSpec::Path(path))) = backing.map(|text| BackingSpec::parse(text, folder)) {
            paths.insert(path);
        }
    }
    let flash = table.get("flash").and_then(|flash| flash.get_ref().as_table());
    let devices = flash.and_then(|flash| flash.get("devices")?.get_ref().as_array());
    let devices = devices.into_iter().flat_map(|devices| devices.iter());
    paths.extend(devices.filter_map(|device| Some(folder.join(DeValue::as_str(device.get_ref())?))));
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_volumes_and_flash_are_looked_up() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let [file, link, missing] = ["file", "link", "missing"].map(|name| folder.path().join(name));
        std::fs::write(&file, "").expect("the folder can be written");
        std::os::unix::fs::symlink(&file, &link).expect("the folder can be written");
        let text = "[flash]\ndevices = [\"link\", 5]\n[[volume]]\nbacking = \"missing\"\n[[volume]]\nbacking = 7\n\
                    [[volume]]\nbacking = \"sim://raid5\"\n";
        let (root, errors) = DeTable::parse_recoverable(text);
        assert!(errors.is_empty());
        let look_ups = LookUps::of(root.get_ref(), folder.path(), LOOK_UP_TIMEOUT);
        assert_eq!(look_ups.0.keys().collect::<Vec<_>>(), [&link, &missing]);
        assert_eq!(look_ups.target(&link), PathTarget::of(&file));
        assert!(look_ups.exists(&link) && !look_ups.exists(&missing) && !look_ups.is_hung(&missing));
    }

    #[test]
    fn path_without_an_answer_is_hung_and_not_missing() {
        let look_ups = LookUps(BTreeMap::from([(PathBuf::from("/srv/a"), None)]));
        let path = Path::new("/srv/a");
        assert!(look_ups.is_hung(path) && look_ups.exists(path));
        assert_eq!(look_ups.target(path), PathTarget::Unresolved(path.to_owned()));
    }
}
