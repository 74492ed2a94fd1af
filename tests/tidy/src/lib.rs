//! The repository's conventions as code: rules without exemption, and aims that are only reported.
//!
//! A rule is one file in `rules/` and one line in [`rules::ALL`].

pub mod aims;
pub mod licences;
pub mod rules;
pub mod source;

use std::fmt;

/// A line, or a whole file, that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Path from the repository's root.
    pub path: String,
    /// Line, counted from 1; 0 stands for the whole file.
    pub line: usize,
    /// The violation and its remedy.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.text)
    }
}
