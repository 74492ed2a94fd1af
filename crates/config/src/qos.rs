//! `[[datastore]]` and `[[qos]]`: datastores, and quality of service by label.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use engine::{DatastoreSpec, Threshold};
use seam::Nanos;
use toml::de::DeValue;

use super::names::read_name;
use super::problem::Source;
use super::read::{At, Section, Setting, Wrong, split_advice};
use crate::volume_qos::{BURST_BYTES, BURST_IOPS, Flow, KEYS, LIMIT_BYTES, SHARES, Shares, VolumeQos};

const THRESHOLD_MIN: Duration = Duration::from_micros(100);
const THRESHOLD_MAX: Duration = Duration::from_secs(10);
const WRITE_COST_MAX: u32 = 16;
/// Key in `match` for the volume's name.
const NAME: &str = "name";

/// A key of quality of service that a table sets.
#[derive(Clone, Debug)]
pub(super) struct Given {
    key: &'static str,
    value: String,
    span: Range<usize>,
}

/// One `[[qos]]`.
#[derive(Clone, Debug)]
pub struct QosRule {
    /// Patterns by label; all of them have to match.
    wanted: BTreeMap<String, String>,
    given: Vec<Given>,
    /// Its line in the file.
    line: usize,
}

/// The line number is not compared.
impl PartialEq for QosRule {
    fn eq(&self, other: &Self) -> bool {
        let said =
            |rule: &QosRule| -> Vec<_> { rule.given.iter().map(|given| (given.key, given.value.clone())).collect() };
        self.wanted == other.wanted && said(self) == said(other)
    }
}

impl Eq for QosRule {}

impl QosRule {
    fn fits(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        self.wanted.iter().all(|(label, pattern)| match label.as_str() {
            NAME => fits(pattern, name),
            label => labels.get(label).is_some_and(|value| fits(pattern, value)),
        })
    }
}

/// A value that a volume has from a `[[qos]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FromRule {
    /// The key.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// Line of the `[[qos]]`.
    pub line: usize,
}

/// True when `text` matches `pattern`, where `*` matches any text and `?` one character.
fn fits(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    // `again` is the position to continue from after a mismatch behind the last `*`: one character later.
    let (mut at, mut place, mut again) = (0, 0, None);
    while place < text.len() {
        match pattern.get(at) {
            Some('*') => {
                again = Some((at + 1, place));
                at += 1;
            }
            Some(c) if *c == '?' || *c == text[place] => (at, place) = (at + 1, place + 1),
            _ => {
                let Some((after, from)) = again else { return false };
                again = Some((after, from + 1));
                (at, place) = (after, from + 1);
            }
        }
    }
    pattern[at..].iter().all(|c| *c == '*')
}

/// Quality of service from rules alone.
pub(super) fn qos_by_rules(rules: &[QosRule], name: &str, labels: &BTreeMap<String, String>) -> VolumeQos {
    let mut qos = VolumeQos::default();
    for given in rules.iter().filter(|rule| rule.fits(name, labels)).flat_map(|rule| &rule.given) {
        qos.set(given.key, &given.value).expect("the rule was checked when it was read");
    }
    qos
}

/// Values that a volume gets from rules, except the keys that its own entry sets (`is_own`).
pub(super) fn from_rules(
    rules: &[QosRule],
    name: &str,
    labels: &BTreeMap<String, String>,
    is_own: impl Fn(&str) -> bool,
) -> Vec<FromRule> {
    let mut last: BTreeMap<&str, FromRule> = BTreeMap::new();
    for rule in rules.iter().filter(|rule| rule.fits(name, labels)) {
        for Given { key, value, .. } in rule.given.iter().filter(|given| !is_own(given.key)) {
            last.insert(key, FromRule { key, value: value.clone(), line: rule.line });
        }
    }
    last.into_values().collect()
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
    let own = read_given(section, source);
    let mut qos = qos_by_rules(rules, name, labels);
    for given in &own {
        qos.set(given.key, &given.value).expect("the value was checked when it was read");
    }
    let is_own = |key| own.iter().find(|given| given.key == key);
    let bursts = is_own(BURST_IOPS).is_some() || is_own(BURST_BYTES).is_some();
    if let Some((key, what, remedy)) = qos.fault(has_datastore, bursts) {
        let by_rule = || {
            let mut fitting = rules.iter().filter(|rule| rule.fits(name, labels)).flat_map(|rule| &rule.given);
            fitting.rfind(|given| given.key == key)
        };
        let (what, given) = match is_own(key) {
            Some(given) => (what, Some(given)),
            None => (format!("volume \"{name}\" has {what}"), by_rule()),
        };
        source.problem(given.map_or(&section.span, |given| &given.span), what, remedy);
    }
    qos
}

fn read_given(section: &Section<'_>, source: &mut Source<'_>) -> Vec<Given> {
    let mut all = Vec::new();
    for key in KEYS {
        let read = match key {
            SHARES => section.get::<Shares>(key, source).map(|At { value, span }| (value.to_string(), span)),
            LIMIT_BYTES | BURST_BYTES => {
                section.get::<Flow>(key, source).map(|At { value, span }| (value.to_string(), span))
            }
            _ => section.get::<u32>(key, source).map(|At { value, span }| (value.to_string(), span)),
        };
        all.extend(read.map(|(value, span)| Given { key, value, span }));
    }
    all
}

pub(super) fn read_rules(sections: &[Section<'_>], source: &mut Source<'_>) -> Vec<QosRule> {
    let mut rules = Vec::new();
    for section in sections {
        let wanted = section.require::<BTreeMap<String, String>>("match", source);
        let given = read_given(section, source);
        if let Some(At { span, .. }) = wanted.as_ref().filter(|wanted| wanted.value.is_empty()) {
            let remedy = "name a label, or write match = { name = \"*\" } for all volumes";
            source.problem(span, "an empty match says nothing of whom it means", remedy);
        }
        if KEYS.iter().all(|key| !section.has(key)) {
            source.problem(&section.span, "[[qos]] gives nothing", format!("add one of {}", KEYS.join(", ")));
        }
        let mut alone = VolumeQos::default();
        for given in &given {
            alone.set(given.key, &given.value).expect("the value was checked when it was read");
        }
        // Whether there is a datastore is checked for each volume.
        if let Some((key, what, remedy)) = alone.fault(true, true) {
            let at = given.iter().find(|given| given.key == key);
            source.problem(at.map_or(&section.span, |given| &given.span), what, remedy);
        }
        let line = source.line_of(section.span.start);
        rules.extend(wanted.map(|wanted| QosRule { wanted: wanted.value, given, line }));
    }
    rules
}

pub(super) fn read_datastores(sections: &[Section<'_>], source: &mut Source<'_>) -> Vec<DatastoreSpec> {
    let (mut names, mut datastores) = (Vec::new(), Vec::new());
    for section in sections {
        let name = read_name(section, &names, source);
        let threshold = section.get::<Threshold>("congestion_threshold", source);
        let write_cost = section.get::<u32>("write_cost", source).map_or(1, |At { value, span }| {
            if !(1..=WRITE_COST_MAX).contains(&value) {
                let remedy = "give 1, 2 for RAID 1 and 10, 4 for RAID 5, 6 for RAID 6; at most 16";
                source.problem(&span, format!("a small write cannot cost {value} accesses"), remedy);
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
    fn read(value: &DeValue<'_>) -> Result<Self, Wrong> {
        let text = value.as_str().ok_or(Wrong::Type("\"auto\", or a time with its unit, in quotes"))?;
        if text == "auto" {
            return Ok(Threshold::Auto);
        }
        let time = units::parse_time(text).map_err(|what| split_advice(&what))?;
        if !(THRESHOLD_MIN..=THRESHOLD_MAX).contains(&time) {
            let what = format!("\"{text}\" is not a valid congestion threshold");
            return Err(Wrong::Value(what, "give 100us to 10s, or \"auto\"".to_owned()));
        }
        Ok(Threshold::Latency(Nanos(u64::try_from(time.as_nanos()).expect("ten seconds at most"))))
    }
}

impl Setting for Shares {
    fn read(value: &DeValue<'_>) -> Result<Self, Wrong> {
        let text = match value {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(_) => u32::read(value)?.to_string(),
            _ => return Err(Wrong::Type("\"low\", \"normal\", \"high\" or a number")),
        };
        text.parse().map_err(|error: String| split_advice(&error))
    }
}

impl Setting for Flow {
    fn read(value: &DeValue<'_>) -> Result<Self, Wrong> {
        let text = value.as_str().ok_or(Wrong::Type("a size with its unit, in quotes"))?;
        text.parse().map_err(|error: String| split_advice(&error))
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
            assert!(fits(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("", "x"), ("?", ""), ("sql", "sql1"), ("*a", "ab"), ("a*a", "a"), ("SQL*", "sql")] {
            assert!(!fits(pattern, text), "{pattern} {text}");
        }
    }
}
