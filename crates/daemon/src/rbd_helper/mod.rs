//! The helper process `hotset-rbd` of an image: started, supervised by a thread of its own, restarted after a crash.
//!
//! The process serves the image over NBD at a Unix socket that the daemon listens on, so that a connection to the
//! socket waits while the process is restarted. Its control channel tells the daemon the image's identity, the owner of
//! its lock, and the loss of that lock. It ends when the daemon closes the channel or ends itself.

mod supervisor;

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use engine::backing::nbd::DedicatedServer;
use rbd::{ImageSpec, Ownership};
use seam::{DiskError, Lineage, Nanos};
use tokio::sync::oneshot;

use self::supervisor::Supervisor;
use logging::{self as log, VOLUME};

/// Time for which the end of the daemon waits for helper processes, which release the locks of their images.
const END_TIMEOUT: Duration = Duration::from_secs(6);

/// The images of supervised processes.
static RUNNING: Mutex<Vec<String>> = Mutex::new(Vec::new());
static ENDED: Condvar = Condvar::new();
/// Number of the next socket.
static NEXT_SOCKET: AtomicU64 = AtomicU64::new(0);

/// State that a helper's handle shares with its supervisor.
#[derive(Default)]
struct Shared {
    /// The ownership of the image, from the first opening on.
    ownership: OnceLock<Ownership>,
    /// The error of requests while the process cannot be started.
    failure: Mutex<Option<DiskError>>,
    lost: OnceLock<DiskError>,
    /// When the last check that has proven the ownership began, in milliseconds of this boot.
    proven_ms: AtomicU64,
    /// The control channel of the present process.
    control: Mutex<Option<UnixStream>>,
    closing: AtomicBool,
}

impl Shared {
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

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }
}

/// Handle to the helper process of one image. Dropping it ends the process.
pub struct RbdHelper {
    shared: Arc<Shared>,
    socket: PathBuf,
}

impl RbdHelper {
    /// Starts the process, and waits until it has opened and locked the image. It counts as hung if it reports no
    /// progress for `limit`.
    pub async fn start(image: &ImageSpec, folder: &Path, limit: Duration) -> Result<RbdHelper, DiskError> {
        let socket = folder.join(format!("{}.sock", NEXT_SOCKET.fetch_add(1, Ordering::Relaxed)));
        let helper = RbdHelper { shared: Arc::default(), socket };
        let (opened, opening) = oneshot::channel();
        let supervisor = Supervisor::new(image.clone(), helper.socket.clone(), limit, Arc::clone(&helper.shared));
        let running = Running::begin(image.to_string());
        let body = move || {
            supervisor.run(opened);
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

    /// The socket at which the process serves the image.
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl DedicatedServer for RbdHelper {
    fn identity(&self) -> String {
        self.shared.ownership.get().map(|ownership| ownership.image.identity.clone()).unwrap_or_default()
    }

    fn lineage(&self) -> Option<Lineage> {
        let Ownership { image, reason, .. } = self.shared.ownership.get()?;
        Some(Lineage { id: image.show_lineage(), reason: reason.clone() })
    }

    fn failure(&self) -> Option<DiskError> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn unproven_for(&self) -> Option<Nanos> {
        let age = rbd::expired_for(self.shared.proven_ms.load(Ordering::Acquire), rbd::boot_ms())?;
        Some(Nanos::from_millis(age.as_millis() as u64))
    }

    fn lost(&self) -> Option<&DiskError> {
        self.shared.lost.get()
    }
}

impl Drop for RbdHelper {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Release);
        if let Some(control) = &*self.shared.control() {
            // A process that has ended needs no message.
            let (Ok(()) | Err(_)) = control.shutdown(std::net::Shutdown::Both);
        }
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
