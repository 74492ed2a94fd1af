//! `[log]`: levels and format of the daemon's log.

use logging::{Filter, FilterError, Format, LevelFilter, SUBSYSTEMS};
use toml::de::DeValue;

use super::nearest::nearest;
use super::problem::Source;
use super::read::{Located, Section, Setting, ValueError};

/// The daemon's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogConfig {
    /// Levels by subsystem.
    pub filter: Filter,
    /// Its format.
    pub format: Format,
}

/// Reads `[log]`.
pub(super) fn read_log(section: &Section<'_>, source: &mut Source<'_>) -> LogConfig {
    let level = section.get("level", source).map_or(LevelFilter::INFO, |level| level.value);
    let mut filter = Filter::new(level);
    if let Some(Located { value, span }) = section.get::<String>("filter", source) {
        match filter.clone().with(&value) {
            Ok(changed) => filter = changed,
            Err(error) => source.add_problem(&span, error.to_string(), remedy(&error)),
        }
    }
    let format = section.get("format", source).map_or(Format::default(), |format| format.value);
    LogConfig { filter, format }
}

fn remedy(error: &FilterError) -> String {
    let known = || SUBSYSTEMS.iter().map(|(name, _)| *name);
    match error {
        FilterError::Syntax(..) => "write it like \"flash=debug,iscsi=warn\"".to_owned(),
        FilterError::Subsystem(wrong) => match nearest(wrong, known()) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("known here: {}", known().collect::<Vec<_>>().join(", ")),
        },
    }
}

impl Setting for LevelFilter {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        match value.as_str() {
            Some("error") => Ok(LevelFilter::ERROR),
            Some("warn") => Ok(LevelFilter::WARN),
            Some("info") => Ok(LevelFilter::INFO),
            Some("debug") => Ok(LevelFilter::DEBUG),
            _ => Err(ValueError::Type("\"error\", \"warn\", \"info\" or \"debug\"")),
        }
    }
}

impl Setting for Format {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        match value.as_str() {
            Some("text") => Ok(Format::Text),
            Some("json") => Ok(Format::Json),
            _ => Err(ValueError::Type("\"text\" or \"json\"")),
        }
    }
}
