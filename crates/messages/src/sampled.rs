//! What the daemon shows once a second, taken once for everybody who wants to know: the stream, the history, the alerts.

use crate::StatusReport;
use crate::report::EventReport;

/// A sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampled {
    /// When it was taken, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// What was seen.
    pub status: StatusReport,
    /// The newest events, the oldest first: some that were in the sample before as well.
    pub events: Vec<EventReport>,
}
