//! Prometheus's text format, version 0.0.4.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Media type of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Names that this project gives labels, which a volume's own do not take away.
const OWN: [&str; 8] = ["volume", "datastore", "op", "source", "cause", "state", "use", "device"];

/// The text, as it grows.
#[derive(Default)]
pub struct Lines {
    text: String,
    name: &'static str,
}

impl Lines {
    /// Begins a family; all of its samples follow.
    pub fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.name = name;
        self.line(format_args!("# HELP {name} {}", help.replace('\\', "\\\\").replace('\n', "\\n")));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    /// A sample of the family.
    pub fn sample(&mut self, labels: &Labels, value: f64) {
        self.part("", labels, value);
    }

    /// A sample of the family whose name has an end of its own.
    pub fn part(&mut self, end: &str, labels: &Labels, value: f64) {
        let name = self.name;
        self.line(format_args!("{name}{end}{} {}", labels.0, number(value)));
    }

    /// All of it.
    pub fn into_text(self) -> String {
        self.text
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{line}").expect("a text grows");
    }
}

/// Labels of a sample, as they are written.
#[derive(Clone, Default)]
pub struct Labels(String);

impl Labels {
    /// The same with one more.
    pub fn with(&self, name: &str, value: &str) -> Labels {
        let before = self.0.strip_suffix('}').map_or_else(|| "{".to_owned(), |before| format!("{before},"));
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        Labels(format!("{before}{name}=\"{value}\"}}"))
    }

    /// The same with a volume's own labels: characters that a label's name cannot have become `_`, and what would stand for one of ours, or
    /// for another of the same volume, gets a name of its own.
    pub fn with_own(self, own: &BTreeMap<String, String>) -> Labels {
        let mut taken: Vec<String> = OWN.iter().map(|name| (*name).to_owned()).chain(["le".to_owned()]).collect();
        own.iter().fold(self, |labels, (name, value)| {
            let mut name: String =
                name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect();
            // Names with two underscores in front are Prometheus's.
            let begins_well =
                name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && !name.starts_with("__");
            if !begins_well || taken.contains(&name) {
                name = format!("label_{name}");
            }
            while taken.contains(&name) {
                name.push('_');
            }
            taken.push(name.clone());
            labels.with(&name, value)
        })
    }
}

/// A value, as Prometheus reads it.
pub fn number(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "+Inf".to_owned() } else { "-Inf".to_owned() }
    } else {
        value.to_string()
    }
}
