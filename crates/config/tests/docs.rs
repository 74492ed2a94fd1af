//! The documentation's tables of keys and alerts are generated from the lists that the parser and the alerts use.

use std::path::Path;

use config::keys::{KEYS, TABLES, show_table};
use events::alerts::kinds::RULES;

const BEGIN: &str = "<!-- keys: made from the parser's own list -->\n";
const END: &str = "<!-- end of keys -->";

fn keys_as_text() -> String {
    let mut text = String::new();
    for table in TABLES {
        text +=
            &format!("\n### {}\n\n| key | example | default | meaning |\n|---|---|---|---|\n", show_table(table.name));
        for key in KEYS.iter().filter(|key| key.table == table.name) {
            let cell = |text: &str| text.replace('|', "\\|");
            let (example, default) = (cell(key.example), cell(key.default));
            text += &format!("| `{}` | `{example}` | {default} | {} |\n", key.name, cell(key.doc));
        }
    }
    text + "\n"
}

fn alerts_as_text() -> String {
    let mut text = "\n| alert | severity | condition | effect | remedy |\n|---|---|---|---|---|\n".to_owned();
    for rule in &RULES {
        let (name, severity) = (rule.kind, rule.kind.severity());
        text += &format!("| `{name}` | {severity} | {} | {} | {} |\n", rule.when, rule.effect, rule.remedy);
    }
    text + "\n"
}

/// Compares a generated table with the page. With `UPDATE_DOCS=1` the page is written instead.
fn check(page: &str, begin: &str, end: &str, generated: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let text = std::fs::read_to_string(&file).expect("the page is there");
    let (before, rest) = text.split_once(begin).expect("the page has the mark where the list begins");
    let (stored, after) = rest.split_once(end).expect("the page has the mark where the list ends");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&file, format!("{before}{begin}{generated}{end}{after}")).expect("the page can be written");
        return;
    }
    assert_eq!(stored, generated, "docs/{page} is behind the code; UPDATE_DOCS=1 writes it anew");
}

#[test]
fn documented_keys_are_those_of_the_parser() {
    check("admin/configuration.md", BEGIN, END, &keys_as_text());
}

#[test]
fn documented_alerts_are_those_of_the_daemon() {
    let begin = "<!-- alerts: made from the daemon's own list -->\n";
    check("admin/alerts.md", begin, "<!-- end of alerts -->", &alerts_as_text());
}
