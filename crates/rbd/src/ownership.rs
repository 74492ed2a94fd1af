//! Ends the process with its daemon, and every request with the loss of the exclusive lock.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use rbd::Status;
use rustix::process::{Signal, getpid, kill_process};

use super::control::Control;
use super::ffi::Image;

/// Time after the end of the daemon in which requests in flight end and the lock is released. Then this process ends in
/// any case; a lock that is left behind passes on when its watch has expired, after half a minute.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two checks of the lock at the storage.
const CHECK_PAUSE: Duration = Duration::from_secs(5);

/// Starts a thread that ends this process after the daemon has closed the control channel or ended, even if a call of
/// librbd hangs.
pub fn end_with_daemon(mut control: UnixStream) {
    std::thread::spawn(move || {
        while matches!(control.read(&mut [0; 16]), Ok(1..)) {}
        std::thread::sleep(CLOSE_TIMEOUT);
        // The destructors of Ceph's libraries may hang as well: a signal runs none.
        let (Ok(()) | Err(_)) = kill_process(getpid(), Signal::KILL);
    });
}

/// Ownership of the image: once lost, it never comes back in this process.
pub struct Ownership {
    lost: OnceLock<()>,
    control: Arc<Control>,
}

/// Starts to check at the storage, time and again, that this process still has the lock.
pub fn watch(image: Arc<Image>, control: Arc<Control>) -> Arc<Ownership> {
    let ownership = Arc::new(Ownership { lost: OnceLock::new(), control });
    let (image, watched) = (Arc::downgrade(&image), Arc::clone(&ownership));
    std::thread::spawn(move || watched.check_until_closed(&image));
    ownership
}

impl Ownership {
    /// True after the loss of the lock.
    pub fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Records the loss if a request failed for want of the lock.
    pub fn record_error(&self, errno: i32) {
        match errno {
            libc::ESHUTDOWN => self.lose("the cluster has blocked this client (`ceph osd blocklist ls`)"),
            libc::EROFS => self.lose("another client has taken it"),
            _ => {}
        }
    }

    fn check_until_closed(&self, image: &Weak<Image>) {
        while !self.is_lost() {
            std::thread::sleep(CHECK_PAUSE);
            let Some(image) = image.upgrade() else { return };
            match image.is_lock_owner() {
                Ok(true) => {}
                Ok(false) => self.lose("another client has broken it"),
                Err(error) => self.record_error(error.errno),
            }
        }
    }

    fn lose(&self, reason: &str) {
        if self.lost.set(()).is_ok() {
            self.control.send(&Status::Lost(format!("the exclusive lock of the image is lost: {reason}")));
        }
    }
}
