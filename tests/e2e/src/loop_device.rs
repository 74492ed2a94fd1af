//! A file made into a block device with sectors of a chosen size, where that is allowed.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A loop device, detached when dropped.
pub struct LoopDevice(PathBuf);

impl LoopDevice {
    /// Makes one of `bytes` with sectors of `sector` bytes on a sparse file at `file`; the error says why none can be made.
    pub fn attach(file: &Path, bytes: u64, sector: u32) -> Result<LoopDevice, String> {
        let made = File::create(file).and_then(|file| file.set_len(bytes));
        made.map_err(|error| format!("{}: {error}", file.display()))?;
        let mut command = losetup();
        command.args(["--find", "--show", "--sector-size", &sector.to_string()]).arg(file);
        let output = command.output().map_err(|error| format!("losetup: {error}"))?;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if !output.status.success() {
            return Err(format!("losetup: {}", err.trim()));
        }
        let device = LoopDevice(PathBuf::from(out.trim()));
        // In some containers the device is made and its node is not.
        File::open(&device.0).map_err(|error| format!("{}: {error}", device.0.display()))?;
        Ok(device)
    }

    /// Its node under `/dev`.
    pub fn path(&self) -> &Path {
        &self.0
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
        // Nothing can be done about a device that stays; the kernel frees it when its last user is gone.
        let _ = losetup().arg("--detach").arg(&self.0).status();
    }
}
