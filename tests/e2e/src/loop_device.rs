//! A file as a block device with a chosen sector size, where loop devices are permitted.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A loop device, detached when dropped.
pub struct LoopDevice {
    node: PathBuf,
    file: PathBuf,
}

impl LoopDevice {
    /// Creates a loop device of `bytes` with sectors of `sector_bytes` on a sparse file; the error is the reason of a
    /// failure.
    pub fn attach(file: &Path, bytes: u64, sector_bytes: u32) -> Result<LoopDevice, String> {
        let created = File::create(file).and_then(|file| file.set_len(bytes));
        created.map_err(|error| format!("{}: {error}", file.display()))?;
        LoopDevice::attach_existing(file, sector_bytes)
    }

    /// Creates a loop device on an existing file.
    pub fn attach_existing(file: &Path, sector_bytes: u32) -> Result<LoopDevice, String> {
        let mut command = losetup();
        command.args(["--find", "--show", "--sector-size", &sector_bytes.to_string()]).arg(file);
        let output = command.output().map_err(|error| format!("losetup: {error}"))?;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if !output.status.success() {
            return Err(format!("losetup: {}", err.trim()));
        }
        let device = LoopDevice { node: PathBuf::from(out.trim()), file: file.to_owned() };
        // In some containers the device exists but its node does not.
        File::open(&device.node).map_err(|error| format!("{}: {error}", device.node.display()))?;
        Ok(device)
    }

    /// Path of the device node.
    pub fn path(&self) -> &Path {
        &self.node
    }

    /// Truncates the device to nothing, so that every request fails.
    pub fn fail(&self) {
        File::create(&self.file).expect("the file exists");
        let status = losetup().arg("--set-capacity").arg(&self.node).status();
        assert!(status.is_ok_and(|status| status.success()), "losetup rejects the new size");
    }
}

fn losetup() -> Command {
    let mut command = Command::new("losetup");
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("/usr/sbin:/sbin:{path}"));
    command
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // A failure cannot be handled here; the kernel frees the device when its last user has closed it.
        let _ = losetup().arg("--detach").arg(&self.node).status();
    }
}
