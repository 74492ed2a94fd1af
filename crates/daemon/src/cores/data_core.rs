//! Data cores. Each is a thread that runs a part of the engine and the front ends, and executes the messages sent to
//! it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

use engine::{Backing, Core, CoreSpec, Volume};
use flash::MemberDisk;
use seam::Seam;
use seam::mailbox::{Sender, mailbox};
use seam::model::SharedArray;
use seam::real::{PersistedPool, RealCoreSpec, RealError, RealSeam, run_core};
use tokio::sync::{mpsc, oneshot};

use super::super::iscsi::{IscsiSpec, create_server};
use super::super::vhost_user::{VhostUser, VhostUserSpec};
use super::pools::OpenPool;
use super::standby::LinkExports;
use super::transfer::RetainedVolumes;
use task_sync::TaskMutex;

/// Maximum number of connections of other hosts: one for each volume on standby there.
const LINK_CONNECTIONS_MAX: usize = 4096;
/// Capacity of a core's mailbox; further senders wait.
const MAILBOX_CAPACITY: usize = 256;

/// The objects that live on a data core.
pub struct CoreLocal {
    /// Its seam: disks, time, tasks.
    pub seam: RealSeam,
    /// Its part of the engine.
    pub engine: Core<RealSeam>,
    /// Its NBD server.
    pub nbd_server: nbd::Server<RealSeam>,
    /// The NBD server of other hosts, which volumes on standby there read from.
    pub link_server: nbd::Server<RealSeam>,
    /// Its exports.
    pub link_exports: LinkExports,
    /// Detached volumes whose clients wait for the successor, by name.
    pub predecessors: RefCell<BTreeMap<String, Volume<RealSeam>>>,
    /// Cached blocks of volumes that have moved to other hosts.
    pub retained: RetainedVolumes,
    /// Its iSCSI server, if there is one.
    pub iscsi: Option<iscsi::Server<RealSeam>>,
    /// Its vhost-user server, if there is one.
    pub vhost_user: Option<VhostUser>,
    /// Backings that are open and not attached to a volume yet, by the key that messages use.
    pub opened: RefCell<BTreeMap<u64, Backing<RealSeam>>>,
    /// The next key for `opened`.
    pub next_backing_key: Cell<u64>,
    /// NBD clients whose volume is detached and will be attached again.
    pub released_clients: RefCell<Vec<nbd::HandedOverClient<RealSeam>>>,
    /// Memory images of earlier daemons.
    pub memory_images: RefCell<Vec<Rc<PersistedPool>>>,
    /// Flash devices that are open and not part of an open store yet.
    pub flash_devices: RefCell<Vec<MemberDisk<RealSeam>>>,
    /// Modelled arrays that volumes share, by name.
    pub arrays: RefCell<BTreeMap<String, SharedArray<RealSeam>>>,
    /// Open pools, by name.
    pub pools: RefCell<BTreeMap<String, Rc<OpenPool>>>,
    /// The lock of each pool, held while it is opened: two openings of it would compete for its devices.
    pub pool_openings: RefCell<BTreeMap<String, Rc<TaskMutex>>>,
    /// Set to end the core's message loop.
    ending: Cell<bool>,
}

/// Work that another thread sends to the core.
type Job = Box<dyn FnOnce(&Rc<CoreLocal>) + Send>;

/// The core's thread has ended.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("data core {0} has ended; the daemon is stopping")]
pub struct CoreEnded(pub usize);

/// Handle of a data core.
pub struct DataCore {
    index: usize,
    jobs: Sender<Job>,
    /// Completes when the core's objects are dropped. The thread may stay longer: the kernel keeps it until its last
    /// I/O completes.
    stopped: RefCell<Option<oneshot::Receiver<()>>>,
}

/// Specification of a data core.
pub struct DataCoreSpec {
    /// Its number.
    pub index: usize,
    /// Its memory and processor.
    pub real: RealCoreSpec,
    /// Specification of the engine's core.
    pub engine: CoreSpec,
    /// Options of the NBD server.
    pub nbd: nbd::Options,
    /// Specification of the iSCSI server, if there is one.
    pub iscsi: Option<IscsiSpec>,
    /// Specification of the vhost-user server, if there is one.
    pub vhost_user: Option<VhostUserSpec>,
}

impl DataCore {
    /// Starts a core; returns when it runs. The core's number is sent to `ended` when its thread ends, also by a panic.
    pub async fn start(spec: DataCoreSpec, ended: mpsc::UnboundedSender<usize>) -> Result<DataCore, RealError> {
        let (jobs, mut inbox) = mailbox::<Job>(MAILBOX_CAPACITY);
        let (started, start_result) = oneshot::channel();
        let index = spec.index;
        let (stop_sender, stopped) = oneshot::channel::<()>();
        let body = move || {
            let _stop_sender = stop_sender;
            let _ended = EndNotice(index, ended);
            let started = Rc::new(Cell::new(Some(started)));
            let on_core = started.clone();
            let result = run_core(spec.real, move |seam| async move {
                let engine = Core::new(seam.clone(), spec.engine);
                let nbd_server = nbd::Server::new(seam.clone(), engine.clone(), spec.nbd);
                let link_exports = LinkExports::new(engine.clone());
                let options = nbd::Options { connections_max: LINK_CONNECTIONS_MAX, ..nbd::Options::default() };
                let link_server = nbd::Server::new(seam.clone(), link_exports.clone(), options);
                let iscsi = spec.iscsi.map(|spec| create_server(&seam, spec));
                let vhost_user = spec.vhost_user.map(|spec| VhostUser::new(&seam, spec));
                let local = Rc::new(CoreLocal {
                    seam,
                    engine,
                    nbd_server,
                    link_server,
                    link_exports,
                    predecessors: RefCell::default(),
                    retained: RetainedVolumes::default(),
                    iscsi,
                    vhost_user,
                    opened: RefCell::default(),
                    next_backing_key: Cell::default(),
                    released_clients: RefCell::default(),
                    memory_images: RefCell::default(),
                    flash_devices: RefCell::default(),
                    arrays: RefCell::default(),
                    pools: RefCell::default(),
                    pool_openings: RefCell::default(),
                    ending: Cell::default(),
                });
                if let Some(started) = on_core.take() {
                    // The send fails if the caller has given up: the daemon is ending.
                    let _ = started.send(Ok(()));
                }
                while let Some(job) = inbox.receive().await {
                    job(&local);
                    if local.ending.get() {
                        break;
                    }
                }
            });
            if let (Err(error), Some(started)) = (result, started.take()) {
                let _ = started.send(Err(error));
            }
        };
        let thread = std::thread::Builder::new().name(format!("core-{index}")).spawn(body);
        thread.map_err(|error| RealError::IoUringLimits { error })?;
        let started = start_result.await.unwrap_or_else(|_| Err(RealError::IoUringLimits { error: ended_at_start() }));
        started.map(|()| DataCore { index, jobs, stopped: RefCell::new(Some(stopped)) })
    }

    /// Runs `work` on the core and returns its result. The core never waits for the caller.
    pub async fn call<T, F>(&self, work: impl FnOnce(Rc<CoreLocal>) -> F + Send + 'static) -> Result<T, CoreEnded>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let job: Job = Box::new(move |local| {
            let work = work(local.clone());
            local.seam.spawn(async move {
                // The caller may have stopped waiting; the work is completed nevertheless.
                let _ = sender.send(work.await);
            });
        });
        self.jobs.send(job).await.map_err(|_| CoreEnded(self.index))?;
        receiver.await.map_err(|_| CoreEnded(self.index))
    }

    /// Its number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Ends the core's message loop and waits for its end.
    pub async fn join(&self) {
        let end: Job = Box::new(|local| local.ending.set(true));
        // The send fails if the core has already ended.
        let _ = self.jobs.send(end).await;
        let stopped = self.stopped.take();
        if let Some(stopped) = stopped {
            // Completes when the thread drops the sender. A panic of the thread has been printed already.
            let _ = stopped.await;
        }
    }
}

fn ended_at_start() -> std::io::Error {
    std::io::Error::other("its thread ended during the start")
}

/// Sends the core's number when its thread ends, also by a panic.
struct EndNotice(usize, mpsc::UnboundedSender<usize>);

impl Drop for EndNotice {
    fn drop(&mut self) {
        // The receiver is gone once the daemon has stopped.
        let _ = self.1.send(self.0);
    }
}
