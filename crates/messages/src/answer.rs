//! Answers of a daemon: progress of a long action, then one result or one failure.

use serde::{Deserialize, Serialize};

use crate::report::{
    AdvicePage, AlertReport, ChannelTestReport, ConfigurationReport, DatastoreReport, EventsPage, FlashPlanReport,
    FleetHostReport, HeatReport, HistoryReport, JobReport, PoolCellsReport, PoolLostReport, PoolPlanReport,
    PoolQueueReport, PoolReport, SilenceReport, SlowReport, SnapshotsReport, TraceOpened, Traced,
};
use crate::token::{LoginLink, TokenCreated, TokenReport};
use crate::{FlashReport, StatusReport, VolumeReport};

/// One line from the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// Progress of a long action; more lines follow.
    Progress(Progress),
    /// Result; the last line.
    Done(Answer),
    /// Failure; the last line.
    Failed(Failure),
}

/// Progress of a long action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Present activity.
    #[serde(rename = "what")]
    pub activity: String,
    /// Dirty bytes still to be destaged.
    pub dirty_bytes: u64,
    /// Bytes copied, of `total_bytes`.
    #[serde(default)]
    pub done_bytes: u64,
    /// Bytes to be copied; 0 without a copy.
    #[serde(default)]
    pub total_bytes: u64,
}

/// Result of an action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Of `status`.
    Status(Box<StatusReport>),
    /// Of `flash list`.
    Flash(Box<FlashReport>),
    /// Of `flash add` and `flash replace` before they begin.
    FlashPlan(FlashPlanReport),
    /// Of `volume list`.
    Volumes(Vec<VolumeReport>),
    /// Of `volume show` and everything that changed one volume.
    Volume(Box<VolumeReport>),
    /// Of `volume slow`, the slowest first.
    Slow(Vec<SlowReport>),
    /// Of `volume heat`.
    Heat(Box<HeatReport>),
    /// Of `history` and `volume history`.
    History(Box<HistoryReport>),
    /// Of `events`.
    Events(EventsPage),
    /// Of `alerts`, the most severe first.
    Alerts(Vec<AlertReport>),
    /// Of `alerts ack`: the alert.
    Alert(Box<AlertReport>),
    /// Of `alerts silence`: the silence.
    Silence(SilenceReport),
    /// Of `alerts test`: the result of each channel.
    AlertsTested(Vec<ChannelTestReport>),
    /// Of `configuration`: all keys.
    Configuration(Box<ConfigurationReport>),
    /// Of `datastore list`.
    Datastores(Vec<DatastoreReport>),
    /// Of `pool list`.
    Pools(Vec<PoolReport>),
    /// Of `pool show` and of commands that changed one pool.
    Pool(Box<PoolReport>),
    /// Of `pool plan`, and of `pool relocate`: the moves that have begun.
    PoolPlan(Box<PoolPlanReport>),
    /// Moves of a pool that have not ended.
    PoolQueue(Box<PoolQueueReport>),
    /// The slices of a volume of a pool.
    PoolCells(Box<PoolCellsReport>),
    /// Of `snapshot list` and of commands that changed a snapshot.
    Snapshots(Box<SnapshotsReport>),
    /// Of `pool lost`.
    PoolLost(Box<PoolLostReport>),
    /// Of `fleet hosts`: this host, then the others.
    FleetHosts(Vec<FleetHostReport>),
    /// Of a question by another host.
    FleetHost(Box<FleetHostReport>),
    /// Of `job list`.
    Jobs(Vec<JobReport>),
    /// Of an action that continues as a job.
    Job(JobReport),
    /// Of `advise` of a volume.
    Advice(Box<AdvicePage>),
    /// Of `trace open`.
    TraceOpened(TraceOpened),
    /// Of `trace take`.
    Traced(Traced),
    /// Of `token create`.
    TokenCreated(TokenCreated),
    /// Of `token list`.
    Tokens(Vec<TokenReport>),
    /// Of `token link`.
    Link(LoginLink),
    /// Of actions that report in sentences alone.
    Said(Vec<String>),
}

/// Failure of an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Kind.
    pub kind: ErrorKind,
    /// Error, place and remedy.
    pub message: String,
    /// Code of the refusal of a volume or a flash store (`docs/admin/refusals.md`), if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}

/// Kinds of failures; the HTTP interface maps them to status codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The request is invalid.
    Invalid,
    /// The volume does not exist.
    NotFound,
    /// Not possible in the present state.
    Conflict,
    /// The daemon is stopping or overloaded.
    Unavailable,
    /// The attempt failed.
    Failed,
}

impl Failure {
    /// A failure of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Failure { kind, message: message.into(), refusal: None }
    }

    /// A refusal with this code: a conflict that waits for an administrator.
    pub fn refused(code: &str, message: impl Into<String>) -> Self {
        Failure { refusal: Some(code.to_owned()), ..Failure::new(ErrorKind::Conflict, message) }
    }

    /// No volume has that name.
    pub fn no_volume(name: &str) -> Self {
        Failure::new(
            ErrorKind::NotFound,
            format!("there is no volume named \"{name}\"; `hotset volume list` shows them"),
        )
    }
}
