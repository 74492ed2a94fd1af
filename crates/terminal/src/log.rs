//! Log lines for the operator on standard error: events, never requests. Under systemd each carries its priority.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

static ONLY_PROBLEMS: AtomicBool = AtomicBool::new(false);

/// Suppresses informational lines from now on.
pub fn only_problems() {
    ONLY_PROBLEMS.store(true, Ordering::Relaxed);
}

fn prefix(priority: u8) -> String {
    static JOURNAL: OnceLock<bool> = OnceLock::new();
    let journal = *JOURNAL.get_or_init(|| std::env::var_os("JOURNAL_STREAM").is_some());
    if journal { format!("<{priority}>") } else { String::new() }
}

fn write(priority: u8, text: &str) {
    let prefix = prefix(priority);
    for line in text.lines() {
        eprintln!("{prefix}hotset: {}", messages::plain(line));
    }
}

/// Logs an informational line.
pub fn info(text: impl AsRef<str>) {
    if !ONLY_PROBLEMS.load(Ordering::Relaxed) {
        write(6, text.as_ref());
    }
}

/// Logs a warning.
pub fn warn(text: impl AsRef<str>) {
    write(4, &format!("warning: {}", text.as_ref()));
}

/// Logs an error.
pub fn error(text: impl AsRef<str>) {
    write(3, &format!("error: {}", text.as_ref()));
}
