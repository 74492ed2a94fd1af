//! Reports from the daemon's data: the page of `hotset report`, advice, and its curves as a picture.

pub mod advice;
mod chart;
pub mod curves;
mod gain;
pub mod page;

use messages::report::{EventsPage, HistoryReport};

pub use self::gain::{Gain, VolumeGain};

/// Data of the page.
pub struct ReportData {
    /// Name of the machine; empty if it is unknown.
    pub host: String,
    /// Start and end of the requested time, in seconds since 1970. The history covers the part that exists.
    pub requested: (u64, u64),
    /// Version of the daemon.
    pub version: String,
    /// History of all volumes together.
    pub history: HistoryReport,
    /// Totals of that history.
    pub gain: Gain,
    /// Volumes with the most reads, in descending order.
    pub volumes: Vec<VolumeGain>,
    /// Number of volumes examined.
    pub volumes_examined: usize,
    /// Number of volumes not examined, because there are too many.
    pub volumes_not_examined: usize,
    /// The newest alerts of the time span.
    pub alerts: EventsPage,
}
