//! The file's values as they are written, key by key and without secrets, for reports of the configuration. The parser
//! has checked the file before.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::keys::{KEYS, Key, TABLES, TakesEffect, needs_restart};
use crate::redact;

/// Keys of a table, or of an entry of a repeated table, and their values.
pub type Entry = BTreeMap<String, String>;

/// The file's values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// By table; the empty name is the top level.
    tables: BTreeMap<String, Entry>,
    /// By repeated table and by name.
    repeated: BTreeMap<String, BTreeMap<String, Entry>>,
}

impl Written {
    /// The values of a file; empty if it is not TOML.
    pub fn of(text: &str) -> Written {
        let root: Table = text.parse().unwrap_or_default();
        let mut written = Written::default();
        for table in TABLES {
            match root.get(table.name) {
                Some(Value::Array(entries)) => {
                    let named = entries.iter().filter_map(Value::as_table).map(|entries| entry(table.name, entries));
                    // An entry without a name is identified by its `match`.
                    let name = |entry: &Entry| entry.get("name").or_else(|| entry.get("match")).cloned();
                    let named = named.filter_map(|entry| Some((name(&entry)?, entry)));
                    written.repeated.insert(table.name.to_owned(), named.collect());
                }
                Some(Value::Table(entries)) => {
                    drop(written.tables.insert(table.name.to_owned(), entry(table.name, entries)))
                }
                _ if table.name.is_empty() => drop(written.tables.insert(String::new(), entry("", &root))),
                _ => {}
            }
        }
        written
    }

    /// The file's value of a key of a single table.
    pub fn value(&self, key: &Key) -> Option<&str> {
        self.tables.get(key.table)?.get(key.name).map(String::as_str)
    }

    /// The entries of a repeated table, by name.
    pub fn entries(&self, table: &str) -> impl Iterator<Item = (&String, &Entry)> {
        self.repeated.get(table).into_iter().flatten()
    }

    /// The values in force after a reload of `new`: keys that need a restart keep their value.
    pub fn after_reload(&self, new: Written) -> Written {
        let Written { tables: new, mut repeated } = new;
        for table in ["array", "pool"] {
            repeated.insert(table.to_owned(), self.repeated.get(table).cloned().unwrap_or_default());
        }
        for (name, entry) in repeated.get_mut("volume").into_iter().flatten() {
            let Some(before) = self.repeated.get("volume").and_then(|volumes| volumes.get(name)) else { continue };
            keep_values(before, entry, |key| needs_restart("volume", key));
        }
        let mut tables = self.tables.clone();
        for Key { table, name, .. } in KEYS.iter().filter(|key| key.takes_effect == TakesEffect::ReloadIfSet) {
            let value = tables.get_mut(*table).and_then(|entry| entry.get_mut(*name));
            if let (Some(value), Some(new)) = (value, new.get(*table).and_then(|entry| entry.get(*name))) {
                value.clone_from(new);
            }
        }
        Written { tables, repeated }
    }
}

/// Replaces the values in `new` of the keys that `is_kept` selects by those in `before`.
fn keep_values(before: &Entry, new: &mut Entry, is_kept: impl Fn(&str) -> bool) {
    new.retain(|key, _| !is_kept(key));
    let kept = before.iter().filter(|(key, _)| is_kept(key));
    new.extend(kept.map(|(key, value)| (key.clone(), value.clone())));
}

/// The values of known keys.
fn entry(table: &str, entries: &Table) -> Entry {
    let table_keys = KEYS.iter().filter(|key| key.table == table);
    table_keys
        .filter_map(|key| {
            let mut value = entries.get(key.name)?.clone();
            redact::redact_value(key.name, &mut value);
            Some((key.name.to_owned(), show(&value)))
        })
        .collect()
}

/// A key's default, displayed like a value: a default in TOML notation is parsed first.
pub fn default_of(key: &Key) -> String {
    let value = format!("key = {}", key.default).parse::<Table>().ok().and_then(|mut table| table.remove("key"));
    value.map_or_else(|| key.default.to_owned(), |value| show(&value))
}

fn show(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(show).collect::<Vec<_>>().join(", "),
        Value::Table(entries) => {
            entries.iter().map(|(name, value)| format!("{name} = {}", show(value))).collect::<Vec<_>>().join(", ")
        }
        plain => plain.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::find_key;

    const FILE: &str = r#"
        cores = [0, 1]
        [memory]
        size = "4 GiB"
        [alerts]
        webhook = "https://hooks.example/PLANTED/path"
        [[array]]
        name = "shelf"
        [[datastore]]
        name = "sas"
        [[volume]]
        name = "web01"
        backing = "nbd://me:PLANTED@10.0.0.5/web01"
        labels = { vm = "a", password = "PLANTED" }
    "#;

    fn key(table: &str, name: &str) -> &'static Key {
        find_key(table, name).expect("a key")
    }

    #[test]
    fn values_are_as_written_without_quotes_and_secrets() {
        let written = Written::of(FILE);
        assert!(!format!("{written:?}").contains("PLANTED"), "{written:?}");
        let value = |table, name| written.value(key(table, name));
        assert_eq!((value("", "cores"), value("memory", "size")), (Some("0, 1"), Some("4 GiB")));
        assert_eq!(value("alerts", "webhook"), Some("https://hooks.example/(redacted)"));
        assert_eq!(value("history", "size"), None);
        let volumes: Vec<_> = written.entries("volume").collect();
        assert_eq!(volumes.len(), 1);
        assert_eq!(
            (volumes[0].0.as_str(), volumes[0].1["labels"].as_str()),
            ("web01", "password = (redacted), vm = a")
        );
        assert_eq!(default_of(key("nbd", "listen")), "unix:/run/hotset/nbd.sock");
        assert_eq!(default_of(key("api", "listen")), "127.0.0.1:7400");
        assert_eq!(default_of(key("api", "names")), "");
    }

    #[test]
    fn reload_keeps_values_that_need_a_restart() {
        let before = Written::of(FILE);
        let changed = FILE.replace("4 GiB", "8 GiB").replace("\"shelf\"", "\"rack\"").replace("\"sas\"", "\"nl\"");
        let changed = changed.replace("10.0.0.5", "10.0.0.6").replace("vm = \"a\"", "vm = \"b\"");
        let reloaded =
            before.after_reload(Written::of(&format!("{changed}\n[[volume]]\nname = \"new\"\nbacking = \"/x\"\n")));
        assert_eq!(reloaded.value(key("memory", "size")), Some("4 GiB"));
        let names = |table| reloaded.entries(table).map(|(name, _)| name.as_str()).collect::<Vec<_>>();
        assert_eq!(
            (names("array"), names("datastore"), names("volume")),
            (vec!["shelf"], vec!["nl"], vec!["new", "web01"])
        );
        let web = reloaded.entries("volume").find(|(name, _)| *name == "web01").expect("it is present").1;
        assert!(web["backing"].ends_with("10.0.0.5/web01") && web["labels"].ends_with("vm = b"), "{web:?}");
    }
}
