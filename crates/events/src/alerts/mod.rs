//! What is wrong now, looked for in each sample; raised and cleared so that what comes and goes does not flap.
//!
//! ```text
//! kinds.rs     the one list of kinds: how each is found, what follows from it, what to do
//! look.rs      what they are found in, and what is remembered of samples before
//! ```

pub mod kinds;
mod look;

use std::collections::BTreeMap;
use std::time::Duration;

use control::StatusReport;
use control::report::{AlertKind, AlertReport, EventKind};
use serde::Serialize;

use self::kinds::{KINDS, Kind};
use self::look::{Look, Memory};
use super::log::Note;

/// What is active at most; of a thousand volumes on one array each may have several.
const ACTIVE_MAX: usize = 1_000;
/// An alert has to be gone for so long before it is cleared.
const CALM_MS: u64 = 5_000;
/// Each time that one comes back soon after it was cleared it has to be gone for twice as long, up to this.
const CALM_MAX_MS: u64 = 300_000;
/// Soon is within this.
const SOON_MS: u64 = 600_000;

/// From when on something is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Dirty data that is older is too old.
    pub dirty_age: Duration,
    /// Flash devices are to last until this second since 1970.
    pub endurance_until: Option<u64>,
    /// Volumes with metrics of their own; none where nothing is told to Prometheus.
    pub metrics_volumes: Option<usize>,
    /// Data cores that there should be.
    pub cores: usize,
}

/// Whether an alert has come up or is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Turn {
    /// It came up.
    Raised,
    /// It is over.
    Cleared,
}

/// An alert came up or is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Which of both.
    pub state: Turn,
    /// What it is about.
    #[serde(flatten)]
    pub alert: AlertReport,
}

impl Change {
    /// The event.
    pub fn note(&self) -> Note {
        let AlertReport { kind, severity, subject, cause, .. } = &self.alert;
        let turn = match self.state {
            Turn::Raised => "raised",
            Turn::Cleared => "cleared",
        };
        Note::new(EventKind::Alert, subject.as_deref(), format!("{kind} {turn} ({severity}): {cause}"))
    }
}

/// Kind, as its place in the list, and subject.
type Key = (usize, Option<String>);

struct Held {
    alert: AlertReport,
    seen_ms: u64,
    calm_ms: u64,
}

/// What is wrong, from sample to sample.
#[derive(Default)]
pub struct Alerts {
    memory: Memory,
    active: BTreeMap<Key, Held>,
    /// What was found and has to last before it is raised: since when.
    pending: BTreeMap<Key, u64>,
    /// When it was cleared, and how long it had to be gone.
    cleared: BTreeMap<Key, (u64, u64)>,
}

impl Alerts {
    /// Looks for all kinds; what has changed.
    pub fn look(&mut self, at_unix_ms: u64, status: &StatusReport, limits: &Limits) -> Vec<Change> {
        self.memory.see(at_unix_ms, status);
        self.cleared.retain(|_, (cleared, _)| at_unix_ms.saturating_sub(*cleared) < SOON_MS);
        let mut changes = Vec::new();
        let mut pending = BTreeMap::new();
        for (at, kind) in KINDS.iter().enumerate() {
            let active = |subject: Option<&str>| self.active.contains_key(&(at, subject.map(str::to_owned)));
            let look = Look { at_unix_ms, status, limits, memory: &self.memory, is_active: &active };
            let mut found = Vec::new();
            (kind.find)(&look, &mut found);
            for (subject, cause) in found {
                let key = (at, subject);
                if let Some(held) = self.active.get_mut(&key) {
                    (held.alert.cause, held.seen_ms) = (cause, at_unix_ms);
                    continue;
                }
                let since = self.pending.get(&key).copied().unwrap_or(at_unix_ms);
                if at_unix_ms.saturating_sub(since) < kind.delay_ms {
                    pending.insert(key, since);
                } else if self.active.len() < ACTIVE_MAX {
                    changes.push(self.raise(key, kind, cause, since, at_unix_ms));
                }
            }
        }
        self.pending = pending;
        let (active, cleared) = (&mut self.active, &mut self.cleared);
        active.retain(|key, held| {
            let stays = at_unix_ms.saturating_sub(held.seen_ms) < held.calm_ms;
            if !stays {
                changes.push(Change { state: Turn::Cleared, alert: held.alert.clone() });
                if cleared.len() < ACTIVE_MAX {
                    cleared.insert(key.clone(), (at_unix_ms, held.calm_ms));
                }
            }
            stays
        });
        changes
    }

    fn raise(&mut self, key: Key, kind: &Kind, cause: String, since_unix_ms: u64, at_unix_ms: u64) -> Change {
        let calm_ms = self.cleared.remove(&key).map_or(CALM_MS, |(_, calm_ms)| (calm_ms * 2).min(CALM_MAX_MS));
        let alert = AlertReport {
            kind: kind.kind,
            severity: kind.kind.severity(),
            subject: key.1.clone(),
            since_unix_ms,
            cause,
            effect: kind.effect.to_owned(),
            remedy: kind.remedy.to_owned(),
        };
        self.active.insert(key, Held { alert: alert.clone(), seen_ms: at_unix_ms, calm_ms });
        Change { state: Turn::Raised, alert }
    }

    /// All that are active, the most severe first.
    pub fn active(&self) -> Vec<AlertReport> {
        self.active.values().map(|held| held.alert.clone()).collect()
    }
}

/// What of `active` the status does not tell in words of its own.
pub fn untold(active: &[AlertReport]) -> impl Iterator<Item = String> {
    let is_told = |kind: AlertKind| KINDS.iter().any(|known| known.kind == kind && !known.told.is_empty());
    active.iter().filter(move |alert| !is_told(alert.kind) && alert.kind != AlertKind::Other).map(|alert| match &alert
        .subject
    {
        Some(subject) => format!("{subject}: {}", alert.cause),
        None => alert.cause.clone(),
    })
}

#[cfg(test)]
mod tests;
