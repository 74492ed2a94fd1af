//! Ends the process with its daemon, and every request with the loss of the exclusive lock.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use rbd::Status;
use rustix::process::{Signal, getpid, kill_process};
use rustix::time::{ClockId, clock_gettime};

use super::control::Control;
use super::ffi::Image;
use super::lock::look;

/// Time after the end of the daemon in which requests in flight end and the lock is released. Then this process ends in
/// any case; the next helper of the state directory breaks a lock that is left behind.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two checks of the lock at the storage.
const CHECK_PAUSE: Duration = Duration::from_secs(5);
/// Validity of a check. A client whose lock is broken without this process's death has been silent for 30 s, the
/// timeout of its watch: this process ends before.
const LEASE: Duration = Duration::from_secs(25);
/// Pause between two checks of the lease without a request.
const LEASE_PAUSE: Duration = Duration::from_secs(1);

/// Starts a thread that ends this process after the daemon has closed the control channel or ended, even if a call of
/// librbd hangs.
pub fn end_with_daemon(mut control: UnixStream) {
    std::thread::spawn(move || {
        loop {
            match control.read(&mut [0; 16]) {
                Ok(1..) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => break,
            }
        }
        std::thread::sleep(CLOSE_TIMEOUT);
        kill_self();
    });
}

/// Ends this process at once. The destructors of Ceph's libraries may hang: a signal runs none.
fn kill_self() {
    let (Ok(()) | Err(_)) = kill_process(getpid(), Signal::KILL);
}

/// The time for which the last successful check of the lock is valid, by a clock that also runs while the machine is
/// suspended.
pub struct Lease(AtomicU64);

impl Lease {
    /// A lease from now on.
    pub fn begin() -> Lease {
        Lease(AtomicU64::new(now_ms()))
    }

    /// Renews it with a check that began at `began_ms`.
    fn renew(&self, began_ms: u64) {
        self.0.fetch_max(began_ms, Ordering::AcqRel);
    }

    fn is_expired_at(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.0.load(Ordering::Acquire)) > LEASE.as_millis() as u64
    }
}

fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// Ownership of the image: once lost, it never comes back in this process.
pub struct Ownership {
    lost: OnceLock<()>,
    lease: Lease,
    /// The token of this ownership in the image's metadata.
    token: u64,
    control: Arc<Control>,
}

/// Starts to check at the storage, time and again, that this process still has the lock. `lease` began before the lock
/// was acquired.
pub fn watch(image: Arc<Image>, control: Arc<Control>, token: u64, lease: Lease) -> Arc<Ownership> {
    let ownership = Arc::new(Ownership { lost: OnceLock::new(), lease, token, control });
    let (image, checked, timed) = (Arc::downgrade(&image), Arc::clone(&ownership), Arc::downgrade(&ownership));
    std::thread::spawn(move || checked.check_until_closed(&image));
    std::thread::spawn(move || {
        while let Some(ownership) = timed.upgrade() {
            ownership.end_if_expired();
            drop(ownership);
            std::thread::sleep(LEASE_PAUSE);
        }
    });
    ownership
}

impl Ownership {
    /// True after the loss of the lock.
    pub fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Ends this process if the last successful check of the lock is too old: it was stopped, or the cluster does not
    /// answer. librbd would acquire a lost lock again by itself, and a client that the cluster no longer blocks could
    /// write. The successor continues only if no other client has had the lock. Called before each request and each
    /// reply.
    pub fn end_if_expired(&self) {
        if self.lease.is_expired_at(now_ms()) {
            let text = format!("no check of the exclusive lock succeeded for {} s", LEASE.as_secs());
            self.control.send(&Status::Failed(text));
            kill_self();
        }
    }

    /// Records the loss if a call failed for want of the lock.
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
            self.check(&image);
        }
    }

    /// Checks the lock and the token.
    fn check(&self, image: &Image) {
        let began_ms = now_ms();
        let now = match image.is_lock_owner().and_then(|is_owner| look(image).map(|now| (is_owner, now))) {
            Ok((false, _)) => return self.lose("another client has broken it"),
            Ok((true, now)) => now,
            Err(error) => return self.record_error(error.errno),
        };
        match now.recorded {
            Some(owner) if owner.token == self.token => {}
            Some(owner) => return self.lose(&format!("another hotset has owned the image: {}", owner.description)),
            None => return self.lose("the record of its owner is missing in the image's metadata"),
        }
        self.lease.renew(began_ms);
    }

    fn lose(&self, reason: &str) {
        if self.lost.set(()).is_ok() {
            self.control.send(&Status::Lost(format!("the exclusive lock of the image is lost: {reason}")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_ends_before_the_watch_of_a_silent_client_does() {
        let (lease, ms) = (Lease(AtomicU64::new(1000)), LEASE.as_millis() as u64);
        assert!(ms < 30_000 && ms > 3 * CHECK_PAUSE.as_millis() as u64);
        assert!(!lease.is_expired_at(1000 + ms));
        assert!(lease.is_expired_at(1001 + ms));
        lease.renew(9000);
        lease.renew(2000);
        assert!(!lease.is_expired_at(9000 + ms), "an older check does not shorten it");
        assert!(lease.is_expired_at(9001 + ms));
    }
}
