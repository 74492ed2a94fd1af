//! Silences and acknowledgements of alerts by administrators, by the identifier of the alert.

use std::collections::BTreeMap;

use messages::is_control;
use messages::report::{AlertAcknowledgement, AlertKind, SilenceReport};

/// Maximum number of silences in force.
pub const SILENCES_MAX: usize = 256;
/// Longest silence, in seconds: 30 days.
pub const SILENCE_SECONDS_MAX: u64 = 30 * 24 * 3600;
/// Maximum length of a reason, in bytes.
const REASON_BYTES_MAX: usize = 200;
/// Maximum length of an identifier, in bytes: the longest path of a device fits.
const ID_BYTES_MAX: usize = 4_352;

/// An error of acknowledging or silencing an alert. The text names the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SilenceError {
    /// The request is invalid.
    Invalid(String),
    /// There is no such alert or silence.
    NotFound(String),
    /// The present state does not permit it.
    Conflict(String),
}

/// The identifier of an alert: its kind, and after a colon its subject.
pub fn alert_id(kind: AlertKind, subject: Option<&str>) -> String {
    match subject {
        Some(subject) => format!("{kind}:{subject}"),
        None => kind.to_string(),
    }
}

/// Silences and acknowledgements in force, by the identifiers of their alerts.
#[derive(Default)]
pub struct Silences {
    silences: BTreeMap<String, SilenceReport>,
    /// Of active alerts only, so their number is bounded.
    acknowledged: BTreeMap<String, AlertAcknowledgement>,
}

impl Silences {
    /// All silences, by identifier.
    pub fn all(&self) -> Vec<SilenceReport> {
        self.silences.values().cloned().collect()
    }

    /// The silence of an alert.
    pub fn silence(&self, id: &str) -> Option<&SilenceReport> {
        self.silences.get(id)
    }

    /// The acknowledgement of an alert.
    pub fn acknowledgement(&self, id: &str) -> Option<&AlertAcknowledgement> {
        self.acknowledged.get(id)
    }

    /// Puts these silences in force instead of the present ones; at most [`SILENCES_MAX`].
    pub fn set(&mut self, silences: Vec<SilenceReport>) {
        let bounded = silences.into_iter().take(SILENCES_MAX);
        self.silences = bounded.map(|silence| (silence.id.clone(), silence)).collect();
    }

    /// The silences with `silence` added, or replaced if its alert is silenced already.
    pub fn with(&self, silence: SilenceReport) -> Result<Vec<SilenceReport>, SilenceError> {
        check_id(&silence.id)?;
        let reason = silence.reason.as_deref().unwrap_or_default();
        if reason.len() > REASON_BYTES_MAX || reason.chars().any(is_control) {
            let text = format!("the reason is too long or has control characters; use up to {REASON_BYTES_MAX} bytes");
            return Err(SilenceError::Invalid(text));
        }
        let mut silences = self.silences.clone();
        silences.insert(silence.id.clone(), silence);
        if silences.len() > SILENCES_MAX {
            let text =
                format!("{SILENCES_MAX} silences are in force, the maximum; end one with `hotset alerts unsilence`");
            return Err(SilenceError::Conflict(text));
        }
        Ok(silences.into_values().collect())
    }

    /// The silences without that of the alert `id`.
    pub fn without(&self, id: &str) -> Result<Vec<SilenceReport>, SilenceError> {
        let mut silences = self.silences.clone();
        match silences.remove(id) {
            Some(_) => Ok(silences.into_values().collect()),
            None => {
                let text = format!("\"{}\" is not silenced; `hotset alerts list` shows the silences", display_id(id));
                Err(SilenceError::NotFound(text))
            }
        }
    }

    /// Ends the silences whose time is over.
    pub fn expire(&mut self, at_unix_ms: u64) {
        self.silences.retain(|_, silence| silence.until_unix_ms > at_unix_ms);
    }

    /// Marks an active alert as acknowledged. A repeated acknowledgement replaces the former one.
    pub fn acknowledge(&mut self, id: &str, acknowledgement: AlertAcknowledgement) {
        self.acknowledged.insert(id.to_owned(), acknowledgement);
    }

    /// Forgets the acknowledgement of an alert that has ended.
    pub fn remove_acknowledgement(&mut self, id: &str) {
        self.acknowledged.remove(id);
    }
}

/// Checks that an alert may have this identifier. It need not be active: silences may begin before maintenance does.
fn check_id(id: &str) -> Result<(), SilenceError> {
    let (kind, subject) = id.split_once(':').map_or((id, None), |(kind, subject)| (kind, Some(subject)));
    let is_kind = AlertKind::ALL.iter().any(|known| known.name() == kind);
    let is_subject = subject.is_none_or(|subject| !subject.is_empty() && !subject.chars().any(is_control));
    if id.len() <= ID_BYTES_MAX && is_kind && is_subject {
        return Ok(());
    }
    let text = format!(
        "\"{}\" is not the identifier of an alert; write KIND or KIND:SUBJECT as `hotset alerts list` shows it, like \
         backing-slow:web01",
        display_id(id)
    );
    Err(SilenceError::Invalid(text))
}

/// The beginning of an identifier, for messages.
pub fn display_id(id: &str) -> String {
    messages::plain(id).chars().take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn silence(id: &str) -> SilenceReport {
        SilenceReport { id: id.to_owned(), until_unix_ms: 1_000, ..SilenceReport::default() }
    }

    fn silences(ids: &[&str]) -> Silences {
        let mut silences = Silences::default();
        silences.set(ids.iter().map(|id| silence(id)).collect());
        silences
    }

    #[test]
    fn silence_names_a_known_kind_and_any_subject() {
        for valid in ["single-copy", "backing-slow:web01", "flash-degraded:/dev/x:y", "backing-slow:v é"] {
            assert!(Silences::default().with(silence(valid)).is_ok(), "{valid}");
        }
        let long = format!("backing-slow:{}", "x".repeat(ID_BYTES_MAX));
        for wrong in ["", "slow", "slow:web01", "backing-slow:", "backing-slow:a\u{1b}", ":web01", &long] {
            let error = Silences::default().with(silence(wrong)).expect_err("it is refused");
            assert!(matches!(&error, SilenceError::Invalid(text) if text.len() < 500), "{error:?}");
        }
    }

    #[test]
    fn reason_is_one_short_line() {
        let with = |reason: &str| {
            let silence = SilenceReport { reason: Some(reason.to_owned()), ..silence("single-copy") };
            Silences::default().with(silence).is_ok()
        };
        assert!(with("disk replacement") && !with("two\nlines") && !with(&"x".repeat(REASON_BYTES_MAX + 1)));
    }

    #[test]
    fn number_of_silences_is_bounded() {
        let ids: Vec<_> = (0..SILENCES_MAX).map(|number| format!("backing-slow:v{number}")).collect();
        let full = silences(&ids.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(matches!(full.with(silence("backing-slow:other")), Err(SilenceError::Conflict(_))));
        // A silence that exists can be replaced.
        assert_eq!(full.with(silence("backing-slow:v7")).map(|all| all.len()), Ok(SILENCES_MAX));
        let beyond = (0..2 * SILENCES_MAX).map(|number| silence(&format!("backing-slow:v{number}"))).collect();
        let mut bounded = Silences::default();
        bounded.set(beyond);
        assert_eq!(bounded.all().len(), SILENCES_MAX);
    }

    #[test]
    fn silence_ends_by_command_and_by_time() {
        let mut two = silences(&["single-copy", "no-copy"]);
        assert_eq!(two.without("single-copy").map(|all| all.len()), Ok(1));
        assert!(matches!(two.without("endurance"), Err(SilenceError::NotFound(_))));
        two.expire(999);
        assert_eq!(two.all().len(), 2);
        two.expire(1_000);
        assert_eq!(two.all().len(), 0);
    }
}
