//! The control thread's state of the daemon: the volumes and their cores; and the dispatch of requests.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use control::{Actor, Answer, ErrorKind, Failure, Handler, ProgressSender, Request, Sampled};
use events::Wanted;
use seam::Geometry;
use seam::real::KeptFile;
use tokio::sync::watch;

use super::absent::Attempts;
use super::certificates::Certificates;
use super::data_core::{CoreGone, DataCore};
use super::events::Journal;
use super::flash::{Before, Drives, Flash};
use super::jobs::Jobs;
use super::kept::Unreadable;
use super::stop::Stop;
use config::{Config, VolumeConfig};
use logging::{self as log, CONTROL};
use state::{StateDir, StateError};
use systemd::Notifier;

/// Interval of progress reports of a long action.
const PROGRESS_PAUSE: Duration = Duration::from_millis(500);

/// Status of a volume.
#[derive(Clone, Debug)]
pub enum Standing {
    /// Served to clients.
    Serving(Placed),
    /// Being destaged before its removal.
    Removing(Placed),
    /// Not served; the reason as text.
    Refused(String),
}

/// The identity and the home core of a served volume.
#[derive(Clone, Debug)]
pub struct Placed {
    /// The persistent identity of the volume.
    pub incarnation: u64,
    /// Identity of its backing, as the backing reports it.
    pub identity: String,
    /// The data core that serves it.
    pub core: usize,
    /// Geometry of the backing when it was opened.
    pub geometry: Geometry,
}

/// A volume that the daemon knows.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its configuration.
    pub config: VolumeConfig,
    /// True if it is in the file; false if it was added by command.
    pub from_file: bool,
    /// Its status.
    pub standing: Standing,
    /// Code of its refusal, if `docs/admin/refusals.md` lists one.
    pub refusal: Option<String>,
}

/// The daemon's state on the control thread. No `RefCell` here stays borrowed over an await.
pub struct Daemon {
    /// The configuration in force.
    pub config: RefCell<Config>,
    /// The state directory.
    pub state: RefCell<StateDir>,
    /// The file of this daemon's persisted memory.
    pub(super) kept: Option<KeptFile>,
    /// The reason why memory is not persisted although it should be.
    pub(super) not_kept: OnceCell<Option<String>>,
    /// Generations of earlier daemons of which no acknowledged write is lost.
    pub(super) whole: RefCell<Vec<u64>>,
    /// Persisted memory of earlier daemons that cannot be read.
    pub(super) unreadable: RefCell<Vec<Unreadable>>,
    /// The data cores.
    pub cores: Vec<DataCore>,
    /// The flash log.
    pub flash: RefCell<Flash>,
    /// Incarnations whose old clean pages are being dropped from the flash store named; the completion is not saved
    /// yet.
    pub(super) drops: RefCell<BTreeMap<u64, String>>,
    /// Bytes written to flash devices before this start.
    pub wear: RefCell<Before>,
    /// The health of the drives under flash devices.
    pub(super) drives: Drives,
    /// All volumes, by name.
    pub volumes: RefCell<BTreeMap<String, Known>>,
    /// Planned attempts at volumes whose backings could not be opened.
    pub(super) absent: RefCell<Attempts>,
    /// Volumes with a change under way.
    busy: RefCell<BTreeSet<String>>,
    /// Addresses of the listeners.
    pub listen: RefCell<Vec<String>>,
    /// LUN numbers that the file assigns, as it was read last.
    pub(super) fixed_luns: RefCell<BTreeSet<u16>>,
    /// Tokens and sessions of the HTTP interface.
    pub access: Arc<api::Access>,
    /// Address of the HTTP interface, once it listens.
    pub api: Cell<Option<SocketAddr>>,
    /// TLS certificates of the listeners.
    pub(super) certificates: Certificates,
    /// History of counters, if one is kept.
    pub history: RefCell<Option<history::History>>,
    /// Jobs: flushes of volumes and changes of the flash devices.
    pub(super) jobs: Rc<Jobs>,
    /// Events and alerts.
    pub journal: Journal,
    /// The last sample.
    pub samples: watch::Sender<Arc<Sampled>>,
    /// When the daemon started.
    pub started: Instant,
    /// Start of the cores' clock, in milliseconds since 1970.
    pub(super) epoch_ms: Cell<u64>,
    /// State of a stop.
    pub stop: Stop,
    /// Connection to the service manager.
    pub notifier: Notifier,
}

/// Guard of a change of one volume: no other change of it can begin while this lives.
pub struct Busy<'a> {
    daemon: &'a Daemon,
    name: String,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.daemon.busy.borrow_mut().remove(&self.name);
    }
}

/// The failure of an action whose core has ended.
pub fn core_gone(gone: CoreGone) -> Failure {
    Failure::new(ErrorKind::Failed, gone.to_string())
}

/// The failure of an action whose record could not be saved.
pub fn state_failed(error: StateError) -> Failure {
    Failure::new(ErrorKind::Failed, error.to_string())
}

impl Daemon {
    /// A daemon that serves nothing yet.
    pub fn new(
        config: Config,
        state: StateDir,
        (cores, kept): (Vec<DataCore>, Option<KeptFile>),
        notifier: Notifier,
    ) -> Daemon {
        let journal = Journal::open(state.path(), config.alerts.webhook.clone());
        let fixed_luns = RefCell::new(config.volumes.iter().filter_map(|volume| volume.lun).collect());
        Daemon {
            kept,
            not_kept: OnceCell::new(),
            whole: RefCell::default(),
            unreadable: RefCell::default(),
            fixed_luns,
            config: RefCell::new(config),
            state: RefCell::new(state),
            cores,
            flash: RefCell::default(),
            drops: RefCell::default(),
            wear: RefCell::default(),
            drives: Drives::default(),
            volumes: RefCell::default(),
            absent: RefCell::default(),
            busy: RefCell::default(),
            listen: RefCell::default(),
            access: Arc::default(),
            api: Cell::default(),
            certificates: Certificates::default(),
            history: RefCell::default(),
            jobs: Rc::default(),
            journal,
            samples: watch::Sender::default(),
            started: Instant::now(),
            epoch_ms: Cell::default(),
            stop: Stop::default(),
            notifier,
        }
    }

    /// Begins a change of a volume; fails while another is under way.
    pub fn begin(&self, name: &str) -> Result<Busy<'_>, Failure> {
        if !self.busy.borrow_mut().insert(name.to_owned()) {
            let text = format!("volume {name} is being changed by somebody else; try again when that is done");
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        Ok(Busy { daemon: self, name: name.to_owned() })
    }

    /// The identity and core of a served volume, or the reason why it is not served.
    pub fn placed(&self, name: &str) -> Result<Placed, Failure> {
        match self.volumes.borrow().get(name).map(|known| known.standing.clone()) {
            Some(Standing::Serving(placed) | Standing::Removing(placed)) => Ok(placed),
            Some(Standing::Refused(reason)) => {
                Err(Failure::new(ErrorKind::Conflict, format!("volume {name} is not served: {reason}")))
            }
            None => Err(Failure::no_volume(name)),
        }
    }

    /// Names of the volumes that are served.
    pub fn served(&self) -> Vec<String> {
        let volumes = self.volumes.borrow();
        let served = volumes.iter().filter(|(_, known)| !matches!(known.standing, Standing::Refused(_)));
        served.map(|(name, _)| name.clone()).collect()
    }

    /// Awaits `action` for the volume `name` on `core`, and meanwhile reports the volume's dirty bytes as progress.
    pub async fn watched<T>(
        &self,
        core: &DataCore,
        name: &str,
        what: &str,
        progress: &ProgressSender,
        action: impl Future<Output = T>,
    ) -> T {
        let mut action = std::pin::pin!(action);
        let first = tokio::time::Instant::now() + PROGRESS_PAUSE;
        let mut tick = tokio::time::interval_at(first, PROGRESS_PAUSE);
        loop {
            tokio::select! {
                result = &mut action => return result,
                _ = tick.tick() => {
                    let volume = name.to_owned();
                    let dirty = async move |local: Rc<super::data_core::Local>| {
                        local.engine.find(&volume).map_or(0, |volume| volume.stats().dirty_bytes)
                    };
                    if let Ok(dirty_bytes) = core.call(dirty).await {
                        progress.say(what, dirty_bytes);
                    }
                }
            }
        }
    }

    /// Dispatches a request of `actor`.
    pub(super) async fn act(
        self: &Rc<Self>,
        actor: &Actor,
        request: Request,
        progress: &ProgressSender,
    ) -> Result<Answer, Failure> {
        if self.stop.is_stopping()
            && !matches!(
                request,
                Request::Status {}
                    | Request::VolumeList {}
                    | Request::FlashList {}
                    | Request::DatastoreList {}
                    | Request::JobList {}
                    | Request::Events { .. }
                    | Request::Alerts {}
                    | Request::Stop { .. }
            )
        {
            return Err(Failure::new(ErrorKind::Unavailable, "the daemon is stopping"));
        }
        match request {
            Request::Status {} => Ok(Answer::Status(Box::new(self.status().await))),
            Request::FlashList {} => Ok(Answer::Flash(Box::new(self.flash_report().await.unwrap_or_default()))),
            Request::FlashAdd { path, force } => self.add_flash(&path, force, progress).await,
            Request::FlashRemove { path } => self.remove_flash(&path, progress).await,
            Request::FlashReplace { old, new, force } => self.replace_flash(&old, &new, force, progress).await,
            Request::FlashPause {} => self.steer_flash(|store| store.pause_job(true)).await,
            Request::FlashResume {} => self.steer_flash(|store| store.pause_job(false)).await,
            Request::FlashCancel {} => self.steer_flash(|store| store.cancel_job()).await,
            Request::VolumeList {} => Ok(Answer::Volumes(self.volume_reports().await)),
            Request::VolumeShow { name } => self.show(&name).await,
            Request::VolumeSet { name, settings } => self.set(&name, &settings, progress).await,
            Request::VolumeFlush { name, aside: false } => self.flush(&name, progress).await,
            Request::VolumeFlush { name, aside: true } => self.flush_aside(actor, &name).await,
            Request::VolumePause { name } => self.set_mode(&name, engine::CacheMode::Paused, progress).await,
            Request::VolumeFreeze { name } => self.set_mode(&name, engine::CacheMode::Frozen, progress).await,
            Request::VolumeResume { name } => self.set_mode(&name, engine::CacheMode::Active, progress).await,
            Request::VolumePin { name, from_bytes, to_bytes } => self.pin(&name, from_bytes, to_bytes, true).await,
            Request::VolumeUnpin { name, from_bytes, to_bytes } => self.pin(&name, from_bytes, to_bytes, false).await,
            Request::VolumeSlow { name } => self.slow(&name).await,
            Request::VolumeHeat { name } => self.heat(&name).await,
            Request::History { volume, datastore, from_unix_seconds, to_unix_seconds, step_seconds, series } => {
                let (from, to, step) = (from_unix_seconds, to_unix_seconds, step_seconds);
                let (subject, is_known) = self.subject(volume, datastore)?;
                self.past(history::Question { subject, is_known, from, to, step, series }).await
            }
            Request::Events { limit, before, after, since_unix_seconds, until_unix_seconds, subject, kind } => {
                let limit = limit as usize;
                Ok(self.events_page(&Wanted {
                    limit,
                    before,
                    after,
                    since_unix_seconds,
                    until_unix_seconds,
                    subject,
                    kind,
                }))
            }
            Request::Alerts {} => Ok(Answer::Alerts(self.journal.active())),
            Request::Configuration {} => Ok(Answer::Configuration(Box::new(self.configuration()))),
            Request::DatastoreList {} => Ok(Answer::Datastores(self.datastores().await)),
            Request::JobList {} => Ok(Answer::Jobs(self.job_list().await)),
            Request::JobCancel { id } => self.cancel_job(&id).await,
            Request::Advice { limit, after, volume, assumptions } => {
                self.advise(limit as usize, after.as_deref(), volume.as_deref(), &assumptions).await
            }
            Request::TraceOpen { name } => self.open_trace(&name).await,
            Request::TraceTake { name, recorder } => self.take_trace(&name, recorder).await,
            Request::TraceClose { name, recorder } => self.close_trace(&name, recorder).await,
            Request::VolumeInvalidate { name, discard_dirty } => self.invalidate(&name, discard_dirty).await,
            Request::VolumeResize { name, size_bytes, discard_dirty } => {
                self.resize(&name, size_bytes, discard_dirty, progress).await
            }
            Request::VolumeAdd { name, backing, size_bytes, policy, read_only } => {
                self.add(&name, &backing, size_bytes, policy.as_deref(), read_only).await
            }
            Request::VolumeRemove { name } => self.remove(&name, progress).await,
            Request::VolumeAdopt { name, give_up } => self.adopt(&name, give_up).await,
            Request::TokenCreate { name, role } => self.create_token(&name, role),
            Request::TokenList {} => Ok(Answer::Tokens(self.tokens())),
            Request::TokenRevoke { name } => self.revoke_token(&name),
            Request::TokenLink { role } => self.login_link(role),
            Request::Reload {} => self.reload().await.map(Answer::Said),
            Request::Stop { destage } => self.stop_and_wait(destage, progress).await,
        }
    }
}

impl Handler for Daemon {
    async fn handle(
        self: Rc<Self>,
        request: Request,
        actor: Actor,
        progress: ProgressSender,
    ) -> Result<Answer, Failure> {
        log::debug!(target: CONTROL, client = actor.show(), "request: {request:?}");
        self.act_for(&actor, request, &progress).await
    }
}
