//! The status sample of each second, shared by the stream, the history and the alerts.

use crate::StatusReport;
use crate::report::EventReport;

/// A status sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatusSample {
    /// When it was taken, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// The status.
    pub status: StatusReport,
    /// Recent events, the oldest first; consecutive samples overlap.
    pub events: Vec<EventReport>,
}
