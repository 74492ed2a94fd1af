//! Once a second everything is looked at once, for the stream, for the history and for alerts; and the history as the daemon asks it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use control::{Answer, ErrorKind, Failure, Sampled, moment};
use history::{History, Options, Question, Subject};
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::daemon::Daemon;
use super::shortage::Shortage;
use terminal::log;

/// Time between two samples.
const PAUSE: Duration = Duration::from_secs(1);
/// The history's folder in the state directory: it can be a disk of its own.
const FOLDER: &str = "history";
/// Time for an answer out of the history, whose disk may hang.
const PATIENCE: Duration = Duration::from_secs(10);

impl Daemon {
    /// Starts to keep a history, if there is to be one.
    pub fn start_history(&self) {
        let size_bytes = self.config.borrow().history.size_bytes;
        if size_bytes == 0 {
            return;
        }
        let folder = self.state.borrow().path().join(FOLDER);
        match History::start(Options { folder, size_bytes }) {
            Ok(history) => *self.history.borrow_mut() = Some(history),
            Err(error) => log::error(format!("no history is kept: its thread cannot be started: {error}")),
        }
    }

    /// Takes samples until a stop is asked for, in the middle of each second: so that a tick that is a little late is in the same one.
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

    /// Whose history is asked for, and whether there is such a one now.
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
            // Whoever asked may wait no more.
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

    /// Takes a last sample, and has everything written.
    pub async fn end_history(&self) {
        let Some(history) = self.history.borrow_mut().take() else { return };
        // Its disk may take a moment, or hang: others are answered meanwhile.
        let _ = tokio::task::spawn_blocking(move || history.stop()).await;
    }
}
