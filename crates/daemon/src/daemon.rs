//! The control thread's picture of the daemon: what is served where, and one action a message.

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
use state::{StateDir, StateError};
use systemd::Notifier;

/// How often a long action says how far it is.
const PROGRESS_PAUSE: Duration = Duration::from_millis(500);

/// How a volume stands.
#[derive(Clone, Debug)]
pub enum Standing {
    /// Clients can use it.
    Serving(Placed),
    /// It is being destaged and will be gone.
    Removing(Placed),
    /// It is not served; why, for people.
    Refused(String),
}

/// Where and as what a volume is served.
#[derive(Clone, Debug)]
pub struct Placed {
    /// Its identity for life.
    pub incarnation: u64,
    /// What its backing says it is.
    pub identity: String,
    /// The data core that serves it.
    pub core: usize,
    /// The backing's facts when it was opened.
    pub geometry: Geometry,
}

/// A volume that the daemon knows.
#[derive(Clone, Debug)]
pub struct Known {
    /// What it was told to be.
    pub config: VolumeConfig,
    /// It is in the file; else it was added by command.
    pub from_file: bool,
    /// How it stands.
    pub standing: Standing,
    /// Names its refusal, where it is refused for what `docs/admin/refusals.md` lists.
    pub refusal: Option<String>,
}

/// The daemon, as the control thread sees it. Nothing here is borrowed over an await.
pub struct Daemon {
    /// The configuration in force.
    pub config: RefCell<Config>,
    /// What outlives the process.
    pub state: RefCell<StateDir>,
    /// Where memory lies that outlives the daemon.
    pub(super) kept: Option<KeptFile>,
    /// Why it does not although it was to.
    pub(super) not_kept: OnceCell<Option<String>>,
    /// Generations of earlier daemons of which all is there that they had acknowledged.
    pub(super) whole: RefCell<Vec<u64>>,
    /// Memory of earlier daemons that cannot be read.
    pub(super) unreadable: RefCell<Vec<Unreadable>>,
    /// The data cores.
    pub cores: Vec<DataCore>,
    /// The flash log.
    pub flash: RefCell<Flash>,
    /// Volumes whose clean pages in a flash store are being dropped, which is not noted yet.
    pub(super) drops: RefCell<BTreeMap<u64, String>>,
    /// What had been written to flash devices before this start.
    pub wear: RefCell<Before>,
    /// The health of the drives under flash devices.
    pub(super) drives: Drives,
    /// All volumes, by name.
    pub volumes: RefCell<BTreeMap<String, Known>>,
    /// Volumes whose backings could not be opened, and when each is tried again.
    pub(super) absent: RefCell<Attempts>,
    /// Volumes with a change under way.
    busy: RefCell<BTreeSet<String>>,
    /// Where clients connect.
    pub listen: RefCell<Vec<String>>,
    /// Numbers of LUNs that the file, as it was read last, fixes.
    pub(super) fixed_luns: RefCell<BTreeSet<u16>>,
    /// Who may use the HTTP interface.
    pub access: Arc<api::Access>,
    /// Where the HTTP interface listens, once it does.
    pub api: Cell<Option<SocketAddr>>,
    /// What clients are shown under TLS.
    pub(super) certificates: Certificates,
    /// What is kept of the past.
    pub history: RefCell<Option<history::History>>,
    /// Long work.
    pub(super) jobs: Rc<Jobs>,
    /// What has happened, and what is wrong.
    pub journal: Journal,
    /// What was seen last.
    pub samples: watch::Sender<Arc<Sampled>>,
    /// When the daemon started.
    pub started: Instant,
    /// When the cores' clock began, in milliseconds since 1970.
    pub(super) epoch_ms: Cell<u64>,
    /// How far a stop is.
    pub stop: Stop,
    /// The service manager.
    pub notifier: Notifier,
}

/// A change of one volume is under way as long as this lives.
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

/// The failure of an action that could not be noted.
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

    /// Begins a change of a volume; refused while another is under way.
    pub fn begin(&self, name: &str) -> Result<Busy<'_>, Failure> {
        if !self.busy.borrow_mut().insert(name.to_owned()) {
            let text = format!("volume {name} is being changed by somebody else; try again when that is done");
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        Ok(Busy { daemon: self, name: name.to_owned() })
    }

    /// Where a volume is served, or why it is not.
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

    /// Does `action`, which concerns the volume `name` on `core`, and meanwhile says how much of it is dirty.
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

    /// Does what `request` of `actor` says.
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
        self.act_for(&actor, request, &progress).await
    }
}
