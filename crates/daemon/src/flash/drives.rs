//! Health of the drives under the flash devices, read with `smartctl` every five minutes, independent of everything
//! else. An unresponsive drive delays nothing, and is not queried again until the process that queried it has ended.

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
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, timeout};

use super::{FlashLog, smart};
use logging::{self as log, FLASH};

/// Interval of the queries: health changes over days.
const PAUSE: Duration = Duration::from_secs(300);
/// Time-out for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of an answer, ten times the largest known.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
const PROGRAM: &str = "smartctl";
/// Folders searched in addition to the daemon's `PATH`.
const FOLDERS: &str = "/usr/sbin:/sbin";
/// Message in place of health when `smartctl` is missing.
const MISSING: &str = "smartctl is not installed: with smartmontools the health of the drives themselves is read, too";

/// Known health of the drives.
#[derive(Default)]
pub struct Drives {
    by_device: RefCell<BTreeMap<PathBuf, DriveReport>>,
    /// Devices whose query is still running.
    asked: RefCell<BTreeSet<PathBuf>>,
    is_missing: Cell<bool>,
}

impl Drives {
    /// Health of the drive under a device; `None` for a file.
    pub fn of(&self, device: &str) -> Option<DriveReport> {
        self.by_device.borrow().get(Path::new(device)).cloned()
    }

    /// The reason why the health of all drives is unknown, if so.
    pub fn missing(&self) -> Option<String> {
        self.is_missing.get().then(|| MISSING.to_owned())
    }

    /// Records the result of a query. A failed query keeps the earlier figures and adds the reason why they are old.
    fn note(&self, device: &Path, drive: &str, told: Result<DriveReport, String>) {
        let mut by_device = self.by_device.borrow_mut();
        let report = by_device.entry(device.to_owned()).or_default();
        match told {
            Ok(told) => *report = told,
            Err(why) => report.unread = why,
        }
        report.drive = drive.to_owned();
    }

    /// Begins to query the drives under `devices`, and forgets all others.
    fn ask_all(self: &Rc<Self>, devices: Vec<PathBuf>) {
        self.by_device.borrow_mut().retain(|device, _| devices.contains(device));
        for device in devices {
            if self.asked.borrow_mut().insert(device.clone()) {
                tokio::task::spawn_local(self.clone().ask_under(device));
            }
        }
    }

    async fn ask_under(self: Rc<Self>, device: PathBuf) {
        if let Some(drive) = found(device.clone()).await {
            self.ask(&device, &drive).await;
        }
        self.asked.borrow_mut().remove(&device);
    }

    /// Queries the drive under `device`; returns when the query's process has ended.
    async fn ask(&self, device: &Path, drive: &str) {
        log::debug!(target: FLASH, device = %device.display(), "asking {PROGRAM} about {drive}");
        match spawn(drive) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if !self.is_missing.replace(true) {
                    log::info!(target: FLASH, "{MISSING}");
                }
            }
            Err(error) => self.note(device, drive, Err(format!("{PROGRAM} cannot be run: {error}"))),
            Ok(mut child) => {
                self.is_missing.set(false);
                let told = answer(&mut child).await;
                let now = unix_time::now().as_secs();
                self.note(device, drive, told.and_then(|text| smart::parse(&text, now)));
                // The process may have ended by itself. A process that waits for a hung drive ends only when the kernel
                // lets it.
                let _ = child.start_kill();
                let _ = child.wait().await;
            }
        }
    }
}

fn spawn(drive: &str) -> std::io::Result<Child> {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new(PROGRAM);
    command.args(["--json", "-a", drive]).env("PATH", format!("{path}:{FOLDERS}")).env("LC_ALL", "C");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true).spawn()
}

/// Reads the output of `smartctl`, with a limit in time and size. The exit code is ignored: its bits repeat the output.
async fn answer(child: &mut Child) -> Result<Vec<u8>, String> {
    let out = child.stdout.take().expect("it was asked for");
    let mut text = Vec::new();
    match timeout(TIMEOUT, out.take(ANSWER_BYTES_MAX + 1).read_to_end(&mut text)).await {
        Err(_) => Err(format!("{PROGRAM} has not answered within {} s", TIMEOUT.as_secs())),
        Ok(Err(error)) => Err(format!("{PROGRAM} cannot be read: {error}")),
        Ok(Ok(_)) if text.len() as u64 > ANSWER_BYTES_MAX => Err(format!("{PROGRAM} prints more than can be right")),
        Ok(Ok(_)) => Ok(text),
    }
}

/// [`drive_of`] on a thread of its own: the look-up may hang, and the end of the daemon waits for threads of its
/// runtime.
async fn found(device: PathBuf) -> Option<String> {
    let (sender, receiver) = oneshot::channel();
    let look = move || drop(sender.send(drive_of(&device)));
    std::thread::Builder::new().name("drive".to_owned()).spawn(look).ok()?;
    receiver.await.ok().flatten()
}

/// The whole drive of a block device or partition; `None` for a file.
fn drive_of(device: &Path) -> Option<String> {
    let metadata = std::fs::metadata(device).ok().filter(|metadata| metadata.file_type().is_block_device())?;
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    let folder = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let whole = if folder.join("partition").exists() { folder.parent()? } else { &folder };
    // In sysfs the kernel replaces a slash in a device name by `!`.
    Some(format!("/dev/{}", whole.file_name()?.to_str()?.replace('!', "/")))
}

impl FlashLog {
    /// Queries the drives under the devices every five minutes, until `stop` says so.
    pub async fn watch_drives(&self, stop: impl Fn() -> bool) {
        let mut tick = tokio::time::interval(PAUSE);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !stop() {
            tick.tick().await;
            self.drives.ask_all(self.devices());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_query_keeps_earlier_figures_and_adds_reason() {
        let (drives, device) = (Drives::default(), Path::new("/dev/x1"));
        drives.note(device, "/dev/x", Err("smartctl has not answered within 10 s".to_owned()));
        let unread = drives.of("/dev/x1").expect("it is known");
        assert_eq!((unread.drive.as_str(), unread.read_unix_seconds), ("/dev/x", 0));
        let read = DriveReport { read_unix_seconds: 7, media_errors: Some(3), ..DriveReport::default() };
        drives.note(device, "/dev/x", Ok(read));
        drives.note(device, "/dev/x", Err("it tells nothing of its health".to_owned()));
        let stale = drives.of("/dev/x1").expect("it is known");
        assert_eq!((stale.read_unix_seconds, stale.media_errors), (7, Some(3)));
        assert_eq!(stale.unread, "it tells nothing of its health");
        assert_eq!(drives.of("/dev/x2"), None);
    }

    #[test]
    fn file_has_no_drive() {
        let file = tempfile::NamedTempFile::new().expect("a file for the test");
        assert_eq!(drive_of(file.path()), None);
        assert_eq!(drive_of(Path::new("/nowhere")), None);
    }
}
