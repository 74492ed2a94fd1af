//! Reports for people, made of what a daemon told: the page of `hotset report`, advice and its curves as a picture.

pub mod advice;
mod chart;
pub mod curves;
mod gain;
pub mod page;

use messages::report::{EventsPage, HistoryReport};

pub use self::gain::{Gain, VolumeGain};

/// What the page is made of.
pub struct Findings {
    /// Of the daemon.
    pub version: String,
    /// All volumes together.
    pub history: HistoryReport,
    /// The same, added up.
    pub gain: Gain,
    /// Those with most reads first.
    pub volumes: Vec<VolumeGain>,
    /// Volumes that were looked at.
    pub volumes_seen: usize,
    /// Volumes that were not: there are too many.
    pub volumes_unseen: usize,
    /// The newest of that time.
    pub alerts: EventsPage,
}
