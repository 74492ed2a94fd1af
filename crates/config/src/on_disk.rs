//! Paths of the configuration compared with this machine: paths that cannot be a disk, and for `check-config` the
//! directories and files that the daemon will create, and sizes that differ.

use std::path::{Path, PathBuf};

use seam::Address;
use units::show_bytes;

use super::{BackingSpec, Config, KeepIn, VolumeConfig, is_device};

/// Fault and remedy for a path that cannot be a regular file or block device: a directory, another kind of file, or a
/// file to be created in a directory that does not exist. `None` if the path has no such fault.
pub(super) fn unsuitable(path: &Path, is_created: bool) -> Option<(String, String)> {
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
        PathKind::Missing if is_created && !is_device(path) => {
            let folder = missing_folder(path)?;
            let fault = format!("{shown} cannot be created: the directory {folder} does not exist");
            Some((fault, format!("run `mkdir -p {folder}`, mount its file system, or correct the path")))
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
    Missing,
    /// With its size.
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
        // An unreadable path gets its error when it is opened.
        Err(_) => PathKind::Missing,
    }
}

/// The parent directory of `path` for messages, if it does not exist.
fn missing_folder(path: &Path) -> Option<String> {
    let folder = path.parent()?;
    (!folder.is_dir()).then(|| folder.display().to_string())
}

impl Config {
    /// Messages about directories and files that the daemon will create, one sentence each.
    pub fn to_be_created(&self) -> Vec<String> {
        let mut created = Vec::new();
        let mut add_folder = |table: &str, folder: &Path| {
            let text = format!("{table}: the directory {} does not exist; the daemon will create it", folder.display());
            if !folder.is_dir() && !created.contains(&text) {
                created.push(text);
            }
        };
        add_folder("[state]", &self.state_directory);
        let sockets = self.nbd.listen.iter().filter_map(|address| match address {
            Address::Unix(path) => Some(("[nbd]", path.clone())),
            Address::Tcp(..) => None,
        });
        for (table, socket) in sockets.chain([("[control]", self.control_socket.clone())]) {
            add_folder(table, socket.parent().unwrap_or(Path::new("/")));
        }
        if let Some(vhost_user) = &self.vhost_user {
            add_folder("[vhost_user]", &vhost_user.directory);
        }
        let is_new = |path: &Path| matches!(kind_of(path), PathKind::Missing | PathKind::File(0));
        for device in self.flash.iter().flat_map(|flash| &flash.devices).filter(|device| is_new(device)) {
            if let Some(bytes) = self.flash.as_ref().and_then(|flash| flash.create_bytes(device)) {
                let (device, bytes) = (device.display(), show_bytes(bytes));
                created.push(format!("[flash]: the daemon will create the file {device} with {bytes}"));
            }
        }
        for volume in &self.volumes {
            if let (BackingSpec::Path(path), Some(bytes)) = (&volume.backing, volume.size_bytes)
                && is_new(path)
                && !is_device(path)
            {
                let (name, path, bytes) = (&volume.name, path.display(), show_bytes(bytes));
                created.push(format!("volume {name}: the daemon will create the file {path} with {bytes}"));
            }
        }
        created
    }

    /// Differences between the configuration and this machine that the daemon accepts, one sentence each with a remedy.
    pub fn disk_warnings(&self) -> Vec<String> {
        let mut warnings: Vec<String> = self.volumes.iter().filter_map(size_warning).collect();
        let flash = self.flash.iter().filter_map(|flash| Some((flash, flash.size_bytes?)));
        for (device, bytes) in flash.flat_map(|(flash, bytes)| flash.devices.iter().map(move |device| (device, bytes)))
        {
            if let PathKind::File(size) = kind_of(device)
                && size != 0
                && size != bytes
            {
                warnings.push(format!(
                    "[flash] size is {}, but the file {} exists with {}, which stays; to change its size: \
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
        warnings
    }
}

/// A size that the existing backing of a volume does not have: `size` is used only to create a file.
fn size_warning(volume: &VolumeConfig) -> Option<String> {
    let BackingSpec::Path(path) = &volume.backing else { return None };
    let (name, path, size): (_, &PathBuf, u64) = (&volume.name, path, volume.size_bytes?);
    match kind_of(path) {
        PathKind::File(bytes) if bytes != 0 && bytes != size => Some(format!(
            "volume {name}: size is {}, but the file {} exists with {}, which stays; remove `size`, or change the \
             file: `hotset volume resize {name} {}`",
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

    fn parse(folder: &Path, text: &str) -> Config {
        let text =
            format!("[state]\ndirectory = \"state\"\n[control]\nsocket = \"run/c.sock\"\n[nbd]\nlisten = []\n{text}");
        Config::parse(&folder.join("hotset.toml"), &text).unwrap_or_else(|problems| panic!("{problems}"))
    }

    #[test]
    fn directories_and_files_that_will_be_created_are_listed() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let directory = folder.path();
        let flash = "[flash]\ndevices = [\"f0\", \"f1\"]\nsize = \"1 GiB\"\n";
        let text = format!("{flash}[[volume]]\nname = \"a\"\nbacking = \"a.img\"\nsize = \"4 MiB\"\n");
        let config = parse(directory, &text);
        let path_of = |name: &str| directory.join(name).display().to_string();
        assert_eq!(
            config.to_be_created(),
            [
                format!("[state]: the directory {} does not exist; the daemon will create it", path_of("state")),
                format!("[control]: the directory {} does not exist; the daemon will create it", path_of("run")),
                format!("[flash]: the daemon will create the file {} with 1 GiB", path_of("f0")),
                format!("[flash]: the daemon will create the file {} with 1 GiB", path_of("f1")),
                format!("volume a: the daemon will create the file {} with 4 MiB", path_of("a.img")),
            ]
        );
        for name in ["f0", "f1", "a.img"] {
            std::fs::write(directory.join(name), [0; 4096]).expect("the folder can be written");
        }
        for name in ["state", "run"] {
            std::fs::create_dir(directory.join(name)).expect("the folder can be written");
        }
        assert_eq!(config.to_be_created(), [""; 0]);
    }

    #[test]
    fn size_that_the_file_does_not_have_is_a_warning() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(folder.path().join("a.img"), [0; 4096]).expect("the folder can be written");
        let volume = |size: &str| format!("[[volume]]\nname = \"a\"\nbacking = \"a.img\"\nsize = \"{size}\"\n");
        let warnings = parse(folder.path(), &volume("4 MiB")).disk_warnings();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].starts_with("volume a: size is 4 MiB, but the file "), "{}", warnings[0]);
        assert!(warnings[0].contains("exists with 4 KiB") && warnings[0].contains("resize a 4MiB"), "{}", warnings[0]);
        assert_eq!(parse(folder.path(), &volume("4 KiB")).disk_warnings(), [""; 0]);
    }

    #[test]
    fn remedy_matches_the_kind_of_file_at_the_path() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let directory = folder.path();
        std::fs::create_dir(directory.join("dir")).expect("the folder can be written");
        std::os::unix::fs::symlink("/dev/no-such-disk", directory.join("link")).expect("the folder can be written");
        let problems = |backing: &str, size: &str| {
            let text = format!("[[volume]]\nname = \"a\"\nbacking = \"{backing}\"\n{size}");
            let config = parse(directory, &text);
            config.absent.iter().map(|problem| format!("{}; {}", problem.fault, problem.remedy)).collect::<String>()
        };
        let size = "size = \"4 MiB\"\n";
        for (backing, size, expected) in [
            ("dir", "", "is a directory; specify a file in it"),
            ("dir", size, "is a directory; specify a file in it"),
            ("/dev/null", "", "is neither a regular file nor a block device"),
            ("none/a.img", size, "does not exist; run `mkdir -p "),
            ("/dev/no-such-disk", "", "attach the disk"),
            ("/dev/no-such-disk", size, "attach the disk"),
            ("link", "", "attach the disk"),
            ("link", size, "attach the disk"),
            ("a.img", "", "add size ="),
        ] {
            let text = problems(backing, size);
            assert!(text.contains(expected), "{backing}: {text}");
            assert_eq!(text.contains("add size ="), expected == "add size =", "{backing}: {text}");
        }
        let flash = |device: &str, size: &str| {
            let config =
                parse(directory, &format!("[flash]\ndevices = [\"{device}\"]\nallow_single_copy = true\n{size}"));
            let flash = config.flash.expect("the table");
            flash
                .missing_device_fault(&flash.devices[0])
                .map(|(fault, remedy)| format!("{fault}; {remedy}"))
                .unwrap_or_default()
        };
        assert!(flash("dir", size).contains("is a directory"), "{}", flash("dir", size));
        assert!(flash("none/f0", size).contains("run `mkdir -p "), "{}", flash("none/f0", size));
        assert!(flash("/dev/no-such-disk", size).ends_with("attach it, or correct the path"));
        assert!(flash("link", size).ends_with("attach it, or correct the path"), "{}", flash("link", size));
        assert_eq!(flash("f0", size), "");
        let lost = |device: &str| FlashConfig::lost_file_fault(&directory.join(device), &"is a device of a store");
        let (fault, remedy) = lost("f0").expect("the file is missing");
        assert!(fault.ends_with("is a device of a store: it is not created again"), "{fault}");
        assert!(remedy.starts_with("restore it") && !remedy.contains("fallocate"), "{remedy}");
        assert!(lost("none/f0").is_some(), "its file system may not be mounted");
        std::fs::write(directory.join("f0"), []).expect("the folder can be written");
        assert_eq!(lost("f0"), None, "an empty file is an administrator's choice");
        assert_eq!(lost("link"), None, "it is a device that is not attached");
    }
}
