//! Events and alerts in the daemon: audit events of requests, changes seen by samples, and the start and the stop.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;

use control::report::{AlertReport, EventKind};
use control::{Actor, Answer, ErrorKind, Failure, ProgressSender, Request, StatusReport};
use events::alerts::{Alerts, Limits, untold};
use events::{Events, Note, Receiver, Touched, Tracker, Wanted, Webhook, asked};

use super::daemon::Daemon;
use logging::{self as log, EVENTS};

/// The folder of events in the state directory.
pub const FOLDER: &str = "events";
/// The machine's host name.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";
/// Begin of the text of a clean stop's event.
const STOPPED: &str = "stopped";

/// The daemon's events and alerts.
pub struct Journal {
    /// The event log.
    pub events: Events,
    tracker: RefCell<Tracker>,
    alerts: RefCell<Alerts>,
    webhook: Option<Webhook>,
    /// False while the daemon starts: a volume that comes into service then is no event.
    is_serving: Cell<bool>,
}

/// Guard of a requested change: while it lives, samples do not report the change as an event of its own.
struct UnderWay<'a> {
    journal: &'a Journal,
    touched: Touched,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.journal.tracker.borrow_mut().end(&self.touched);
    }
}

impl Journal {
    /// Opens the event log in the state directory, and records the start.
    pub fn open(state: &Path, webhook: Option<Receiver>) -> Journal {
        let host = std::fs::read_to_string(HOST_NAME).unwrap_or_default().trim().to_owned();
        let start = |receiver| match Webhook::start(receiver, host) {
            Ok(webhook) => Some(webhook),
            Err(error) => {
                log::error!(target: EVENTS, "[alerts] webhook: its thread cannot be started: {error}");
                None
            }
        };
        let webhook = webhook.and_then(start);
        let events = Events::open(&state.join(FOLDER));
        let before = events.last(EventKind::Daemon);
        let journal = Journal {
            events,
            tracker: RefCell::default(),
            alerts: RefCell::default(),
            webhook,
            is_serving: Cell::default(),
        };
        let unclean = before.is_some_and(|event| !event.text.starts_with(STOPPED));
        let word = if unclean { "; the one before it did not say that it stopped" } else { "" };
        let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
        journal.note_daemon(&format!("started: hotset {version}, process {pid}{word}"));
        journal
    }

    /// Records an event of the daemon itself.
    pub fn note_daemon(&self, text: &str) {
        self.events.note(Note::new(EventKind::Daemon, None, text));
    }

    /// Records a requested change.
    pub fn note_change(&self, actor: Option<String>, subject: Option<String>, text: String) {
        self.events.note(Note { kind: EventKind::Change, subject, actor, text });
    }

    /// Ends the start: all volumes have been tried, and `status` is the base with which later samples are compared for
    /// events.
    pub fn begin_serving(&self, text: &str, status: &StatusReport) {
        self.note_daemon(text);
        let first = self.tracker.borrow_mut().look(status);
        assert!(first.is_empty(), "the first look has nothing to compare with");
        self.is_serving.set(true);
    }

    /// Marks the begin of a sample.
    pub fn begin_look(&self) {
        self.tracker.borrow_mut().begin_look();
    }

    /// Records the changes that a sample shows, updates the alerts, and sends them to the webhook.
    pub fn look(&self, at_unix_ms: u64, status: &StatusReport, limits: &Limits) {
        if self.is_serving.get() {
            let notes = self.tracker.borrow_mut().look(status);
            notes.into_iter().for_each(|note| self.events.note(note));
        }
        let changes = self.alerts.borrow_mut().look(at_unix_ms, status, limits);
        changes.iter().for_each(|change| self.events.note(change.note()));
        self.webhook.iter().for_each(|webhook| webhook.send(at_unix_ms, &changes));
    }

    /// Active alerts as of the last sample.
    pub fn active(&self) -> Vec<AlertReport> {
        self.alerts.borrow().active()
    }

    /// Adds the health of the event log and of the webhook to the status.
    pub fn tell_health(&self, status: &mut StatusReport) {
        status.events = self.events.health();
        status.webhook = self.webhook.as_ref().map(Webhook::health);
    }

    /// Adds the active alerts to the status, also as text where the status has no text of its own for them.
    pub fn tell_alerts(&self, status: &mut StatusReport) {
        status.active_alerts = self.active();
        status.alerts.extend(untold(&status.active_alerts));
    }

    fn begin(&self, touched: Touched) -> UnderWay<'_> {
        self.tracker.borrow_mut().begin(touched.clone());
        UnderWay { journal: self, touched }
    }
}

impl Daemon {
    /// Executes a request. A change that it makes is recorded with its actor.
    pub async fn act_for(
        self: &Rc<Self>,
        actor: &Actor,
        request: Request,
        progress: &ProgressSender,
    ) -> Result<Answer, Failure> {
        let Some(asked) = asked(&request) else { return self.act(actor, request, progress).await };
        let journal = &self.journal;
        match &request {
            Request::Reload {} if !self.stop.is_stopping() => {
                return self.reload_for(actor.show().as_deref().unwrap_or("unknown")).await.map(Answer::Said);
            }
            // The event comes first because the daemon ends with the answer.
            Request::Stop { .. } => {
                journal.note_change(actor.show(), None, asked.what);
                return self.act(actor, request, progress).await;
            }
            _ => {}
        }
        let is_removal = matches!(request, Request::VolumeRemove { .. });
        let under_way = asked.volume.clone().map(|name| journal.begin(Touched::Volume(name)));
        let result = self.act(actor, request, progress).await;
        let became = match (&result, &asked.volume) {
            (Ok(Answer::Volume(report)), _) => journal.tracker.borrow_mut().compare(report),
            (Ok(_), Some(name)) if is_removal => {
                journal.tracker.borrow_mut().forget(name);
                Vec::new()
            }
            _ => Vec::new(),
        };
        drop(under_way);
        let subject = asked.volume.or(asked.device);
        match &result {
            Ok(_) if became.is_empty() => journal.note_change(actor.show(), subject, asked.what),
            Ok(_) => journal.note_change(actor.show(), subject, format!("{}: {}", asked.what, became.join("; "))),
            // A refused request changes nothing; a failed one may have changed something.
            Err(failure) if failure.kind == ErrorKind::Failed => {
                journal.note_change(actor.show(), subject, format!("{} failed: {failure}", asked.what));
            }
            Err(_) => {}
        }
        result
    }

    /// Reads the configuration again for `whom`. Each sentence of the result becomes an event.
    pub async fn reload_for(&self, whom: &str) -> Result<Vec<String>, Failure> {
        let actor = format!("configuration reload ({whom})");
        let under_way = self.journal.begin(Touched::All);
        let names: Vec<String> = self.volumes.borrow().keys().cloned().collect();
        let result = self.reload().await;
        let reports = self.volume_reports().await;
        self.journal.tracker.borrow_mut().learn(&reports);
        drop(under_way);
        match &result {
            Ok(said) => {
                let names: Vec<&str> =
                    names.iter().map(String::as_str).chain(reports.iter().map(|volume| volume.name.as_str())).collect();
                for sentence in said {
                    let (subject, text) = split(sentence, &names);
                    self.journal.note_change(Some(actor.clone()), subject.map(str::to_owned), text.to_owned());
                }
            }
            Err(failure) => self.journal.note_change(Some(actor), None, format!("failed: {failure}")),
        }
        result
    }

    /// `events`.
    pub fn events_page(&self, wanted: &Wanted) -> Answer {
        Answer::Events(self.journal.events.page(wanted))
    }

    /// Thresholds of the alerts, as configured.
    pub fn alert_limits(&self) -> Limits {
        let config = self.config.borrow();
        Limits {
            dirty_age: config.alerts.dirty_age,
            endurance_until: config.alerts.endurance_until,
            metrics_volumes: config.api.listen.map(|_| config.api.metrics_volumes as usize),
            cores: self.cores.len(),
        }
    }

    /// Records how the daemon ended, and flushes the event log.
    pub fn end_events(&self) {
        self.journal.note_daemon(&self.stop.said());
        self.journal.events.flush();
    }
}

/// Splits a sentence that begins with a volume's name into the name and the rest.
fn split<'a>(sentence: &'a str, names: &[&'a str]) -> (Option<&'a str>, &'a str) {
    let rest = sentence.strip_prefix("volume ");
    let found = rest.and_then(|rest| {
        // The longest name that matches: a name may itself contain another name and a colon.
        let fits = names.iter().filter_map(|name| Some((*name, rest.strip_prefix(name)?.strip_prefix(": ")?)));
        fits.max_by_key(|(name, _)| name.len())
    });
    found.map_or((None, sentence), |(name, text)| (Some(name), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentence_about_volume_is_split_into_name_and_text() {
        let names = ["v", "v:", "web"];
        assert_eq!(split("volume v: added", &names), (Some("v"), "added"));
        assert_eq!(split("volume web2: added", &names), (None, "volume web2: added"));
        assert_eq!(split("[api] has changed", &names), (None, "[api] has changed"));
    }
}
