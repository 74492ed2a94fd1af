//! Jobs: long operations, their progress and outcome.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Kind of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum JobKind {
    /// A flush of a volume.
    #[default]
    Flush,
    /// A flash device is added.
    #[serde(rename = "add")]
    FlashAdd,
    /// A flash device is removed.
    #[serde(rename = "remove")]
    FlashRemove,
    /// A flash device is replaced.
    #[serde(rename = "replace")]
    FlashReplace,
    /// A flash device that holds only clean pages begins to carry the log.
    TakeOver,
    /// The slices of a device of a pool move to other devices, and the device leaves.
    #[serde(rename = "drain")]
    PoolDrain,
}

impl JobKind {
    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            JobKind::Flush => "flush",
            JobKind::FlashAdd => "add",
            JobKind::FlashRemove => "remove",
            JobKind::FlashReplace => "replace",
            JobKind::TakeOver => "take-over",
            JobKind::PoolDrain => "drain",
        }
    }
}

impl fmt::Display for JobKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A job in progress.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobReport {
    /// Identifier, for `job cancel`.
    pub id: String,
    /// Kind.
    pub kind: JobKind,
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
    /// Kind.
    pub kind: JobKind,
    /// The volume or device concerned.
    pub subject: String,
    /// End, in milliseconds since 1970.
    pub ended_unix_ms: u64,
    /// Outcome.
    pub outcome: JobOutcome,
    /// Reason of a failure or cancellation; else empty.
    pub reason: String,
}
