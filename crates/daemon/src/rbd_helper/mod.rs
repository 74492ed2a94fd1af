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
use rbd::ImageSpec;
use seam::DiskError;
use tokio::sync::oneshot;

use self::supervisor::Supervisor;

/// Time for which the end of the daemon waits for helper processes, which release the locks of their images.
const END_TIMEOUT: Duration = Duration::from_secs(6);

/// Number of supervised processes.
static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();
/// Number of the next socket.
static NEXT_SOCKET: AtomicU64 = AtomicU64::new(0);

/// State that a helper's handle shares with its supervisor.
#[derive(Default)]
struct Shared {
    identity: OnceLock<String>,
    lost: OnceLock<DiskError>,
    /// The control channel of the present process.
    control: Mutex<Option<UnixStream>>,
    closing: AtomicBool,
}

impl Shared {
    fn control(&self) -> MutexGuard<'_, Option<UnixStream>> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
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
        let running = Running::begin();
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
        self.shared.identity.get().cloned().unwrap_or_default()
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

/// Counts a supervised process.
struct Running;

impl Running {
    fn begin() -> Running {
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Running
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ENDED.notify_all();
    }
}

/// Waits until the helper processes of dropped handles have ended, for a limited time. A lock that is still held would
/// delay the next start.
pub fn wait_for_end() {
    let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = ENDED.wait_timeout_while(running, END_TIMEOUT, |running| *running > 0);
    drop(waited.unwrap_or_else(PoisonError::into_inner));
}
