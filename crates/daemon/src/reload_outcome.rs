//! Outcomes of a reload of the configuration.

use std::fmt;

use messages::{Answer, Failure};

/// The outcome of one change of a reload: applied, not applied, or failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReloadOutcome {
    /// A change of the daemon or of a datastore.
    General(String),
    /// A change of a volume: its name, and the outcome as text.
    Volume(String, String),
    /// A failed change of a volume: its name, and the failure, whose message names the volume.
    Failed(String, Failure),
}

impl ReloadOutcome {
    /// The volume concerned, if any.
    pub fn subject(&self) -> Option<String> {
        match self {
            ReloadOutcome::General(_) => None,
            ReloadOutcome::Volume(name, _) | ReloadOutcome::Failed(name, _) => Some(name.clone()),
        }
    }

    /// The text of its event. The volume is the event's subject, so the text does not name it.
    pub fn event_text(&self) -> String {
        match self {
            ReloadOutcome::General(text) | ReloadOutcome::Volume(_, text) => text.clone(),
            ReloadOutcome::Failed(_, failure) => failure.message.clone(),
        }
    }
}

/// The message for replies and for the log.
impl fmt::Display for ReloadOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReloadOutcome::General(text) => f.write_str(text),
            ReloadOutcome::Volume(name, text) => write!(f, "volume {name}: {text}"),
            ReloadOutcome::Failed(_, failure) => f.write_str(&failure.message),
        }
    }
}

/// The reply to a reload request.
pub fn reload_answer(outcomes: Vec<ReloadOutcome>) -> Answer {
    Answer::Said(outcomes.iter().map(ReloadOutcome::to_string).collect())
}
