//! Progress of a shard's flushes to the backing and to the log, requested by clients or in the background.

use std::cell::Cell;

use seam::{DiskError, Nanos};

use super::single_flight::SingleFlight;
use crate::RequestError;

/// Progress of a shard's flushes to the backing.
#[derive(Default)]
pub struct BackingFlushProgress {
    /// The flushes that close epochs; all epochs up to the covered one are durable.
    pub single_flight: SingleFlight<DiskError>,
    /// A flush of the backing is in flight.
    pub is_running: bool,
    /// The last flush of the backing failed.
    pub has_failed: bool,
    /// No write can advance the closed epochs: the remaining ones have failed.
    pub is_stuck: bool,
}

/// State of the log flushes of one shard.
#[derive(Default)]
pub struct LogFlushProgress {
    /// Single flight of flushes: a flush number counts as done when every change before that flush began is durable.
    pub single_flight: SingleFlight<RequestError>,
    /// Number of the last flush that began.
    pub last_flush_number: u64,
    /// Time at which it began.
    pub last_flush_began_at: Nanos,
}

/// State of the flushes of one shard that no client requested.
pub struct BackgroundFlushes {
    /// A flush of the backing, or of the whole volume, that no client requested is running.
    pub is_background_flush_running: Cell<bool>,
    /// Time at which the last one began, or at which the volume was attached.
    pub last_backing_flush_at: Cell<Nanos>,
    /// A flush of the log is in flight.
    pub is_log_flush_running: Cell<bool>,
    /// Earliest time of the next flush of the log.
    pub next_log_flush_at: Cell<Nanos>,
}

impl BackgroundFlushes {
    /// The state of a volume that is attached at `now`.
    pub fn new(now: Nanos) -> Self {
        BackgroundFlushes {
            is_background_flush_running: Cell::new(false),
            last_backing_flush_at: Cell::new(now),
            is_log_flush_running: Cell::new(false),
            next_log_flush_at: Cell::new(Nanos::ZERO),
        }
    }
}
