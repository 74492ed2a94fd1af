//! How requests of one disk reach the kernel, such that a disk that hangs holds up no other one.
//!
//! A request that the kernel cannot submit without waiting takes one of the ring's workers, and they are bounded: a
//! file system or device that does not answer would take them all. So a read or write is submitted with RWF_NOWAIT
//! first, which takes none. What is refused then, and what always takes a worker (a flush, a zero-range), needs a
//! permit of its *failure domain*: the file system or block device that hangs as a whole. The ring may have as many
//! workers as all failure domains have permits.
//!
//! Where nothing waits, a request costs what it did. Where most requests are refused (a sparse file), one of four is tried.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::rc::{Rc, Weak};

use super::disk::helper_failed;
use super::op::Action;
use super::permits::Permits;
use crate::pending::PendingRequests;
use crate::{DiskResult, Nanos};

/// Workers of the ring that one failure domain may hold.
const WORKERS: usize = 32;
/// Helper threads that it may hold: they do what the ring cannot, and are fewer.
const HELPERS: usize = 4;
/// A disk hangs whose oldest request is older than this: the core then submits nothing to it by itself.
const HUNG_AFTER: Nanos = Nanos::from_secs(10);
/// Most requests in a row that are not tried without waiting after one that was refused.
const UNTRIED_MAX: u32 = 3;

/// A file system or a block device: its disks hang together.
pub(super) struct FailureDomain {
    workers: Permits,
    helpers: Permits,
}

/// The failure domains of a core's open disks.
#[derive(Default)]
pub(super) struct FailureDomains {
    by_device: RefCell<BTreeMap<u64, Weak<FailureDomain>>>,
    /// Workers that the ring may have.
    workers_max: Cell<usize>,
}

impl FailureDomains {
    /// The domain of a device's number; `ring` gets the workers of one that is new.
    pub(super) fn of(&self, device: u64, ring: RawFd) -> Rc<FailureDomain> {
        let mut domains = self.by_device.borrow_mut();
        if let Some(known) = domains.get(&device).and_then(Weak::upgrade) {
            return known;
        }
        domains.retain(|_, domain| domain.strong_count() > 0);
        let domain = Rc::new(FailureDomain { workers: Permits::new(WORKERS), helpers: Permits::new(HELPERS) });
        domains.insert(device, Rc::downgrade(&domain));
        let wanted = domains.len() * WORKERS;
        if wanted > self.workers_max.get() {
            self.workers_max.set(wanted);
            allow_workers(ring, wanted);
        }
        domain
    }
}

/// Lets the ring have so many workers for files and block devices, unless it may have more already.
fn allow_workers(ring: RawFd, count: usize) {
    const IORING_REGISTER_IOWQ_MAX_WORKERS: libc::c_uint = 19;
    let register = |counts: &mut [u32; 2]| {
        // SAFETY: the operation reads and writes two numbers. A kernel that refuses leaves the workers as they are.
        unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                ring,
                IORING_REGISTER_IOWQ_MAX_WORKERS,
                counts.as_mut_ptr(),
                counts.len() as libc::c_uint,
            )
        }
    };
    // Zeroes change nothing and return what holds.
    let mut counts = [0, 0];
    register(&mut counts);
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    if count > counts[0] {
        register(&mut [count, 0]);
    }
}

/// How one operation is submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubmitMode {
    /// As the kernel likes; for sockets, which take no bounded worker.
    Plain,
    /// Refused instead of given to a worker.
    NoWait,
    /// By a worker, which a permit stands for.
    Worker,
}

/// Whether requests of one kind are worth a try without waiting.
#[derive(Default)]
struct Tries {
    /// So many more are not tried.
    untried: Cell<u32>,
    /// So many were not after the last refusal.
    last: Cell<u32>,
}

impl Tries {
    fn is_due(&self) -> bool {
        let untried = self.untried.get();
        self.untried.set(untried.saturating_sub(1));
        untried == 0
    }

    fn note(&self, is_refused: bool) {
        self.last.set(if is_refused { (self.last.get() * 2 + 1).min(UNTRIED_MAX) } else { 0 });
        self.untried.set(self.last.get());
    }
}

/// What a disk's requests share on their way to the kernel.
pub(super) struct Submitter {
    domain: Rc<FailureDomain>,
    pub(super) pending: PendingRequests,
    reads: Tries,
    writes: Tries,
    /// The file cannot be asked not to wait.
    always_waits: Cell<bool>,
}

impl Submitter {
    pub(super) fn new(domain: Rc<FailureDomain>) -> Submitter {
        Submitter {
            domain,
            pending: PendingRequests::default(),
            reads: Tries::default(),
            writes: Tries::default(),
            always_waits: Cell::default(),
        }
    }

    /// How to submit an operation that begins now.
    pub(super) fn mode(&self, action: &Action, now: Nanos) -> SubmitMode {
        let is_due = match action {
            Action::Read(_) => self.reads.is_due(),
            Action::Write(_) => self.writes.is_due(),
            _ => false,
        };
        let is_hung = || self.pending.oldest().is_some_and(|oldest| now.since(oldest) > HUNG_AFTER);
        if is_due && !self.always_waits.get() && !is_hung() { SubmitMode::NoWait } else { SubmitMode::Worker }
    }

    /// What an operation ended in that was not to wait. True when it has to be submitted again, to a worker.
    pub(super) fn is_refused(&self, action: &Action, result: &std::io::Result<usize>) -> bool {
        let error = result.as_ref().err().and_then(std::io::Error::raw_os_error);
        let is_refused = matches!(error, Some(libc::EAGAIN | libc::EOPNOTSUPP));
        if error == Some(libc::EOPNOTSUPP) {
            self.always_waits.set(true);
        }
        let tries = if matches!(action, Action::Read(_)) { &self.reads } else { &self.writes };
        tries.note(is_refused);
        is_refused
    }

    /// Permits for the ring's workers.
    pub(super) fn workers(&self) -> &Permits {
        &self.domain.workers
    }

    /// Runs `work`, which may block, on a helper thread. It goes on to its end, and holds its permit until then,
    /// whatever becomes of the future.
    pub(super) async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> DiskResult<T> + Send + 'static,
    ) -> DiskResult<T> {
        let permit = self.domain.helpers.acquire().await;
        let (answer, mut answered) = crate::mailbox::mailbox(1);
        let begun = self.pending.begin(super::core::now());
        compio::runtime::spawn(async move {
            let result = compio::runtime::spawn_blocking(work).await;
            drop((permit, begun));
            // The asker may have gone.
            let _ = answer.send(result.unwrap_or_else(|error| Err(helper_failed(error)))).await;
        })
        .detach();
        answered.receive().await.unwrap_or_else(|| Err(helper_failed(())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_were_refused_are_tried_less_and_less() {
        let tries = Tries::default();
        let untried = std::iter::repeat_with(|| {
            let untried = std::iter::repeat_with(|| tries.is_due()).take_while(|is_due| !is_due).count();
            tries.note(true);
            untried
        });
        assert_eq!(untried.take(7).collect::<Vec<_>>(), [0, 1, 3, 3, 3, 3, 3]);
        tries.note(false);
        assert!(tries.is_due() && tries.is_due());
    }

    #[test]
    fn a_disk_that_hangs_gets_its_requests_from_workers() {
        let domains = FailureDomains::default();
        let (one, same, other) = (domains.of(1, -1), domains.of(1, -1), domains.of(2, -1));
        assert!(Rc::ptr_eq(&one, &same) && !Rc::ptr_eq(&one, &other));
        let submitter = Submitter::new(one);
        let read = Action::Read(0);
        let hung = submitter.pending.begin(Nanos::from_secs(1));
        assert_eq!(submitter.mode(&read, Nanos::from_secs(11)), SubmitMode::NoWait);
        assert_eq!(submitter.mode(&read, Nanos::from_secs(12)), SubmitMode::Worker);
        drop(hung);
        assert_eq!(submitter.mode(&read, Nanos::from_secs(12)), SubmitMode::NoWait);
        assert_eq!(submitter.mode(&Action::DataSync, Nanos::from_secs(12)), SubmitMode::Worker);
        let unsupported = Err(std::io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        assert!(submitter.is_refused(&read, &unsupported));
        assert_eq!(submitter.mode(&Action::Write(0), Nanos::from_secs(12)), SubmitMode::Worker);
    }
}
