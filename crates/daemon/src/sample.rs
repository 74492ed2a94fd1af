//! Sampling: once a second one report serves the stream, the history and the alerts; and queries of the history.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use control::{Answer, ErrorKind, Failure, Sampled, moment};
use history::{History, Options, Question, Subject};
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::daemon::Daemon;
use super::shortage::Shortage;
use logging::{self as log, HISTORY};

/// Interval of the samples.
const PAUSE: Duration = Duration::from_secs(1);
/// The history's folder in the state directory; it may be a mount point of its own.
const FOLDER: &str = "history";
/// Time-out for an answer from the history: its disk may hang.
const PATIENCE: Duration = Duration::from_secs(10);

impl Daemon {
    /// Starts the history, if one is configured.
    pub fn start_history(&self) {
        let size_bytes = self.config.borrow().history.size_bytes;
        if size_bytes == 0 {
            return;
        }
        let folder = self.state.borrow().path().join(FOLDER);
        match History::start(Options { folder, size_bytes }) {
            Ok(history) => *self.history.borrow_mut() = Some(history),
            Err(error) => log::error!(target: HISTORY, "no history is kept: its thread cannot be started: {error}"),
        }
    }

    /// Takes samples until a stop is requested. A sample is taken in the middle of a second, so that a slightly late
    /// tick stays in the same second.
    pub async fn sample(self: Rc<Self>) {
        let into = Duration::from_nanos(moment::since_1970().subsec_nanos().into());
        let first = Instant::now() + (PAUSE + PAUSE / 2).saturating_sub(into);
        let mut tick = interval_at(first, PAUSE);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut shortage = Shortage::default();
        while !self.stop.is_stopping() {
            tick.tick().await;
            self.look_at_descriptors(&mut shortage);
            self.journal.begin_look();
            let mut status = self.look().await;
            let at_unix_ms = moment::since_1970().as_millis() as u64;
            self.journal.look(at_unix_ms, &status, &self.alert_limits());
            self.journal.tell_alerts(&mut status);
            let events = self.journal.events.newest();
            let sampled = Arc::new(Sampled { at_unix_ms, status, events });
            if let Some(history) = &*self.history.borrow() {
                history.sample(sampled.clone());
            }
            self.samples.send_replace(sampled);
        }
    }

    /// The subject of a history query, and whether it exists now.
    pub fn subject(&self, volume: Option<String>, datastore: Option<String>) -> Result<(Subject, bool), Failure> {
        match (volume, datastore) {
            (None, None) => Ok((Subject::Whole, true)),
            (Some(name), None) => {
                let is_known = self.volumes.borrow().contains_key(&name);
                Ok((Subject::Volume(name), is_known))
            }
            (None, Some(name)) => {
                let is_known =
                    name.is_empty() || self.config.borrow().datastores.iter().any(|known| known.name == name);
                Ok((Subject::Datastore(name), is_known))
            }
            (Some(_), Some(_)) => {
                let text = "a history is of a volume or of a datastore; ask for each by itself";
                Err(Failure::new(ErrorKind::Invalid, text))
            }
        }
    }

    /// `history` and `volume history`.
    pub async fn past(&self, question: Question) -> Result<Answer, Failure> {
        let busy = |why: &str| Failure::new(ErrorKind::Unavailable, format!("the history {why}; try again"));
        let (reply, replied) = oneshot::channel();
        let asked = match &*self.history.borrow() {
            None => {
                let text = "no history is kept; give [history] a size and restart";
                return Err(Failure::new(ErrorKind::Conflict, text));
            }
            // The requester may have stopped waiting.
            Some(history) => {
                history.ask(question, moment::since_1970().as_secs(), Box::new(|answer| drop(reply.send(answer))))
            }
        };
        if !asked {
            return Err(busy("has too much to do"));
        }
        match tokio::time::timeout(PATIENCE, replied).await {
            Ok(Ok(answer)) => answer.map(|report| Answer::History(Box::new(report))),
            _ => Err(busy("does not answer, its disk may hang")),
        }
    }

    /// Stops the history and waits until it is written.
    pub async fn end_history(&self) {
        let Some(history) = self.history.borrow_mut().take() else { return };
        // The disk may be slow or hang: the control thread serves other requests meanwhile.
        let _ = tokio::task::spawn_blocking(move || history.stop()).await;
    }
}
