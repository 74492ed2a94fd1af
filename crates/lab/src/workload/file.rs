//! Workloads from files that other generators take: IOMeter's `.icf` and fio's job files, as far as they say what is asked of a volume.
//! What is not understood is an error that names the line; what is of no concern here (targets, engines, report settings) is passed over.

use super::{Spec, fio, iometer};

/// What is wrong in a file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {text}")]
pub struct SpecError {
    /// The line, from 1 on.
    pub line: usize,
    /// What is wrong with it.
    pub text: String,
}

impl SpecError {
    /// An error in a line.
    pub fn new(line: usize, text: impl Into<String>) -> SpecError {
        SpecError { line, text: text.into() }
    }
}

/// Reads a file's text, of either kind, for a volume of so many bytes.
pub fn parse(name: &str, text: &str, size_bytes: u64) -> Result<Spec, SpecError> {
    let first = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    match first.starts_with("Version ") || first.starts_with('\'') {
        true => iometer::parse(name, text, size_bytes),
        false => fio::parse(name, text, size_bytes),
    }
}
