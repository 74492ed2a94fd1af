//! Submission of a disk's requests to the kernel, such that a hung disk delays no other disk.
//!
//! A request that the kernel cannot submit without waiting occupies one of the ring's workers. The workers are bounded,
//! so a hung file system or device would occupy all of them. A request therefore needs a permit of its *failure
//! domain*: the file system or block device that hangs as a whole. The ring's limit of workers is the sum of all
//! domains' permits.
//!
//! While permits are free, a request takes one and is submitted once: the kernel attempts it without waiting and hands
//! it to a worker itself. When all permits are taken, a read or write is submitted with RWF_NOWAIT, which occupies no
//! worker. A refused request then waits for a permit. If most requests are refused (a sparse file), only one of four is
//! submitted with RWF_NOWAIT.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::rc::{Rc, Weak};

use super::disk::helper_failed;
use super::op::Action;
use super::permits::{Permit, Permits};
use crate::pending::PendingRequests;
use crate::{DiskResult, Nanos};

/// Workers of the ring that one failure domain may occupy. A request beyond them that has to wait may be submitted
/// twice. At a depth of 128, writes to a sparse file then take 17 % more CPU time.
const WORKERS: usize = 64;
/// Permits that reads and writes leave to flushes and zero-ranges, which always need a worker.
const WORKERS_SPARE: usize = 4;
/// Helper threads that one failure domain may occupy; they run calls that the ring does not support.
const HELPERS: usize = 4;
/// Age of the oldest request at which a disk counts as hung; its requests then go to workers at once.
const HUNG_AFTER: Nanos = Nanos::from_secs(10);
/// Maximum number of consecutive requests that are submitted without RWF_NOWAIT after one was refused.
const NOWAIT_SKIPS_MAX: u32 = 3;

/// A file system or a block device, whose disks hang together.
pub(super) struct FailureDomain {
    workers: Permits,
    helpers: Permits,
}

/// The failure domains of a core's open disks.
#[derive(Default)]
pub(super) struct FailureDomains {
    by_device: RefCell<BTreeMap<u64, Weak<FailureDomain>>>,
    /// The ring's current limit of workers.
    workers_max: Cell<usize>,
}

impl FailureDomains {
    /// The failure domain of a device number; a new domain raises the worker limit of `ring`.
    pub(super) fn get_or_create(&self, device: u64, ring: RawFd) -> Rc<FailureDomain> {
        let mut domains = self.by_device.borrow_mut();
        if let Some(known) = domains.get(&device).and_then(Weak::upgrade) {
            return known;
        }
        domains.retain(|_, domain| domain.strong_count() > 0);
        let domain = Rc::new(FailureDomain { workers: Permits::new(WORKERS), helpers: Permits::new(HELPERS) });
        domains.insert(device, Rc::downgrade(&domain));
        let workers_wanted = domains.len() * WORKERS;
        if workers_wanted > self.workers_max.get() {
            self.workers_max.set(workers_wanted);
            allow_workers(ring, workers_wanted);
        }
        domain
    }
}

/// Raises the ring's limit of workers for files and block devices to `count`, unless it is higher.
fn allow_workers(ring: RawFd, count: usize) {
    const IORING_REGISTER_IOWQ_MAX_WORKERS: libc::c_uint = 19;
    let register = |counts: &mut [u32; 2]| {
        // SAFETY: the operation reads and writes two numbers. A kernel that refuses leaves the limit unchanged.
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
    // Zeroes change nothing and return the current limits.
    let mut counts = [0, 0];
    register(&mut counts);
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    if count > counts[0] {
        register(&mut [count, 0]);
    }
}

/// Way of submitting an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubmitMode {
    /// Without waiting or by a worker, at the kernel's choice. A disk's request needs a permit.
    Plain,
    /// Fails instead of being handed to a worker.
    NoWait,
    /// By a worker at once. Needs a permit.
    Worker,
}

/// Support of RWF_NOWAIT by a file. Without it, as on FUSE, the kernel may perform a request on the submitter's thread
/// and block that thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Nowait {
    /// The first requests are submitted with the flag to find out.
    #[default]
    Unknown,
    Honoured,
    /// Every request goes to a worker, unless the file lies in memory.
    Unsupported,
}

/// Decides which requests of one kind are submitted with RWF_NOWAIT: after each refusal, more requests skip the flag.
#[derive(Default)]
struct NowaitBackoff {
    /// A file may support only reads, as ext4 does where it is not opened for direct I/O.
    nowait: Cell<Nowait>,
    /// Number of further requests without RWF_NOWAIT.
    skips_left: Cell<u32>,
    /// Number of requests skipped after the last refusal.
    last_skips: Cell<u32>,
}

impl NowaitBackoff {
    fn is_due(&self) -> bool {
        let skips_left = self.skips_left.get();
        self.skips_left.set(skips_left.saturating_sub(1));
        skips_left == 0
    }

    /// Records the result of a request with RWF_NOWAIT; true if it was refused.
    fn record(&self, result: &std::io::Result<usize>) -> bool {
        let error = result.as_ref().err().and_then(std::io::Error::raw_os_error);
        if error == Some(libc::EOPNOTSUPP) {
            self.nowait.set(Nowait::Unsupported);
        } else if self.nowait.get() == Nowait::Unknown {
            self.nowait.set(Nowait::Honoured);
        }
        let is_refused = matches!(error, Some(libc::EAGAIN | libc::EOPNOTSUPP));
        self.last_skips.set(if is_refused { (self.last_skips.get() * 2 + 1).min(NOWAIT_SKIPS_MAX) } else { 0 });
        self.skips_left.set(self.last_skips.get());
        is_refused
    }
}

/// Submission state shared by a disk's requests.
pub(super) struct Submitter {
    domain: Rc<FailureDomain>,
    pub(super) pending: PendingRequests,
    reads: NowaitBackoff,
    writes: NowaitBackoff,
    /// The file lies in memory. Its file system may not support RWF_NOWAIT, but has no device that could hang.
    is_in_memory: bool,
}

impl Submitter {
    pub(super) fn new(domain: Rc<FailureDomain>, is_in_memory: bool) -> Submitter {
        Submitter {
            domain,
            is_in_memory,
            pending: PendingRequests::default(),
            reads: NowaitBackoff::default(),
            writes: NowaitBackoff::default(),
        }
    }

    /// True if the disk is hung: the core's own thread must not submit its requests, because it could block.
    #[inline]
    pub(super) fn is_hung(&self, now: Nanos) -> bool {
        self.pending.oldest_started_at().is_some_and(|oldest| now.since(oldest) > HUNG_AFTER)
    }

    /// The way to submit an operation that begins now, and its permit if one is free. Without a permit, only
    /// [`SubmitMode::NoWait`] goes to the kernel at once.
    #[inline]
    pub(super) fn admit(&self, action: &Action, now: Nanos) -> (SubmitMode, Option<Permit>) {
        let workers = &self.domain.workers;
        if self.is_hung(now) {
            return (SubmitMode::Worker, workers.try_acquire(0));
        }
        let backoff = match action {
            Action::Read(_) => &self.reads,
            Action::Write(_) => &self.writes,
            _ => return (SubmitMode::Plain, workers.try_acquire(0)),
        };
        match backoff.nowait.get() {
            Nowait::Unknown => (SubmitMode::NoWait, None),
            Nowait::Unsupported if self.is_in_memory => (SubmitMode::Plain, workers.try_acquire(WORKERS_SPARE)),
            Nowait::Unsupported => (SubmitMode::Worker, workers.try_acquire(WORKERS_SPARE)),
            Nowait::Honoured => {
                let permit = workers.try_acquire(WORKERS_SPARE);
                let is_nowait = permit.is_none() && backoff.is_due();
                (if is_nowait { SubmitMode::NoWait } else { SubmitMode::Plain }, permit)
            }
        }
    }

    /// Evaluates the result of an operation submitted with RWF_NOWAIT. True if the operation must be submitted again,
    /// to a worker.
    pub(super) fn is_refused(&self, action: &Action, result: &std::io::Result<usize>) -> bool {
        let backoff = if matches!(action, Action::Read(_)) { &self.reads } else { &self.writes };
        backoff.record(result)
    }

    /// Permits for the ring's workers.
    pub(super) fn workers(&self) -> &Permits {
        &self.domain.workers
    }

    /// Runs `work`, which may block, on a helper thread. It runs to its end and holds its permit until then, even if
    /// the future is dropped.
    pub(super) async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> DiskResult<T> + Send + 'static,
    ) -> DiskResult<T> {
        let permit = self.domain.helpers.acquire().await;
        let (sender, mut receiver) = crate::mailbox::mailbox(1);
        let pending_request = self.pending.begin(super::core::coarse_now());
        compio::runtime::spawn(async move {
            let result = compio::runtime::spawn_blocking(work).await;
            drop((permit, pending_request));
            // The future may have been dropped.
            let _ = sender.send(result.unwrap_or_else(|error| Err(helper_failed(error)))).await;
        })
        .detach();
        receiver.receive().await.unwrap_or_else(|| Err(helper_failed(())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: i32) -> std::io::Result<usize> {
        Err(std::io::Error::from_raw_os_error(code))
    }

    #[test]
    fn refusals_reduce_the_requests_with_nowait() {
        let backoff = NowaitBackoff::default();
        let skips = std::iter::repeat_with(|| {
            let skips = std::iter::repeat_with(|| backoff.is_due()).take_while(|is_due| !is_due).count();
            assert!(backoff.record(&error(libc::EAGAIN)));
            skips
        });
        assert_eq!(skips.take(7).collect::<Vec<_>>(), [0, 1, 3, 3, 3, 3, 3]);
        assert!(!backoff.record(&Ok(4096)));
        assert!(backoff.is_due() && backoff.is_due());
    }

    fn read_submitter(domains: &FailureDomains, device: u64) -> (Submitter, Action) {
        let (submitter, read) = (Submitter::new(domains.get_or_create(device, -1), false), Action::Read(0));
        assert_eq!(
            submitter.admit(&read, Nanos::from_secs(1)).0,
            SubmitMode::NoWait,
            "support of RWF_NOWAIT is unknown at first"
        );
        assert!(!submitter.is_refused(&read, &Ok(4096)));
        (submitter, read)
    }

    #[test]
    fn requests_of_a_hung_disk_go_to_workers() {
        let domains = FailureDomains::default();
        let (submitter, read) = read_submitter(&domains, 1);
        let mode = |action: &Action, s| submitter.admit(action, Nanos::from_secs(s)).0;
        let hung = submitter.pending.begin(Nanos::from_secs(1));
        assert_eq!(mode(&read, 11), SubmitMode::Plain);
        assert_eq!([mode(&read, 12), mode(&Action::DataSync, 12)], [SubmitMode::Worker; 2]);
        drop(hung);
        assert_eq!(mode(&read, 12), SubmitMode::Plain);
    }

    #[test]
    fn requests_beyond_the_permits_take_no_worker() {
        let domains = FailureDomains::default();
        let (submitter, read) = read_submitter(&domains, 1);
        let (same, _) = read_submitter(&domains, 1);
        let now = Nanos::from_secs(1);
        let held = std::iter::repeat_with(|| submitter.admit(&read, now));
        let held: Vec<_> = held.take_while(|(mode, permit)| *mode == SubmitMode::Plain && permit.is_some()).collect();
        assert_eq!(held.len(), WORKERS - WORKERS_SPARE);
        assert!(matches!(same.admit(&read, now), (SubmitMode::NoWait, None)), "a domain's disks share its permits");
        let flushes: Vec<_> = (0..=WORKERS_SPARE).map(|_| submitter.admit(&Action::DataSync, now).1).collect();
        assert_eq!(flushes.iter().flatten().count(), WORKERS_SPARE, "a flush does not wait for reads");

        let (other, _) = read_submitter(&domains, 2);
        assert!(
            matches!(other.admit(&read, now), (SubmitMode::Plain, Some(_))),
            "another domain has permits of its own"
        );

        let write = Action::Write(0);
        assert!(submitter.is_refused(&write, &error(libc::EOPNOTSUPP)));
        assert!(matches!(submitter.admit(&write, now), (SubmitMode::Worker, None)), "the request waits for a permit");
        drop(held);
        assert!(
            matches!(submitter.admit(&write, now), (SubmitMode::Worker, Some(_))),
            "without RWF_NOWAIT the core would block"
        );
        assert!(matches!(submitter.admit(&read, now), (SubmitMode::Plain, Some(_))), "reads are supported");
        let in_memory = Submitter::new(domains.get_or_create(1, -1), true);
        assert!(in_memory.is_refused(&write, &error(libc::EOPNOTSUPP)));
        assert!(matches!(in_memory.admit(&write, now), (SubmitMode::Plain, Some(_))), "a file in memory does not hang");
    }
}
