//! Long work: how far it is, and how it ended.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Long work that is under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobReport {
    /// What to call it off by.
    pub id: String,
    /// `flush`; of the flash devices `add`, `remove`, `replace` or `take-over`.
    pub kind: String,
    /// The volume or device that it is about.
    pub subject: String,
    /// Bytes done: of a flush, by how much less is dirty now than when it began.
    pub done_bytes: u64,
    /// Of so many.
    pub total_bytes: u64,
    /// How long the rest takes at the pace so far; absent where that is not known.
    pub left_seconds: Option<u64>,
    /// It is held.
    pub paused: bool,
}

/// How long work ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum JobOutcome {
    /// All of it is done.
    #[default]
    Done,
    /// It was tried and failed.
    Failed,
    /// Somebody called it off.
    CalledOff,
}

/// Long work that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EndedJobReport {
    /// What it was called.
    pub id: String,
    /// As while it was under way.
    pub kind: String,
    /// The volume or device that it was about.
    pub subject: String,
    /// When, in milliseconds since 1970.
    pub ended_unix_ms: u64,
    /// How.
    pub outcome: JobOutcome,
    /// Why, in words; empty where it is done.
    pub reason: String,
}
