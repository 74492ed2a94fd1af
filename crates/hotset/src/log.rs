//! Lines for the operator on standard error: events, never requests. Under systemd each carries its priority.

use std::sync::OnceLock;

fn prefix(priority: u8) -> String {
    static JOURNAL: OnceLock<bool> = OnceLock::new();
    let journal = *JOURNAL.get_or_init(|| std::env::var_os("JOURNAL_STREAM").is_some());
    if journal { format!("<{priority}>") } else { String::new() }
}

fn write(priority: u8, text: &str) {
    let prefix = prefix(priority);
    for line in text.lines() {
        eprintln!("{prefix}hotset: {line}");
    }
}

/// Something went as it should.
pub fn info(text: impl AsRef<str>) {
    write(6, text.as_ref());
}

/// Something an operator should look at.
pub fn warn(text: impl AsRef<str>) {
    write(4, &format!("warning: {}", text.as_ref()));
}

/// Something does not work.
pub fn error(text: impl AsRef<str>) {
    write(3, &format!("error: {}", text.as_ref()));
}
