//! `[[datastore]]` and `[[qos]]`: datastores, and quality of service by label.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use engine::{DatastoreSpec, Threshold};
use seam::Nanos;
use toml::de::DeValue;

use super::names::read_name;
use super::problem::Source;
use super::read::{Located, Section, Setting, ValueError, split_message};
use crate::volume_qos::{BURST_BYTES, BURST_IOPS, ByteLimit, KEYS, LIMIT_BYTES, SHARES, Shares, VolumeQos};

/// Bounds of `congestion_threshold`.
const THRESHOLD_MIN: Duration = Duration::from_micros(100);
const THRESHOLD_MAX: Duration = Duration::from_secs(10);
/// Maximum of `write_cost`.
const WRITE_COST_MAX: u32 = 16;
/// Key in `match` for the volume's name.
const NAME_LABEL: &str = "name";

/// A QoS key that a table sets, with its value.
#[derive(Clone, Debug)]
pub(super) struct QosSetting {
    key: &'static str,
    value: String,
    span: Range<usize>,
}

/// One `[[qos]]`.
#[derive(Clone, Debug)]
pub struct QosRule {
    /// Patterns by label; all of them have to match.
    patterns: BTreeMap<String, String>,
    settings: Vec<QosSetting>,
    /// Its line in the file.
    line: usize,
}

/// The line number is not compared.
impl PartialEq for QosRule {
    fn eq(&self, other: &Self) -> bool {
        let values = |rule: &QosRule| -> Vec<_> {
            rule.settings.iter().map(|setting| (setting.key, setting.value.clone())).collect()
        };
        self.patterns == other.patterns && values(self) == values(other)
    }
}

impl Eq for QosRule {}

impl QosRule {
    fn matches(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        self.patterns.iter().all(|(label, pattern)| match label.as_str() {
            NAME_LABEL => matches_pattern(pattern, name),
            label => labels.get(label).is_some_and(|value| matches_pattern(pattern, value)),
        })
    }
}

/// A value that a volume has from a `[[qos]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleValue {
    /// The key.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// Line of the `[[qos]]`.
    pub line: usize,
}

/// True when `text` matches `pattern`, where `*` matches any text and `?` one character.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    // Pattern index after the last `*`, and the text index up to which that `*` matches. A mismatch lets the `*` match
    // one more character.
    let mut last_star = None;
    let (mut pattern_at, mut text_at) = (0, 0);
    while text_at < text.len() {
        match pattern.get(pattern_at) {
            Some('*') => {
                last_star = Some((pattern_at + 1, text_at));
                pattern_at += 1;
            }
            Some(c) if *c == '?' || *c == text[text_at] => (pattern_at, text_at) = (pattern_at + 1, text_at + 1),
            _ => {
                let Some((after_star, star_end)) = last_star else { return false };
                last_star = Some((after_star, star_end + 1));
                (pattern_at, text_at) = (after_star, star_end + 1);
            }
        }
    }
    pattern[pattern_at..].iter().all(|c| *c == '*')
}

/// Quality of service from rules alone.
pub(super) fn qos_by_rules(rules: &[QosRule], name: &str, labels: &BTreeMap<String, String>) -> VolumeQos {
    let mut qos = VolumeQos::default();
    for setting in rules.iter().filter(|rule| rule.matches(name, labels)).flat_map(|rule| &rule.settings) {
        qos.set(setting.key, &setting.value).expect("the rule was checked when it was read");
    }
    qos
}

/// Values that a volume gets from rules, except the keys that its own entry sets (`is_set_by_volume`).
pub(super) fn rule_values(
    rules: &[QosRule],
    name: &str,
    labels: &BTreeMap<String, String>,
    is_set_by_volume: impl Fn(&str) -> bool,
) -> Vec<RuleValue> {
    let mut last_values: BTreeMap<&str, RuleValue> = BTreeMap::new();
    for rule in rules.iter().filter(|rule| rule.matches(name, labels)) {
        for QosSetting { key, value, .. } in rule.settings.iter().filter(|setting| !is_set_by_volume(setting.key)) {
            last_values.insert(key, RuleValue { key, value: value.clone(), line: rule.line });
        }
    }
    last_values.into_values().collect()
}

/// Reads a volume's quality of service: its own keys, and for the others the last matching rule.
pub(super) fn read_qos(
    section: &Section<'_>,
    rules: &[QosRule],
    volume: (&str, &BTreeMap<String, String>),
    has_datastore: bool,
    source: &mut Source<'_>,
) -> VolumeQos {
    let (name, labels) = volume;
    let own_settings = read_settings(section, source);
    let mut qos = qos_by_rules(rules, name, labels);
    for setting in &own_settings {
        qos.set(setting.key, &setting.value).expect("the value was checked when it was read");
    }
    let own_setting = |key| own_settings.iter().find(|setting| setting.key == key);
    let sets_burst = own_setting(BURST_IOPS).is_some() || own_setting(BURST_BYTES).is_some();
    if let Some((key, fault, remedy)) = qos.fault(has_datastore, sets_burst) {
        let rule_setting = || {
            let mut matching = rules.iter().filter(|rule| rule.matches(name, labels)).flat_map(|rule| &rule.settings);
            matching.rfind(|setting| setting.key == key)
        };
        let (fault, setting) = match own_setting(key) {
            Some(setting) => (fault, Some(setting)),
            None => (format!("volume \"{name}\" has {fault}"), rule_setting()),
        };
        source.add_problem(setting.map_or(&section.span, |setting| &setting.span), fault, remedy);
    }
    qos
}

fn read_settings(section: &Section<'_>, source: &mut Source<'_>) -> Vec<QosSetting> {
    let mut settings = Vec::new();
    for key in KEYS {
        let read = match key {
            SHARES => section.get::<Shares>(key, source).map(|Located { value, span }| (value.to_string(), span)),
            LIMIT_BYTES | BURST_BYTES => {
                section.get::<ByteLimit>(key, source).map(|Located { value, span }| (value.to_string(), span))
            }
            _ => section.get::<u32>(key, source).map(|Located { value, span }| (value.to_string(), span)),
        };
        settings.extend(read.map(|(value, span)| QosSetting { key, value, span }));
    }
    settings
}

/// Reads the `[[qos]]` tables.
pub(super) fn read_rules(sections: &[Section<'_>], source: &mut Source<'_>) -> Vec<QosRule> {
    let mut rules = Vec::new();
    for section in sections {
        let patterns = section.require::<BTreeMap<String, String>>("match", source);
        let settings = read_settings(section, source);
        if let Some(Located { span, .. }) = patterns.as_ref().filter(|patterns| patterns.value.is_empty()) {
            let remedy = "specify a label, or write match = { name = \"*\" } for all volumes";
            source.add_problem(span, "an empty match selects no volume", remedy);
        }
        if KEYS.iter().all(|key| !section.has(key)) {
            source.add_problem(&section.span, "this [[qos]] sets no key", format!("add one of {}", KEYS.join(", ")));
        }
        let mut rule_qos = VolumeQos::default();
        for setting in &settings {
            rule_qos.set(setting.key, &setting.value).expect("the value was checked when it was read");
        }
        // Whether there is a datastore is checked for each volume.
        if let Some((key, fault, remedy)) = rule_qos.fault(true, true) {
            let setting = settings.iter().find(|setting| setting.key == key);
            source.add_problem(setting.map_or(&section.span, |setting| &setting.span), fault, remedy);
        }
        let line = source.line_of(section.span.start);
        rules.extend(patterns.map(|patterns| QosRule { patterns: patterns.value, settings, line }));
    }
    rules
}

/// Reads the `[[datastore]]` tables.
pub(super) fn read_datastores(sections: &[Section<'_>], source: &mut Source<'_>) -> Vec<DatastoreSpec> {
    let (mut names, mut datastores) = (Vec::new(), Vec::new());
    for section in sections {
        let name = read_name(section, &names, source);
        let threshold = section.get::<Threshold>("congestion_threshold", source);
        let write_cost = section.get::<u32>("write_cost", source).map_or(1, |Located { value, span }| {
            if !(1..=WRITE_COST_MAX).contains(&value) {
                let remedy = "specify 1 without RAID, 2 for RAID 1 and 10, 4 for RAID 5, 6 for RAID 6; at most 16";
                source.add_problem(&span, format!("write_cost = {value} is out of range"), remedy);
            }
            value
        });
        if let Some(name) = name {
            let threshold = threshold.map_or(Threshold::Auto, |threshold| threshold.value);
            datastores.push(DatastoreSpec { name: name.value.clone(), threshold, write_cost });
            names.push(name);
        }
    }
    datastores
}

impl Setting for Threshold {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        let text = value.as_str().ok_or(ValueError::Type("\"auto\", or a time with its unit, in quotes"))?;
        if text == "auto" {
            return Ok(Threshold::Auto);
        }
        let time = units::parse_time(text).map_err(|error| split_message(&error))?;
        if !(THRESHOLD_MIN..=THRESHOLD_MAX).contains(&time) {
            let fault = format!("\"{text}\" is not a valid congestion threshold");
            return Err(ValueError::Value(fault, "specify 100us to 10s, or \"auto\"".to_owned()));
        }
        Ok(Threshold::Latency(Nanos(u64::try_from(time.as_nanos()).expect("ten seconds at most"))))
    }
}

impl Setting for Shares {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        let text = match value {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(_) => u32::read(value)?.to_string(),
            _ => return Err(ValueError::Type("\"low\", \"normal\", \"high\" or a number")),
        };
        text.parse().map_err(|error: String| split_message(&error))
    }
}

impl Setting for ByteLimit {
    fn read(value: &DeValue<'_>) -> Result<Self, ValueError> {
        let text = value.as_str().ok_or(ValueError::Type("a size with its unit, in quotes"))?;
        text.parse().map_err(|error: String| split_message(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_matches_any_text_and_question_mark_one_character() {
        for (pattern, text) in
            [("", ""), ("*", ""), ("*", "x"), ("sql*", "sql"), ("s?l*", "sql01"), ("*a*b?", "xaxaby"), ("é", "é")]
        {
            assert!(matches_pattern(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("", "x"), ("?", ""), ("sql", "sql1"), ("*a", "ab"), ("a*a", "a"), ("SQL*", "sql")] {
            assert!(!matches_pattern(pattern, text), "{pattern} {text}");
        }
    }
}
