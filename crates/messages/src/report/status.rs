//! Status of the whole daemon.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    AlertReport, CertificateReport, DatastoreReport, DeliveryHealth, EndedJobReport, EventsHealth, FlashReport,
    FleetPeerReport, HistoryHealth, IscsiReport, JobReport, PoolReport, SilenceReport, VolumeReport,
};

/// A change made by command that differs from the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OverrideReport {
    /// The volume.
    pub volume: String,
    /// The key.
    pub key: String,
    /// Value in force.
    pub value: String,
    /// Value in the file.
    pub file: String,
}

/// Volumes, connections and memory of one data core.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CoreReport {
    /// Its number, from 0.
    pub core: usize,
    /// Volumes that it serves.
    pub volumes: usize,
    /// Connections that it serves.
    pub connections: u64,
    /// Size of its pool.
    pub pool_bytes: u64,
    /// Bytes in use.
    pub pool_used_bytes: u64,
    /// Bytes of index and policy.
    pub index_bytes: u64,
}

/// Status of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StatusReport {
    /// Version of Hotset.
    pub version: String,
    /// Process identifier.
    pub pid: u32,
    /// Time since it started.
    pub uptime_seconds: u64,
    /// Uptime in milliseconds, for rates of the counters.
    #[serde(default)]
    #[schema(required)]
    pub uptime_ms: u64,
    /// True while it is stopping.
    pub stopping: bool,
    /// True while it is starting: volumes that it has not attached yet are not listed.
    #[serde(default)]
    #[schema(required)]
    pub starting: bool,
    /// Configuration file.
    pub configuration: String,
    /// State directory; absent in reports of older versions.
    #[serde(default)]
    #[schema(required)]
    pub state_directory: Option<String>,
    /// Error of writing the state directory; null without one.
    #[serde(default)]
    #[schema(required)]
    pub state_failed: Option<String>,
    /// Reason why configured persisted memory is not in use; null otherwise.
    #[serde(default)]
    #[schema(required)]
    pub memory_not_kept: Option<String>,
    /// Addresses for clients.
    pub listen: Vec<String>,
    /// Address of the HTTP interface; empty without one.
    #[serde(default)]
    #[schema(required)]
    pub api: String,
    /// Configured memory.
    pub memory_bytes: u64,
    /// The flash cache; null if none is configured.
    #[serde(default)]
    #[schema(required)]
    pub flash: Option<FlashReport>,
    /// The iSCSI target; null if none is configured.
    #[serde(default)]
    #[schema(required)]
    pub iscsi: Option<IscsiReport>,
    /// Data cores.
    pub cores: Vec<CoreReport>,
    /// Datastores and flash: congestion, and the use of each volume.
    #[serde(default)]
    #[schema(required)]
    pub datastores: Vec<DatastoreReport>,
    /// Open pools, without their volumes.
    #[serde(default)]
    #[schema(required)]
    pub pools: Vec<PoolReport>,
    /// Volumes.
    pub volumes: Vec<VolumeReport>,
    /// Changes made by command that differ from the file.
    pub overrides: Vec<OverrideReport>,
    /// The flash devices in force, if commands have changed the list of the file; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flash_devices_by_command: Option<Vec<String>>,
    /// State of the history; null if none is kept.
    #[serde(default)]
    #[schema(required)]
    pub history: Option<HistoryHealth>,
    /// Server certificates.
    #[serde(default)]
    #[schema(required)]
    pub certificates: Vec<CertificateReport>,
    /// The other hosts of the fleet; none without a link to them.
    #[serde(default)]
    #[schema(required)]
    pub fleet_hosts: Vec<FleetPeerReport>,
    /// Jobs in progress.
    #[serde(default)]
    #[schema(required)]
    pub jobs: Vec<JobReport>,
    /// Jobs that ended in the last half minute, the oldest first.
    #[serde(default)]
    #[schema(required)]
    pub ended_jobs: Vec<EndedJobReport>,
    /// State of the event log.
    #[serde(default)]
    #[schema(required)]
    pub events: EventsHealth,
    /// State of the delivery of alerts to the webhook; null without a webhook.
    #[serde(default)]
    #[schema(required)]
    pub webhook: Option<DeliveryHealth>,
    /// State of the delivery of alerts by mail; null without a mail server.
    #[serde(default)]
    #[schema(required)]
    pub mail: Option<DeliveryHealth>,
    /// Present problems.
    pub alerts: Vec<String>,
    /// Present problems whose alert is not active yet: it is raised within a second, or after its delay.
    #[serde(default)]
    #[schema(required)]
    pub problems_without_alert: Vec<String>,
    /// Active alerts as of the last second, the most severe first.
    #[serde(default)]
    #[schema(required)]
    pub active_alerts: Vec<AlertReport>,
    /// Silences in force, also of alerts that are not active.
    #[serde(default)]
    #[schema(required)]
    pub silences: Vec<SilenceReport>,
}

impl StatusReport {
    /// A copy without volumes.
    pub fn without_volumes(&self) -> StatusReport {
        StatusReport {
            version: self.version.clone(),
            pid: self.pid,
            uptime_seconds: self.uptime_seconds,
            uptime_ms: self.uptime_ms,
            stopping: self.stopping,
            starting: self.starting,
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
            datastores: self.datastores.iter().map(DatastoreReport::summary).collect(),
            pools: self.pools.clone(),
            volumes: Vec::new(),
            overrides: self.overrides.clone(),
            flash_devices_by_command: self.flash_devices_by_command.clone(),
            history: self.history.clone(),
            certificates: self.certificates.clone(),
            fleet_hosts: self.fleet_hosts.clone(),
            jobs: self.jobs.clone(),
            ended_jobs: self.ended_jobs.clone(),
            events: self.events.clone(),
            webhook: self.webhook.clone(),
            mail: self.mail.clone(),
            alerts: self.alerts.clone(),
            problems_without_alert: self.problems_without_alert.clone(),
            active_alerts: self.active_alerts.clone(),
            silences: self.silences.clone(),
        }
    }
}
