//! Alerts: problems found in each status sample, raised and cleared with delays so that they do not flap.
//!
//! ```text
//! kinds.rs     the rules, one for each kind: its condition, its effect, its remedy
//! context.rs   the input of the rules: the sample, the limits, and state kept from earlier samples
//! limits.rs    their thresholds
//! silences.rs  acknowledged and silenced alerts
//! ```

mod context;
pub mod kinds;
mod limits;
mod silences;

use std::collections::BTreeMap;

use messages::StatusReport;
use messages::report::{AlertAcknowledgement, AlertKind, AlertReport, EventKind, PoolReport, SilenceReport};
use serde::Serialize;

use self::context::{AlertContext, ErrorWindows};
use self::kinds::{AlertRule, POOL_FILL_ALERTS, RULES, pool_subject};
pub use self::limits::Limits;
pub use self::silences::{SILENCE_SECONDS_MAX, SilenceError};
use self::silences::{Silences, alert_id, display_id};

use super::log::NewEvent;

/// Maximum number of active alerts. A thousand volumes on one array may each have several.
const ACTIVE_MAX: usize = 1_000;
/// Time without the cause after which an alert is cleared.
const CLEAR_DELAY_MS: u64 = 5_000;
/// Maximum clear delay. The delay doubles each time an alert recurs within [`RECURRENCE_MS`].
const CLEAR_DELAY_MAX_MS: u64 = 300_000;
/// Time after its clearing within which an alert counts as returned.
const RECURRENCE_MS: u64 = 600_000;

/// The statement of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NotificationKind {
    /// The alert became active.
    Raised,
    /// The alert was cleared.
    Cleared,
    /// No alert: the notification tests a channel.
    Test,
}

/// An alert that was raised or cleared, or a test of the channels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Raised, cleared, or a test.
    pub state: NotificationKind,
    /// The alert.
    #[serde(flatten)]
    pub alert: AlertReport,
}

impl Change {
    /// The event that records the change.
    pub fn event(&self) -> NewEvent {
        NewEvent::new(EventKind::Alert, self.alert.subject.as_deref(), self.text())
    }

    /// The line of the log that records the change: the text with its subject.
    pub fn log_line(&self) -> String {
        match &self.alert.subject {
            Some(subject) => format!("alert: {subject}: {}", self.text()),
            None => format!("alert: {}", self.text()),
        }
    }

    /// The change in words. A raised alert has its effect and its remedy.
    fn text(&self) -> String {
        let AlertReport { kind, severity, cause, effect, remedy, .. } = &self.alert;
        match self.state {
            NotificationKind::Raised => {
                format!("{kind} raised ({severity}): {cause}. Effect: {effect} Remedy: {remedy}")
            }
            NotificationKind::Cleared => format!("{kind} cleared ({severity}): {cause}"),
            NotificationKind::Test => cause.clone(),
        }
    }
}

/// Index of the rule in [`RULES`], and subject.
type Key = (usize, Option<String>);

struct ActiveAlert {
    alert: AlertReport,
    last_found_ms: u64,
    clear_delay_ms: u64,
}

/// The alerts and the state that decides when they are raised and cleared.
#[derive(Default)]
pub struct Alerts {
    error_windows: ErrorWindows,
    active: BTreeMap<Key, ActiveAlert>,
    /// Problems found that have not lasted long enough to be raised, with the time of their first sample.
    pending: BTreeMap<Key, u64>,
    /// Cleared alerts, with the time of their clearing and the clear delay that they needed.
    cleared: BTreeMap<Key, (u64, u64)>,
    silences: Silences,
    /// Alerts that the channels have reported as raised and not as cleared. An entry that is no longer active is
    /// silenced.
    notified: BTreeMap<Key, AlertReport>,
}

impl Alerts {
    /// Evaluates all rules on a sample and returns the alerts that were raised or cleared.
    pub fn evaluate(&mut self, at_unix_ms: u64, status: &StatusReport, limits: &Limits) -> Vec<Change> {
        self.error_windows.add_sample(at_unix_ms, status);
        self.cleared.retain(|_, (cleared, _)| at_unix_ms.saturating_sub(*cleared) < RECURRENCE_MS);
        let mut changes = Vec::new();
        let mut pending = BTreeMap::new();
        for (index, rule) in RULES.iter().enumerate() {
            let is_active = |subject: Option<&str>| self.active.contains_key(&(index, subject.map(str::to_owned)));
            let context =
                AlertContext { at_unix_ms, status, limits, error_windows: &self.error_windows, is_active: &is_active };
            let mut problems = Vec::new();
            (rule.find_problems)(&context, &mut problems);
            for (subject, cause) in problems {
                let key = (index, subject);
                if let Some(active_alert) = self.active.get_mut(&key) {
                    (active_alert.alert.cause, active_alert.last_found_ms) = (cause, at_unix_ms);
                    continue;
                }
                let since = self.pending.get(&key).copied().unwrap_or(at_unix_ms);
                if at_unix_ms.saturating_sub(since) < rule.delay_ms {
                    pending.insert(key, since);
                } else if self.active.len() < ACTIVE_MAX {
                    changes.push(self.raise(key, rule, cause, since, at_unix_ms));
                }
            }
        }
        self.pending = pending;
        let (active, cleared) = (&mut self.active, &mut self.cleared);
        let (silences, notified) = (&mut self.silences, &mut self.notified);
        active.retain(|key, active_alert| {
            let is_active = at_unix_ms.saturating_sub(active_alert.last_found_ms) < active_alert.clear_delay_ms;
            if !is_active {
                let alert = active_alert.alert.clone();
                silences.remove_acknowledgement(&alert.id);
                if let Some(notified) = notified.get_mut(key) {
                    notified.clone_from(&alert);
                }
                changes.push(Change { state: NotificationKind::Cleared, alert });
                if cleared.len() < ACTIVE_MAX {
                    cleared.insert(key.clone(), (at_unix_ms, active_alert.clear_delay_ms));
                }
            }
            is_active
        });
        changes
    }

    fn raise(&mut self, key: Key, rule: &AlertRule, cause: String, since_unix_ms: u64, at_unix_ms: u64) -> Change {
        let clear_delay_ms = self
            .cleared
            .remove(&key)
            .map_or(CLEAR_DELAY_MS, |(_, clear_delay_ms)| (clear_delay_ms * 2).min(CLEAR_DELAY_MAX_MS));
        let alert = AlertReport {
            id: alert_id(rule.kind, key.1.as_deref()),
            kind: rule.kind,
            severity: rule.kind.severity(),
            subject: key.1.clone(),
            since_unix_ms,
            cause,
            effect: rule.effect.to_owned(),
            remedy: rule.remedy.to_owned(),
            ..AlertReport::default()
        };
        self.active.insert(key, ActiveAlert { alert: alert.clone(), last_found_ms: at_unix_ms, clear_delay_ms });
        Change { state: NotificationKind::Raised, alert }
    }

    /// The changes to report through the channels. Each alert that is not silenced is reported once as raised and once
    /// as cleared. An alert that is still active when its silence ends is reported then, unless it was acknowledged.
    pub fn notifications(&mut self, at_unix_ms: u64) -> Vec<Change> {
        self.silences.expire(at_unix_ms);
        let (silences, notified, active) = (&self.silences, &mut self.notified, &self.active);
        let mut changes = Vec::new();
        for (key, ActiveAlert { alert, .. }) in active {
            let is_reported = silences.silence(&alert.id).is_none() && silences.acknowledgement(&alert.id).is_none();
            if is_reported && !notified.contains_key(key) {
                notified.insert(key.clone(), alert.clone());
                changes.push(Change { state: NotificationKind::Raised, alert: alert.clone() });
            }
        }
        notified.retain(|key, alert| {
            let is_kept = active.contains_key(key) || silences.silence(&alert.id).is_some();
            if !is_kept {
                changes.push(Change { state: NotificationKind::Cleared, alert: alert.clone() });
            }
            is_kept
        });
        changes
    }

    /// All active alerts, the most severe first.
    pub fn active(&self) -> Vec<AlertReport> {
        self.active.values().map(|active_alert| self.annotated(&active_alert.alert)).collect()
    }

    /// The alert with its acknowledgement and its silence.
    fn annotated(&self, alert: &AlertReport) -> AlertReport {
        AlertReport {
            acknowledged: self.silences.acknowledgement(&alert.id).cloned(),
            silenced: self.silences.silence(&alert.id).cloned(),
            ..alert.clone()
        }
    }

    /// Marks an active alert as acknowledged until it ends.
    pub fn acknowledge(&mut self, id: &str, by: &str, at_unix_ms: u64) -> Result<AlertReport, SilenceError> {
        let Some(active_alert) = self.active.values().find(|active_alert| active_alert.alert.id == id) else {
            let text = format!("there is no active alert \"{}\"; `hotset alerts list` shows them", display_id(id));
            return Err(SilenceError::NotFound(text));
        };
        self.silences.acknowledge(id, AlertAcknowledgement { by: by.to_owned(), at_unix_ms });
        Ok(self.annotated(&active_alert.alert))
    }

    /// Number of thresholds of [`PoolReport::FILL_THRESHOLDS_PERCENT`] that a pool has reached by its active alerts.
    pub fn pool_fill_level(&self, pool: &PoolReport) -> usize {
        let subject = Some(pool_subject(pool));
        let is_active = |kind: &AlertKind| {
            self.active.iter().any(|((_, active_subject), active_alert)| {
                active_alert.alert.kind == *kind && *active_subject == subject
            })
        };
        POOL_FILL_ALERTS.iter().rposition(is_active).map_or(0, |highest| highest + 1)
    }

    /// The silences in force.
    pub fn silences(&self) -> Vec<SilenceReport> {
        self.silences.all()
    }

    /// The silences in force with `silence` added, to be recorded before [`Alerts::set_silences`].
    pub fn with_silence(&self, silence: SilenceReport) -> Result<Vec<SilenceReport>, SilenceError> {
        self.silences.with(silence)
    }

    /// The silences in force without that of the alert `id`.
    pub fn without_silence(&self, id: &str) -> Result<Vec<SilenceReport>, SilenceError> {
        self.silences.without(id)
    }

    /// Puts these silences in force.
    pub fn set_silences(&mut self, silences: Vec<SilenceReport>) {
        self.silences.set(silences);
    }
}

/// The problems in `status` for which no alert in `active` exists yet, each with its subject: an alert is raised in the
/// next sample, or after its delay.
pub fn problems_without_alert(status: &StatusReport, active: &[AlertReport]) -> Vec<String> {
    let is_raised = |kind: AlertKind, subject: Option<&str>| {
        active.iter().any(|alert| alert.kind == kind && (subject.is_none() || alert.subject.as_deref() == subject))
    };
    let mut problems = Vec::new();
    for volume in &status.volumes {
        let unraised = volume.problems.iter().filter(|problem| !is_raised(problem.kind, Some(&volume.name)));
        // The alert of a silent core has the core as its subject, so an alert of any core covers the volume's problem.
        let unraised =
            unraised.filter(|problem| problem.kind != AlertKind::CoreSilent || !is_raised(problem.kind, None));
        problems.extend(unraised.map(|problem| format!("{}: {problem}", volume.name)));
    }
    let flash_problems = status.flash.iter().flat_map(|flash| &flash.problems);
    problems
        .extend(flash_problems.filter(|problem| !is_raised(problem.kind, None)).map(|problem| problem.text.clone()));
    problems
}

/// Causes of the alerts in `active` that the status itself does not state.
pub fn causes_not_in_status(active: &[AlertReport]) -> impl Iterator<Item = String> {
    let is_in_status = |kind: AlertKind| RULES.iter().any(|rule| rule.kind == kind && rule.is_in_status);
    active.iter().filter(move |alert| !is_in_status(alert.kind) && alert.kind != AlertKind::Other).map(|alert| {
        match &alert.subject {
            Some(subject) => format!("{subject}: {}", alert.cause),
            None => alert.cause.clone(),
        }
    })
}

#[cfg(test)]
mod tests;
