//! Prometheus's text format, version 0.0.4.

use std::collections::BTreeMap;
use std::fmt::Write;

use messages::Counts;

/// Media type of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Label names of ours. A volume's own labels cannot take them.
const OWN: [&str; 8] = ["volume", "datastore", "op", "source", "cause", "state", "use", "device"];

/// A writer of the format.
#[derive(Default)]
pub struct Lines {
    text: String,
    name: &'static str,
}

impl Lines {
    /// Begins a family; all its samples must follow.
    pub fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.name = name;
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n").expect("a text grows");
    }

    /// Writes a sample of the family with the labels `labels` and `more`.
    pub fn sample(&mut self, labels: &Labels, more: &[(&str, &str)], value: f64) {
        self.part("", labels, more, None, value);
    }

    /// Writes a histogram's buckets, sum and count.
    pub fn histogram(&mut self, labels: &Labels, more: &[(&str, &str)], counts: &Counts) {
        for below in &counts.below {
            self.part("_bucket", labels, more, Some(below.us / 1e6), below.count as f64);
        }
        self.part("_bucket", labels, more, Some(f64::INFINITY), counts.all as f64);
        self.part("_sum", labels, more, None, counts.sum_us / 1e6);
        self.part("_count", labels, more, None, counts.all as f64);
    }

    /// The whole text.
    pub fn into_text(self) -> String {
        self.text
    }

    /// Writes a line. `end` is the suffix of the family's name, `below` a bucket's bound. A thousand volumes have sixty
    /// thousand lines, so all parts go straight into the text, without temporary strings.
    fn part(&mut self, end: &str, labels: &Labels, more: &[(&str, &str)], below: Option<f64>, value: f64) {
        let text = &mut self.text;
        text.push_str(self.name);
        text.push_str(end);
        let mut before = '{';
        if !labels.0.is_empty() {
            text.push(before);
            text.push_str(&labels.0);
            before = ',';
        }
        for (name, value) in more {
            text.push(before);
            label(text, name, value);
            before = ',';
        }
        if let Some(below) = below {
            text.push(before);
            text.push_str("le=\"");
            number(text, below);
            text.push('"');
            before = ',';
        }
        if before == ',' {
            text.push('}');
        }
        text.push(' ');
        number(text, value);
        text.push('\n');
    }
}

/// Labels that several samples share, in the format's text without the braces.
#[derive(Default)]
pub struct Labels(String);

impl Labels {
    /// Adds a label.
    pub fn with(mut self, name: &str, value: &str) -> Labels {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        label(&mut self.0, name, value);
        self
    }

    /// Adds a volume's own labels. Characters that a label's name cannot have become `_`. A name that would collide
    /// with one of ours, or with another of the same volume, is changed until it is unique.
    pub fn with_own(self, own: &BTreeMap<String, String>) -> Labels {
        let mut taken: Vec<String> = OWN.iter().map(|name| (*name).to_owned()).chain(["le".to_owned()]).collect();
        own.iter().fold(self, |labels, (name, value)| {
            let mut name: String =
                name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect();
            // Prometheus reserves names that begin with two underscores.
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

fn label(text: &mut String, name: &str, value: &str) {
    text.push_str(name);
    text.push_str("=\"");
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            // The text may be shown in a terminal.
            c if messages::is_control(c) => write!(text, "\\\\u{{{:x}}}", u32::from(c)).expect("a text grows"),
            c => text.push(c),
        }
    }
    text.push('"');
}

/// Bound up to which an `f64` holds every integer exactly.
const WHOLE_MAX: f64 = (1u64 << 53) as f64;

/// Writes a value as Prometheus reads it.
fn number(text: &mut String, value: f64) {
    let written = if value.is_nan() {
        text.write_str("NaN")
    } else if value.is_infinite() {
        text.write_str(if value > 0.0 { "+Inf" } else { "-Inf" })
    } else if value.fract() == 0.0 && value.abs() < WHOLE_MAX {
        // Most values are counts, and an integer is formatted several times as fast.
        write!(text, "{}", value as i64)
    } else {
        write!(text, "{value}")
    };
    written.expect("a text grows");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_in_a_label_are_escaped() {
        let mut lines = Lines::default();
        let labels = Labels::default().with("initiator", "a\u{1b}[2J\"\\\n\u{202e}ü");
        lines.sample(&labels, &[], 1.0);
        assert_eq!(lines.into_text(), "{initiator=\"a\\\\u{1b}[2J\\\"\\\\\\n\\\\u{202e}ü\"} 1\n");
    }
}
