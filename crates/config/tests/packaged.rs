//! The packaged files, an example configuration with every key and a JSON schema, are generated from the parser's list
//! of keys. The schema agrees with the parser.

use std::path::Path;

use config::Config;
use config::keys::{KEYS, Key, Shape, TABLES, Table, TakesEffect, find_key};
use serde_json::{Map, Value, json};

/// Width of a comment line in characters, its mark included.
const WIDTH: usize = 110;

/// Keys that the file sets instead of commenting them out, so that a new installation has a web console.
const SET_VALUES: [(&str, &str, &str); 1] = [("api", "listen", r#""127.0.0.1:7400""#)];

/// Tables whose mere presence changes nothing: they are not commented out, so that a key can be enabled by editing one
/// line.
const ACTIVE_TABLES: [&str; 8] = ["state", "memory", "control", "api", "history", "alerts", "log", "nbd"];

/// Comment at the start of the file.
const HEAD: &str = "#:schema /usr/share/hotset/hotset.schema.json
# Configuration of Hotset. No volume is served before a [[volume]] table is added; `hotset init` proposes some.
# `hotset check-config /etc/hotset/hotset.toml` lists every error, `systemctl reload hotset` applies changes,
# except for keys that require a restart. A commented key shows its default or an example.
# More: /usr/share/doc/hotset/admin.
";

/// Comments above tables.
const NOTES: [(&str, &str); 5] = [
    (
        "flash",
        "Two SSDs for mirrored dirty data, so that flushes need not wait for the backing, and for the clean pages of \
         the flash cache.",
    ),
    ("iscsi", "With this table, every volume is a LUN of one target."),
    ("vhost_user", "With this table, every volume is available as a disk to the virtual machines of this host."),
    ("array", "A modelled disk array for trials without hardware. The table may be written more than once."),
    ("volume", "A volume. The table is repeated for each volume."),
];

fn wrapped(text: &str) -> String {
    let (mut lines, mut line) = (String::new(), "#".to_owned());
    for word in text.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines += &format!("{line}\n");
            line = "#".to_owned();
        }
        line += &format!(" {word}");
    }
    lines + &line + "\n"
}

/// Replaces Markdown links by their text.
fn without_links(text: &str) -> String {
    let Some((before, rest)) = text.split_once('[') else { return text.to_owned() };
    match rest.split_once("](").and_then(|(shown, rest)| Some((shown, rest.split_once(')')?.1))) {
        Some((shown, after)) if !shown.contains(['[', ']', '"']) => format!("{before}{shown}{}", without_links(after)),
        _ => format!("{before}[{}", without_links(rest)),
    }
}

/// Splits the example of a value into its alternatives: `"auto" or [0, 1]` has two.
fn alternatives(example: &str) -> Vec<&str> {
    let (mut alternatives, mut remaining) = (Vec::new(), example);
    while !remaining.is_empty() {
        let (mut depth, mut quoted) = (0, false);
        let end = remaining.char_indices().find(|(offset, c)| {
            match c {
                '"' => quoted = !quoted,
                '[' | '{' if !quoted => depth += 1,
                ']' | '}' if !quoted => depth -= 1,
                _ => {}
            }
            depth == 0
                && !quoted
                && (remaining[*offset..].starts_with(", ") || remaining[*offset..].starts_with(" or "))
        });
        let (alternative, after) = remaining.split_at(end.map_or(remaining.len(), |(offset, _)| offset));
        alternatives.push(alternative);
        remaining = after.strip_prefix(", ").or(after.strip_prefix(" or ")).unwrap_or(after);
    }
    alternatives
}

fn value_of(text: &str) -> Option<Value> {
    let table: toml::Table = format!("x = {text}").parse().ok()?;
    serde_json::to_value(&table["x"]).ok()
}

/// The key's default, if it is a value and not a description.
fn default_of(key: &Key) -> Option<&'static str> {
    value_of(key.default).is_some().then_some(key.default)
}

fn example_file() -> String {
    let mut text = HEAD.to_owned();
    for table in TABLES {
        let keys: Vec<&Key> = KEYS.iter().filter(|key| key.table == table.name).collect();
        let set_value = |key: &Key| SET_VALUES.iter().find(|(table, name, _)| (*table, *name) == (key.table, key.name));
        if !table.name.is_empty() {
            let mark = if ACTIVE_TABLES.contains(&table.name) { "" } else { "#" };
            let name = if table.repeated { format!("[[{}]]", table.name) } else { format!("[{}]", table.name) };
            text += "\n\n";
            text +=
                &NOTES.iter().find(|(name, _)| *name == table.name).map_or(String::new(), |(_, note)| wrapped(note));
            text += &format!("{mark}{name}\n");
        }
        for key in keys {
            let written = match key.default {
                "required" => format!("Example: {}. Required.", key.example),
                default if default == key.example => format!("Default: {default}."),
                default => format!("Example: {}. Default: {default}.", key.example),
            };
            let restart = if key.takes_effect == TakesEffect::Restart { " A change requires a restart." } else { "" };
            text += "\n";
            text += &wrapped(&without_links(key.doc));
            text += &wrapped(&format!("{written}{restart}"));
            text += &match set_value(key) {
                Some((_, name, value)) => format!("{name} = {value}\n"),
                None => format!("#{} = {}\n", key.name, default_of(key).unwrap_or(alternatives(key.example)[0])),
            };
        }
    }
    text
}

fn schema_of_shape(shape: Shape) -> Value {
    let texts = |names: &[&str]| names.iter().map(|name| (name.to_string(), json!({ "type": "string" }))).collect();
    match shape {
        Shape::Text => json!({ "type": "string" }),
        Shape::Choice(choices) => json!({ "enum": choices }),
        Shape::Flag => json!({ "type": "boolean" }),
        Shape::Count(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Shape::Level(levels) => json!({ "enum": levels }),
        Shape::Number(max) => json!({ "type": "number", "minimum": 0, "maximum": max }),
        Shape::Texts => json!({ "type": "array", "items": { "type": "string" } }),
        Shape::Labels => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
        Shape::Record(required, optional) => {
            let properties: Map<String, Value> = texts(&[required, optional].concat());
            json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
        }
        Shape::Records(required, optional, lists) => {
            let mut record_schema = schema_of_shape(Shape::Record(required, optional));
            for list in lists {
                record_schema["properties"][list] = schema_of_shape(Shape::Texts);
            }
            json!({ "anyOf": [record_schema, { "type": "array", "items": record_schema, "minItems": 1 }] })
        }
        Shape::ChoiceOrCount(choices, min, max) => {
            json!({ "anyOf": [{ "enum": choices }, { "type": "integer", "minimum": min, "maximum": max }] })
        }
        Shape::ChoiceOrCounts(choices) => {
            let counts = json!({ "type": "array", "items": { "type": "integer", "minimum": 0 }, "minItems": 1 });
            json!({ "anyOf": [{ "enum": choices }, counts] })
        }
    }
}

fn schema_of_key(key: &Key) -> Value {
    let mut schema = schema_of_shape(key.shape);
    schema["description"] = json!(without_links(key.doc));
    schema["examples"] = alternatives(key.example).into_iter().filter_map(value_of).collect();
    if let Some(default) = default_of(key).and_then(value_of) {
        schema["default"] = default;
    }
    schema
}

fn schema_of_table(table: &Table) -> Value {
    let keys = || KEYS.iter().filter(|key| key.table == table.name);
    let properties: Map<String, Value> = keys().map(|key| (key.name.to_owned(), schema_of_key(key))).collect();
    let required: Vec<&str> = keys().filter(|key| key.default == "required").map(|key| key.name).collect();
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

fn schema() -> Value {
    let mut schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "hotset.toml",
        "description": "Configuration of the storage cache Hotset",
    });
    for table in TABLES {
        let table_schema = schema_of_table(table);
        match (table.name, table.repeated) {
            ("", _) => schema
                .as_object_mut()
                .expect("it is an object")
                .extend(table_schema.as_object().expect("it is an object").clone()),
            (name, true) => schema["properties"][name] = json!({ "type": "array", "items": table_schema }),
            (name, false) => schema["properties"][name] = table_schema,
        }
    }
    schema
}

/// True when the schema rejects `value`, for the part of JSON schema that [`schema`] uses.
fn is_rejected(schema: &Value, value: &Value) -> bool {
    let Some(keywords) = schema.as_object() else { return schema == &json!(false) };
    let is_type = |name: &str| match name {
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("unknown type {other}"),
    };
    let entries = || value.as_array().into_iter().flatten();
    let members = || value.as_object().into_iter().flatten();
    keywords.iter().any(|(keyword, argument)| match keyword.as_str() {
        "$schema" | "title" | "description" | "examples" | "default" => false,
        "type" => !is_type(argument.as_str().expect("one type")),
        "enum" => !argument.as_array().expect("a list").contains(value),
        "minimum" => value.as_f64().is_some_and(|number| number < argument.as_f64().expect("a number")),
        "maximum" => value.as_f64().is_some_and(|number| number > argument.as_f64().expect("a number")),
        "minItems" => value.is_array() && entries().count() < argument.as_u64().expect("a count") as usize,
        "anyOf" => argument.as_array().expect("a list").iter().all(|alternative| is_rejected(alternative, value)),
        "items" => entries().any(|entry| is_rejected(argument, entry)),
        "required" => {
            argument.as_array().expect("a list").iter().any(|name| value.get(name.as_str().expect("a name")).is_none())
        }
        "properties" => {
            members().any(|(name, member)| argument.get(name).is_some_and(|argument| is_rejected(argument, member)))
        }
        "additionalProperties" => {
            let known = |name: &String| schema["properties"].get(name).is_some();
            members().any(|(name, member)| !known(name) && is_rejected(argument, member))
        }
        other => panic!("unknown keyword {other}"),
    })
}

fn parsed(text: &str) -> Value {
    let table: toml::Table = text.parse().unwrap_or_else(|error| panic!("{error}\n{text}"));
    serde_json::to_value(table).expect("TOML is JSON")
}

fn problems(text: &str) -> Vec<String> {
    let checked = Config::parse(Path::new("/etc/hotset/hotset.toml"), text);
    checked.err().into_iter().flat_map(|problems| problems.problems).map(|problem| problem.fault).collect()
}

/// A file with one table, its required keys, and `key` with its value, if given.
fn file_with(table: &Table, key: Option<(&str, &str)>) -> String {
    let mut text = match (table.name, table.repeated) {
        ("", _) => String::new(),
        (name, true) => format!("[[{name}]]\n"),
        (name, false) => format!("[{name}]\n"),
    };
    for required in KEYS.iter().filter(|key| key.table == table.name && key.default == "required") {
        if key.is_none_or(|(name, _)| name != required.name) {
            text += &format!("{} = {}\n", required.name, alternatives(required.example)[0]);
        }
    }
    key.map_or(text.clone(), |(name, value)| format!("{text}{name} = {value}\n"))
}

/// Compares generated text with the packaged file. With `UPDATE_DOCS=1` the file is written instead.
fn check(name: &str, generated: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        return std::fs::write(&file, generated).expect("the file can be written");
    }
    let stored = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(stored == generated, "packaging/{name} is outdated; write it with UPDATE_DOCS=1");
}

#[test]
fn packaged_file_explains_every_key_and_is_valid() {
    let text = example_file();
    check("hotset.toml", &text);
    assert_eq!(problems(&text), Vec::<String>::new());
    // With all commented keys and tables enabled, the file has all keys and no other.
    let is_setting = |line: &&str| !line.starts_with("# ") && !line.starts_with("#:") && *line != "#";
    let enabled: Vec<&str> =
        text.lines().filter(is_setting).map(|line| line.strip_prefix('#').unwrap_or(line)).collect();
    let enabled = parsed(&enabled.join("\n"));
    for key in KEYS {
        let table = if key.table.is_empty() { &enabled } else { &enabled[key.table] };
        let table = table.get(0).unwrap_or(table);
        assert!(table.get(key.name).is_some(), "{}.{} is missing", key.table, key.name);
    }
    assert!(!is_rejected(&schema(), &enabled), "the schema rejects the example file");
}

#[test]
fn packaged_schema_matches_the_parsers_keys() {
    check("hotset.schema.json", &format!("{:#}\n", schema()));
}

#[test]
fn written_default_means_the_same_as_an_absent_key() {
    let parse = |text: &str| Config::parse(Path::new("/etc/hotset/hotset.toml"), text).ok();
    let mut compared = 0;
    for (table, key) in TABLES.iter().flat_map(|table| KEYS.iter().map(move |key| (table, key))) {
        let Some(default) = default_of(key).filter(|_| key.table == table.name) else { continue };
        // A key that only some values of another key allow is not comparable alone.
        let (Some(absent), Some(written)) =
            (parse(&file_with(table, None)), parse(&file_with(table, Some((key.name, default)))))
        else {
            continue;
        };
        let written = Config { written: absent.written.clone(), ..written };
        assert!(written == absent, "{}.{}: {default} in keys.rs is not the parser's default", table.name, key.name);
        compared += 1;
    }
    assert!(compared >= 20, "only {compared} defaults were compared");
}

#[test]
fn documented_examples_are_valid_by_the_schema() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let mut examples = 0;
    for page in ["admin/configuration.md", "admin/iscsi.md", "admin/qos.md", "user/getting-started.md"] {
        let text = std::fs::read_to_string(docs.join(page)).expect("the page exists");
        for example in text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().expect("the block ends")) {
            assert!(!is_rejected(&schema(), &parsed(example)), "{page}:\n{example}");
            examples += 1;
        }
    }
    assert!(examples >= 4, "only {examples} examples were found");
}

#[test]
fn schema_rejects_wrong_types_and_nothing_that_the_parser_accepts() {
    const PROBES: [&str; 10] =
        [r#""x""#, "7", "1.5", "-1", "true", r#"["x"]"#, "[7]", "[]", r#"{ a = "x" }"#, "{ a = 7 }"];
    let (schema, mut rejected_count) = (schema(), 0);
    for table in TABLES {
        let faults_before = problems(&file_with(table, None));
        for key in KEYS.iter().filter(|key| key.table == table.name) {
            for probe in PROBES.into_iter().chain(alternatives(key.example)) {
                let file = file_with(table, Some((key.name, probe)));
                let new_faults: Vec<String> =
                    problems(&file).into_iter().filter(|fault| !faults_before.contains(fault)).collect();
                let is_type_fault =
                    new_faults.iter().any(|fault| fault.contains("must be") || fault.contains(" of chap"));
                let is_refused = is_rejected(&schema, &parsed(&file));
                assert!(
                    is_refused || !is_type_fault,
                    "the schema accepts an invalid {}:\n{file}{new_faults:?}",
                    key.name
                );
                assert!(!is_refused || !new_faults.is_empty(), "the schema rejects what the parser accepts:\n{file}");
                rejected_count += u32::from(is_refused);
            }
        }
    }
    assert!(rejected_count > 100, "only {rejected_count} probes were rejected");
    for (file, case) in [
        ("xyzzy = 1\n", "an unknown key"),
        ("[[volume]]\nname = \"a\"\n", "a required key that is missing"),
        ("[volume]\n", "a repeated table written once"),
    ] {
        assert!(!problems(file).is_empty() && is_rejected(&schema, &parsed(file)), "{case}");
    }
}

#[test]
fn examples_split_into_alternatives_and_links_become_text() {
    assert_eq!(alternatives(r#""auto" or [0, 1]"#), [r#""auto""#, "[0, 1]"]);
    assert_eq!(alternatives("0, 1, 5, 6 or 10"), ["0", "1", "5", "6", "10"]);
    assert_eq!(alternatives(r#"{ user = "a, b", x = "c or d" }"#), [r#"{ user = "a, b", x = "c or d" }"#]);
    assert_eq!(
        without_links("of [flash] ([api.md](api.md#history)), a [[datastore]]"),
        "of [flash] (api.md), a [[datastore]]"
    );
    assert!(find_key("volume", "backing").is_some_and(|key| default_of(key).is_none()));
}
