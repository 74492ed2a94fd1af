//! Problems of a configuration, with location, fault and remedy. All problems of a file are found before any is shown.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Line in the file, from 1; 0 for the file as a whole.
    pub line: usize,
    /// Column in the line in characters, from 1.
    pub column: usize,
    /// The fault.
    #[serde(rename = "what")]
    pub fault: String,
    /// The remedy.
    pub remedy: String,
}

/// The text of a file with its problems; converts byte offsets to lines and columns.
pub struct Source<'a> {
    text: &'a str,
    problems: Vec<Problem>,
    /// Problems of backings that are absent now.
    backing_problems: Vec<Problem>,
}

impl<'a> Source<'a> {
    /// A source without problems.
    pub fn new(text: &'a str) -> Self {
        Source { text, problems: Vec::new(), backing_problems: Vec::new() }
    }

    /// Adds a problem of the text in `span`, a range of bytes.
    pub fn add_problem(&mut self, span: &Range<usize>, fault: impl Into<String>, remedy: impl Into<String>) {
        let problem = self.locate(span, fault.into(), remedy.into());
        self.problems.push(problem);
    }

    /// Adds a backing that is absent now and may appear later: a daemon refuses that volume alone.
    pub fn add_backing_problem(&mut self, span: &Range<usize>, fault: impl Into<String>, remedy: impl Into<String>) {
        let problem = self.locate(span, fault.into(), remedy.into());
        self.backing_problems.push(problem);
    }

    /// The absent backings, in the order of the file.
    pub fn take_backing_problems(&mut self) -> Vec<Problem> {
        std::mem::take(&mut self.backing_problems)
    }

    fn locate(&self, span: &Range<usize>, fault: String, remedy: String) -> Problem {
        let (line, column) = self.line_column(span.start);
        Problem { line, column, fault, remedy }
    }

    /// The line of a byte offset, for messages that refer to another line.
    pub fn line_of(&self, offset: usize) -> usize {
        self.line_column(offset).0
    }

    /// All problems, in the order of the file.
    pub fn into_problems(mut self) -> Vec<Problem> {
        self.problems.sort_by_key(|problem| (problem.line, problem.column));
        self.problems
    }

    fn line_column(&self, offset: usize) -> (usize, usize) {
        let mut end = offset.min(self.text.len());
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        let before = &self.text[..end];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }
}

/// A configuration that cannot be used, with all its problems.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problems {
    /// The file.
    pub file: PathBuf,
    /// At least one problem.
    pub problems: Vec<Problem>,
}

impl Problems {
    /// A problem with the file as a whole.
    pub fn of_file(file: &Path, fault: impl Into<String>, remedy: impl Into<String>) -> Self {
        let problem = Problem { line: 0, column: 0, fault: fault.into(), remedy: remedy.into() };
        Problems { file: file.to_owned(), problems: vec![problem] }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        for problem in &self.problems {
            match problem.line {
                0 => writeln!(f, "{file}: {}", problem.fault)?,
                line => writeln!(f, "{file}:{line}:{}: {}", problem.column, problem.fault)?,
            }
            writeln!(f, "    {}", problem.remedy)?;
        }
        let count = self.problems.len();
        write!(f, "{count} error{} in {file}", if count == 1 { "" } else { "s" })
    }
}
