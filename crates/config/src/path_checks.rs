//! Checks of configured paths on this machine: paths that cannot hold a disk, and for `check-config` the directories
//! and files that the daemon will create, and warnings about sizes and a missing tmpfs.

use std::path::{Path, PathBuf};

use seam::Address;
use seam::real::{find_shared_storage, mount_point_on};
use units::show_bytes;

use super::{BackingSpec, Config, KeepIn, VolumeConfig, is_device};

/// Fault and remedy of a path that is neither a regular file nor a block device, or whose file cannot be created
/// because its directory does not exist. `may_create`: the daemon creates a missing file.
pub(super) fn path_fault(path: &Path, may_create: bool) -> Option<(String, String)> {
    let shown = path.display();
    match kind_of(path) {
        PathKind::Directory => {
            let fault = format!("{shown} is a directory");
            Some((fault, format!("specify a file in it, like {}, or a block device", path.join("disk.img").display())))
        }
        PathKind::Other => {
            let fault = format!("{shown} is neither a regular file nor a block device");
            Some((fault, "specify the path of a file or of a whole disk or partition".to_owned()))
        }
        PathKind::Missing if may_create && !is_device(path) => {
            let directory = missing_parent(path)?;
            let fault = format!("{shown} cannot be created: the directory {directory} does not exist");
            Some((fault, format!("run `mkdir -p {directory}`, mount its file system, or correct the path")))
        }
        PathKind::Missing | PathKind::File(_) | PathKind::Device => None,
    }
}

/// True for a missing path that lies under `/dev`, or that is a symbolic link to such a path.
pub(super) fn is_missing_device(path: &Path) -> bool {
    let target = path.read_link().map(|target| path.parent().unwrap_or(Path::new("/")).join(target));
    !path.exists() && (is_device(path) || target.is_ok_and(|target| is_device(&target)))
}

/// The kind of file at a path.
enum PathKind {
    /// No file, or an inaccessible one.
    Missing,
    /// A regular file, with its size in bytes.
    File(u64),
    Device,
    Directory,
    Other,
}

fn kind_of(path: &Path) -> PathKind {
    use std::os::unix::fs::FileTypeExt;
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_file() => PathKind::File(meta.len()),
        Ok(meta) if meta.is_dir() => PathKind::Directory,
        Ok(meta) if meta.file_type().is_block_device() => PathKind::Device,
        Ok(_) => PathKind::Other,
        // An inaccessible path is reported when it is opened.
        Err(_) => PathKind::Missing,
    }
}

/// True for a path where the daemon creates a file, or completes one: a crash may leave an empty file.
fn is_missing_or_empty(path: &Path) -> bool {
    matches!(kind_of(path), PathKind::Missing | PathKind::File(0))
}

/// The parent directory of `path` for messages, if it does not exist.
fn missing_parent(path: &Path) -> Option<String> {
    let parent = path.parent()?;
    (!parent.is_dir()).then(|| parent.display().to_string())
}

impl Config {
    /// Notes about directories and files that the daemon will create, one sentence each.
    pub fn creation_notes(&self) -> Vec<String> {
        let mut created = Vec::new();
        let mut add_directory = |table: &str, directory: &Path| {
            let text =
                format!("{table}: the directory {} does not exist; the daemon will create it", directory.display());
            if !directory.is_dir() && !created.contains(&text) {
                created.push(text);
            }
        };
        add_directory("[state]", &self.state_directory);
        let sockets = self.nbd.listen.iter().filter_map(|address| match address {
            Address::Unix(path) => Some(("[nbd]", path.clone())),
            Address::Tcp(..) => None,
        });
        for (table, socket) in sockets.chain([("[control]", self.control_socket.clone())]) {
            add_directory(table, socket.parent().unwrap_or(Path::new("/")));
        }
        if let Some(vhost_user) = &self.vhost_user {
            add_directory("[vhost_user]", &vhost_user.directory);
        }
        for (device, bytes) in self.flash_files_to_create() {
            let (device, bytes) = (device.display(), show_bytes(bytes));
            created.push(format!("[flash]: the daemon will create the file {device} of {bytes}"));
        }
        for volume in &self.volumes {
            if let (BackingSpec::Path(path), Some(bytes)) = (&volume.backing, volume.size_bytes)
                && is_missing_or_empty(path)
                && !is_device(path)
            {
                let (name, path, bytes) = (&volume.name, path.display(), show_bytes(bytes));
                created.push(format!("volume {name}: the daemon will create the file {path} of {bytes}"));
            }
        }
        created
    }

    /// The files that the daemon will create as flash devices, with their sizes in bytes. It allocates all of each.
    pub fn flash_files_to_create(&self) -> Vec<(&Path, u64)> {
        let devices = self.flash.iter().flat_map(|flash| flash.devices.iter().map(move |device| (flash, device)));
        let to_create = devices.filter(|(_, device)| is_missing_or_empty(device));
        to_create.filter_map(|(flash, device)| Some((device.as_path(), flash.create_bytes(device)?))).collect()
    }

    /// Warnings about differences between the configuration and this machine that the daemon accepts, each with its
    /// remedy.
    pub fn environment_warnings(&self) -> Vec<String> {
        let mut warnings: Vec<String> = self.volumes.iter().filter_map(size_warning).collect();
        let flash = self.flash.iter().filter_map(|flash| Some((flash, flash.size_bytes?)));
        for (device, bytes) in flash.flat_map(|(flash, bytes)| flash.devices.iter().map(move |device| (device, bytes)))
        {
            if let PathKind::File(size) = kind_of(device)
                && size != 0
                && size != bytes
            {
                warnings.push(format!(
                    "[flash] size is {}, but the existing file {} has {} and keeps it; to change its size: \
                     `hotset flash replace`",
                    show_bytes(bytes),
                    device.display(),
                    show_bytes(size)
                ));
            }
        }
        if let KeepIn::Directory(directory) = &self.keep_in
            && !directory.is_dir()
        {
            let directory = directory.display();
            warnings.push(format!(
                "[memory] keep_in: the directory {directory} does not exist, and the daemon does not create it; mount \
                 a tmpfs there"
            ));
        }
        warnings.extend(self.storage_warnings());
        warnings
    }

    /// Warnings of backings and flash devices that the daemon refuses: on the same storage as another one, or mounted.
    fn storage_warnings(&self) -> Vec<String> {
        let backings = self.volumes.iter().filter_map(|volume| match &volume.backing {
            BackingSpec::Path(path) => Some((format!("the backing of volume {}", volume.name), path.clone())),
            _ => None,
        });
        let devices = self.flash.iter().flat_map(|flash| &flash.devices);
        let devices = devices.map(|device| ("the flash device".to_owned(), device.clone()));
        // The daemon opens flash devices first.
        let (uses, paths): (Vec<String>, Vec<PathBuf>) = devices.chain(backings).unzip();
        let shown = |index: usize| format!("{} {}", uses[index], paths[index].display());
        let shared = find_shared_storage(&paths).into_iter().map(|(first, second)| {
            format!(
                "{} lies on the same storage as {}: the daemon uses only one of them; correct one of the paths",
                shown(second),
                shown(first)
            )
        });
        let mounted = paths.iter().enumerate().filter_map(|(index, path)| {
            let mount_point = mount_point_on(path)?;
            let mount_point = mount_point.display();
            Some(format!(
                "{} is mounted on {mount_point}, and the daemon does not use a mounted device; `umount \
                 {mount_point}`, or correct the path",
                shown(index)
            ))
        });
        shared.chain(mounted).collect()
    }
}

/// Warns of a `size` that differs from the existing backing: `size` is used only to create a file.
fn size_warning(volume: &VolumeConfig) -> Option<String> {
    let BackingSpec::Path(path) = &volume.backing else { return None };
    let (name, path, size): (_, &PathBuf, u64) = (&volume.name, path, volume.size_bytes?);
    match kind_of(path) {
        PathKind::File(bytes) if bytes != 0 && bytes != size => Some(format!(
            "volume {name}: size is {}, but the existing file {} has {} and keeps it; remove `size`, or change \
             the file: `hotset volume resize {name} {}`",
            show_bytes(size),
            path.display(),
            show_bytes(bytes),
            units::exact_bytes(size).replace(' ', ""),
        )),
        PathKind::Device => Some(format!(
            "volume {name}: size has no effect, because the block device {} has a size of its own; remove `size`",
            path.display()
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::FlashConfig;
    use super::*;

    fn parse(directory: &Path, text: &str) -> Config {
        let text =
            format!("[state]\ndirectory = \"state\"\n[control]\nsocket = \"run/c.sock\"\n[nbd]\nlisten = []\n{text}");
        Config::parse(&directory.join("hotset.toml"), &text).unwrap_or_else(|problems| panic!("{problems}"))
    }

    #[test]
    fn directories_and_files_that_will_be_created_are_listed() {
        let temp_dir = tempfile::tempdir().expect("a temporary directory");
        let directory = temp_dir.path();
        let flash = "[flash]\ndevices = [\"f0\", \"f1\"]\nsize = \"1 GiB\"\n";
        let text = format!("{flash}[[volume]]\nname = \"a\"\nbacking = \"a.img\"\nsize = \"4 MiB\"\n");
        let config = parse(directory, &text);
        let path_of = |name: &str| directory.join(name).display().to_string();
        assert_eq!(
            config.creation_notes(),
            [
                format!("[state]: the directory {} does not exist; the daemon will create it", path_of("state")),
                format!("[control]: the directory {} does not exist; the daemon will create it", path_of("run")),
                format!("[flash]: the daemon will create the file {} of 1 GiB", path_of("f0")),
                format!("[flash]: the daemon will create the file {} of 1 GiB", path_of("f1")),
                format!("volume a: the daemon will create the file {} of 4 MiB", path_of("a.img")),
            ]
        );
        for name in ["f0", "f1", "a.img"] {
            std::fs::write(directory.join(name), [0; 4096]).expect("the directory can be written");
        }
        for name in ["state", "run"] {
            std::fs::create_dir(directory.join(name)).expect("the directory can be written");
        }
        assert_eq!(config.creation_notes(), [""; 0]);
    }

    #[test]
    fn size_other_than_that_of_the_file_gives_a_warning() {
        let temp_dir = tempfile::tempdir().expect("a temporary directory");
        let file = temp_dir.path().join("a.img");
        std::fs::write(&file, [0; 4096]).expect("the directory can be written");
        let volume = |size: &str| format!("[[volume]]\nname = \"a\"\nbacking = \"a.img\"\nsize = \"{size}\"\n");
        let warning = format!(
            "volume a: size is 4 MiB, but the existing file {} has 4 KiB and keeps it; remove `size`, or change the \
             file: `hotset volume resize a 4MiB`",
            file.display()
        );
        assert_eq!(parse(temp_dir.path(), &volume("4 MiB")).environment_warnings(), [warning]);
        assert_eq!(parse(temp_dir.path(), &volume("4 KiB")).environment_warnings(), [""; 0]);
    }

    #[test]
    fn paths_to_one_file_give_a_warning() {
        let temp_dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(temp_dir.path().join("a.img"), [1; 4096]).expect("the directory can be written");
        std::os::unix::fs::symlink("a.img", temp_dir.path().join("link")).expect("the directory can be written");
        let volume = |name: &str, path: &str| format!("[[volume]]\nname = \"{name}\"\nbacking = \"{path}\"\n");
        let text = format!("{}{}", volume("a", "a.img"), volume("b", "link"));
        let path = |name: &str| temp_dir.path().join(name).display().to_string();
        let warnings = parse(temp_dir.path(), &text).environment_warnings();
        let expected = format!(
            "the backing of volume b {} lies on the same storage as the backing of volume a {}: the daemon uses only \
             one of them; correct one of the paths",
            path("link"),
            path("a.img")
        );
        assert_eq!(warnings, [expected]);
    }

    #[test]
    fn remedy_matches_the_kind_of_file_at_the_path() {
        let temp_dir = tempfile::tempdir().expect("a temporary directory");
        let directory = temp_dir.path().canonicalize().expect("the directory exists");
        std::fs::create_dir(directory.join("dir")).expect("the directory can be written");
        std::os::unix::fs::symlink("/dev/no-such-disk", directory.join("link")).expect("the directory can be written");
        let specify_file =
            format!("specify a file in it, like {}/dir/disk.img, or a block device", directory.display());
        let create_directory =
            format!("run `mkdir -p {}/none`, mount its file system, or correct the path", directory.display());
        let remedies = |backing: &str, size: &str| {
            let config = parse(&directory, &format!("[[volume]]\nname = \"a\"\nbacking = \"{backing}\"\n{size}"));
            config.backing_problems.into_iter().map(|problem| problem.remedy).collect::<Vec<_>>()
        };
        let size = "size = \"4 MiB\"\n";
        let attach_disk = "attach the disk, or correct the path";
        for (backing, size, expected) in [
            ("dir", "", specify_file.as_str()),
            ("dir", size, specify_file.as_str()),
            ("/dev/null", "", "specify the path of a file or of a whole disk or partition"),
            ("none/a.img", size, create_directory.as_str()),
            ("/dev/no-such-disk", "", attach_disk),
            ("/dev/no-such-disk", size, attach_disk),
            ("link", "", attach_disk),
            ("link", size, attach_disk),
            ("a.img", "", "correct the path, or add size = \"100 GiB\" to have a file created"),
        ] {
            assert_eq!(remedies(backing, size), [expected], "{backing}");
        }
        let flash_remedy = |device: &str| {
            let table = format!("[flash]\ndevices = [\"{device}\"]\nallow_single_copy = true\n{size}");
            let flash = parse(&directory, &table).flash.expect("the table");
            flash.missing_device_fault(&flash.devices[0]).map(|(_, remedy)| remedy)
        };
        let attach_device = Some("attach it, or correct the path");
        for (device, expected) in [
            ("dir", Some(specify_file.as_str())),
            ("none/f0", Some(create_directory.as_str())),
            ("/dev/no-such-disk", attach_device),
            ("link", attach_device),
            ("f0", None),
        ] {
            assert_eq!(flash_remedy(device).as_deref(), expected, "{device}");
        }
        let lost = |device: &str| FlashConfig::lost_file_fault(&directory.join(device), &"is a device of a store");
        let (fault, remedy) = lost("f0").expect("the file is missing");
        let path = directory.join("f0");
        let expected = "does not exist, and is a device of a store: it is not created again";
        assert_eq!(fault, format!("the flash device {} {expected}", path.display()));
        assert_eq!(
            remedy,
            "restore it, or mount its file system; if it is lost for good, remove it from [flash], and set \
             allow_single_copy = true if one device is left"
        );
        assert!(lost("none/f0").is_some(), "its file system may not be mounted");
        std::fs::write(directory.join("f0"), []).expect("the directory can be written");
        assert_eq!(lost("f0"), None, "an empty file is an administrator's choice");
        assert_eq!(lost("link"), None, "it is a device that is not attached");
    }
}
