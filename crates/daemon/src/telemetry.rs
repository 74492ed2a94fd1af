//! Telemetry: the last sample and its subscribers, the history of samples, and the clocks of reports.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{DatastoreStats, FLASH_DATASTORE};
use history::{History, Options, Query};
use messages::report::{DatastoreReport, HistoryHealth};
use messages::{Answer, ErrorKind, Failure, StatusSample, unix_time};
use seam::Nanos;
use tokio::sync::{oneshot, watch};

use super::engine_reports;
use logging::{self as log, HISTORY};

/// The history's directory in the state directory; it may be a mount point of its own.
const DIRECTORY: &str = "history";
/// Time-out for an answer from the history: its disk may hang.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);
/// If the start of the cores' clock moves by more than this, the machine's clock was set.
const CLOCK_SET_MS: u64 = 500;

/// Samples, their history, and the clocks of reports.
pub struct Telemetry {
    /// The last sample.
    samples: watch::Sender<Arc<StatusSample>>,
    /// History of samples, if one is kept.
    history: RefCell<Option<History>>,
    /// Time at which the daemon started.
    started: Instant,
    /// Start of the cores' clock, in milliseconds since 1970.
    epoch_ms: Cell<u64>,
}

impl Telemetry {
    /// Telemetry of a daemon that starts now.
    pub fn new() -> Telemetry {
        let (samples, history) = (watch::Sender::default(), RefCell::default());
        Telemetry { samples, history, started: Instant::now(), epoch_ms: Cell::default() }
    }

    /// Time since the start.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// The last sample and the following ones.
    pub fn subscribe(&self) -> watch::Receiver<Arc<StatusSample>> {
        self.samples.subscribe()
    }

    /// Sends a sample to the history and to the subscribers.
    pub fn publish(&self, sample: Arc<StatusSample>) {
        if let Some(history) = &*self.history.borrow() {
            history.sample(sample.clone());
        }
        self.samples.send_replace(sample);
    }

    /// Health of the history, if one is kept.
    pub fn history_health(&self) -> Option<HistoryHealth> {
        self.history.borrow().as_ref().map(History::health)
    }

    /// Starts the history of that size, unless it is 0.
    pub fn start_history(&self, state_directory: PathBuf, size_bytes: u64) {
        if size_bytes == 0 {
            return;
        }
        let folder = state_directory.join(DIRECTORY);
        match History::start(Options { folder, size_bytes }) {
            Ok(history) => *self.history.borrow_mut() = Some(history),
            Err(error) => log::error!(target: HISTORY, "the history is off: its thread cannot be started: {error}"),
        }
    }

    /// `history` and `volume history`.
    pub async fn query_history(&self, query: Query) -> Result<Answer, Failure> {
        let busy = |reason: &str| Failure::new(ErrorKind::Unavailable, format!("the history {reason}; try again"));
        let (reply, result) = oneshot::channel();
        let is_queued = match &*self.history.borrow() {
            None => {
                let text = "the history is off; set [history] size and restart";
                return Err(Failure::new(ErrorKind::Conflict, text));
            }
            // The requester may have stopped waiting.
            Some(history) => {
                history.query(query, unix_time::now().as_secs(), Box::new(|answer| drop(reply.send(answer))))
            }
        };
        if !is_queued {
            return Err(busy("is overloaded"));
        }
        match tokio::time::timeout(QUERY_TIMEOUT, result).await {
            Ok(Ok(answer)) => answer.map(|report| Answer::History(Box::new(report))),
            _ => Err(busy("does not answer; its disk may hang")),
        }
    }

    /// Stops the history and waits until it is written.
    pub async fn end_history(&self) {
        let Some(history) = self.history.borrow_mut().take() else { return };
        // The disk may be slow or hang: the control thread serves other requests meanwhile.
        let _ = tokio::task::spawn_blocking(move || history.stop()).await;
    }

    /// Reports of a core's datastores from their statistics, which were read at the time `now` of the core's clock.
    pub fn datastore_reports(&self, stats: Vec<DatastoreStats>, now: Nanos) -> Vec<DatastoreReport> {
        let epoch_ms = (unix_time::now().as_millis() as u64).saturating_sub(now.as_millis());
        // Dates in reports stay constant unless the machine's clock was set.
        if epoch_ms.abs_diff(self.epoch_ms.get()) > CLOCK_SET_MS {
            self.epoch_ms.set(epoch_ms);
        }
        let epoch_ms = self.epoch_ms.get();
        let report = |stats: DatastoreStats| {
            let is_flash = stats.name == FLASH_DATASTORE;
            engine_reports::datastore(stats, is_flash, epoch_ms)
        };
        stats.into_iter().map(report).collect()
    }
}
