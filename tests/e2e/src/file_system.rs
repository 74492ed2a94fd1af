//! A private file system on a loop device, which can be frozen: all writes to it hang until it is thawed.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::loop_device::LoopDevice;

/// A mounted ext4 file system, thawed and unmounted when dropped.
pub struct FileSystem {
    mount_point: PathBuf,
    _device: LoopDevice,
}

impl FileSystem {
    /// Creates a file system of `bytes` in a file and mounts it at `mount_point`; the error is the reason of a failure.
    pub fn mount(file: &Path, bytes: u64, mount_point: &Path) -> Result<FileSystem, String> {
        let device = LoopDevice::attach(file, bytes, 512)?;
        std::fs::create_dir_all(mount_point).map_err(|error| format!("{}: {error}", mount_point.display()))?;
        run("mkfs.ext4", &[Path::new("-q"), device.path()])?;
        run("mount", &[device.path(), mount_point])?;
        Ok(FileSystem { mount_point: mount_point.to_owned(), _device: device })
    }

    /// A path in the file system.
    pub fn join(&self, name: &str) -> PathBuf {
        self.mount_point.join(name)
    }

    /// Freezes the file system: writes to it hang until the guard is dropped.
    pub fn freeze(&self) -> Frozen<'_> {
        run("fsfreeze", &[Path::new("--freeze"), &self.mount_point]).expect("a mounted file system can be frozen");
        Frozen(self)
    }
}

/// Guard of a frozen file system.
pub struct Frozen<'a>(&'a FileSystem);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        // A failing test reports its own reason.
        let _ = run("fsfreeze", &[Path::new("--unfreeze"), &self.0.mount_point]);
    }
}

fn run(program: &str, args: &[&Path]) -> Result<(), String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    let output = command.args(args).env("PATH", format!("/usr/sbin:/sbin:{path}")).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{program}: {}", error.trim())) }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        // A failure to unmount cannot be handled here.
        let _ = run("umount", &[Path::new("--lazy"), &self.mount_point]);
    }
}
