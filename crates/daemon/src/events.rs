//! Events and alerts in the daemon: audit events of requests, changes seen by samples, and the start and the stop.

use std::cell::{Cell, RefCell};
use std::path::Path;

use events::alerts::{
    Alerts, Change, Limits, NotificationKind, SilenceError, causes_not_in_status, problems_without_alert,
};
use events::{ChangeScope, Channels, ChannelsConfig, EventFilter, Events, NewEvent, Tracker};
use messages::report::{AlertReport, DaemonPhase, EventKind, EventReport, PoolReport, Severity, SilenceReport};
use messages::{Answer, ErrorKind, Failure, StatusReport, VolumeReport, unix_time};

use logging::{self as log, EVENTS};
use units::show_counted;

/// The directory of events in the state directory.
pub const DIRECTORY: &str = "events";
/// Maximum number of alerts of one sample that are logged: the failure of an array raises an alert for every volume on
/// it. The event log records all of them.
const LOGGED_ALERTS_MAX: usize = 20;

/// The failure of an action on an alert.
fn silence_failed(error: SilenceError) -> Failure {
    match error {
        SilenceError::Invalid(text) => Failure::new(ErrorKind::Invalid, text),
        SilenceError::NotFound(text) => Failure::new(ErrorKind::NotFound, text),
        SilenceError::Conflict(text) => Failure::new(ErrorKind::Conflict, text),
    }
}

/// Writes raised and cleared alerts to the log. The delays of a flapping alert grow, which limits its log lines.
fn log_changes(changes: &[Change]) {
    for change in changes.iter().take(LOGGED_ALERTS_MAX) {
        let alert = change.alert.kind.name();
        match (change.state, change.alert.severity) {
            (NotificationKind::Raised, Severity::Critical) => {
                log::error!(target: EVENTS, alert, "{}", change.log_line())
            }
            (NotificationKind::Raised, Severity::Warning) => log::warn!(target: EVENTS, alert, "{}", change.log_line()),
            _ => log::info!(target: EVENTS, alert, "{}", change.log_line()),
        }
    }
    let more = changes.len().saturating_sub(LOGGED_ALERTS_MAX);
    if more > 0 {
        let more = show_counted(more as u64, "more alert");
        log::warn!(target: EVENTS, "{more} raised or cleared at the same time: `hotset events --kind alert` lists all");
    }
}

/// The daemon's events and alerts.
pub struct Journal {
    /// The event log.
    events: Events,
    /// Compares samples to find changes.
    tracker: RefCell<Tracker>,
    /// Active alerts and silences.
    alerts: RefCell<Alerts>,
    /// Webhook and mail.
    channels: Channels,
    /// True while a test of the channels is in progress.
    is_testing: Cell<bool>,
    /// False while the daemon starts: volumes that come into service during the start are not events.
    is_serving: Cell<bool>,
}

/// Guard of a requested change: while it lives, samples do not report the change as an event of its own.
pub struct ChangeInProgress<'a> {
    journal: &'a Journal,
    scope: ChangeScope,
}

impl Drop for ChangeInProgress<'_> {
    fn drop(&mut self) {
        self.journal.tracker.borrow_mut().end_change(&self.scope);
    }
}

impl Journal {
    /// Opens the event log in the state directory, and records the start.
    pub fn open(state: &Path, channels: ChannelsConfig) -> Journal {
        let channels = Channels::start(channels, |key, error| {
            log::error!(target: EVENTS, "[alerts] {key}: its thread cannot be started: {error}");
        });
        let events = Events::open(&state.join(DIRECTORY));
        let last_event = events.last(EventKind::Daemon);
        let journal = Journal {
            events,
            tracker: RefCell::default(),
            alerts: RefCell::default(),
            channels,
            is_testing: Cell::default(),
            is_serving: Cell::default(),
        };
        // An event without a phase is from an earlier version, which did not record the end of a daemon.
        let was_running = last_event.is_some_and(|event| event.phase == Some(DaemonPhase::Running));
        let note = if was_running { "; the previous daemon was not cleanly stopped" } else { "" };
        let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
        journal.record_daemon_event(&format!("started: hotset {version}, process {pid}{note}"));
        journal
    }

    /// Records an event of the daemon itself.
    pub fn record_daemon_event(&self, text: &str) {
        self.record_phase(DaemonPhase::Running, text);
    }

    /// Records how the daemon ended, and flushes the event log.
    pub fn end(&self, text: &str) {
        self.record_phase(DaemonPhase::Ended, text);
        self.flush();
    }

    fn record_phase(&self, phase: DaemonPhase, text: &str) {
        self.events.append(NewEvent { phase: Some(phase), ..NewEvent::new(EventKind::Daemon, None, text) });
    }

    /// Records a requested change.
    pub fn record_change(&self, actor: Option<String>, subject: Option<String>, text: String) {
        self.events.append(NewEvent { kind: EventKind::Change, subject, actor, text, phase: None });
    }

    /// Ends the start, after an attempt to attach each volume. Later samples are compared with `status` to find events.
    pub fn begin_serving(&self, text: &str, status: &StatusReport) {
        self.record_daemon_event(text);
        let differences = self.tracker.borrow_mut().compare_sample(status);
        assert!(differences.is_empty(), "the first sample has no differences");
        self.is_serving.set(true);
    }

    /// False while the daemon starts.
    pub fn is_serving(&self) -> bool {
        self.is_serving.get()
    }

    /// Marks the start of a sample.
    pub fn begin_sample(&self) {
        self.tracker.borrow_mut().begin_sample();
    }

    /// Records the changes that a sample shows, updates the alerts, and sends them to the channels.
    pub fn process_sample(&self, at_unix_ms: u64, status: &StatusReport, limits: &Limits) {
        if self.is_serving.get() {
            let events = self.tracker.borrow_mut().compare_sample(status);
            events.into_iter().for_each(|event| self.events.append(event));
        }
        let changes = self.alerts.borrow_mut().evaluate(at_unix_ms, status, limits);
        changes.iter().for_each(|change| self.events.append(change.event()));
        log_changes(&changes);
        let notifications = self.alerts.borrow_mut().notifications(at_unix_ms);
        self.channels.send(at_unix_ms, &notifications);
    }

    /// Active alerts as of the last sample.
    pub fn active(&self) -> Vec<AlertReport> {
        self.alerts.borrow().active()
    }

    /// Number of thresholds of its fill that a pool has reached by its active alerts.
    pub fn pool_fill_level(&self, pool: &PoolReport) -> usize {
        self.alerts.borrow().pool_fill_level(pool)
    }

    /// Adds the health of the event log and of the alert channels to the status.
    pub fn add_health(&self, status: &mut StatusReport) {
        status.events = self.events.health();
        status.webhook = self.channels.webhook_health();
        status.mail = self.channels.mail_health();
    }

    /// `alerts ack`.
    pub fn acknowledge(&self, id: &str, actor: &str) -> Result<Answer, Failure> {
        let at_unix_ms = unix_time::now().as_millis() as u64;
        let alert = self.alerts.borrow_mut().acknowledge(id, actor, at_unix_ms).map_err(silence_failed)?;
        Ok(Answer::Alert(Box::new(alert)))
    }

    /// The silences in force with `silence` added. They take effect with [`Journal::set_silences`].
    pub fn with_silence(&self, silence: SilenceReport) -> Result<Vec<SilenceReport>, Failure> {
        self.alerts.borrow().with_silence(silence).map_err(silence_failed)
    }

    /// The silences in force without that of the alert `id`.
    pub fn without_silence(&self, id: &str) -> Result<Vec<SilenceReport>, Failure> {
        self.alerts.borrow().without_silence(id).map_err(silence_failed)
    }

    /// Puts these silences in force.
    pub fn set_silences(&self, silences: Vec<SilenceReport>) {
        self.alerts.borrow_mut().set_silences(silences);
    }

    /// `alerts test`: sends a test through each channel and waits for the answers.
    pub async fn test_channels(&self, actor: &str) -> Result<Answer, Failure> {
        let config = self.channels.config().clone();
        if config.webhook.is_none() && config.mail.is_none() {
            let text = "no alert channel is configured; set [alerts] webhook or [alerts] mail_server, and restart";
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        if self.is_testing.replace(true) {
            let text = "a test of the alert channels is in progress; repeat this when it has ended";
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        let actor = actor.to_owned();
        let at_unix_ms = unix_time::now().as_millis() as u64;
        let tested = tokio::task::spawn_blocking(move || config.test(at_unix_ms, &actor)).await;
        self.is_testing.set(false);
        tested.map(Answer::AlertsTested).map_err(|error| Failure::new(ErrorKind::Failed, error.to_string()))
    }

    /// Adds the active alerts to the status, also as text where the status has no text of its own for them.
    pub fn add_alerts(&self, status: &mut StatusReport) {
        status.active_alerts = self.active();
        status.silences = self.alerts.borrow().silences();
        status.problems_without_alert = problems_without_alert(status, &status.active_alerts);
        status.alerts.extend(causes_not_in_status(&status.active_alerts));
    }

    /// The newest events.
    pub fn newest(&self) -> Vec<EventReport> {
        self.events.newest()
    }

    /// `events`.
    pub fn page(&self, filter: &EventFilter) -> Answer {
        Answer::Events(self.events.page(filter))
    }

    /// Waits until all events are written.
    pub fn flush(&self) {
        self.events.flush();
    }

    /// The differences of a volume after a requested change, as text.
    pub fn take_differences(&self, report: &VolumeReport) -> Vec<String> {
        self.tracker.borrow_mut().take_differences(report)
    }

    /// Stores the volumes as they are after a requested change.
    pub fn set_volumes(&self, reports: &[VolumeReport]) {
        self.tracker.borrow_mut().set_volumes(reports);
    }

    /// Forgets a volume that was removed on request.
    pub fn remove_volume(&self, name: &str) {
        self.tracker.borrow_mut().remove_volume(name);
    }

    /// Marks the start of a requested change; it ends when the guard is dropped.
    pub fn begin_change(&self, scope: ChangeScope) -> ChangeInProgress<'_> {
        self.tracker.borrow_mut().begin_change(scope.clone());
        ChangeInProgress { journal: self, scope }
    }
}
