//! Time series of the last two years, rolled up by age, in one file that is expendable.
//!
//! The sampler hands samples over without waiting (`History`); one thread does the rest.
//!
//! ```text
//! series.rs    the list of figures, and how each is read from a report
//! subject.rs   subjects of figures: the whole daemon, a volume, a datastore
//! track.rs     from growing counters to the increase since the previous sample
//! point.rs     sum, minimum, maximum, latencies of some seconds; merging of points
//! latencies.rs latency histograms in the engine's layout
//! row.rs       encoding of points in the bytes of a row
//! tiers.rs     resolutions and retention times
//! rollup.rs    points of each tier, and rows that are not written yet
//! file.rs      the SQLite file and its size limit
//! clock.rs     the clock for expiry of old points
//! recorder.rs  the thread's work: batches, errors, recovery after a kill
//! query.rs     queries: selection of a tier, and the columns of the answer
//! ```
//!
//! Invariants:
//!
//! 1. A sample is in each tier once: `until` in the file is the second up to which a tier is complete, written in the
//!    same transaction as its rows.
//! 2. Merging is exact: sums add, minima and maxima are kept, histograms add by bucket. Percentiles come from
//!    histograms only.
//! 3. All memory is bounded: rows that cannot be written are dropped, the finest and oldest first.

mod clock;
mod file;
mod latencies;
mod point;
mod query;
mod recorder;
mod rollup;
mod row;
mod series;
mod subject;
mod tiers;
mod track;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use messages::report::{HistoryHealth, HistoryReport};
use messages::{Failure, StatusSample};
use work_timer::WorkTimer;

pub use query::Query;
pub use subject::Subject;

/// Maximum number of waiting messages: a minute of samples.
const WAITING_MAX: usize = 64;
/// Time limit of the last batch at a stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Options of the history.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of the file, created if missing.
    pub folder: PathBuf,
    /// Size limit of the file and its write-ahead log in bytes.
    pub size_bytes: u64,
}

/// Receiver of an answer.
type Reply = Box<dyn FnOnce(Result<HistoryReport, Failure>) + Send>;

enum Message {
    Sample(Arc<StatusSample>),
    Query(Query, u64, Reply),
    Stop(SyncSender<()>),
}

/// Handle to the history thread.
pub struct History {
    sender: SyncSender<Message>,
    health: Arc<Mutex<HistoryHealth>>,
    folder: PathBuf,
    work: WorkTimer,
}

impl History {
    /// Starts the thread, which opens the file; the caller does not wait for it.
    pub fn start(options: Options) -> std::io::Result<History> {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let health = Arc::new(Mutex::new(HistoryHealth::default()));
        let (folder, work) = (options.folder.clone(), WorkTimer::default());
        let (health_copy, timer) = (health.clone(), work.clone());
        let body = move || run(&receiver, &options, &health_copy, &timer);
        std::thread::Builder::new().name("history".to_owned()).spawn(body)?;
        Ok(History { sender, health, folder, work })
    }

    /// Hands a sample over; drops it if the thread is a minute behind.
    pub fn sample(&self, sampled: Arc<StatusSample>) {
        // A dropped sample appears as seconds without a point.
        let _ = self.sender.try_send(Message::Sample(sampled));
    }

    /// Sends a query; the thread calls `reply`. Returns false if the thread is overloaded or has ended.
    #[must_use]
    pub fn query(&self, query: Query, now: u64, reply: Reply) -> bool {
        self.sender.try_send(Message::Query(query, now, reply)).is_ok()
    }

    /// The current health; a file operation that hangs counts as a failure.
    pub fn health(&self) -> HistoryHealth {
        // The value is replaced as a whole, so a poisoned lock holds a valid value.
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(hung) = self.work.hung(Instant::now()) {
            health.failed = Some(format!("{}: {hung}", self.folder.display()));
        }
        health
    }

    /// Writes all remaining rows and ends the thread; a thread that hangs in disk I/O is left behind.
    pub fn stop(self) {
        let (sender, receiver) = sync_channel(1);
        if self.sender.try_send(Message::Stop(sender)).is_ok() {
            // A time-out changes nothing.
            let _ = receiver.recv_timeout(STOP_TIMEOUT);
        }
    }
}

fn run(receiver: &Receiver<Message>, options: &Options, health: &Mutex<HistoryHealth>, work: &WorkTimer) {
    let mut recorder = recorder::Recorder::new(options);
    let publish_health =
        |recorder: &recorder::Recorder| *health.lock().unwrap_or_else(PoisonError::into_inner) = recorder.health();
    work.time(|| recorder.open());
    publish_health(&recorder);
    while let Ok(message) = receiver.recv() {
        match message {
            Message::Sample(sampled) => {
                if work.time(|| recorder.sample(sampled.at_unix_ms, &sampled.status)) {
                    publish_health(&recorder);
                }
            }
            Message::Query(query, now, reply) => reply(work.time(|| recorder.answer(&query, now))),
            Message::Stop(done) => {
                recorder.close();
                // The caller may have stopped waiting.
                let _ = done.send(());
                return;
            }
        }
    }
}
