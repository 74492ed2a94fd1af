//! Health of the drives under the flash devices, read with `smartctl` every five minutes. An unresponsive drive delays
//! no other work, and is not queried again until the process that queried it has ended.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::rc::Rc;
use std::time::Duration;

use messages::report::DriveReport;
use messages::unix_time;
use seam::real::{PATH_TIMEOUT, PathCall};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::time::{MissedTickBehavior, timeout};

use super::{FlashLog, smart};
use logging::{self as log, FLASH};

/// Interval of the queries: health changes over days.
const QUERY_INTERVAL: Duration = Duration::from_secs(300);
/// Time-out for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of an answer, ten times the largest known.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;
const PROGRAM: &str = "smartctl";
/// Directories searched in addition to the daemon's `PATH`.
const ADDITIONAL_PATH: &str = "/usr/sbin:/sbin";
/// Message in place of health when `smartctl` is missing.
const MISSING: &str = "smartctl is not installed; install smartmontools to monitor the health of the drives";

/// Known health of the drives.
#[derive(Default)]
pub struct Drives {
    /// The last report of each device's drive.
    by_device: RefCell<BTreeMap<PathBuf, DriveReport>>,
    /// Devices whose query is still running.
    queried: RefCell<BTreeSet<PathBuf>>,
    /// True if `smartctl` is not installed.
    is_missing: Cell<bool>,
}

impl Drives {
    /// Health of the drive under a device; `None` for a file.
    pub fn report_of(&self, device: &str) -> Option<DriveReport> {
        self.by_device.borrow().get(Path::new(device)).cloned()
    }

    /// The message for the case that `smartctl` is missing; `None` otherwise.
    pub fn missing(&self) -> Option<String> {
        self.is_missing.get().then(|| MISSING.to_owned())
    }

    /// Records the result of a query. A failed query keeps the earlier figures and adds the reason why they are old.
    fn record_result(&self, device: &Path, drive: &str, result: Result<DriveReport, String>) {
        let mut by_device = self.by_device.borrow_mut();
        let report = by_device.entry(device.to_owned()).or_default();
        match result {
            Ok(fresh) => *report = fresh,
            Err(reason) => report.unread = reason,
        }
        report.drive = drive.to_owned();
    }

    /// Starts to query the drives under `devices`, and forgets all others.
    fn query_all(self: &Rc<Self>, devices: Vec<PathBuf>) {
        self.by_device.borrow_mut().retain(|device, _| devices.contains(device));
        for device in devices {
            if self.queried.borrow_mut().insert(device.clone()) {
                tokio::task::spawn_local(self.clone().query_under(device));
            }
        }
    }

    async fn query_under(self: Rc<Self>, device: PathBuf) {
        if let Some(drive) = find_drive(device.clone()).await {
            self.query(&device, &drive).await;
        }
        self.queried.borrow_mut().remove(&device);
    }

    /// Queries the drive under `device`; returns when the query's process has ended.
    async fn query(&self, device: &Path, drive: &str) {
        log::debug!(target: FLASH, device = %device.display(), "querying the health of {drive} with {PROGRAM}");
        match spawn(drive) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if !self.is_missing.replace(true) {
                    log::info!(target: FLASH, "{MISSING}");
                }
            }
            Err(error) => self.record_result(device, drive, Err(format!("{PROGRAM} cannot be run: {error}"))),
            Ok(mut child) => {
                self.is_missing.set(false);
                let output = read_output(&mut child).await;
                let now = unix_time::now().as_secs();
                self.record_result(device, drive, output.and_then(|text| smart::parse(&text, now)));
                // The process may have ended by itself. While it waits for a hung drive, it cannot be killed.
                let _ = child.start_kill();
                let _ = child.wait().await;
            }
        }
    }
}

fn spawn(drive: &str) -> std::io::Result<Child> {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(PROGRAM);
    command.args(["--json", "-a", drive]).env("PATH", format!("{path}:{ADDITIONAL_PATH}")).env("LC_ALL", "C");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true).spawn()
}

/// Reads the output of `smartctl`, with a limit in time and size. The exit code is ignored: its bits repeat the output.
async fn read_output(child: &mut Child) -> Result<Vec<u8>, String> {
    let out = child.stdout.take().expect("stdout is piped");
    let mut text = Vec::new();
    match timeout(TIMEOUT, out.take(OUTPUT_BYTES_MAX + 1).read_to_end(&mut text)).await {
        Err(_) => Err(format!("{PROGRAM} did not answer within {} s", TIMEOUT.as_secs())),
        Ok(Err(error)) => Err(format!("{PROGRAM} cannot be read: {error}")),
        Ok(Ok(_)) if text.len() as u64 > OUTPUT_BYTES_MAX => {
            Err(format!("{PROGRAM} printed more than {OUTPUT_BYTES_MAX} bytes"))
        }
        Ok(Ok(_)) => Ok(text),
    }
}

/// [`drive_of`] on a helper thread.
async fn find_drive(device: PathBuf) -> Option<String> {
    let find = PathCall::start(&device.clone(), move |_| drive_of(&device));
    find.answer(PATH_TIMEOUT, tokio::time::sleep).await.ok().flatten()
}

/// The whole drive of a block device or partition; `None` for a file.
fn drive_of(device: &Path) -> Option<String> {
    let metadata = std::fs::metadata(device).ok().filter(|metadata| metadata.file_type().is_block_device())?;
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    let folder = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let drive = if folder.join("partition").exists() { folder.parent()? } else { &folder };
    // In sysfs the kernel replaces a slash in a device name by `!`.
    Some(format!("/dev/{}", drive.file_name()?.to_str()?.replace('!', "/")))
}

impl FlashLog {
    /// Queries the drives under the devices every five minutes, until `is_stopping` returns true.
    pub async fn watch_drives(&self, is_stopping: impl Fn() -> bool) {
        let mut tick = tokio::time::interval(QUERY_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !is_stopping() {
            tick.tick().await;
            self.drives.query_all(self.devices());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_query_keeps_earlier_figures_and_adds_reason() {
        let (drives, device) = (Drives::default(), Path::new("/dev/x1"));
        drives.record_result(device, "/dev/x", Err("smartctl did not answer within 10 s".to_owned()));
        let unread = drives.report_of("/dev/x1").expect("the device is known");
        assert_eq!((unread.drive.as_str(), unread.read_unix_seconds), ("/dev/x", 0));
        let read = DriveReport { read_unix_seconds: 7, media_errors: Some(3), ..DriveReport::default() };
        drives.record_result(device, "/dev/x", Ok(read));
        drives.record_result(device, "/dev/x", Err("the drive reports no health".to_owned()));
        let stale = drives.report_of("/dev/x1").expect("the device is known");
        assert_eq!((stale.read_unix_seconds, stale.media_errors), (7, Some(3)));
        assert_eq!(stale.unread, "the drive reports no health");
        assert_eq!(drives.report_of("/dev/x2"), None);
    }

    #[test]
    fn file_has_no_drive() {
        let file = tempfile::NamedTempFile::new().expect("a file for the test");
        assert_eq!(drive_of(file.path()), None);
        assert_eq!(drive_of(Path::new("/nowhere")), None);
    }
}
