//! Progress of a shard's flushes: of those to the backing, and of those that the log answers.

use seam::{DiskError, Nanos};

use super::single_flight::SingleFlight;
use crate::RequestError;

/// Progress of a shard's flushes.
#[derive(Default)]
pub struct FlushProgress {
    /// The flushes that close epochs; all epochs up to the covered one are durable.
    pub single_flight: SingleFlight<DiskError>,
    /// A flush of the backing is in flight.
    pub syncing: bool,
    /// The last flush of the backing failed.
    pub sync_failed: bool,
    /// No write can advance the closed epochs: the remaining ones have failed.
    pub stuck: bool,
}

/// State of the log flushes of one shard.
#[derive(Default)]
pub struct Logging {
    /// Single flight of flushes: a flush number counts as done when every change before that flush began is durable.
    pub single_flight: SingleFlight<RequestError>,
    /// Number of the last flush that began.
    pub last_flush: u64,
    /// Time at which it began.
    pub last_flush_at: Nanos,
}
