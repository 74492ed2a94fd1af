//! The helper process `hotset-rbd` of an image: started, supervised by a thread of its own, restarted after a crash.
//!
//! The process serves the image over NBD at a Unix socket that the daemon listens on, so that a connection to the
//! socket waits while the process is restarted. Its control channel tells the daemon the image's identity, the owner of
//! its lock, and the loss of that lock. It ends when the daemon closes the channel or ends itself.

mod hold;
mod orders;
mod standby;
mod supervisor;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use nbd_client::{Change, DedicatedServer};
use rbd::{Claim, ImageSpec, Mark, Ownership, Purpose, TakeOver, show_mark_id};
use seam::{DiskError, Lineage, Nanos};
use tokio::sync::oneshot;

pub use self::hold::{HeldHelper, hold};
use self::orders::{OrderEnd, Orders};
pub use self::standby::StandbyWatch;
use self::standby::{OrderedService, order_service};
use self::supervisor::Supervisor;
use logging::{self as log, VOLUME};

/// Time for which the end of the daemon waits for helper processes, which release the locks of their images.
const END_TIMEOUT: Duration = Duration::from_secs(6);

/// The images of supervised processes.
static RUNNING: Mutex<Vec<String>> = Mutex::new(Vec::new());
static ENDED: Condvar = Condvar::new();
/// Number of the next socket.
static NEXT_SOCKET: AtomicU64 = AtomicU64::new(0);

/// Helpers by their images, for [`hold`].
static SERVING: Mutex<Vec<(String, Weak<Shared>)>> = Mutex::new(Vec::new());

/// The answer to an order to release an image: the version that its header got by it, if it is known, or why it was not
/// released.
type ReleaseAnswer = Result<Option<u64>, String>;

/// State that a helper's handle shares with its supervisor.
#[derive(Default)]
struct Shared {
    /// The ownership of the image, from the first opening on.
    ownership: OnceLock<Ownership>,
    /// The mark of another host from whose log undestaged data is to be read.
    log_to_read: OnceLock<Mark>,
    /// The error of requests while the process cannot be started.
    failure: Mutex<Option<DiskError>>,
    lost: OnceLock<DiskError>,
    /// When the last check that has proven the ownership began, in milliseconds of this boot.
    proven_ms: AtomicU64,
    /// The control channel of the present process.
    control: Mutex<Option<UnixStream>>,
    orders: Mutex<Orders>,
    closing: AtomicBool,
    /// The process outlives the handle, until the hold on it ends.
    held: AtomicBool,
    /// Gets the answer to an order to release the image.
    released: Mutex<Option<oneshot::Sender<ReleaseAnswer>>>,
}

impl Shared {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an order, or joins one in progress.
    fn send_order(&self, is_marked: bool) -> OrderEnd {
        let end = self.orders().begin(is_marked);
        self.repeat_order();
        // After the order was added: a loss or a failure from here on ends it too.
        let failure = self.lost.get().cloned().or_else(|| self.failure());
        failure.into_iter().for_each(|error| self.orders().fail(error));
        end
    }

    fn failure(&self) -> Option<DiskError> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends the order in progress to the present helper. Without one, the next helper gets it.
    fn repeat_order(&self) {
        let order = self.orders().pending();
        if let (Some(order), Some(control)) = (order, &mut *self.control()) {
            // A process that has ended is started again, and gets the order then.
            let (Ok(()) | Err(_)) = control.write_all(order.encode().as_bytes());
        }
    }

    fn control(&self) -> MutexGuard<'_, Option<UnixStream>> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_failure(&self, failure: Option<DiskError>) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
    }

    /// Records a proof of the ownership. An older one than the last changes nothing.
    fn renew(&self, proven_ms: u64) {
        self.proven_ms.fetch_max(proven_ms, Ordering::AcqRel);
    }

    /// Passes on the answer to an order to release the image.
    fn end_release(&self, result: ReleaseAnswer) {
        let waiting = self.released.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The receiver has given up if this fails.
        let (Ok(()) | Err(_)) = waiting.map_or(Ok(()), |waiting| waiting.send(result));
    }

    /// Ends the process: it completes its requests and releases the image's lock.
    fn close(&self, direction: std::net::Shutdown) {
        if let Some(control) = &*self.control() {
            // A process that has ended needs no message.
            let (Ok(()) | Err(_)) = control.shutdown(direction);
        }
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }
}

/// A helper process to be started.
#[derive(Clone, Debug)]
pub struct HelperPlan {
    /// Its image.
    pub image: ImageSpec,
    /// Folder of the sockets of helpers.
    pub folder: PathBuf,
    /// Name of this host among those that reach the image.
    pub host: String,
    /// The reason for which this host may claim the image of another one.
    pub claim: Claim,
    /// The process that looks at the image on standby makes the claim, if there is one. A failed claim ends it, and
    /// with it what it knows of the owner's absence.
    pub by_watch: bool,
    /// When it claims it by itself.
    pub take_over: TakeOver,
    /// Names of data that may be lost ([`state::Acceptance::give_up`]).
    pub gives_up: Option<String>,
    /// Undestaged data of another host is destaged from its log.
    pub reads_log: bool,
    /// The image with the flash log of this host, if it lies on one.
    pub log: Option<String>,
    /// Time without a served image after which requests fail until it is served again; `None` if they wait.
    pub fails_after: Option<Duration>,
}

impl HelperPlan {
    /// The path of a socket that no other process has.
    fn new_socket(&self) -> PathBuf {
        self.folder.join(format!("{}.sock", NEXT_SOCKET.fetch_add(1, Ordering::Relaxed)))
    }

    /// A plan for the image `rbd:pool/image`.
    #[cfg(test)]
    fn for_test() -> HelperPlan {
        HelperPlan {
            image: "rbd:pool/image".parse().expect("it is an address"),
            folder: PathBuf::new(),
            host: "alpha".to_owned(),
            claim: Claim::Record,
            by_watch: true,
            take_over: TakeOver::Command,
            gives_up: None,
            reads_log: false,
            log: None,
            fails_after: None,
        }
    }

    /// Purpose of the first process.
    fn purpose(&self) -> Purpose {
        let given_up = self.gives_up.iter().flat_map(|names| names.split(',')).map(str::to_owned).collect();
        Purpose::First { claim: self.claim.clone(), given_up, reads_log: self.reads_log }
    }
}

/// The folder of helper processes in a state directory.
pub fn helpers_folder(state_directory: &Path) -> PathBuf {
    state_directory.join("rbd")
}

/// Handle to the helper process of one image. Dropping it ends the process.
pub struct RbdHelper {
    image: ImageSpec,
    shared: Arc<Shared>,
    socket: PathBuf,
}

impl RbdHelper {
    /// Starts the process, or orders the one that looks at the image on standby to serve it, and waits until it has
    /// opened and locked the image. It counts as hung if it reports no progress for `limit`.
    pub async fn start(plan: &HelperPlan, limit: Duration) -> Result<RbdHelper, DiskError> {
        let image = &plan.image;
        let ordered = order_service(plan);
        let socket = ordered.as_ref().map_or_else(|| plan.new_socket(), OrderedService::socket);
        let helper = RbdHelper { image: image.clone(), shared: Arc::default(), socket };
        {
            let mut serving = SERVING.lock().unwrap_or_else(PoisonError::into_inner);
            serving.retain(|(_, shared)| shared.strong_count() > 0);
            serving.push((image.to_string(), Arc::downgrade(&helper.shared)));
        }
        let (opened, opening) = oneshot::channel();
        let supervisor = Supervisor::new(plan.clone(), limit, helper.socket.clone(), Arc::clone(&helper.shared));
        let running = Running::begin(image.to_string());
        let body = move || {
            supervisor.run(ordered, opened);
            drop(running);
        };
        std::thread::Builder::new()
            .name("rbd helper".to_owned())
            .spawn(body)
            .map_err(|error| DiskError::Open(format!("cannot start a thread for {image}: {error}")))?;
        let ended = || DiskError::Open(format!("the supervisor of {image} has ended"));
        opening.await.map_err(|_| ended())??;
        Ok(helper)
    }

    /// The name of data of another host that was given up.
    pub fn given_up(&self) -> Option<String> {
        self.shared.ownership.get().and_then(|ownership| ownership.given_up).map(show_mark_id)
    }

    /// The mark of another host from whose log undestaged data is to be destaged.
    pub fn log_to_read(&self) -> Option<Mark> {
        self.shared.log_to_read.get().cloned()
    }

    /// True if another host has destaged all data that this host had in its log.
    pub fn is_destaged(&self) -> bool {
        self.shared.ownership.get().is_some_and(|ownership| ownership.is_destaged)
    }

    /// Number of the ownership among those of the image.
    pub fn epoch(&self) -> Option<u64> {
        self.shared.ownership.get().map(|ownership| ownership.epoch)
    }

    /// Version of the image's header when its release by the former owner was found, if no other client can have
    /// written since.
    pub fn released_version(&self) -> Option<u64> {
        self.shared.ownership.get().and_then(|ownership| ownership.released_version)
    }

    /// The socket at which the process serves the image.
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

/// The wait for the answer to an order. A caller that stops waiting drops it, which logs that there was no answer.
struct AnswerWait {
    image: ImageSpec,
    is_answered: bool,
}

impl AnswerWait {
    fn end(mut self) {
        self.is_answered = true;
    }
}

impl Drop for AnswerWait {
    fn drop(&mut self) {
        if !self.is_answered {
            log::warn!(
                target: VOLUME,
                "{}: a change of its mark of undestaged data has no answer; the mark may stay as it was",
                self.image
            );
        }
    }
}

impl DedicatedServer for RbdHelper {
    fn end(&self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        if !self.shared.held.load(Ordering::SeqCst) {
            self.shared.close(std::net::Shutdown::Both);
        }
    }

    fn identity(&self) -> String {
        self.shared.ownership.get().map(|ownership| ownership.image.identity.clone()).unwrap_or_default()
    }

    fn lineage(&self) -> Option<Lineage> {
        let Ownership { image, reason, .. } = self.shared.ownership.get()?;
        Some(Lineage { id: image.show_lineage(), reason: reason.clone() })
    }

    fn failure(&self) -> Option<DiskError> {
        self.shared.failure()
    }

    fn unproven_for(&self) -> Option<Nanos> {
        let age = rbd::expired_for(self.shared.proven_ms.load(Ordering::Acquire), rbd::boot_ms())?;
        Some(Nanos::from_millis(age.as_millis() as u64))
    }

    fn mark_undestaged(&self, is_marked: bool) -> Change {
        let end = self.shared.send_order(is_marked);
        let wait = AnswerWait { image: self.image.clone(), is_answered: false };
        Box::pin(async move {
            let result = end.await.unwrap_or(Err(DiskError::Gone));
            wait.end();
            result
        })
    }

    fn lost(&self) -> Option<&DiskError> {
        self.shared.lost.get()
    }
}

impl Drop for RbdHelper {
    fn drop(&mut self) {
        self.end();
    }
}

/// Lists a supervised process.
struct Running(String);

impl Running {
    fn begin(image: String) -> Running {
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).push(image.clone());
        Running(image)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = running.iter().position(|image| *image == self.0) {
            running.swap_remove(index);
        }
        ENDED.notify_all();
    }
}

/// Waits until the helper processes of dropped handles have ended, for a limited time. A lock that is still held would
/// delay the next start.
pub fn wait_for_end() {
    let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = ENDED.wait_timeout_while(running, END_TIMEOUT, |running| !running.is_empty());
    let (running, _) = waited.unwrap_or_else(PoisonError::into_inner);
    for image in &*running {
        log::warn!(
            target: VOLUME,
            "{image}: its process has not ended within {} s; it ends without the release of the lock",
            END_TIMEOUT.as_secs()
        );
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rbd::Order;

    use super::*;

    fn received(helper: &mut UnixStream) -> String {
        let mut bytes = [0; 64];
        let len = helper.read(&mut bytes).expect("an order was sent");
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    }

    #[test]
    fn order_waits_for_a_helper_and_ends_with_a_loss() {
        let shared = Shared::default();
        let mut marked = shared.send_order(true);
        let (control, mut helper) = UnixStream::pair().expect("a descriptor is free");
        *shared.control() = Some(control);
        shared.repeat_order();
        assert_eq!(received(&mut helper), Order { number: 1, is_marked: true }.encode());
        shared.orders().end(1, &Ok(()));
        assert_eq!(marked.try_recv(), Ok(Ok(())));

        let mut unmarked = shared.send_order(false);
        assert_eq!(received(&mut helper), Order { number: 2, is_marked: false }.encode());
        shared.set_failure(Some(DiskError::Gone));
        shared.orders().fail(DiskError::Gone);
        assert_eq!(unmarked.try_recv(), Ok(Err(DiskError::Gone)));
        assert_eq!(shared.send_order(true).try_recv(), Ok(Err(DiskError::Gone)), "the helper cannot be started");
        shared.set_failure(None);
        shared.lost.set(DiskError::Lost("x".to_owned())).expect("it was not lost before");
        assert_eq!(shared.send_order(true).try_recv(), Ok(Err(DiskError::Lost("x".to_owned()))));
    }
}
