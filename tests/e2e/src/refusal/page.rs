//! `docs/admin/refusals.md`: its table and messages are generated from the daemon's output in the tests.
//!
//! `UPDATE_DOCS=1` writes the page instead of comparing it. Each test provides the row and the messages of one refusal.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use state::Refusal;

use super::commands;

const BEGIN: &str = "<!-- refusals: made by the end-to-end tests from the daemon's own output -->\n";
const END: &str = "<!-- end of refusals -->";
const TABLE: &str = "
| code | condition | reason for the refusal | choice | lost data |
|---|---|---|---|---|
";
const MESSAGES: &str = "
## Messages

`NAME` stands for the volume, `OTHER` for another one, `STORE` and `DIRECTORY` for the identity of a
flash store and of a state directory (32 hexadecimal digits), `DATA` for that of the data which may
be lost (16), `BACKING` for the identity of a backing, `DEVICE` for the path of a flash device or of
a backing, `PATH` for that of the state directory, `FILE` for that of the configuration, `N` for a
number. The daemon breaks no lines.
";
/// Start of a refusal's first row, and of its further rows.
const FIRST_ROW: &str = "| [`";
const FURTHER_ROW: &str = "| | | ";
/// Line width of the messages.
const COLUMNS_MAX: usize = 100;
/// Serialises the tests of one process that write the page.
static PAGE_LOCK: Mutex<()> = Mutex::new(());

/// Section of one refusal.
pub struct Entry {
    code: &'static str,
    condition: &'static str,
    reason: &'static str,
    messages: Vec<(&'static str, String)>,
    choices: Vec<(&'static str, &'static str)>,
}

impl Entry {
    /// Creates an entry with the condition and the reason of the refusal.
    pub fn new(code: &'static str, condition: &'static str, reason: &'static str) -> Entry {
        Entry { code, condition, reason, messages: Vec::new(), choices: Vec::new() }
    }

    /// Adds a message of the daemon; `when` introduces it if there are several.
    pub fn message(&mut self, when: &'static str, message: &str) {
        self.messages.push((when, placeholders(message)));
    }

    /// Adds a choice, as a command with placeholders or in words, with its cost; `verify` applies and checks it.
    pub fn choice(&mut self, action: &'static str, cost: &'static str, verify: impl FnOnce()) {
        verify();
        self.choices.push((action, cost));
    }

    /// Compares the entry with the page. The commands in the messages must be exactly the choices.
    pub fn check(self) {
        let proposed: BTreeSet<String> = self.messages.iter().flat_map(|(_, message)| commands(message)).collect();
        let choices = self.choices.iter().map(|(action, _)| (*action).to_owned());
        let tested: BTreeSet<String> = choices.filter(|action| is_command(action)).collect();
        assert_eq!(proposed, tested, "{}: the message's commands, and the tested ones", self.code);
        let rendered = self.render();
        let stored = {
            let _guard = PAGE_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
            let (mut page, mut entries) = Page::read();
            if std::env::var_os("UPDATE_DOCS").is_some() {
                entries.insert(self.code.to_owned(), rendered);
                page.generated = compose(&entries);
                return page.write();
            }
            entries.remove(self.code)
        };
        assert_eq!(
            stored.as_ref(),
            Some(&rendered),
            "docs/admin/refusals.md differs from the daemon's output; UPDATE_DOCS=1 rewrites it"
        );
    }

    fn render(&self) -> RenderedEntry {
        let show = |action: &str| if is_command(action) { format!("`{action}`") } else { action.to_owned() };
        let code = self.code;
        let mut rows = String::new();
        for (index, (action, cost)) in self.choices.iter().enumerate() {
            rows += &match index {
                0 => format!("{FIRST_ROW}{code}`](#{code}) | {} | {} ", self.condition, self.reason),
                _ => FURTHER_ROW.to_owned(),
            };
            rows += &format!("| {} | {cost} |\n", show(action));
        }
        let mut section = format!("\n### `{code}`\n");
        for (when, message) in &self.messages {
            let when = if when.is_empty() { String::new() } else { format!("\n{when}:\n") };
            section += &format!("{when}\n```text\n{}\n```\n", wrap(message));
        }
        RenderedEntry { rows, section }
    }
}

/// Checks that the page has a row, and the tests' source an entry, for each existing code.
pub fn check_codes(tests: &str) {
    let has_test = |code: &str| tests.matches(&format!("Entry::new(\n        \"{code}\",")).count() == 1;
    let untested: Vec<_> = Refusal::CODES.iter().filter(|code| !has_test(code)).collect();
    assert!(untested.is_empty(), "refusals.rs has no test, or several, of {untested:?}");
    let _guard = PAGE_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let (page, entries) = Page::read();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        return;
    }
    let is_known = |code: &String| Refusal::CODES.contains(&code.as_str());
    let unknown: Vec<_> = entries.keys().filter(|code| !is_known(code)).collect();
    assert!(unknown.is_empty(), "docs/admin/refusals.md has rows of codes that do not exist: {unknown:?}");
    let missing: Vec<_> = Refusal::CODES.iter().filter(|code| !entries.contains_key(**code)).collect();
    assert!(missing.is_empty(), "docs/admin/refusals.md has no row of {missing:?}; UPDATE_DOCS=1 writes it");
    assert_eq!(page.generated, compose(&entries), "docs/admin/refusals.md has lines that no test generated");
}

/// Replaces machine-specific parts of a message by placeholders.
pub fn placeholders(message: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in message.split_whitespace() {
        let is_punctuation = |letter: char| "(),;.:`'\"".contains(letter);
        let bare = word.trim_matches(is_punctuation);
        let is_of_directory = words.last().is_some_and(|before| before == "directory");
        words.push(match placeholder(bare, is_of_directory) {
            Some(placeholder) => word.replacen(bare, placeholder, 1),
            None => word.to_owned(),
        });
    }
    words.join(" ")
}

fn placeholder(word: &str, is_of_directory: bool) -> Option<&'static str> {
    let is_hex = |digits: usize| word.len() == digits && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    match word {
        "v" => Some("NAME"),
        "first" => Some("OTHER"),
        _ if ["file:", "device:", "nbd", "rbd:"].iter().any(|start| word.starts_with(start)) => Some("BACKING"),
        _ if is_host_name(word) => Some("HOST"),
        _ if word.ends_with("/hotset.toml") => Some("FILE"),
        _ if word.starts_with('/') => Some(if is_of_directory { "PATH" } else { "DEVICE" }),
        _ if is_hex(32) => Some(if is_of_directory { "DIRECTORY" } else { "STORE" }),
        _ if is_hex(16) => Some("DATA"),
        _ if !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit()) => Some("N"),
        _ => None,
    }
}

fn is_host_name(word: &str) -> bool {
    std::fs::read_to_string("/proc/sys/kernel/hostname").is_ok_and(|name| name.trim() == word)
}

fn is_command(action: &str) -> bool {
    action.starts_with("hotset ")
}

fn wrap(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("a list with a line");
        if line.is_empty() {
            word.clone_into(line);
        } else if line.len() + 1 + word.len() <= COLUMNS_MAX {
            *line += &format!(" {word}");
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join("\n")
}

/// Generated parts of one refusal.
#[derive(Debug, Default, PartialEq, Eq)]
struct RenderedEntry {
    /// A row per choice; the first one starts with the code.
    rows: String,
    section: String,
}

fn compose(entries: &BTreeMap<String, RenderedEntry>) -> String {
    let ordered: Vec<&RenderedEntry> = Refusal::CODES.iter().filter_map(|code| entries.get(*code)).collect();
    let rows: String = ordered.iter().map(|entry| entry.rows.as_str()).collect();
    let sections: String = ordered.iter().map(|entry| entry.section.as_str()).collect();
    format!("{TABLE}{rows}{MESSAGES}{sections}\n")
}

/// The page: text before the generated part, the generated part, and text after it.
struct Page {
    before: String,
    generated: String,
    after: String,
}

impl Page {
    fn path() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/admin/refusals.md")
    }

    fn read() -> (Page, BTreeMap<String, RenderedEntry>) {
        let text = fs::read_to_string(Page::path()).expect("the page exists");
        let (before, rest) = text.split_once(BEGIN).expect("the page has the mark where the list begins");
        let (generated, after) = rest.split_once(END).expect("the page has the mark where the list ends");
        let mut entries: BTreeMap<String, RenderedEntry> = BTreeMap::new();
        let mut code = "";
        for row in generated.lines() {
            match row.strip_prefix(FIRST_ROW) {
                Some(rest) => code = rest.split('`').next().expect("a text has a first part"),
                None if row.starts_with(FURTHER_ROW) => {}
                None => continue,
            }
            let entry = entries.entry(code.to_owned()).or_default();
            entry.rows += &format!("{row}\n");
        }
        for section in generated.split("\n### `").skip(1) {
            let code = section.split('`').next().expect("a text has a first part");
            let section = format!("\n### `{}\n", section.trim_end());
            if let Some(entry) = entries.get_mut(code) {
                entry.section = section;
            }
        }
        let page = Page { before: before.to_owned(), generated: generated.to_owned(), after: after.to_owned() };
        (page, entries)
    }

    fn write(&self) {
        let Page { before, generated, after } = self;
        fs::write(Page::path(), format!("{before}{BEGIN}{generated}{END}{after}")).expect("the page can be written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_replace_machine_dependent_values() {
        let (store, data) = ("0123456789abcdef0123456789abcdef", "0123456789abcdef");
        let messages = [
            format!("start 12: {store}, directory {store}, 4096 bytes of volume v (data {data});"),
            "was file:0a:7:5.000000009, is nbd+unix:///?socket=/a/b. That of first: blkdiscard -z".to_owned(),
            "/dev/f0 and, in directory /var/lib/state, the records".to_owned(),
            "hotset state rebuild --config /a/b/hotset.toml; or /a/f0".to_owned(),
        ];
        let expected = [
            "start N: STORE, directory DIRECTORY, N bytes of volume NAME (data DATA);",
            "was BACKING, is BACKING. That of OTHER: blkdiscard -z",
            "DEVICE and, in directory PATH, the records",
            "hotset state rebuild --config FILE; or DEVICE",
        ];
        assert_eq!(messages.map(|text| placeholders(&text)), expected);
    }

    #[test]
    fn messages_are_wrapped_without_a_change() {
        let text = "word ".repeat(100);
        let wrapped = wrap(&text);
        assert!(wrapped.lines().count() > 1 && wrapped.lines().all(|line| line.len() <= COLUMNS_MAX), "{wrapped}");
        assert_eq!(wrapped.replace('\n', " "), text.trim());
    }
}
