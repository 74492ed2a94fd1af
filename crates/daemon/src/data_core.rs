//! Data cores: a thread each, which runs a part of the engine and the NBD server, and does what messages ask.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

use engine::{Backing, Core, CoreSpec};
use seam::Seam;
use seam::mailbox::{Sender, mailbox};
use seam::model::SharedArray;
use seam::real::{LeftBehind, RealCoreSpec, RealDisk, RealError, RealSeam, run_core};
use tokio::sync::{mpsc, oneshot};

use super::iscsi::{IscsiSpec, server as server_of};
use super::vhost_user::{VhostUser, VhostUserSpec};

/// Messages that wait for a core at most; more senders wait.
const MAILBOX_ROOM: usize = 256;

/// What lives on a data core.
pub struct Local {
    /// Its world.
    pub seam: RealSeam,
    /// Its part of the engine.
    pub engine: Core<RealSeam>,
    /// Its NBD server.
    pub server: nbd::Server<RealSeam>,
    /// Its iSCSI server, if there is one.
    pub iscsi: Option<iscsi::Server<RealSeam>>,
    /// Its vhost-user server, if there is one.
    pub vhost_user: Option<VhostUser>,
    /// Backings that are open and not yet a volume's, by the number that names them in messages.
    pub opened: RefCell<BTreeMap<u64, Backing<RealSeam>>>,
    /// The next such number.
    pub next_opened: Cell<u64>,
    /// What earlier daemons left in memory.
    pub left: RefCell<Vec<Rc<LeftBehind>>>,
    /// Flash devices that are open and not yet a store's.
    pub flash_devices: RefCell<Vec<RealDisk>>,
    /// Modelled arrays that several volumes may lie on, by name.
    pub arrays: RefCell<BTreeMap<String, SharedArray<RealSeam>>>,
    /// No further message is waited for.
    ending: Cell<bool>,
}

type Job = Box<dyn FnOnce(&Rc<Local>) + Send>;

/// The core's thread has ended.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("data core {0} has ended; the daemon is going down")]
pub struct CoreGone(pub usize);

/// A data core, from outside.
pub struct DataCore {
    index: usize,
    jobs: Sender<Job>,
    /// Answers when all that the core held is gone. Its thread may stay: the kernel keeps one until its last request is answered.
    over: RefCell<Option<oneshot::Receiver<()>>>,
}

/// What a data core is told to be.
pub struct DataCoreSpec {
    /// Its number.
    pub index: usize,
    /// Memory, processor.
    pub real: RealCoreSpec,
    /// The engine's part.
    pub engine: CoreSpec,
    /// The NBD server's part.
    pub nbd: nbd::Options,
    /// The iSCSI server's part, if there is one.
    pub iscsi: Option<IscsiSpec>,
    /// The vhost-user server's part, if there is one.
    pub vhost_user: Option<VhostUserSpec>,
}

impl DataCore {
    /// Starts a core; returns when it runs. Its number is sent to `ended` when its thread ends, for whatever reason.
    pub async fn start(spec: DataCoreSpec, ended: mpsc::UnboundedSender<usize>) -> Result<DataCore, RealError> {
        let (jobs, mut inbox) = mailbox::<Job>(MAILBOX_ROOM);
        let (started, is_started) = oneshot::channel();
        let index = spec.index;
        let (over, is_over) = oneshot::channel::<()>();
        let body = move || {
            let _over = over;
            let _ended = Ended(index, ended);
            let started = Rc::new(Cell::new(Some(started)));
            let on_core = started.clone();
            let result = run_core(spec.real, move |seam| async move {
                let engine = Core::new(seam.clone(), spec.engine);
                let server = nbd::Server::new(seam.clone(), engine.clone(), spec.nbd);
                let iscsi = spec.iscsi.map(|spec| server_of(&seam, spec));
                let vhost_user = spec.vhost_user.map(|spec| VhostUser::new(&seam, spec));
                let (opened, next_opened, left, flash_devices, arrays, ending) = Default::default();
                let local = Rc::new(Local {
                    seam,
                    engine,
                    server,
                    iscsi,
                    vhost_user,
                    opened,
                    next_opened,
                    left,
                    flash_devices,
                    arrays,
                    ending,
                });
                if let Some(started) = on_core.take() {
                    // Nobody waits any more: the daemon is going down.
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
        let started = is_started.await.unwrap_or_else(|_| Err(RealError::IoUringLimits { error: gone() }));
        started.map(|()| DataCore { index, jobs, over: RefCell::new(Some(is_over)) })
    }

    /// Runs `work` on the core and returns what it returns. The core never waits for the caller.
    pub async fn call<T, F>(&self, work: impl FnOnce(Rc<Local>) -> F + Send + 'static) -> Result<T, CoreGone>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (done, is_done) = oneshot::channel();
        let job: Job = Box::new(move |local| {
            let work = work(local.clone());
            local.seam.spawn(async move {
                // Whoever asked may have stopped waiting; the work is done all the same.
                let _ = done.send(work.await);
            });
        });
        self.jobs.send(job).await.map_err(|_| CoreGone(self.index))?;
        is_done.await.map_err(|_| CoreGone(self.index))
    }

    /// Its number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Ends the core's loop and waits until it has ended.
    pub async fn join(&self) {
        let end: Job = Box::new(|local| local.ending.set(true));
        // A core that is gone has ended already.
        let _ = self.jobs.send(end).await;
        let over = self.over.take();
        if let Some(over) = over {
            // Nothing is sent: its sender goes. A panic was printed when it happened.
            let _ = over.await;
        }
    }
}

fn gone() -> std::io::Error {
    std::io::Error::other("its thread ended at once")
}

/// Tells that a thread ended, also by a panic.
struct Ended(usize, mpsc::UnboundedSender<usize>);

impl Drop for Ended {
    fn drop(&mut self) {
        // Nobody listens once the daemon has stopped.
        let _ = self.1.send(self.0);
    }
}
