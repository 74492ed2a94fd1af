//! The whole daemon.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    AlertReport, CertificateReport, DatastoreReport, EndedJobReport, EventsHealth, FlashReport, HistoryHealth,
    IscsiReport, JobReport, VolumeReport, WebhookHealth,
};

/// A change made by command that differs from the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OverrideReport {
    /// The volume.
    pub volume: String,
    /// The key.
    pub key: String,
    /// What holds.
    pub value: String,
    /// What the file says.
    pub file: String,
}

/// What one data core holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CoreReport {
    /// Its number, from 0.
    pub core: usize,
    /// Volumes that it serves.
    pub volumes: usize,
    /// Connections that it serves.
    pub connections: u64,
    /// Buffers that its pool may hand out.
    pub pool_bytes: u64,
    /// Buffers handed out.
    pub pool_used_bytes: u64,
    /// Index and policy.
    pub index_bytes: u64,
}

/// The whole daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StatusReport {
    /// Of hotset.
    pub version: String,
    /// Process.
    pub pid: u32,
    /// Time since it started.
    pub uptime_seconds: u64,
    /// The same, for whoever makes rates of the counters.
    #[serde(default)]
    pub uptime_ms: u64,
    /// It is stopping.
    pub stopping: bool,
    /// The configuration's file.
    pub configuration: String,
    /// Where identities and records are kept; absent where an older version says nothing.
    #[serde(default)]
    pub state_directory: Option<String>,
    /// Why nothing can be noted there now; null where it can.
    #[serde(default)]
    pub state_failed: Option<String>,
    /// Why memory does not outlive the daemon although it was to; null where it does, and where nobody asked for it.
    #[serde(default)]
    pub memory_not_kept: Option<String>,
    /// Where clients connect.
    pub listen: Vec<String>,
    /// Where the HTTP interface is; empty where there is none.
    #[serde(default)]
    pub api: String,
    /// Configured memory.
    pub memory_bytes: u64,
    /// The flash log; absent when none is configured.
    #[serde(default)]
    pub flash: Option<FlashReport>,
    /// The iSCSI target; absent where none is configured.
    #[serde(default)]
    pub iscsi: Option<IscsiReport>,
    /// Data cores.
    pub cores: Vec<CoreReport>,
    /// Datastores and flash: whether they are congested, and who has what of them.
    #[serde(default)]
    pub datastores: Vec<DatastoreReport>,
    /// Volumes.
    pub volumes: Vec<VolumeReport>,
    /// Changes made by command that differ from the file.
    pub overrides: Vec<OverrideReport>,
    /// How the history stands; absent where none is kept.
    #[serde(default)]
    pub history: Option<HistoryHealth>,
    /// Certificates that clients are shown.
    #[serde(default)]
    pub certificates: Vec<CertificateReport>,
    /// Long work that is under way.
    #[serde(default)]
    pub jobs: Vec<JobReport>,
    /// That of the last half minute that has ended, the oldest first.
    #[serde(default)]
    pub ended_jobs: Vec<EndedJobReport>,
    /// How the log of events stands.
    #[serde(default)]
    pub events: EventsHealth,
    /// How alerts are delivered; absent where they are not.
    #[serde(default)]
    pub webhook: Option<WebhookHealth>,
    /// What is wrong now.
    pub alerts: Vec<String>,
    /// The same with kind, severity, effect and remedy, the most severe first, as of the last second.
    #[serde(default)]
    pub active_alerts: Vec<AlertReport>,
}

impl StatusReport {
    /// The same without any volume.
    pub fn without_volumes(&self) -> StatusReport {
        StatusReport {
            version: self.version.clone(),
            pid: self.pid,
            uptime_seconds: self.uptime_seconds,
            uptime_ms: self.uptime_ms,
            stopping: self.stopping,
            configuration: self.configuration.clone(),
            state_directory: self.state_directory.clone(),
            state_failed: self.state_failed.clone(),
            memory_not_kept: self.memory_not_kept.clone(),
            listen: self.listen.clone(),
            api: self.api.clone(),
            memory_bytes: self.memory_bytes,
            flash: self.flash.clone(),
            iscsi: self.iscsi.clone(),
            cores: self.cores.clone(),
            datastores: self.datastores.iter().map(DatastoreReport::in_short).collect(),
            volumes: Vec::new(),
            overrides: self.overrides.clone(),
            history: self.history.clone(),
            certificates: self.certificates.clone(),
            jobs: self.jobs.clone(),
            ended_jobs: self.ended_jobs.clone(),
            events: self.events.clone(),
            webhook: self.webhook.clone(),
            alerts: self.alerts.clone(),
            active_alerts: self.active_alerts.clone(),
        }
    }
}
