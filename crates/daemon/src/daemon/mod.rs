//! The daemon's parts on the control thread, and the dispatch of requests to them.

mod actions;
mod add_remove;
mod advice;
mod alerts;
mod audit;
mod configuration;
mod first_flash;
mod flash_monitor;
mod fleet;
mod fleet_hosts;
mod flushes;
mod heat_map;
mod link_requests;
mod new_file;
mod pool_heat;
mod pool_thresholds;
mod pool_trends;
mod pools;
mod reload;
mod retry;
mod sample;
mod signal_handling;
mod snapshots;
mod standby_clients;
mod start;
mod status;
mod stop;
mod trace_recording;
mod transfers;

use std::rc::Rc;

use control::{Actor, Handler, ProgressSender};
use events::EventFilter;
use flash::Store;
use messages::{Answer, ErrorKind, Failure, Request};
use seam::real::RealSeam;

use self::pool_thresholds::PoolThresholds;
use self::pool_trends::PoolTrends;
use self::reload::Reloads;
pub use self::start::serve;
pub use self::status::override_reports;
use super::attachments::Attachments;
use super::certificates::Certificates;
use super::cores::{ConnectedClients, Cores, DataCore, NewDevice};
use super::events::Journal;
use super::flash::FlashLog;
use super::fleet_link::FleetLink;
use super::fleet_peers::FleetPeers;
use super::foreign_log::LogTurns;
use super::forwarding::Forwarding;
use super::http::HttpInterface;
use super::iscsi_units::Units;
use super::jobs::Jobs;
use super::listen::Listeners;
use super::persisted_memory::{MemoryPlan, PersistedMemory};
use super::records::Records;
use super::reload_outcome::reload_answer;
use super::settings::{Settings, alert_channels};
use super::standby::Standbys;
use super::stop::Stop;
use super::telemetry::Telemetry;
use super::volume_settings::VolumeSettings;
use super::volumes::Volumes;
use config::Config;
use logging::{self as log, CONTROL};
use state::StateDir;
use systemd::Notifier;

/// The daemon's parts on the control thread. Each part owns its state; the methods here are the actions that involve
/// several parts.
pub struct Daemon {
    /// The configuration in force.
    settings: Rc<Settings>,
    /// The durable records.
    records: Rc<Records>,
    /// The data cores.
    cores: Rc<Cores>,
    /// All volumes.
    volumes: Rc<Volumes>,
    /// The flash log.
    flash: Rc<FlashLog>,
    /// Persisted memory.
    memory: Rc<PersistedMemory>,
    /// The volumes as units of the iSCSI target.
    units: Rc<Units>,
    /// Attaching and detaching volumes.
    attachments: Attachments,
    /// The looks at images of volumes on standby.
    standbys: Standbys,
    /// The link to the other hosts.
    fleet_link: Rc<FleetLink>,
    fleet_peers: Rc<FleetPeers>,
    /// Volumes on standby whose reads are forwarded.
    forwarding: Rc<Forwarding>,
    /// Logs of other hosts that are being read.
    log_turns: LogTurns,
    /// Settings of served volumes.
    volume_settings: VolumeSettings,
    /// The listeners of the front ends.
    listeners: Listeners,
    /// The HTTP interface.
    http: Rc<HttpInterface>,
    /// TLS certificates of the listeners.
    certificates: Rc<Certificates>,
    /// Samples and their history.
    telemetry: Telemetry,
    /// Flushes of volumes and changes of the flash devices.
    jobs: Rc<Jobs>,
    /// Events and alerts.
    journal: Journal,
    /// State of a stop.
    stop: Stop,
    /// Reloads of the configuration.
    reloads: Reloads,
    /// Trends of the fill of pools.
    pool_trends: PoolTrends,
    /// Thresholds that the fill of pools has reached.
    pool_thresholds: PoolThresholds,
    /// Connection to the service manager.
    notifier: Rc<Notifier>,
}

impl Daemon {
    /// A daemon that serves nothing yet.
    pub fn new(
        config: Config,
        state: StateDir,
        cores: Vec<DataCore>,
        memory: MemoryPlan,
        notifier: Notifier,
    ) -> Daemon {
        let journal = Journal::open(state.path(), alert_channels(&config));
        journal.set_silences(state.state().silences.clone());
        let settings = Rc::new(Settings::new(config));
        let records = Rc::new(Records::new(state));
        let cores = Rc::new(Cores::new(cores));
        let volumes = Rc::<Volumes>::default();
        let certificates = Rc::<Certificates>::default();
        let jobs = Rc::<Jobs>::default();
        let flash = FlashLog::new(settings.clone(), records.clone(), cores.clone(), jobs.clone());
        let flash = Rc::new(flash);
        let memory = Rc::new(PersistedMemory::new(memory, cores.clone(), records.clone()));
        let units = Rc::new(Units::new(settings.clone(), records.clone(), cores.clone()));
        let fleet_link = Rc::new(FleetLink::new(settings.clone(), certificates.clone()));
        let forwarding = Rc::new(Forwarding::new(cores.clone(), records.clone(), fleet_link.clone()));
        let attachments = Attachments {
            settings: settings.clone(),
            records: records.clone(),
            cores: cores.clone(),
            volumes: volumes.clone(),
            flash: flash.clone(),
            memory: memory.clone(),
            units: units.clone(),
            forwarding: forwarding.clone(),
        };
        let volume_settings = VolumeSettings::new(
            settings.clone(),
            records.clone(),
            cores.clone(),
            volumes.clone(),
            flash.clone(),
            units.clone(),
        );
        let http = HttpInterface::new(settings.clone(), records.clone(), certificates.clone());
        Daemon {
            attachments,
            volume_settings,
            listeners: Listeners::new(settings.clone(), cores.clone()),
            http: Rc::new(http),
            telemetry: Telemetry::new(),
            stop: Stop::default(),
            standbys: Standbys::default(),
            fleet_link,
            fleet_peers: Rc::default(),
            forwarding,
            log_turns: LogTurns::default(),
            reloads: Reloads::default(),
            pool_trends: PoolTrends::default(),
            pool_thresholds: PoolThresholds::default(),
            notifier: Rc::new(notifier),
            settings,
            records,
            cores,
            volumes,
            flash,
            memory,
            units,
            certificates,
            jobs,
            journal,
        }
    }

    /// Dispatches a request of `actor`.
    pub(super) async fn execute(
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
                    | Request::PoolList {}
                    | Request::PoolShow { .. }
                    | Request::PoolLost { .. }
                    | Request::JobList {}
                    | Request::Events { .. }
                    | Request::Alerts {}
                    | Request::Stop { .. }
            )
        {
            return Err(Failure::new(ErrorKind::Unavailable, "the daemon is stopping"));
        }
        if let Some(name) = request.pool() {
            self.open_pool(name).await?;
        }
        match request {
            Request::Status {} => Ok(Answer::Status(Box::new(self.status().await))),
            Request::FlashList {} => Ok(self.flash_answer().await),
            Request::FlashPlan { path, replaced } => {
                self.flash.plan(&path, replaced.as_deref()).await.map(Answer::FlashPlan)
            }
            Request::FlashAdd { path, force } => {
                self.add_flash(&path, force, progress).await?;
                Ok(self.flash_answer().await)
            }
            Request::FlashRemove { path } => {
                self.flash.remove(&path, progress).await?;
                Ok(self.flash_answer().await)
            }
            Request::FlashReplace { old, new, force } => {
                self.flash.replace(&old, &new, force, progress).await?;
                Ok(self.flash_answer().await)
            }
            Request::FlashPause {} => self.control_flash_job(|store| store.set_job_paused(true)).await,
            Request::FlashResume {} => self.control_flash_job(|store| store.set_job_paused(false)).await,
            Request::FlashCancel {} => self.control_flash_job(|store| store.cancel_job()).await,
            Request::VolumeList {} => Ok(Answer::Volumes(self.volume_reports().await)),
            Request::VolumeShow { name } => self.show(&name).await,
            Request::VolumeSet { name, settings } => self.set(&name, &settings, progress).await,
            Request::VolumeFlush { name, in_background: false } => self.flush(&name, progress).await,
            Request::VolumeFlush { name, in_background: true } => self.flush_in_background(actor, &name).await,
            Request::VolumePause { name } => self.set_mode(&name, engine::CacheMode::Paused, progress).await,
            Request::VolumeFreeze { name } => self.set_mode(&name, engine::CacheMode::Frozen, progress).await,
            Request::VolumeResume { name } => self.set_mode(&name, engine::CacheMode::Active, progress).await,
            Request::VolumePin { name, from_bytes, to_bytes } => self.pin(&name, from_bytes, to_bytes, true).await,
            Request::VolumeUnpin { name, from_bytes, to_bytes } => self.pin(&name, from_bytes, to_bytes, false).await,
            Request::VolumeSlow { name } => self.slow(&name).await,
            Request::VolumeHeat { name } => self.heat(&name).await,
            Request::History { volume, datastore, pool, from_unix_seconds, to_unix_seconds, step_seconds, series } => {
                let (from, to, step) = (from_unix_seconds, to_unix_seconds, step_seconds);
                let (subject, is_known) = self.subject(volume, datastore, pool)?;
                self.telemetry.query_history(history::Query { subject, is_known, from, to, step, series }).await
            }
            Request::Events { limit, before, after, since_unix_seconds, until_unix_seconds, subject, kind } => {
                let limit = limit as usize;
                Ok(self.journal.page(&EventFilter {
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
            Request::AlertAcknowledge { id } => self.acknowledge_alert(actor, &id),
            Request::AlertSilence { id, seconds, reason } => self.silence_alert(actor, id, seconds, reason),
            Request::AlertUnsilence { id } => self.unsilence_alert(&id),
            Request::AlertsTest {} => self.test_alerts(actor).await,
            Request::Configuration {} => Ok(Answer::Configuration(Box::new(self.configuration()))),
            Request::DatastoreList {} => Ok(Answer::Datastores(self.datastores().await)),
            Request::PoolList {} => Ok(Answer::Pools(self.pool_trends.add_to(self.cores.pools(true).await))),
            Request::PoolShow { name } => self.cores.pool(&name).await.map(|pool| self.pool_answer(pool)),
            Request::PoolPlan { name } => self.cores.plan_pool(&name).await.map(Box::new).map(Answer::PoolPlan),
            Request::PoolQueue { name } => self.cores.pool_queue(&name).await.map(Box::new).map(Answer::PoolQueue),
            Request::PoolCells { name, volume } => {
                self.cores.pool_cells(&name, &volume).await.map(Box::new).map(Answer::PoolCells)
            }
            Request::PoolLost { name } => self.cores.lost_of_pool(&name).await.map(Box::new).map(Answer::PoolLost),
            Request::PoolRelocate { name } => self.cores.relocate_pool(&name).await.map(Box::new).map(Answer::PoolPlan),
            Request::PoolAdd { name, tier, path, force } => {
                let device = NewDevice { path: path.into(), force };
                self.add_pool_device(&name, &tier, device).await.map(|pool| self.pool_answer(pool))
            }
            Request::PoolImport { name, tier, path, volume, force } => {
                let device = NewDevice { path: path.into(), force };
                self.import_pool_device(&name, &tier, device, &volume).await.map(|pool| self.pool_answer(pool))
            }
            Request::PoolDrain { name, device, cancel } => {
                self.drain_pool_device(&name, &device, cancel).await.map(|pool| self.pool_answer(pool))
            }
            Request::PoolReplace { name, device, path, force, lost } => self
                .replace_pool_device(&name, &device, path.map(|path| NewDevice { path: path.into(), force }), lost)
                .await
                .map(|pool| self.pool_answer(pool)),
            Request::PoolSetPolicy { name, volume, tier_policy } => {
                self.cores.set_pool_policy(&name, &volume, &tier_policy).await.map(|pool| self.pool_answer(pool))
            }
            Request::PoolDeleteVolume { name, volume } => {
                self.delete_pool_volume(&name, &volume).await.map(|pool| self.pool_answer(pool))
            }
            Request::PoolPause { name } => self.pause_pool(&name).await.map(|pool| self.pool_answer(pool)),
            Request::PoolResume { name } => self.resume_pool(&name).await.map(|pool| self.pool_answer(pool)),
            Request::SnapshotList { name } => self.list_snapshots(&name).await,
            Request::SnapshotCreate { name, snapshot } => self.create_snapshot(&name, &snapshot, progress).await,
            Request::SnapshotRollback { name, snapshot, force } => {
                self.roll_back_volume(&name, &snapshot, force, progress).await
            }
            Request::SnapshotDelete { name, snapshot } => self.delete_snapshot(&name, &snapshot).await,
            Request::SnapshotClone { name, snapshot, new_volume } => {
                self.clone_snapshot(&name, &snapshot, &new_volume).await
            }
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
            Request::VolumeAdd { name, backing, size_bytes, policy, read_only, tier_policy, provisioning } => {
                let placement = (tier_policy.as_deref(), provisioning.as_deref());
                self.add(&name, &backing, size_bytes, (policy.as_deref(), read_only), placement, progress).await
            }
            Request::VolumeRemove { name, give_up } => self.remove(&name, give_up.as_deref(), progress).await,
            Request::VolumeAdopt { name, give_up, discard_dirty } => self.adopt(&name, give_up, discard_dirty).await,
            Request::FleetHosts {} => Ok(Answer::FleetHosts(self.host_reports().await)),
            Request::FleetHost {} => Ok(Answer::FleetHost(Box::new(self.host_report().await))),
            Request::FleetForward { image, ownership } => {
                self.owned_volume(&image, ownership).map(|(name, _)| Answer::Said(vec![name]))
            }
            Request::FleetTransfer { .. } => {
                Err(Failure::new(ErrorKind::Invalid, "cached data passes through a tunnel"))
            }
            Request::FleetDestage { image, ownership } => {
                let (name, _) = self.owned_volume(&image, ownership)?;
                self.flush(&name, progress).await
            }
            Request::FleetRelease { image, ownership, to, keeps_clients } => {
                let clients = if keeps_clients { ConnectedClients::Keep } else { ConnectedClients::Disconnect };
                self.release_for(actor, (&image, ownership), to.as_deref(), clients, progress).await
            }
            Request::FleetReleased { image } => self.claim_released(&image).await,
            Request::FleetMove { name, to } => self.move_volume(&name, to.as_deref(), progress).await,
            Request::FleetDrain {} => self.drain_host(progress).await,
            Request::FleetTakeOver { name, from, give_up, fenced } => {
                self.take_over(&name, from, give_up, fenced, progress).await
            }
            Request::FleetTakeOverHost { host, fenced } => self.take_over_host(&host, fenced, progress).await,
            Request::TokenCreate { name, role } => self.http.create_token(&name, role),
            Request::TokenList {} => Ok(Answer::Tokens(self.http.tokens())),
            Request::TokenRevoke { name } => self.http.revoke_token(&name),
            Request::TokenLink { role } => self.http.login_link(role),
            Request::Reload {} => self.reload().await.map(reload_answer),
            Request::Stop { destage } => self.stop_and_wait(destage, progress).await,
        }
    }
}

impl Daemon {
    /// The report of the flash log, as the answer to a request.
    pub(super) async fn flash_answer(&self) -> Answer {
        Answer::Flash(Box::new(self.flash.report(&self.volumes).await.unwrap_or_default()))
    }

    /// `flash pause`, `resume`, `cancel`.
    pub(super) async fn control_flash_job(&self, action: fn(&Store<RealSeam>) -> bool) -> Result<Answer, Failure> {
        self.flash.control_job(action).await?;
        Ok(self.flash_answer().await)
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
        self.execute_for(&actor, request, &progress).await
    }
}
