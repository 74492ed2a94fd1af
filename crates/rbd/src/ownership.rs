//! Ends the process with its daemon, and every request with the loss of the exclusive lock.

use std::io::BufReader;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use rbd::{Invocation, LEASE, Order, Release, Status, boot_ms, read_line};
use rustix::process::{Signal, getpid, kill_process};

use super::control::Control;
use super::ffi::{CephError, HeaderChanges, Image};
use super::lease::{CHECK_PAUSE, Lease};
use super::lock::{OwnedLock, look};
use super::owner_record::Sighting;

/// Time after the end of the daemon in which requests in flight end and the lock is released. Then this process ends in
/// any case; the next helper of the state directory breaks a lock that is left behind.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Shortest pause between two checks.
const CHECK_PAUSE_MIN: Duration = Duration::from_millis(200);
/// Pause between two checks of the lease without a request.
const LEASE_PAUSE: Duration = Duration::from_secs(1);

/// The orders of the daemon.
pub struct Orders {
    /// Changes of the mark of undestaged data.
    pub marks: Receiver<Order>,
    /// On standby, the order to serve the image. It ends with the control channel.
    pub serve: Receiver<Invocation>,
    /// Gets the last order to release the image, once the control channel has been closed.
    pub closed: Receiver<Option<Release>>,
}

/// Starts a thread that passes on the daemon's orders, and ends this process after the daemon has closed the control
/// channel or ended, even if a call of librbd hangs.
pub fn end_with_daemon(control: UnixStream) -> Orders {
    let ((to_marks, marks), (to_serve, serve), (to_closed, closed)) = (channel(), channel(), channel());
    std::thread::spawn(move || {
        let (mut control, mut release) = (BufReader::new(control), None);
        // A receiver may have ended before its orders.
        while let Ok(Some(line)) = read_line(&mut control) {
            if let Some(order) = Order::parse(&line) {
                let (Ok(()) | Err(_)) = to_marks.send(order);
            }
            if let Some(invocation) = Invocation::parse_order(&line) {
                let (Ok(()) | Err(_)) = to_serve.send(invocation);
            }
            release = Release::parse_order(&line).or(release);
        }
        drop(to_serve);
        let (Ok(()) | Err(_)) = to_closed.send(release);
        std::thread::sleep(CLOSE_TIMEOUT);
        kill_self();
    });
    Orders { marks, serve, closed }
}

/// Ends this process at once. The destructors of Ceph's libraries may hang: a signal runs none.
fn kill_self() {
    let (Ok(()) | Err(_)) = kill_process(getpid(), Signal::KILL);
}

/// Asks the storage. Without the feature, librbd answers no question about the lock.
fn find(image: &Image) -> Result<Findings, CephError> {
    let has_feature = image.has_exclusive_lock()?;
    let (is_owner, sighting) =
        if has_feature { (image.is_lock_owner()?, look(image)?) } else { (false, Sighting::default()) };
    Ok(Findings { has_feature, is_owner, sighting })
}

/// Ownership of the image: once lost, it never comes back in this process.
pub struct Ownership {
    lost: OnceLock<()>,
    lease: Lease,
    /// The token of this ownership in the image's metadata.
    token: u64,
    control: Arc<Control>,
}

/// Findings of a check at the storage.
struct Findings {
    /// The image has the feature `exclusive-lock`: without it every client may write.
    has_feature: bool,
    /// This process has the lock.
    is_owner: bool,
    sighting: Sighting,
}

/// Result of a check.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The ownership of the lock is proven.
    Owned,
    /// The cluster has not answered.
    Unknown,
    /// The ownership is lost, for this reason.
    Lost(String),
}

/// Judges a check of the ownership with `token`.
fn judge(token: u64, findings: Result<Findings, CephError>) -> Verdict {
    let lost = |reason: &str| Verdict::Lost(reason.to_owned());
    let Findings { has_feature, is_owner, sighting } = match findings {
        Ok(findings) => findings,
        Err(error) if is_connection_error(error.errno) => return Verdict::Unknown,
        Err(error) => match loss_of(error.errno) {
            Some(reason) => return lost(reason),
            None => return Verdict::Lost(format!("it cannot be checked: {error}")),
        },
    };
    match sighting.recorded {
        _ if !has_feature => lost("the image's feature exclusive-lock was switched off"),
        _ if !is_owner || sighting.lock.is_none() => lost("another client has broken it"),
        Some(owner) if owner.token == token => Verdict::Owned,
        Some(owner) => Verdict::Lost(format!("another hotset has owned the image: {}", owner.description())),
        None => lost("the record of its owner is missing in the image's metadata"),
    }
}

/// True for errors of a cluster that does not answer, or does not have this client's watch at the moment. They prove
/// nothing; if they last, the lease ends.
fn is_connection_error(errno: i32) -> bool {
    [libc::ETIMEDOUT, libc::ENOTCONN, libc::ECONNRESET, libc::ECONNREFUSED, libc::EHOSTUNREACH, libc::ENETUNREACH]
        .contains(&errno)
        || [libc::EAGAIN, libc::EINTR, libc::ENOMEM].contains(&errno)
}

/// The reason of a loss that the error of a call proves.
fn loss_of(errno: i32) -> Option<&'static str> {
    match errno {
        libc::ESHUTDOWN => Some("the cluster has blocked this client (`ceph osd blocklist ls`)"),
        libc::EROFS => Some("another client has taken it"),
        _ => None,
    }
}

/// Starts to check at the storage, time and again, that this process still has the lock. `lease` began before the lock
/// was acquired.
pub fn watch(
    image: &Arc<Image>,
    lock: Arc<Mutex<OwnedLock>>,
    control: Arc<Control>,
    lease: Lease,
) -> Result<Arc<Ownership>, CephError> {
    let token = lock.lock().unwrap_or_else(PoisonError::into_inner).record().token;
    let changes = image.watch_header()?;
    let ownership = Arc::new(Ownership { lost: OnceLock::new(), lease, token, control });
    let (image, checked, timed) = (Arc::downgrade(image), Arc::clone(&ownership), Arc::downgrade(&ownership));
    std::thread::spawn(move || checked.check_until_closed(&image, &lock, changes));
    std::thread::spawn(move || {
        while let Some(ownership) = timed.upgrade() {
            ownership.end_if_expired();
            drop(ownership);
            std::thread::sleep(LEASE_PAUSE);
        }
    });
    Ok(ownership)
}

impl Ownership {
    /// True after the loss of the lock.
    pub fn is_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// When the last check that has proven the ownership began, in milliseconds of this boot.
    pub fn proven_ms(&self) -> u64 {
        self.lease.began_ms()
    }

    /// Ends this process if the last successful check of the lock is too old: it was stopped, or the cluster does not
    /// answer. librbd would acquire a lost lock again by itself, and a client that the cluster no longer blocks could
    /// write. The successor continues only if no other client has had the lock. Called before each request and each
    /// reply.
    pub fn end_if_expired(&self) {
        if self.lease.is_expired_at(boot_ms()) {
            let text = format!("no check of the exclusive lock succeeded for {} s", LEASE.as_secs());
            self.control.send(&Status::Failed(text));
            kill_self();
        }
    }

    /// Records the loss if a call failed for want of the lock.
    pub fn record_error(&self, errno: i32) {
        loss_of(errno).into_iter().for_each(|reason| self.lose(reason));
    }

    /// Carries out the daemon's orders, until it closes the control channel or the service ends.
    pub fn obey(self: &Arc<Self>, orders: Receiver<Order>, image: &Arc<Image>, lock: &Arc<Mutex<OwnedLock>>) {
        let (ownership, image, lock) = (Arc::clone(self), Arc::downgrade(image), Arc::clone(lock));
        std::thread::spawn(move || {
            for Order { number, is_marked } in orders {
                let Some(image) = image.upgrade() else { return };
                ownership.end_if_expired();
                let mut lock = lock.lock().unwrap_or_else(PoisonError::into_inner);
                let status = match lock.mark_undestaged(&image, is_marked) {
                    _ if ownership.is_lost() => continue,
                    Ok(()) => Status::Marked(number),
                    Err(error) => Status::NotMarked(number, error.to_string()),
                };
                ownership.control.send(&status);
            }
        });
    }

    fn check_until_closed(&self, image: &Weak<Image>, lock: &Mutex<OwnedLock>, changes: &HeaderChanges) {
        while let Some(image) = image.upgrade().filter(|_| !self.is_lost()) {
            self.check(&image, lock);
            drop(image);
            std::thread::sleep(CHECK_PAUSE_MIN);
            changes.wait(CHECK_PAUSE - CHECK_PAUSE_MIN);
        }
    }

    fn check(&self, image: &Image, lock: &Mutex<OwnedLock>) {
        let began_ms = boot_ms();
        match judge(self.token, find(image)) {
            Verdict::Owned => {
                self.lease.renew(began_ms);
                self.control.send(&Status::Renewed(began_ms));
                // Repeated by the next check if it fails.
                let (Ok(()) | Err(_)) = lock.lock().unwrap_or_else(PoisonError::into_inner).keep_mark(image);
            }
            Verdict::Unknown => {}
            Verdict::Lost(reason) => self.lose(&reason),
        }
    }

    fn lose(&self, reason: &str) {
        if self.lost.set(()).is_ok() {
            self.control.send(&Status::Lost(format!("the exclusive lock of the image is lost: {reason}")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::image_owner::ImageOwner;
    use super::*;

    #[test]
    fn only_a_silent_cluster_leaves_the_ownership_open() {
        let sighting = |token| Sighting {
            recorded: ImageOwner::parse(&format!("1 {token:x} host a at b")),
            lock: Some("a:0/1".to_owned()),
            ..Sighting::default()
        };
        let findings = |has_feature, is_owner, sighting| Ok(Findings { has_feature, is_owner, sighting });
        assert_eq!(judge(7, findings(true, true, sighting(7))), Verdict::Owned);
        let is_lost = |findings| matches!(judge(7, findings), Verdict::Lost(_));
        assert!(is_lost(findings(false, true, sighting(7))), "without the feature every client may write");
        assert!(is_lost(findings(true, false, sighting(7))));
        assert!(is_lost(findings(true, true, sighting(8))));
        assert!(is_lost(findings(true, true, Sighting { recorded: None, ..sighting(7) })));
        assert!(is_lost(findings(true, true, Sighting { lock: None, ..sighting(7) })));
        let failed = |errno| Err(CephError { call: "rbd_watchers_list", place: String::new(), errno });
        for errno in [libc::EINVAL, libc::ENOENT, libc::ESHUTDOWN, libc::EROFS, libc::EACCES, libc::EIO] {
            assert!(is_lost(failed(errno)), "{errno}");
        }
        assert_eq!(judge(7, failed(libc::ETIMEDOUT)), Verdict::Unknown);
        assert_eq!(judge(7, failed(libc::ENOTCONN)), Verdict::Unknown, "the watch is established again");
    }
}
