//! What a daemon answers: progress while it takes long, then one result or one failure.

use serde::{Deserialize, Serialize};

use crate::report::{
    AdvicePage, AlertReport, ConfigurationReport, DatastoreReport, EventsPage, HeatReport, HistoryReport, JobReport,
    SlowReport, TraceOpened, Traced,
};
use crate::token::{LoginLink, TokenCreated, TokenReport};
use crate::{FlashReport, StatusReport, VolumeReport};

/// One line from the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// It takes long; this is how far it is. More follows.
    Progress(Progress),
    /// Done; the last line.
    Done(Answer),
    /// Failed; the last line.
    Failed(Failure),
}

/// How far a long action is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What is going on.
    pub what: String,
    /// Dirty bytes still to be destaged.
    pub dirty_bytes: u64,
    /// Bytes copied, of `total_bytes`.
    #[serde(default)]
    pub done_bytes: u64,
    /// Bytes to be copied; 0 where nothing is copied.
    #[serde(default)]
    pub total_bytes: u64,
}

/// What an action ends in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Of `status`.
    Status(Box<StatusReport>),
    /// Of `flash list`.
    Flash(Box<FlashReport>),
    /// Of `volume list`.
    Volumes(Vec<VolumeReport>),
    /// Of `volume show` and everything that changed one volume.
    Volume(Box<VolumeReport>),
    /// Of `volume slow`, the slowest first.
    Slow(Vec<SlowReport>),
    /// How often each part of a volume was asked for.
    Heat(Box<HeatReport>),
    /// Of `history` and `volume history`.
    History(Box<HistoryReport>),
    /// Of `events`.
    Events(EventsPage),
    /// Of `alerts`, the most severe first.
    Alerts(Vec<AlertReport>),
    /// Of every key of the configuration.
    Configuration(Box<ConfigurationReport>),
    /// Of `datastore list`.
    Datastores(Vec<DatastoreReport>),
    /// Of `job list`.
    Jobs(Vec<JobReport>),
    /// Of what goes on aside.
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
    /// Of what has nothing to show but a sentence or several.
    Said(Vec<String>),
}

/// Why an action failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What sort of failure.
    pub kind: ErrorKind,
    /// What, where and what to do.
    pub message: String,
    /// Names the refusal of a volume or a flash store, where it is one (`docs/admin/refusals.md`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}

/// Sorts of failures; a web API maps them to its status codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The request makes no sense.
    Invalid,
    /// No such volume.
    NotFound,
    /// Not in the state that things are in.
    Conflict,
    /// The daemon is stopping or has too much to do.
    Unavailable,
    /// It was tried and failed.
    Failed,
}

impl Failure {
    /// A failure of that kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Failure { kind, message: message.into(), refusal: None }
    }

    /// A refusal of that name: a conflict that waits for an administrator.
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
