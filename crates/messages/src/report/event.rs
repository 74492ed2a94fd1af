//! Events with their actors, and the state of the event log.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Kinds of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// A change by command, over HTTP or in the configuration.
    #[default]
    Change,
    /// A volume appeared, disappeared or changed its state without a command.
    State,
    /// A volume's policy changed without a command.
    Policy,
    /// A volume's size or quota changed without a command.
    Limit,
    /// A flash device came, went, or is in another state; a change of the devices began or ended.
    Device,
    /// An alert was raised or cleared.
    Alert,
    /// The daemon started or stopped.
    Daemon,
}

/// Phase of the daemon's life that an event reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DaemonPhase {
    /// It starts or goes on.
    Running,
    /// It stops, and no event of it follows.
    Ended,
}

impl EventKind {
    /// All of them.
    pub const ALL: [EventKind; 7] = [
        EventKind::Change,
        EventKind::State,
        EventKind::Policy,
        EventKind::Limit,
        EventKind::Device,
        EventKind::Alert,
        EventKind::Daemon,
    ];

    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            EventKind::Change => "change",
            EventKind::State => "state",
            EventKind::Policy => "policy",
            EventKind::Limit => "limit",
            EventKind::Device => "device",
            EventKind::Alert => "alert",
            EventKind::Daemon => "daemon",
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for EventKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kind = EventKind::ALL.into_iter().find(|kind| kind.name() == text);
        kind.ok_or_else(|| {
            let names = EventKind::ALL.map(Self::name).join(", ");
            format!("\"{text}\" is not an event kind; valid kinds: {names}")
        })
    }
}

/// An entry of the event log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventReport {
    /// Its number. Numbers grow, across restarts too.
    pub number: u64,
    /// When, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// Kind.
    pub kind: EventKind,
    /// The volume or device concerned, if any.
    #[schema(required)]
    pub subject: Option<String>,
    /// Actor: `user NAME`, `token NAME from ADDRESS` or `configuration reload`; null without one.
    #[schema(required)]
    pub actor: Option<String>,
    /// Description.
    pub text: String,
    /// Of an event of the daemon: whether the daemon goes on or ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<DaemonPhase>,
}

/// Events, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventsPage {
    /// The requested number of events, or all that are left.
    pub events: Vec<EventReport>,
    /// Value of `before` for the next page; null on the last page.
    #[schema(required)]
    pub next: Option<u64>,
}

/// State of the event log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventsHealth {
    /// Number of the newest event; 0 before there is one.
    pub newest: u64,
    /// Events since the start that a restart loses, because they could not be written to disk in time.
    pub lost: u64,
    /// Why nothing can be written now.
    #[schema(required)]
    pub failed: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_kind_has_the_same_name_as_text_and_json() {
        for kind in EventKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(serde_json::to_value(kind).expect("text"), kind.name());
        }
        assert!("colour".parse::<EventKind>().is_err_and(|text| text.contains("device")));
    }
}
