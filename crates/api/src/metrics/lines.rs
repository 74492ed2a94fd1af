//! Prometheus's text format, version 0.0.4.

use std::collections::BTreeMap;
use std::fmt::Write;

use messages::Counts;

/// Bounds of the buckets of requests to backings, in microseconds: whole octaves of nanoseconds.
pub const BACKING_BOUNDS_US: [f64; 11] = [
    16.384,
    65.536,
    262.144,
    1_048.576,
    2_097.152,
    4_194.304,
    8_388.608,
    16_777.216,
    33_554.432,
    134_217.728,
    1_073_741.824,
];
/// Bounds of the buckets of client requests: those of backings, and below 1 ms two per octave. Each is also a bucket
/// bound of the engine's histograms, so that the counts are exact.
pub const CLIENT_BOUNDS_US: [f64; 20] = [
    16.384,
    24.576,
    32.768,
    49.152,
    65.536,
    98.304,
    131.072,
    196.608,
    262.144,
    393.216,
    524.288,
    786.432,
    1_048.576,
    2_097.152,
    4_194.304,
    8_388.608,
    16_777.216,
    33_554.432,
    134_217.728,
    1_073_741.824,
];

/// Media type of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The label names that the daemon sets. A volume's own labels cannot take them.
const RESERVED_LABELS: [&str; 8] = ["volume", "datastore", "op", "source", "cause", "state", "use", "device"];

/// A writer of the format.
#[derive(Default)]
pub struct Lines {
    text: String,
    name: &'static str,
}

impl Lines {
    /// Starts a family; all its samples must follow.
    pub fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.name = name;
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n").expect("writing to a String");
    }

    /// Writes a sample of the family with the labels `labels` and `more`.
    pub fn sample(&mut self, labels: &Labels, more: &[(&str, &str)], value: f64) {
        self.write_line("", labels, more, None, value);
    }

    /// Writes a histogram's buckets with the given bounds, its sum and its count. The bounds are fixed, so that the
    /// series of a histogram never change.
    pub fn histogram(&mut self, labels: &Labels, more: &[(&str, &str)], counts: &Counts, bounds_us: &[f64]) {
        for us in bounds_us {
            self.write_line("_bucket", labels, more, Some(us / 1e6), counts.count_below(*us) as f64);
        }
        self.write_line("_bucket", labels, more, Some(f64::INFINITY), counts.all as f64);
        self.write_line("_sum", labels, more, None, counts.sum_us / 1e6);
        self.write_line("_count", labels, more, None, counts.all as f64);
    }

    /// The whole text.
    pub fn into_text(self) -> String {
        self.text
    }

    /// Writes a line. `suffix` is added to the family name; `bound` is the upper bound of a bucket. A thousand volumes
    /// have sixty thousand lines, so everything is written directly into the text, without temporary strings.
    fn write_line(&mut self, suffix: &str, labels: &Labels, more: &[(&str, &str)], bound: Option<f64>, value: f64) {
        let text = &mut self.text;
        text.push_str(self.name);
        text.push_str(suffix);
        let mut separator = '{';
        if !labels.0.is_empty() {
            text.push(separator);
            text.push_str(&labels.0);
            separator = ',';
        }
        for (name, value) in more {
            text.push(separator);
            write_label(text, name, value);
            separator = ',';
        }
        if let Some(bound) = bound {
            text.push(separator);
            text.push_str("le=\"");
            write_number(text, bound);
            text.push('"');
            separator = ',';
        }
        if separator == ',' {
            text.push('}');
        }
        text.push(' ');
        write_number(text, value);
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
        write_label(&mut self.0, name, value);
        self
    }

    /// Adds a volume's own labels. Characters that a label's name cannot have become `_`. A name that would collide
    /// with a reserved one, or with another of the same volume, is changed until it is unique.
    pub fn with_volume_labels(self, volume_labels: &BTreeMap<String, String>) -> Labels {
        let mut used_names: Vec<String> =
            RESERVED_LABELS.iter().map(|name| (*name).to_owned()).chain(["le".to_owned()]).collect();
        volume_labels.iter().fold(self, |labels, (name, value)| {
            let mut name: String =
                name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect();
            // Prometheus reserves names that begin with two underscores.
            let has_valid_start =
                name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && !name.starts_with("__");
            if !has_valid_start || used_names.contains(&name) {
                name = format!("label_{name}");
            }
            while used_names.contains(&name) {
                name.push('_');
            }
            used_names.push(name.clone());
            labels.with(&name, value)
        })
    }
}

fn write_label(text: &mut String, name: &str, value: &str) {
    text.push_str(name);
    text.push_str("=\"");
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            // The text may be shown in a terminal.
            c if messages::is_control(c) => write!(text, "\\\\u{{{:x}}}", u32::from(c)).expect("writing to a String"),
            c => text.push(c),
        }
    }
    text.push('"');
}

/// Bound up to which an `f64` holds every integer exactly.
const INTEGER_MAX: f64 = (1u64 << 53) as f64;

/// Writes a value as Prometheus reads it.
fn write_number(text: &mut String, value: f64) {
    let result = if value.is_nan() {
        text.write_str("NaN")
    } else if value.is_infinite() {
        text.write_str(if value > 0.0 { "+Inf" } else { "-Inf" })
    } else if value.fract() == 0.0 && value.abs() < INTEGER_MAX {
        // Most values are counts, and an integer is formatted several times as fast.
        write!(text, "{}", value as i64)
    } else {
        write!(text, "{value}")
    };
    result.expect("writing to a String");
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
