//! The filter: a level for each subsystem.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

use super::SUBSYSTEMS;

/// A level for each subsystem. Log entries of libraries are never written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter(Vec<(&'static str, LevelFilter)>);

/// Error of parsing a filter.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// It cannot be parsed.
    #[error("\"{0}\" is no filter of the log: {1}")]
    Syntax(String, String),
    /// It names a subsystem that does not exist.
    #[error("the log has no subsystem \"{0}\"")]
    Subsystem(String),
}

impl Filter {
    /// The same level for all subsystems.
    pub fn new(level: LevelFilter) -> Filter {
        Filter(SUBSYSTEMS.iter().map(|(name, _)| (*name, level)).collect())
    }

    /// Changes levels as `RUST_LOG` does: `flash=debug,iscsi=warn`; a level alone is for all other subsystems.
    pub fn with(mut self, directives: &str) -> Result<Filter, FilterError> {
        let invalid = |reason: &str| FilterError::Syntax(directives.to_owned(), reason.to_owned());
        for directive in directives.split(',').map(str::trim) {
            if directive.is_empty() || directive.ends_with('=') || directive.contains(['[', '{']) {
                return Err(invalid("each part is a subsystem and a level"));
            }
        }
        let directives: Vec<&str> = directives.split(',').map(str::trim).collect();
        let targets: Targets = directives.join(",").parse().map_err(|error| invalid(&format!("{error}")))?;
        if let Some(level) = targets.default_level() {
            self = Filter::new(level);
        }
        for (name, level) in targets.iter() {
            let known = self.0.iter_mut().find(|(known, _)| *known == name);
            known.ok_or_else(|| FilterError::Subsystem(name.to_owned()))?.1 = level;
        }
        Ok(self)
    }

    pub(crate) fn targets(&self) -> Targets {
        Targets::new().with_targets(self.0.iter().copied())
    }
}

impl Default for Filter {
    fn default() -> Self {
        Filter::new(LevelFilter::INFO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(filter: &Filter, subsystem: &str) -> LevelFilter {
        filter.0.iter().find(|(name, _)| *name == subsystem).expect("it is known").1
    }

    #[test]
    fn directives_change_the_levels_of_their_subsystems() {
        let filter = Filter::default().with("flash=debug, iscsi=off").expect("it is a filter");
        let levels = ["flash", "iscsi", "nbd"].map(|name| level(&filter, name));
        assert_eq!(levels, [LevelFilter::DEBUG, LevelFilter::OFF, LevelFilter::INFO]);
        let filter = Filter::default().with("flash=info,error").expect("it is a filter");
        assert_eq!((level(&filter, "flash"), level(&filter, "nbd")), (LevelFilter::INFO, LevelFilter::ERROR));
    }

    #[test]
    fn bad_filter_is_refused_with_its_reason() {
        let error_of = |text| Filter::default().with(text).expect_err(text);
        assert_eq!(error_of("flsh=debug"), FilterError::Subsystem("flsh".to_owned()));
        assert_eq!(error_of("tokio"), FilterError::Subsystem("tokio".to_owned()));
        for text in ["", ",", "flash=", "flash=lots", "flash=debug,", "flash[{volume}]=debug", "flash==debug"] {
            assert!(matches!(error_of(text), FilterError::Syntax(..)), "{text}");
        }
        assert!(error_of("flash=lots").to_string().contains("debug"), "{}", error_of("flash=lots"));
    }

    #[test]
    fn documentation_lists_the_subsystems() {
        let page = include_str!("../../../docs/admin/log.md");
        for (name, doc) in SUBSYSTEMS {
            let row = format!("| `{name}` | {doc} |");
            assert!(page.contains(&row), "docs/admin/log.md lacks: {row}");
        }
    }
}
