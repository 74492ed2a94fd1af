//! Jobs: long operations, their progress and outcome.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A job in progress.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobReport {
    /// Identifier, for `job cancel`.
    pub id: String,
    /// `flush`; of the flash devices `add`, `remove`, `replace` or `take-over`.
    pub kind: String,
    /// The volume or device concerned.
    pub subject: String,
    /// Bytes done; of a flush, the decrease of dirty data since its start.
    pub done_bytes: u64,
    /// Bytes in total.
    pub total_bytes: u64,
    /// Estimated remaining time; null if unknown.
    #[schema(required)]
    pub left_seconds: Option<u64>,
    /// True while it is paused.
    pub paused: bool,
}

/// Outcome of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum JobOutcome {
    /// Completed.
    #[default]
    Done,
    /// Failed.
    Failed,
    /// Cancelled.
    #[serde(rename = "called-off")]
    Cancelled,
}

/// A job that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EndedJobReport {
    /// Identifier.
    pub id: String,
    /// Kind, as in [`JobReport`].
    pub kind: String,
    /// The volume or device concerned.
    pub subject: String,
    /// End, in milliseconds since 1970.
    pub ended_unix_ms: u64,
    /// Outcome.
    pub outcome: JobOutcome,
    /// Reason of a failure or cancellation; else empty.
    pub reason: String,
}
