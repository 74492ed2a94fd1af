//! Events and alerts in the daemon: audit events of requests, changes seen by samples, and the start and the stop.

use std::cell::{Cell, RefCell};
use std::path::Path;

use events::alerts::{Alerts, Limits, untold};
use events::{Events, Note, Receiver, Touched, Tracker, Wanted, Webhook};
use messages::report::{AlertReport, DaemonPhase, EventKind, EventReport};
use messages::{Answer, StatusReport, VolumeReport};

use logging::{self as log, EVENTS};

/// The folder of events in the state directory.
pub const FOLDER: &str = "events";
/// The machine's host name.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// The daemon's events and alerts.
pub struct Journal {
    /// The event log.
    events: Events,
    tracker: RefCell<Tracker>,
    alerts: RefCell<Alerts>,
    webhook: Option<Webhook>,
    /// False while the daemon starts: a volume that comes into service then is no event.
    is_serving: Cell<bool>,
}

/// Guard of a requested change: while it lives, samples do not report the change as an event of its own.
pub struct UnderWay<'a> {
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
        // An event without a phase is from an earlier version, and says nothing of its daemon's end.
        let unclean = before.is_some_and(|event| event.phase == Some(DaemonPhase::Running));
        let word = if unclean { "; the one before it did not say that it stopped" } else { "" };
        let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
        journal.note_daemon(&format!("started: hotset {version}, process {pid}{word}"));
        journal
    }

    /// Records an event of the daemon itself.
    pub fn note_daemon(&self, text: &str) {
        self.note_phase(DaemonPhase::Running, text);
    }

    /// Records how the daemon ended, and flushes the event log.
    pub fn end(&self, text: &str) {
        self.note_phase(DaemonPhase::Ended, text);
        self.flush();
    }

    fn note_phase(&self, phase: DaemonPhase, text: &str) {
        self.events.note(Note { phase: Some(phase), ..Note::new(EventKind::Daemon, None, text) });
    }

    /// Records a requested change.
    pub fn note_change(&self, actor: Option<String>, subject: Option<String>, text: String) {
        self.events.note(Note { kind: EventKind::Change, subject, actor, text, phase: None });
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

    /// The newest events.
    pub fn newest(&self) -> Vec<EventReport> {
        self.events.newest()
    }

    /// `events`.
    pub fn page(&self, wanted: &Wanted) -> Answer {
        Answer::Events(self.events.page(wanted))
    }

    /// Waits until all events are written.
    pub fn flush(&self) {
        self.events.flush();
    }

    /// What a requested change made of a volume, in words.
    pub fn compare(&self, report: &VolumeReport) -> Vec<String> {
        self.tracker.borrow_mut().compare(report)
    }

    /// Takes the volumes as they are after a requested change.
    pub fn learn(&self, reports: &[VolumeReport]) {
        self.tracker.borrow_mut().learn(reports);
    }

    /// Forgets a volume that was removed on request.
    pub fn forget(&self, name: &str) {
        self.tracker.borrow_mut().forget(name);
    }

    /// Marks the begin of a requested change.
    pub fn begin(&self, touched: Touched) -> UnderWay<'_> {
        self.tracker.borrow_mut().begin(touched.clone());
        UnderWay { journal: self, touched }
    }
}
