//! Workloads from files of other generators: IOMeter's `.icf` and fio's job files. The parsers apply all settings that
//! affect the requests to a volume. Unsupported settings are errors with a line number; irrelevant ones (targets,
//! engines, report settings) are ignored.

use super::{Spec, fio, iometer};

/// An error in a workload file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {text}")]
pub struct SpecError {
    /// Line number, from 1.
    pub line: usize,
    /// Description of the error.
    pub text: String,
}

impl SpecError {
    /// Creates an error for a line.
    pub fn new(line: usize, text: impl Into<String>) -> SpecError {
        SpecError { line, text: text.into() }
    }
}

/// Parses a file of either kind for a volume of `size_bytes`.
pub fn parse(name: &str, text: &str, size_bytes: u64) -> Result<Spec, SpecError> {
    let first = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    match first.starts_with("Version ") || first.starts_with('\'') {
        true => iometer::parse(name, text, size_bytes),
        false => fio::parse(name, text, size_bytes),
    }
}
