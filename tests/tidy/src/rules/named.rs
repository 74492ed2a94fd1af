//! Rust files named by the map, the rules, the design pages and the decisions exist, as do functions and tests named by
//! the rules.

use std::collections::BTreeSet;

use super::{at, prose};
use crate::Violation;
use crate::source::Source;

/// Pages, or folders of pages, whose file names are checked.
const PAGES: [&str; 4] = ["ARCHITECTURE.md", "docs/rules.md", "docs/design/", "docs/decisions/"];
/// The page whose function names are checked.
const RULES: &str = "docs/rules.md";

/// Names of files and functions that do not exist.
pub fn check(sources: &[Source]) -> Vec<Violation> {
    let paths: BTreeSet<&str> = sources.iter().map(|source| source.path.as_str()).collect();
    let functions: BTreeSet<&str> =
        sources.iter().flat_map(|source| &source.code).filter_map(|line| name_of(line)).collect();
    let mut violations = Vec::new();
    for page in sources.iter().filter(|source| PAGES.iter().any(|start| source.path.starts_with(start))) {
        for (index, line) in prose(page) {
            for name in line.split('`').skip(1).step_by(2) {
                if name.contains('/') && name.ends_with(".rs") && !is_file(name, &paths) {
                    violations.push(at(page, index, format!("{name} does not exist")));
                } else if page.path == RULES && is_function(name) && !functions.contains(name) {
                    violations.push(at(page, index, format!("no function or test is named {name}")));
                }
            }
        }
    }
    violations
}

/// True for a path from the root, from `crates/`, or from `crates/` without the crate's `src`.
fn is_file(name: &str, paths: &BTreeSet<&str>) -> bool {
    let without_src = name.split_once('/').map(|(krate, rest)| format!("crates/{krate}/src/{rest}"));
    let candidates = [Some(name.to_owned()), Some(format!("crates/{name}")), without_src];
    candidates.iter().flatten().any(|path| paths.contains(path.as_str()))
}

/// True for a word that looks like a function name: several words in lower case.
fn is_function(name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.contains('_') && !name.starts_with('_') && name.chars().all(is_word)
}

/// Name of the function that begins on a line of code.
fn name_of(line: &str) -> Option<&str> {
    let (before, rest) = line.split_once("fn ")?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    (before.is_empty() || before.ends_with(' ')).then_some(&rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_do_not_exist_are_found() {
        let code = Source::new("crates/a/src/b.rs", "//! Head.\npub async fn do_it() {}\n");
        let count = |page: &str, text: &str| check(&[code.clone(), Source::new(page, text)]).len();
        for good in ["`crates/a/src/b.rs`", "`a/src/b.rs`", "`a/b.rs`", "`do_it` in `a/b.rs`", "`b.rs`"] {
            assert_eq!(count(RULES, good), 0, "{good}");
        }
        for bad in ["`a/c.rs`", "`undo_it`"] {
            assert_eq!(count(RULES, bad), 1, "{bad}");
        }
        assert_eq!(count("docs/design/x.md", "`a/c.rs` and `undo_it`"), 1);
        assert_eq!(count("docs/user/x.md", "`a/c.rs` and `undo_it`"), 0);
    }
}
