//! `[alerts]`: from when on something is wrong, and who is told.

use std::path::Path;
use std::time::Duration;

use control::moment;
use events::{Address, Receiver};
use toml::de::DeValue;

use super::problem::Source;
use super::read::{At, Section, Setting, Wrong};

/// Age of dirty data where nothing is said.
const DIRTY_AGE: Duration = Duration::from_secs(900);

/// From when on something is wrong, and who is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertsConfig {
    /// Dirty data that is older is too old.
    pub dirty_age: Duration,
    /// Flash devices are to last until this second since 1970.
    pub endurance_until: Option<u64>,
    /// Who is told.
    pub webhook: Option<Receiver>,
}

impl Default for AlertsConfig {
    fn default() -> Self {
        AlertsConfig { dirty_age: DIRTY_AGE, endurance_until: None, webhook: None }
    }
}

pub(super) fn read_alerts(section: &Section<'_>, folder: &Path, source: &mut Source<'_>) -> AlertsConfig {
    let dirty_age = section.get("dirty_age", source).map_or(DIRTY_AGE, |age| age.value);
    let endurance_until = section.get::<String>("endurance_until", source).and_then(|At { value, span }| {
        let date = moment::parse(&format!("{value}T00:00:00Z"), 0).ok();
        if date.is_none() {
            source.problem(&span, format!("\"{value}\" is no date"), "write it like \"2030-12-31\"");
        }
        date
    });
    let authorities = section.get::<String>("webhook_ca", source).map(|text| folder.join(text.value));
    let address = section.get::<Address>("webhook", source);
    let webhook = address.map(|address| Receiver { address: address.value, authorities });
    AlertsConfig { dirty_age, endurance_until, webhook }
}

impl Setting for Address {
    fn read(value: &DeValue<'_>) -> Result<Self, Wrong> {
        let text = value.as_str().ok_or(Wrong::Type("text in quotes"))?;
        text.parse().map_err(|error: String| {
            let (what, remedy) = error.split_once("; ").expect("what is wrong, and what to do");
            Wrong::Value(what.to_owned(), remedy.to_owned())
        })
    }
}
