//! What was: figures rolled up over two years, in one file that may be lost without anybody else noticing.
//!
//! Whoever samples hands samples over and never waits (`History`); one thread of its own does the rest.
//!
//! ```text
//! series.rs    the list of what is kept, and how it is read off a report
//! subject.rs   whose figures: of all, of a volume, of a datastore
//! track.rs     from counters that grow to what came in each second
//! point.rs     count, sum, minimum, maximum, latencies; merging two of them
//! row.rs       points packed into the bytes of a row, and back
//! tiers.rs     how fine is kept for how long
//! rollup.rs    points of each tier as samples come, and what is not written yet
//! file.rs      the SQLite file: rows in, rows out, its bound
//! clock.rs     the time that old points are let go by
//! keeper.rs    what the thread does: batches, trouble, taking up after a kill
//! question.rs  which tier answers, and the answer's columns
//! ```
//!
//! Invariants:
//!
//! 1. A sample is in each tier once: `until` in the file says up to which second a tier has everything, in the transaction that wrote it.
//! 2. What is merged is exact: sums add, minima and maxima stay, histograms add by bucket. A percentile is drawn from a histogram alone.
//! 3. Nothing here grows without bound: rows that cannot be written are given up, the finest and oldest first.

mod clock;
mod file;
mod keeper;
mod point;
mod question;
mod rollup;
mod row;
mod series;
mod subject;
mod tiers;
mod track;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use control::report::{HistoryHealth, HistoryReport};
use control::{Failure, Sampled};

pub use question::Question;
pub use subject::Subject;

/// Messages that wait at most: a minute of samples.
const WAITING_MAX: usize = 64;
/// Time that the last batch has at the end.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// What the configuration says.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder of the file, made if it is not there.
    pub folder: PathBuf,
    /// Bytes that it may take, all files together.
    pub size_bytes: u64,
}

/// What is done with an answer.
type Reply = Box<dyn FnOnce(Result<HistoryReport, Failure>) + Send>;

enum Message {
    Sample(Arc<Sampled>),
    Ask(Question, u64, Reply),
    Stop(SyncSender<()>),
}

/// The way to the thread that keeps it.
pub struct History {
    sender: SyncSender<Message>,
    health: Arc<Mutex<HistoryHealth>>,
}

impl History {
    /// Starts the thread; opening the file is its first work, and nobody waits for it.
    pub fn start(options: Options) -> std::io::Result<History> {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let health = Arc::new(Mutex::new(HistoryHealth::default()));
        let told = health.clone();
        let body = move || run(&receiver, &options, &told);
        std::thread::Builder::new().name("history".to_owned()).spawn(body)?;
        Ok(History { sender, health })
    }

    /// Hands a sample over; one that finds the thread a minute behind is dropped.
    pub fn sample(&self, sampled: Arc<Sampled>) {
        // What is dropped shows as seconds that no point covers.
        let _ = self.sender.try_send(Message::Sample(sampled));
    }

    /// Asks; `reply` is called by the thread. False where it has too much to do, or is gone.
    #[must_use]
    pub fn ask(&self, question: Question, now: u64, reply: Reply) -> bool {
        self.sender.try_send(Message::Ask(question, now, reply)).is_ok()
    }

    /// How it stands.
    pub fn health(&self) -> HistoryHealth {
        // It is replaced whole.
        self.health.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes what is left and ends the thread; one that hangs in its disk is left behind.
    pub fn stop(self) {
        let (done, is_done) = sync_channel(1);
        if self.sender.try_send(Message::Stop(done)).is_ok() {
            // Either way there is nothing more to be done.
            let _ = is_done.recv_timeout(LAST_PATIENCE);
        }
    }
}

fn run(receiver: &Receiver<Message>, options: &Options, health: &Mutex<HistoryHealth>) {
    let mut keeper = keeper::Keeper::new(options);
    let tell = |keeper: &keeper::Keeper| *health.lock().unwrap_or_else(PoisonError::into_inner) = keeper.health();
    keeper.open();
    tell(&keeper);
    while let Ok(message) = receiver.recv() {
        match message {
            Message::Sample(sampled) => {
                if keeper.sample(sampled.at_unix_ms, &sampled.status) {
                    tell(&keeper);
                }
            }
            Message::Ask(question, now, reply) => reply(keeper.answer(&question, now)),
            Message::Stop(done) => {
                keeper.close();
                // Whoever asked may wait no more.
                let _ = done.send(());
                return;
            }
        }
    }
}
