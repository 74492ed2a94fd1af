//! What a reload of the configuration did, change by change.

use std::fmt;

use messages::{Answer, Failure};

/// A change that a reload applied or did not apply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReloadOutcome {
    /// Of the daemon or of a datastore.
    General(String),
    /// Of the volume of that name.
    Volume(String, String),
    /// The failure of a change of the volume of that name; it names the volume itself.
    Failed(String, Failure),
}

impl ReloadOutcome {
    /// The volume that it concerns, if it concerns one.
    pub fn subject(&self) -> Option<String> {
        match self {
            ReloadOutcome::General(_) => None,
            ReloadOutcome::Volume(name, _) | ReloadOutcome::Failed(name, _) => Some(name.clone()),
        }
    }

    /// The text of its event, which has the volume as its subject.
    pub fn event(&self) -> String {
        match self {
            ReloadOutcome::General(text) | ReloadOutcome::Volume(_, text) => text.clone(),
            ReloadOutcome::Failed(_, failure) => failure.message.clone(),
        }
    }
}

/// The sentence in an answer or in the log.
impl fmt::Display for ReloadOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReloadOutcome::General(text) => f.write_str(text),
            ReloadOutcome::Volume(name, text) => write!(f, "volume {name}: {text}"),
            ReloadOutcome::Failed(_, failure) => f.write_str(&failure.message),
        }
    }
}

/// The answer to a request for a reload.
pub fn reload_answer(outcomes: Vec<ReloadOutcome>) -> Answer {
    Answer::Said(outcomes.iter().map(ReloadOutcome::to_string).collect())
}
