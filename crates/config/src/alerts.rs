//! `[alerts]`: thresholds of alerts, and their receivers. The mail keys are in [`super::mail`].

use std::path::Path;
use std::time::Duration;

use events::{Address, MailConfig, Receiver};
use messages::unix_time;
use toml::de::DeValue;

use super::mail::read_mail;
use super::problem::Source;
use super::read::{Located, Section, Setting, ValueError};

/// Default of `dirty_age`.
const DIRTY_AGE: Duration = Duration::from_secs(900);

/// Thresholds of alerts, and their receivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertsConfig {
    /// Age of dirty data above which an alert is raised.
    pub dirty_age: Duration,
    /// The date until which flash devices have to last, in seconds since 1970.
    pub endurance_until: Option<u64>,
    /// Receiver of alerts over HTTP.
    pub webhook: Option<Receiver>,
    /// Mail server and recipients of alerts.
    pub mail: Option<MailConfig>,
}

impl Default for AlertsConfig {
    fn default() -> Self {
        AlertsConfig { dirty_age: DIRTY_AGE, endurance_until: None, webhook: None, mail: None }
    }
}

/// Reads `[alerts]`; relative paths are relative to `folder`.
pub(super) fn read_alerts(section: &Section<'_>, folder: &Path, source: &mut Source<'_>) -> AlertsConfig {
    let dirty_age = section.get("dirty_age", source).map_or(DIRTY_AGE, |age| age.value);
    let endurance_until = section.get::<String>("endurance_until", source).and_then(|Located { value, span }| {
        let date = unix_time::parse(&format!("{value}T00:00:00Z"), 0).ok();
        if date.is_none() {
            source.add_problem(&span, format!("\"{value}\" is not a date"), "write it like \"2030-12-31\"");
        }
        date
    });
    let ca_file = section.get::<String>("webhook_ca", source).map(|text| folder.join(text.value));
    let address = section.get::<Address>("webhook", source);
    let webhook = address.map(|address| Receiver { address: address.value, ca_file });
    AlertsConfig { dirty_age, endurance_until, webhook, mail: read_mail(section, folder, source) }
}

impl Setting for Address {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        let text = value.as_str().ok_or(ValueError::Type("text in quotes"))?;
        text.parse().map_err(|error: String| {
            let (fault, remedy) = error.split_once("; ").expect("the error has the form \"fault; remedy\"");
            ValueError::Value(fault.to_owned(), remedy.to_owned())
        })
    }
}
