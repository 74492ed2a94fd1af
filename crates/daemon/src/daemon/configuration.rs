//! `configuration`: every key with its value in force, its default and its source.

use std::collections::BTreeMap;

use messages::report::{ConfigurationReport, EntryReport, KeyReport, KeySource};

use super::super::volumes::KnownVolume;
use super::Daemon;
use config::keys::{KEYS, Key, TABLES, set_by_command};
use config::redact;
use config::written::default_of;

/// Text in the key list in place of a default for a key that its table requires.
const REQUIRED: &str = "required";

/// Values of a volume, by key.
type SettingValues = BTreeMap<String, (String, KeySource)>;

impl Daemon {
    /// `configuration`.
    pub fn configuration(&self) -> ConfigurationReport {
        let volumes = self.volume_values();
        let config = self.settings.current();
        let keys = KEYS.iter().map(|key| {
            let mut report = KeyReport {
                table: key.table.to_owned(),
                key: key.name.to_owned(),
                default: default_of(key),
                takes_effect: key.takes_effect,
                ..KeyReport::default()
            };
            if key.table == "volume" {
                let named = volumes.iter().filter_map(|(name, values)| Some((name, values.get(key.name)?)));
                let entry =
                    |(name, (value, source)): (&String, &(String, KeySource))| entry_report(name, value, *source);
                report.entries = named.map(entry).collect();
            } else if TABLES.iter().any(|table| table.name == key.table && table.repeated) {
                let named = config.written.entries(key.table);
                let values =
                    named.filter_map(|(name, values)| Some(entry_report(name, values.get(key.name)?, KeySource::File)));
                report.entries = values.collect();
            } else {
                // A key required by a single table, such as [iscsi], has no value while the table is absent.
                if report.default == REQUIRED {
                    "none".clone_into(&mut report.default);
                }
                let (value, source) = self.value_in_force(key, config.written.value(key), &report.default);
                (report.value, report.source) = (Some(value), source);
            }
            report
        });
        ConfigurationReport { file: config.file.display().to_string(), keys: keys.collect() }
    }

    /// The value in force of a key of a single table, where `written` is its value in the file.
    fn value_in_force(&self, key: &Key, written: Option<&str>, default: &str) -> (String, KeySource) {
        let state = self.records.view();
        if (key.table, key.name) == ("flash", "devices") && state.flash_devices.is_some() {
            let devices = self.flash.devices();
            let shown: Vec<String> = devices.iter().map(|device| device.display().to_string()).collect();
            let shown = shown.join(", ");
            if written != Some(shown.as_str()) {
                return (shown, KeySource::Command);
            }
        }
        written.map_or_else(|| (default.to_owned(), KeySource::Default), |text| (text.to_owned(), KeySource::File))
    }

    /// Values of the volumes that are not defaults, by volume name.
    fn volume_values(&self) -> BTreeMap<String, SettingValues> {
        let mut volumes = BTreeMap::<String, SettingValues>::new();
        let config = self.settings.current();
        for known in self.volumes.map(KnownVolume::clone) {
            let name = &known.config.name;
            let values = volumes.entry(name.clone()).or_default();
            if known.from_file {
                let written = config.written.entries("volume").find(|(written, _)| *written == name);
                let written = written.into_iter().flat_map(|(_, entry)| entry);
                values.extend(written.map(|(key, value)| (key.clone(), (value.clone(), KeySource::File))));
                let from_rules = config.rule_values(&known.config).into_iter();
                values.extend(from_rules.map(|rule| (rule.key.to_owned(), (rule.value, KeySource::File))));
            } else {
                let size = known.config.size_bytes.map(|bytes| ("size", bytes.to_string()));
                let read_only = known.config.read_only.then(|| ("read_only", "true".to_owned()));
                let backing = redact::value(&known.config.backing.to_string());
                let policy = ("policy", known.config.policy.to_string());
                let settings = [("name", name.clone()), ("backing", backing), policy];
                let settings = settings.into_iter().chain(size).chain(read_only);
                values.extend(settings.map(|(key, value)| (key.to_owned(), (value, KeySource::Command))));
            }
        }
        for change in self.overrides() {
            let is_key = set_by_command().any(|key| key == change.key);
            if let Some(values) = volumes.get_mut(&change.volume).filter(|_| is_key) {
                values.insert(change.key, (change.value, KeySource::Command));
            }
        }
        volumes
    }
}

fn entry_report(name: &str, value: &str, source: KeySource) -> EntryReport {
    EntryReport { name: name.to_owned(), value: value.to_owned(), source }
}
