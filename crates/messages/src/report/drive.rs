//! What a drive says of its own health.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A drive's own health log, as `smartctl` reads it every five minutes. What a drive does not tell is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DriveReport {
    /// The whole drive that the device is, or is a part of.
    pub drive: String,
    /// Its model.
    pub model: String,
    /// When that was read last, in seconds since 1970; 0 while it was not.
    pub read_unix_seconds: u64,
    /// Spare blocks that are left, as a part of those that it had.
    pub spare_ratio: Option<f64>,
    /// Below this part the drive warns.
    pub spare_threshold_ratio: Option<f64>,
    /// What it has used of its rated life; more than 1 past it.
    pub wear_used_ratio: Option<f64>,
    /// Degrees Celsius.
    pub temperature_celsius: Option<i64>,
    /// Errors of its media that it could not correct, over its life.
    pub media_errors: Option<u64>,
    /// What it warns of.
    pub warnings: Vec<String>,
    /// Why it could not be read the last time; empty where it could.
    pub unread: String,
}
