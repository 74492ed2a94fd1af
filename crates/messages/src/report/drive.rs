//! A drive's own health log.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A drive's own health log, read by `smartctl` every five minutes. Values that a drive does not report are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DriveReport {
    /// The whole drive that contains the device.
    pub drive: String,
    /// Its model.
    pub model: String,
    /// When the log was last read, in seconds since 1970; 0 before the first reading.
    pub read_unix_seconds: u64,
    /// Remaining part of the spare blocks.
    #[schema(required)]
    pub spare_ratio: Option<f64>,
    /// Part of the spare blocks below which the drive warns.
    #[schema(required)]
    pub spare_threshold_ratio: Option<f64>,
    /// Used part of the rated life; above 1 past its end.
    #[schema(required)]
    pub wear_used_ratio: Option<f64>,
    /// Degrees Celsius.
    #[schema(required)]
    pub temperature_celsius: Option<i64>,
    /// Uncorrected media errors over its life.
    #[schema(required)]
    pub media_errors: Option<u64>,
    /// Warnings of the drive.
    pub warnings: Vec<String>,
    /// Error of the last reading; empty if it succeeded.
    pub unread: String,
}
