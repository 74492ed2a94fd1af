//! The health of the drives that flash devices are, or are parts of: asked of `smartctl` every five minutes, beside everything else. A drive that
//! does not answer holds nothing up, and is not asked again as long as whoever asked it has not ended.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::rc::Rc;
use std::time::Duration;

use control::moment;
use control::report::DriveReport;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, timeout};

use super::super::daemon::Daemon;
use super::smart;
use terminal::log;

/// Time between two looks: what is looked at changes over days.
const PAUSE: Duration = Duration::from_secs(300);
/// Time for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of an answer; the longest have a tenth of it.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
const PROGRAM: &str = "smartctl";
/// Where such programs are, besides where the daemon looks for others.
const FOLDERS: &str = "/usr/sbin:/sbin";
/// What is told in place of health where there is nothing that could tell it.
const MISSING: &str = "smartctl is not installed: with smartmontools the health of the drives themselves is read, too";

/// What is known of the drives.
#[derive(Default)]
pub struct Drives {
    by_device: RefCell<BTreeMap<PathBuf, DriveReport>>,
    /// Drives that were asked and have not answered, nor been let go.
    asked: RefCell<BTreeSet<PathBuf>>,
    is_missing: Cell<bool>,
}

impl Drives {
    /// What is known of the drive under a device; nothing of a file.
    pub fn of(&self, device: &str) -> Option<DriveReport> {
        self.by_device.borrow().get(Path::new(device)).cloned()
    }

    /// Why nothing is known of any, if that is so.
    pub fn missing(&self) -> Option<String> {
        self.is_missing.get().then(|| MISSING.to_owned())
    }

    /// Notes what came of asking: figures that were read before stay with why there are no newer ones.
    fn note(&self, device: &Path, drive: &str, told: Result<DriveReport, String>) {
        let mut by_device = self.by_device.borrow_mut();
        let report = by_device.entry(device.to_owned()).or_default();
        match told {
            Ok(told) => *report = told,
            Err(why) => report.unread = why,
        }
        report.drive = drive.to_owned();
    }

    /// Asks the drive under `device`, and stays until whoever asked it has ended.
    async fn ask(&self, device: &Path, drive: &str) {
        match spawn(drive) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if !self.is_missing.replace(true) {
                    log::info(MISSING);
                }
            }
            Err(error) => self.note(device, drive, Err(format!("{PROGRAM} cannot be run: {error}"))),
            Ok(mut child) => {
                self.is_missing.set(false);
                let told = answer(&mut child).await;
                let now = moment::since_1970().as_secs();
                self.note(device, drive, told.and_then(|text| smart::parse(&text, now)));
                // It may have ended by itself. One that waits for a drive that hangs ends when the kernel lets it.
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

/// All that it prints, in time and within bounds. How it exits says what it found, which is in what it prints.
async fn answer(child: &mut Child) -> Result<Vec<u8>, String> {
    let out = child.stdout.take().expect("it was asked for");
    let mut text = Vec::new();
    match timeout(PATIENCE, out.take(ANSWER_BYTES_MAX + 1).read_to_end(&mut text)).await {
        Err(_) => Err(format!("{PROGRAM} has not answered within {} s", PATIENCE.as_secs())),
        Ok(Err(error)) => Err(format!("{PROGRAM} cannot be read: {error}")),
        Ok(Ok(_)) if text.len() as u64 > ANSWER_BYTES_MAX => Err(format!("{PROGRAM} prints more than can be right")),
        Ok(Ok(_)) => Ok(text),
    }
}

/// [`drive_of`], on a thread of its own: a file may lie where looking at it takes for ever, and the daemon's end waits for threads that its runtime
/// has lent.
async fn found(device: PathBuf) -> Option<String> {
    let (sender, receiver) = oneshot::channel();
    let look = move || drop(sender.send(drive_of(&device)));
    std::thread::Builder::new().name("drive".to_owned()).spawn(look).ok()?;
    receiver.await.ok().flatten()
}

/// The whole drive that a block device is, or is a partition of; none for a file.
fn drive_of(device: &Path) -> Option<String> {
    let metadata = std::fs::metadata(device).ok().filter(|metadata| metadata.file_type().is_block_device())?;
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    let folder = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let whole = if folder.join("partition").exists() { folder.parent()? } else { &folder };
    // The kernel writes what has a slash in its name with this in its place.
    Some(format!("/dev/{}", whole.file_name()?.to_str()?.replace('!', "/")))
}

impl Daemon {
    /// Looks at the drives until a stop is asked for.
    pub async fn watch_drives(self: Rc<Self>) {
        let mut tick = tokio::time::interval(PAUSE);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.stop.is_stopping() {
            tick.tick().await;
            let devices = self.flash_devices();
            self.drives.by_device.borrow_mut().retain(|device, _| devices.contains(device));
            for device in devices {
                if self.drives.asked.borrow_mut().insert(device.clone()) {
                    tokio::task::spawn_local(self.clone().ask_drive(device));
                }
            }
        }
    }

    async fn ask_drive(self: Rc<Self>, device: PathBuf) {
        if let Some(drive) = found(device.clone()).await {
            self.drives.ask(&device, &drive).await;
        }
        self.drives.asked.borrow_mut().remove(&device);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_before_stays_with_the_reason_why_there_is_nothing_newer() {
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
    fn a_file_is_no_drive() {
        let file = tempfile::NamedTempFile::new().expect("a file for the test");
        assert_eq!(drive_of(file.path()), None);
        assert_eq!(drive_of(Path::new("/nowhere")), None);
    }
}
