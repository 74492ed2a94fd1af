//! Calls on paths that may hang: look-ups, opens and probes on bounded helper threads, with a time limit.
//!
//! A system call on a path of a hung file system or device never returns. Here it occupies a helper thread, and its
//! caller stops waiting after a limit. Threads are bounded in total and for each *failure domain*: the mounted file
//! system or block device that hangs as a whole. The helper thread follows symbolic links one by one, and hands the
//! call over where a link leads into another domain. A link from a healthy file system into a hung one therefore
//! occupies a thread of the hung one.
//!
//! 1. A domain has at most [`THREADS_PER_DOMAIN`] running calls, and only one while [`ANSWERING_MAX`] calls run that
//!    are not abandoned. So hung calls leave these threads to the other domains, and a domain always gets its first
//!    thread, up to [`THREADS_MAX`] threads in total.
//! 2. A call fails at once if an abandoned call on the same path is still running, or if all calls that the domain may
//!    run are abandoned ones.
//! 3. The limit counts time without progress: while a call is queued, each answer in its domain restarts it.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::future::poll_fn;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileTypeExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Component, Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// Default of the time without an answer after which a path counts as hung.
pub const PATH_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of calls that run in one failure domain.
const THREADS_PER_DOMAIN: usize = 8;
/// Number of running calls, without abandoned ones, from which on a domain may run only one call.
const ANSWERING_MAX: usize = 128;
/// Maximum number of helper threads: 128 of them fill 16 domains, and 896 are the first threads of further domains. A
/// thread holds less than 64 KiB of memory, of the kernel and of its stack: 64 MiB in total.
const THREADS_MAX: usize = 1024;
/// Maximum number of symbolic links that are followed, as in the kernel.
const LINKS_MAX: u32 = 40;

/// A path did not answer within the limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} does not answer: its file system or device hangs; check the file server, the connection to the disk and the \
     kernel's messages (dmesg)",
    path.display()
)]
pub struct PathHung {
    /// The path as the caller named it.
    pub path: PathBuf,
}

/// A call on a path, and the wait for its result. Dropping it abandons the call.
pub struct PathCall<T> {
    answer: oneshot::Receiver<T>,
    call: Arc<CallState>,
}

/// State of a call that its helper thread and its caller share.
pub struct CallState {
    path: PathBuf,
    /// The caller has stopped waiting.
    is_abandoned: AtomicBool,
    /// The work has ended.
    is_answered: AtomicBool,
    domain_wait: Mutex<DomainWait>,
}

/// The domain in which a call is, and since when it waits there.
struct DomainWait {
    domain: Domain,
    since: Instant,
    is_running: bool,
}

/// A failure domain: the device number of a mounted file system, or the path of a block device. Empty before the helper
/// thread has determined it.
type Domain = String;

/// A call that waits for a helper thread.
struct Job {
    call: Arc<CallState>,
    resolver: PathResolver,
    work: Box<dyn FnOnce() + Send>,
}

/// All calls of the process.
#[derive(Default)]
struct PathCalls {
    domains: BTreeMap<Domain, DomainCalls>,
    threads: usize,
    /// Threads that run no call.
    idle: usize,
}

/// The calls in one domain.
struct DomainCalls {
    queue: VecDeque<Job>,
    running: Vec<Arc<CallState>>,
    answered_at: Instant,
}

static CALLS: Mutex<PathCalls> = Mutex::new(PathCalls { domains: BTreeMap::new(), threads: 0, idle: 0 });

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics between two changes that belong together, so a poisoned lock is usable.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CallState {
    /// True if the caller has stopped waiting: the call must not change anything on the disk.
    pub fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Relaxed)
    }

    /// True if the caller has given up before the work has ended.
    fn is_hung(&self) -> bool {
        self.is_abandoned() && !self.is_answered.load(Ordering::Relaxed)
    }

    fn new(path: &Path, domain: &Domain) -> CallState {
        let domain_wait = DomainWait { domain: domain.clone(), since: Instant::now(), is_running: false };
        let (is_abandoned, is_answered) = (AtomicBool::new(false), AtomicBool::new(false));
        CallState { path: path.to_owned(), is_abandoned, is_answered, domain_wait: Mutex::new(domain_wait) }
    }
}

impl<T: Send + 'static> PathCall<T> {
    /// Starts `work`, which touches `path`, on a helper thread.
    pub fn start(path: &Path, work: impl FnOnce(&CallState) -> T + Send + 'static) -> PathCall<T> {
        let (resolver, domain) = (PathResolver::new(path), Domain::new());
        let (sender, answer) = oneshot::channel();
        let call = Arc::new(CallState::new(path, &domain));
        let on_thread = call.clone();
        let work = Box::new(move || {
            let result = work(&on_thread);
            // Before the caller can see the result, and start its next call on the path.
            on_thread.is_answered.store(true, Ordering::Relaxed);
            // The caller may have given up; the result is then dropped here, where a close may block.
            drop(sender.send(result));
        });
        let mut calls = lock(&CALLS);
        if !calls.has_hung(path) {
            calls.queue(domain, Job { call: call.clone(), resolver, work });
        }
        PathCall { answer, call }
    }

    /// Waits for the result on this thread.
    pub fn wait(mut self, limit: Duration) -> Result<T, PathHung> {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(answer) = Pin::new(&mut self.answer).poll(&mut context) {
                return answer.map_err(|_| self.hung_error());
            }
            match limit.checked_sub(self.stalled_time()) {
                Some(remaining) if !remaining.is_zero() => std::thread::park_timeout(remaining),
                _ => return Err(self.hung_error()),
            }
        }
    }

    /// Waits for the result without blocking; `sleep` is the runtime's timer.
    pub async fn answer(mut self, limit: Duration, sleep: impl AsyncFn(Duration)) -> Result<T, PathHung> {
        loop {
            let remaining = limit.saturating_sub(self.stalled_time());
            let mut timer = pin!(sleep(remaining));
            let answered = poll_fn(|context| match Pin::new(&mut self.answer).poll(context) {
                Poll::Ready(answer) => Poll::Ready(Some(answer)),
                Poll::Pending => timer.as_mut().poll(context).map(|()| None),
            });
            match answered.await {
                Some(answer) => return answer.map_err(|_| self.hung_error()),
                None if self.stalled_time() >= limit => return Err(self.hung_error()),
                None => {}
            }
        }
    }

    /// The result if it is there, or an error if the call was refused.
    pub fn try_answer(&mut self) -> Option<Result<T, PathHung>> {
        match self.answer.try_recv() {
            Ok(answer) => Some(Ok(answer)),
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(Err(self.hung_error())),
        }
    }
}

impl<T> PathCall<T> {
    fn hung_error(&self) -> PathHung {
        PathHung { path: self.call.path.clone() }
    }

    /// Time for which the call has made no progress.
    fn stalled_time(&self) -> Duration {
        let calls = lock(&CALLS);
        let domain_wait = lock(&self.call.domain_wait);
        let answered_at = calls.domains.get(&domain_wait.domain).map(|domain| domain.answered_at);
        let since = answered_at
            .filter(|_| !domain_wait.is_running)
            .map_or(domain_wait.since, |answered| answered.max(domain_wait.since));
        since.elapsed()
    }
}

impl<T> Drop for PathCall<T> {
    fn drop(&mut self) {
        self.call.is_abandoned.store(true, Ordering::Relaxed);
        let mut calls = lock(&CALLS);
        let domain = lock(&self.call.domain_wait).domain.clone();
        let dropped = calls.domains.get_mut(&domain).and_then(|calls| {
            let index = calls.queue.iter().position(|job| Arc::ptr_eq(&job.call, &self.call))?;
            calls.queue.remove(index)
        });
        calls.remove_if_idle(&domain);
        // An abandoned call no longer counts against the limit.
        calls.start_thread();
        drop(calls);
        drop(dropped);
    }
}

/// Wakes a waiting thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl PathCalls {
    /// True while a call on `path` runs whose caller has given up.
    fn has_hung(&self, path: &Path) -> bool {
        let mut running = self.domains.values().flat_map(|domain| &domain.running);
        running.any(|call| call.is_hung() && call.path == path)
    }

    /// Queues a call in a domain, or refuses it by dropping it.
    fn queue(&mut self, domain: Domain, job: Job) {
        let now = Instant::now();
        *lock(&job.call.domain_wait) = DomainWait { domain: domain.clone(), since: now, is_running: false };
        let calls = self.domains.entry(domain).or_insert_with(|| DomainCalls {
            queue: VecDeque::new(),
            running: Vec::new(),
            answered_at: now,
        });
        if calls.running.len() == THREADS_PER_DOMAIN && calls.running.iter().all(|call| call.is_hung()) {
            return;
        }
        calls.queue.push_back(job);
        self.start_thread();
    }

    /// Starts a thread if more calls may run than threads are idle.
    fn start_thread(&mut self) {
        let per_domain = self.running_max();
        let runnable: usize = self.domains.values().map(|calls| calls.runnable(per_domain)).sum();
        if runnable > self.idle && self.threads < THREADS_MAX {
            let started = std::thread::Builder::new().name("path".to_owned()).spawn(run_queued);
            // Without a new thread the call waits for one that becomes free, at most for its limit.
            self.threads += usize::from(started.is_ok());
            self.idle += usize::from(started.is_ok());
        }
    }

    /// Maximum number of calls that one domain may run now.
    fn running_max(&self) -> usize {
        let running = self.domains.values().flat_map(|domain| &domain.running);
        if running.filter(|call| !call.is_hung()).count() < ANSWERING_MAX { THREADS_PER_DOMAIN } else { 1 }
    }

    /// The next call that may run, and its domain; it counts as running from now on.
    fn take_next(&mut self) -> Option<(Domain, Job)> {
        let per_domain = self.running_max();
        let (domain, calls) = self.domains.iter_mut().find(|(_, calls)| calls.runnable(per_domain) > 0)?;
        let job = calls.queue.pop_front()?;
        calls.running.push(job.call.clone());
        *lock(&job.call.domain_wait) = DomainWait { domain: domain.clone(), since: Instant::now(), is_running: true };
        Some((domain.clone(), job))
    }

    /// Ends the run of a call in a domain.
    fn finish(&mut self, domain: &Domain, call: &Arc<CallState>) {
        if let Some(calls) = self.domains.get_mut(domain) {
            calls.running.retain(|running| !Arc::ptr_eq(running, call));
            calls.answered_at = Instant::now();
        }
        self.remove_if_idle(domain);
    }

    fn remove_if_idle(&mut self, domain: &Domain) {
        if self.domains.get(domain).is_some_and(|calls| calls.queue.is_empty() && calls.running.is_empty()) {
            self.domains.remove(domain);
        }
    }
}

impl DomainCalls {
    /// Number of queued calls that may run while the domain may run `running_max` calls.
    fn runnable(&self, running_max: usize) -> usize {
        self.queue.len().min(running_max.saturating_sub(self.running.len()))
    }
}

/// Body of a helper thread: runs queued calls until none may run.
fn run_queued() {
    let mut calls = lock(&CALLS);
    while let Some((domain, job)) = calls.take_next() {
        calls.idle -= 1;
        // One abandoned call can let several queued calls run, and each start adds one thread.
        calls.start_thread();
        drop(calls);
        let call = job.call.clone();
        let moved_job = run(&domain, job);
        calls = lock(&CALLS);
        calls.idle += 1;
        calls.finish(&domain, &call);
        if let Some((domain, job)) = moved_job {
            calls.queue(domain, job);
        }
    }
    calls.idle -= 1;
    calls.threads -= 1;
}

/// Runs a call in its domain; returns it with its next domain if a link leads there.
fn run(domain: &Domain, mut job: Job) -> Option<(Domain, Job)> {
    if job.call.is_abandoned() {
        return None;
    }
    if let Some(next) = job.resolver.advance(domain) {
        return Some((next, job));
    }
    // The panic is printed by its hook; the caller learns from the missing answer.
    let _ = catch_unwind(AssertUnwindSafe(job.work));
    None
}

/// A path that is resolved one component at a time.
struct PathResolver {
    /// Components that contain no symbolic links.
    resolved: PathBuf,
    remaining: VecDeque<OsString>,
    links: u32,
    /// The call belongs to a block device; nothing is left to resolve.
    is_at_device: bool,
}

impl PathResolver {
    fn new(path: &Path) -> PathResolver {
        // Without a current directory, the call fails by itself.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let mut resolver =
            PathResolver { resolved: PathBuf::from("/"), remaining: VecDeque::new(), links: 0, is_at_device: false };
        resolver.prepend(&path);
        resolver
    }

    /// Puts the components of `path` in front of the rest.
    fn prepend(&mut self, path: &Path) {
        if path.has_root() {
            self.resolved = PathBuf::from("/");
        }
        for component in path.components().rev() {
            match component {
                Component::Normal(_) | Component::ParentDir => {
                    self.remaining.push_front(component.as_os_str().to_owned())
                }
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            }
        }
    }

    /// Resolves the path within `domain`. Returns the next domain if the path leaves this one.
    fn advance(&mut self, domain: &Domain) -> Option<Domain> {
        if self.is_at_device {
            return None;
        }
        let mounts = Mounts::read();
        while let Some(next) = self.remaining.front() {
            if next == ".." {
                self.resolved.pop();
                self.remaining.pop_front();
                continue;
            }
            let component_path = self.resolved.join(next);
            // A mount point is no link, and looking it up would touch its file system.
            if !mounts.is_mount_point(&component_path) {
                let component_domain = mounts.domain_of(&component_path);
                if component_domain != *domain {
                    return Some(component_domain);
                }
                match std::fs::read_link(&component_path) {
                    Ok(target) if self.links < LINKS_MAX => {
                        self.links += 1;
                        self.remaining.pop_front();
                        self.prepend(&target);
                        continue;
                    }
                    // EINVAL: not a link.
                    Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                    // A missing component, or a loop: the call itself reports it.
                    _ => return None,
                }
            }
            self.resolved = component_path;
            self.remaining.pop_front();
        }
        let path_domain = mounts.domain_of(&self.resolved);
        if path_domain != *domain {
            return Some(path_domain);
        }
        let metadata = std::fs::symlink_metadata(&self.resolved);
        self.is_at_device = metadata.is_ok_and(|metadata| metadata.file_type().is_block_device());
        self.is_at_device.then(|| format!("device {}", self.resolved.display()))
    }
}

/// The mounted file systems, from the kernel's list: reading it touches none of them.
struct Mounts(Vec<(PathBuf, Domain)>);

impl Mounts {
    fn read() -> Mounts {
        let text = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        Mounts::parse(&text)
    }

    fn parse(text: &[u8]) -> Mounts {
        // "36 35 0:45 / /srv/a rw - nfs ...": the third field is the device number, the fifth the mount point.
        let lines = text.split(|byte| *byte == b'\n').filter_map(|line| {
            let mut fields = line.split(|byte| *byte == b' ').skip(2);
            let (device, point) = (fields.next()?, fields.nth(1)?);
            Some((unescaped(point), String::from_utf8_lossy(device).into_owned()))
        });
        Mounts(lines.collect())
    }

    fn is_mount_point(&self, path: &Path) -> bool {
        self.0.iter().any(|(point, _)| point == path)
    }

    /// Device number of the file system that contains a path without links. Of two mounts at one mount point the
    /// later one is on top.
    fn domain_of(&self, path: &Path) -> Domain {
        let mounts = self.0.iter().filter(|(point, _)| path.starts_with(point));
        mounts.max_by_key(|(point, _)| point.components().count()).map(|(_, device)| device.clone()).unwrap_or_default()
    }
}

/// A path of the kernel's list, in which a space, tab, line break or backslash is written as `\` and three octal
/// digits.
pub(super) fn unescaped(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut remaining = text;
    while let Some((&byte, after)) = remaining.split_first() {
        let digits = after.get(..3).filter(|digits| byte == b'\\' && digits.iter().all(|digit| digit.is_ascii_digit()));
        match digits {
            Some(digits) => {
                let value = digits.iter().fold(0_u32, |value, digit| value * 8 + u32::from(digit - b'0'));
                bytes.push(value as u8);
                remaining = &after[3..];
            }
            None => {
                bytes.push(byte);
                remaining = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

impl From<PathHung> for io::Error {
    fn from(hung: PathHung) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, hung)
    }
}

#[cfg(test)]
mod tests;
