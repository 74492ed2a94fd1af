//! Thresholds of the alert kinds.

use std::time::Duration;

/// Thresholds of the alert kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Age of dirty data beyond which a volume has an alert.
    pub dirty_age: Duration,
    /// Time until which flash devices should last, in seconds since 1970.
    pub endurance_until: Option<u64>,
    /// Number of volumes with metrics of their own; `None` without Prometheus metrics.
    pub metrics_volumes: Option<usize>,
    /// Number of data cores that should answer.
    pub cores: usize,
}
